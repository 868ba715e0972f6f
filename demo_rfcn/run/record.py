# SPDX-License-Identifier: Apache-2.0
"""The history of a run, and the files in its folder."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from typing import Any

import mxnet as mx
import numpy as np

from .. import files
from ..data import resolve_location
from ..data.dataset import DetectionSet
from ..distributed.workers import Alone
from ..errors import CheckpointError, InputError
from ..model.detector import RFCN, TrainGraph
from ..progress import Progress
from ..settings import Settings
from . import checkpoint

LAST, BEST, SUMMARY = "last.ckpt", "best.ckpt", "summary.json"


class Record:
    """The losses and scores of a run, and its checkpoints.

    `step` is the number of finished steps, `losses` are those not yet in the history, and `writes`
    is False in all but one of several workers. Checkpoints are of `net` and `trainer`.
    """

    net: RFCN
    trainer: mx.gluon.Trainer

    def __init__(
        self, settings: Settings, workers: Alone, resumed: checkpoint.Checkpoint | None
    ) -> None:
        self.folder, self.writes = settings.run.save_prefix, workers.rank == 0
        self.step = resumed.step if resumed else 0
        self.losses: list[np.ndarray] = []
        self._settings, self._workers, self._loss = settings, workers, math.nan
        before = resumed.notes if resumed else {"best": None, "history": {"losses": [], "val": []}}
        self._notes: dict[str, Any] = {key: before[key] for key in ("best", "history")}
        self._notes.update(held_back=None, arguments=settings.to_dict())
        self._notes["location"] = resolve_location(vars(settings.data))
        self._notes["short"], self._notes["max_size"] = settings.data.scale

    def print(self, text: str) -> None:
        """Print a line, if this worker writes."""
        if self.writes:
            print(text)

    def open_folder(self, train_set: DetectionSet, val_set: DetectionSet) -> None:
        """Make the folder, and write down which images are held back from training."""
        if val_set.held_back:
            self._notes["held_back"] = [entry.name for entry in val_set.samples]
        if not self.writes:
            return
        files.prepare(self.folder)
        if self._settings.run.overwrite:
            for name in (LAST, BEST, SUMMARY, "history.json", "split.json"):
                (self.folder / name).unlink(missing_ok=True)
        if val_set.held_back:
            content = {name: self._notes["arguments"][name] for name in ("seed", "val_share")}
            content["held_back"] = self._notes["held_back"]
            content["trained_on"] = [entry.name for entry in train_set.samples]
            files.write_json(self.folder / "split.json", content)

    def write_losses(self, progress: Progress) -> None:
        """Move the losses of the last steps into the history, as one mean."""
        if not self.losses:
            return
        means = np.mean(self.losses, axis=0)
        self.losses.clear()
        row = {name: float(value) for name, value in zip(TrainGraph.LOSSES, means)}
        if not np.isfinite(means).all():
            raise InputError(f"train: a loss is not finite at step {self.step} ({row}); lower --lr")
        self._notes["history"]["losses"].append({"step": self.step, **row})
        self._loss = means.sum()
        self._show(progress)

    def write_scores(self, scores: dict, progress: Progress) -> None:
        """Write validation scores, the best detector so far and the last one."""
        map50, map75 = scores["map50"], scores["map75"]
        self._notes["history"]["val"].append({"step": self.step, "map50": map50, "map75": map75})
        if self._notes["best"] is None or map50 >= self._notes["best"]:
            self._notes["best"] = map50
            self.save(BEST)
            self._show(progress)
        self.save(LAST)
        files.write_json(self.folder / "history.json", self._notes["history"])
        progress.results(f"step {self.step}: mAP@.5 {map50:.3f}, mAP@.75 {map75:.3f}")

    def _show(self, progress: Progress) -> None:
        best = self._notes["best"]
        shown = "" if best is None else f", best mAP@.5 {best:.3f}"
        progress.set_postfix_str(f"loss {self._loss:.3f}{shown}", refresh=False)

    def save(self, name: str) -> None:
        """Write a checkpoint, if this worker writes."""
        if self.writes:
            notes = {"step": self.step, **self._notes}
            checkpoint.save(self.folder / name, self.net, self.trainer, notes)

    def hint(self) -> str:
        """Return how to continue from the last step."""
        if not self.writes:
            return "worker 0 keeps the checkpoint"
        return f"continue with --resume {self.folder / LAST} (step {self.step})"

    def rescue(self, first: int, progress: Progress) -> str:
        """Save the last step that all workers finished; return a message with its location."""
        if self.step == first:
            resume = self._settings.run.resume
            hint = f"continue with --resume {resume} (step {first})"
            return hint if resume else "no step had been finished"
        self._workers.restore()
        # Worker 0 may be the one that is lost. All others have the same weights, but a server that
        # is lost may have answered some workers only: these are a step ahead.
        until = time.monotonic() + min(5 * self._workers.rank, 15)
        kept = -2
        while not self.writes and kept - self.step not in (0, 1) and time.monotonic() < until:
            time.sleep(0.5)
            with suppress(CheckpointError):
                kept = checkpoint.read(self.folder / LAST).step
        self.writes = True
        if abs(kept - self.step) <= 1:
            self.step = kept
        else:
            self.write_losses(progress)
            self.save(LAST)
        return self.hint()
