# SPDX-License-Identifier: Apache-2.0
"""The surroundings of the training loop: folder, history, checkpoints, signals and workers."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np

from . import checkpoint, files
from .checkpoint import Checkpoint
from .config import BEST, LAST, NOT_INHERITED, SAME_RUN, Settings
from .data.dataset import DetectionSet, plural
from .data.loader import TrainLoader
from .data.splits import images_of_run
from .distributed import workers as distributed
from .distributed.stop import StopRequest
from .distributed.workers import Lost, Workers
from .errors import InputError, Interrupted, LostImage
from .losses import TrainGraph
from .metrics import describe_images
from .model import RFCN
from .progress import Progress
from .provenance import data_record
from .report.page import remove_report

HISTORY, SPLIT = "history.json", "split.json"
# Keys of the JSON files in a run's folder: one with other content is a user's.
KEYS = {HISTORY: ("losses", "val"), SPLIT: ("held_back", "trained_on")}


class Run:
    """A run around its loop: `steps` counts, other methods keep what results.

    `first` is the step at which this process starts, `step` the number of finished steps. Of
    several workers, the one that `writes` keeps the files. `net` and `trainer` are set by `begin`.
    """

    net: RFCN
    trainer: mx.gluon.Trainer

    def __init__(
        self,
        settings: Settings,
        workers: Workers,
        stop: StopRequest,
        resumed: Checkpoint | None,
        pretrained: Checkpoint | None,
        train_set: DetectionSet,
        val_set: DetectionSet,
    ) -> None:
        self.settings, self.workers, self.stop = settings, workers, stop
        self.folder, self.writes = settings.output.save_prefix, workers.rank == 0
        self.num_steps = settings.schedule.steps
        self.resumed = resumed
        self.step = self.first = resumed.step if resumed else 0
        self.best = resumed.best if resumed else None
        self.history = resumed.history if resumed else {"losses": [], "val": []}
        self.losses = [np.array(row, np.float32) for row in resumed.pending] if resumed else []
        self.out_of_time = self.must_stop = self.is_best = False
        self.data = data_record(settings.data, train_set)
        first = resumed or pretrained
        before = first.images if first else None
        self.images = images_of_run(self.data["location"], train_set, val_set, before)
        self.trained_on = [sample.name for sample in train_set.samples]
        self._loss, self._started, self._written = math.nan, time.monotonic(), {SPLIT}
        self.is_single_worker = stop.ends_at_once = workers.num_workers == 1
        self.progress = Progress("training", "steps", total=self.num_steps, disable=True)

    def make_folder(self) -> None:
        """Make the folder of the run, and refuse one in which nothing can be written."""
        if self.writes:
            files.prepare(self.folder)

    def begin(self, net: RFCN, trainer: mx.gluon.Trainer, loader: TrainLoader) -> None:
        """Give all workers the weights of the first one, and print what is trained."""
        self.net, self.trainer = net, trainer
        images, batch_size = len(loader.dataset), self.settings.devices.batch_size
        equal = {"step": self.step, "batch_size": batch_size, "images": images}
        self.workers.start(net, trainer, **equal, options=digest(self.settings))
        what = f"{plural(images, 'image')} of {loader.dataset}, {loader.batch_size} per step"
        steps = f"{self.num_steps} steps = {self.num_steps / loader.steps_per_epoch:.3g} passes"
        where = f"from step {self.first}; the run is in {self.folder}"
        self.print(f"training on {what}: {steps}, {where}")
        for change in self._changes():
            self.print(f"changed: {change}")
        schedule = self.settings.schedule
        if schedule.warmup_steps < schedule.lr_warmup:
            warmup = f"--lr-warmup {schedule.lr_warmup} -> {schedule.warmup_steps}"
            self.print(f"changed: {warmup}, because --steps is {schedule.steps}")

    def _changes(self) -> list[str]:
        """Return what is different since the checkpoint of a resumed run."""
        if not self.resumed:
            return []
        stored, now = self.resumed.arguments, self.settings.to_dict()
        names = [n for n in now if n in stored and n not in NOT_INHERITED and stored[n] != now[n]]
        changes = [
            f"--{n.replace('_', '-')} {_typed(stored[n])} -> {_typed(now[n])}" for n in names
        ]
        if self.resumed.data["digest"] != self.data["digest"]:
            changes.append("the training images or their boxes")
        return changes

    def print(self, text: str) -> None:
        """Print a line, if this worker writes."""
        if self.writes:
            print(text)

    def steps(self) -> Iterator[int]:
        """Yield each step, until the last one, --max-seconds or a signal."""
        self._started = time.monotonic()
        self.stop.announcement = "stopping as soon as all workers agree"
        self.progress = Progress(
            "training", "steps", total=self.num_steps, initial=self.first, disable=not self.writes
        )
        for step in range(self.first, self.num_steps):
            if self.is_single_worker:
                self.stop.announcement = f"stopping after step {step + 1} of {self.num_steps}"
            yield step
            if self.must_stop:
                self.progress.reach(self.step)
                done = f"step {self.step} of {self.num_steps}"
                raise Interrupted(f"stopped after {done}; {self.hint()}")
            if self.out_of_time:
                break

    def sum_gradients(self, trainer: mx.gluon.Trainer) -> None:
        """Sum the gradients of all devices and workers, which agree on when to stop."""
        limit = self.settings.output.max_seconds
        late = limit is not None and time.monotonic() - self._started > limit
        self.must_stop, self.out_of_time = self.workers.sum_gradients(
            trainer, self.stop.raised, late
        )

    def finish_step(self, losses: list[list[mx.nd.NDArray]]) -> None:
        """Add the losses of a step, the four of each device, to the history.

        This waits for the forward pass, before which the previous step has ended: so the progress
        is of finished steps, and at most two are queued. If the parameters are read next, it waits
        for the whole step (see `networks.train_graph`). Raises InputError if a loss is not finite.
        """
        ctx = losses[0][0].context
        stacked = [mx.nd.stack(*each).as_in_context(ctx) for each in losses]
        means = mx.nd.concat(*stacked, dim=1).mean(axis=1).asnumpy()
        if not np.isfinite(means).all():
            row = dict(zip(TrainGraph.LOSSES, map(float, means)))
            raise InputError(
                f"train: a loss is not finite at step {self.step + 1} ({row}); lower --lr"
            )
        self.losses.append(means)
        self.progress.reach(self.step)
        self.step += 1
        self.must_stop |= self.is_single_worker and self.stop.raised
        if self.step % self.settings.output.log_interval == 0 or self.is_last:
            self._write_losses()
        if self.saves:
            mx.nd.waitall()

    @property
    def is_last(self) -> bool:
        """Whether the last step is done."""
        return self.step == self.num_steps or self.out_of_time

    @property
    def validates(self) -> bool:
        """Whether this worker evaluates the detector after this step."""
        due = self.step % self.settings.output.val_interval == 0 or self.is_last
        return due and self.writes

    @property
    def saves(self) -> bool:
        """Whether this worker writes the last checkpoint after this step."""
        return self.validates or (self.must_stop and self.writes)

    def add_scores(self, scores: dict[str, Any]) -> None:
        """Add validation scores to the history, and print them."""
        self.progress.reach(self.step)
        map50, map75 = scores["map50"], scores["map75"]
        row = {"step": self.step, "map50": map50, "map75": map75}
        if scores["trained_on"]:
            row["trained_on"] = scores["trained_on"]
        self.history["val"].append(row)
        self.is_best = self.best is None or map50 >= self.best
        if self.is_best:
            self.best = map50
            self._describe()
        figures = f"mAP@0.5 {map50:.3f}, mAP@0.75 {map75:.3f}"
        on = f" on {describe_images(scores)}" if scores["trained_on"] else ""
        self.progress.results(f"step {self.step}: {figures}{on}")

    def save(self, name: str) -> None:
        """Write a checkpoint, and with the last one the history and the split of the images."""
        arguments = self.settings.to_dict()
        short, max_size = self.settings.data.scale
        notes = {
            "step": self.step,
            "arguments": arguments,
            "short": short,
            "max_size": max_size,
            "best": self.best,
            "history": self.history,
            "pending": [row.tolist() for row in self.losses],
            "held_back": self.images.held_back,
            "trained_on": self.images.trained_on,
            "data": self.data,
        }
        checkpoint.save(self.folder / name, self.net, self.trainer, notes)
        self._written.add(name)
        if name == LAST:
            files.write_json(self.folder / HISTORY, self.history)
            self._written.add(HISTORY)
            if self.images.held_back:
                split = {key: arguments[key] for key in ("seed", "val_share")}
                held_back = [key.name for key in self.images.held_back]
                split.update(held_back=held_back, trained_on=self.trained_on)
                files.write_json(self.folder / SPLIT, split)
            self._remove_replaced()

    def _remove_replaced(self) -> None:
        """Remove what is left of a run that --overwrite has replaced."""
        if not self.settings.output.overwrite or continues(self.settings, self.resumed):
            return
        remove_report(self.folder)
        kept = self._written if self.images.held_back else self._written - {SPLIT}
        for name in (HISTORY, SPLIT):
            if name not in kept and is_written_by_run(self.folder / name):
                (self.folder / name).unlink()
        best = self.folder / BEST
        if BEST not in kept and best.exists() and not self._is_of_this_run(checkpoint.read(best)):
            best.unlink()

    def _is_of_this_run(self, other: Checkpoint) -> bool:
        """Return whether a checkpoint in the folder is an earlier state of the resumed run."""
        earlier = other.history["val"]
        return bool(earlier) and earlier == self.history["val"][: len(earlier)]

    def _write_losses(self) -> None:
        """Add the mean losses of the last steps to the history."""
        means = np.mean(self.losses, axis=0)
        self.losses.clear()
        row = {name: float(value) for name, value in zip(TrainGraph.LOSSES, means)}
        self.history["losses"].append({"step": self.step, **row})
        self._loss = float(means.sum())
        self._describe()

    def _describe(self) -> None:
        best = "" if self.best is None else f", best mAP@0.5 {self.best:.3f}"
        self.progress.set_postfix_str(f"loss {self._loss:.3f}{best}", refresh=False)

    def hint(self) -> str:
        """Return how to continue from the last step."""
        if not self.writes:
            return "worker 0 writes the checkpoint"
        return f"continue with --resume {self.folder / LAST} (step {self.step})"

    def save_after_loss(self) -> str:
        """Save the last step that all workers finished; return a message with its location."""
        if self.step == self.first:
            hint = f"continue with --resume {self.resumed.path}" if self.resumed else ""
            return f"{hint} (step {self.first})" if hint else "no step had been finished"
        self.workers.restore()
        if self.writes:
            self.save(LAST)
        return self.hint()


def _typed(value: Any) -> str:
    """Return the value of an option as a user types it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


@contextmanager
def open_run(
    settings: Settings,
    train_set: DetectionSet,
    val_set: DetectionSet,
    resumed: Checkpoint | None = None,
    pretrained: Checkpoint | None = None,
) -> Iterator[Run]:
    """Yield a run of which this process is a worker; end it with a valid checkpoint.

    Raises Interrupted after a signal, Lost if another worker died, LostImage if an image can no
    longer be read. The message names `last.ckpt`, which then holds the last finished step.
    """
    devices = len(settings.devices.contexts())
    with StopRequest() as stop, distributed.join(
        settings.output.kv_store, devices, stop
    ) as workers:
        run = Run(settings, workers, stop, resumed, pretrained, train_set, val_set)
        try:
            yield run
        except (Lost, LostImage) as error:
            raise type(error)(f"{error}; {run.save_after_loss()}") from error
        finally:
            run.progress.close()


def check_folder(settings: Settings, resumed: Checkpoint | None) -> None:
    """Refuse a folder with another run, unless it is to be replaced, or with files of a user."""
    folder = settings.output.save_prefix
    for name in (HISTORY, SPLIT):
        if (folder / name).exists() and not is_written_by_run(folder / name):
            other = f"{folder / name} was not written by a run of demo_rfcn"
            raise InputError(f"train: {other}; choose another --save-prefix")
    present = [folder / name for name in (LAST, BEST) if (folder / name).exists()]
    if not present or continues(settings, resumed):
        return
    stored = [checkpoint.read(path) for path in present]  # a foreign file is not replaced
    if not settings.output.overwrite:
        what = f"a run of {stored[0].step} steps"
        raise InputError(f"train: {folder} has {what}: --resume {present[0]}, or --overwrite")


def continues(settings: Settings, resumed: Checkpoint | None) -> bool:
    """Return whether a run goes on in its own folder, from its last checkpoint."""
    if resumed is None:
        return False
    folder, path = settings.output.save_prefix.resolve(), resumed.path.resolve()
    last = folder / LAST
    return path == last or (path.parent == folder and not last.exists())


def is_written_by_run(path: Path) -> bool:
    """Return whether a JSON file in a run's folder is one that a run writes."""
    return files.is_json_of(path, *KEYS[path.name])


def digest(settings: Settings) -> int:
    """Return a number below 2**24 that differs if workers have different options."""
    values = settings.to_dict()
    names = [name for name in values if name not in SAME_RUN]
    names += ["steps", "val_interval", "val_limit", "log_interval"]
    text = json.dumps({name: values[name] for name in sorted(names)})
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:3], "big")
