# SPDX-License-Identifier: Apache-2.0
"""The history of a run, and the files that it writes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np

from .. import files
from ..errors import InputError
from ..model.detector import RFCN, TrainGraph
from ..progress import Progress
from . import checkpoint

LAST, BEST = "last.ckpt", "best.ckpt"


class RunLog:
    """The losses and scores of a run, and its checkpoints.

    Parameters
    ----------
    state : dict
        step, best, history, arguments; see `checkpoint.save`.
    folder : pathlib.Path
    net : detector.RFCN
    trainer : mxnet.gluon.Trainer
    writes : bool
        False in all but one of several workers.
    """

    def __init__(
        self,
        state: dict[str, Any],
        folder: Path,
        net: RFCN,
        trainer: mx.gluon.Trainer,
        writes: bool,
    ) -> None:
        self.state = state
        self.folder = folder
        self.writes = writes
        self.pending: list[mx.nd.NDArray] = []
        self._loss = math.nan
        self._net = net
        self._trainer = trainer

    def losses(self, progress: Progress) -> None:
        """Move the losses of the last steps from the device into the history, as one mean."""
        if not self.pending:
            return
        means = np.mean([losses.asnumpy() for losses in self.pending], axis=0)
        self.pending.clear()
        row = {name: float(v) for name, v in zip(TrainGraph.LOSSES, means)}
        if not np.isfinite(means).all():
            raise InputError(
                f"train: a loss is not finite at step {self.state['step']} ({row}); lower --lr"
            )
        self.state["history"]["losses"].append({"step": self.state["step"], **row})
        self._loss = means.sum()
        self._show(progress)

    def scores(self, scores: dict, progress: Progress) -> None:
        """Note validation scores, keep the best detector, write everything."""
        row = {"step": self.state["step"], "map50": scores["map50"], "map75": scores["map75"]}
        self.state["history"]["val"].append(row)
        if self.state["best"] is None or row["map50"] >= self.state["best"]:
            self.state["best"] = row["map50"]
            self.save(BEST)
            self._show(progress)
        self.save(LAST)
        files.write_json(self.folder / "history.json", self.state["history"])
        progress.write(f"step {row['step']}: mAP@.5 {row['map50']:.3f}, mAP@.75 {row['map75']:.3f}")

    def _show(self, progress: Progress) -> None:
        best = self.state["best"]
        shown = "" if best is None else f", best mAP@.5 {best:.3f}"
        progress.figures(f"loss {self._loss:.3f}{shown}")

    def save(self, name: str) -> None:
        """Write a checkpoint, if this worker writes."""
        if self.writes:
            checkpoint.save(self.folder / name, self._net, self._trainer, self.state)
