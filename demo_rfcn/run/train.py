# SPDX-License-Identifier: Apache-2.0
"""The training loop: reproducible from (seed, step), resumable, on one or several devices."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
from mxnet.contrib import amp

from .. import files
from ..data.dataset import DetectionSet
from ..data.loader import Batch
from ..errors import CheckpointError, InputError
from ..model import detector
from ..model.config import ModelConfig
from ..progress import Progress
from . import checkpoint, cluster, evaluate
from .cluster import Alone
from .log import LAST, RunLog
from .settings import Settings, options
from .sharded import evaluate_together, read_statistics, write_statistics
from .step import contexts, learning_rate, make_loader, make_trainer, start_amp, train_step
from .stop import StopRequest


class Interrupted(Exception):
    """Training was stopped by a signal after it had written a checkpoint."""


def check_files(settings: Settings) -> None:
    """Refuse files to begin with that are missing or something else, before the data is read.

    Raises
    ------
    InputError
    """
    for path in (settings.resume, settings.pretrained):
        if path:
            checkpoint.read_meta(path)
    if settings.pretrained_base and not Path(settings.pretrained_base).is_file():
        raise InputError(
            f"train: --pretrained-base file {settings.pretrained_base} is missing; "
            "gluoncv.model_zoo.get_model(NAME, pretrained=True) downloads one to ~/.mxnet/models"
        )


def run(settings: Settings, train_set: DetectionSet, val_set: DetectionSet) -> Path:
    """Train, or go on training, and return the folder of the run.

    `last.ckpt` and `best.ckpt` (highest mAP@.5 on the validation images) are written there, and
    `history.json` beside them. Everything random follows from (seed, step).

    Raises
    ------
    InputError
        Bad input, before any training.
    Interrupted
        A signal came; `last.ckpt` is of the step that had been finished.
    cluster.Lost
        Another worker died; `last.ckpt` is of the last step that all had finished.
    """
    config = settings.config(train_set.classes)
    meta: dict[str, Any] = {"step": 0, "best": None, "history": {"losses": [], "val": []}}
    resume = settings.resume
    if resume:
        meta = checkpoint.read_meta(resume)
        checkpoint.check_config(resume, meta["config"], config)
        used, wanted = meta["arguments"]["optimizer"], settings.optimizer
        if used != wanted:
            raise CheckpointError(
                f"checkpoint: {resume} is of another run: optimizer: {used}, not {wanted}"
            )
    ctx = contexts(settings)
    evaluate.check_annotated(val_set, settings.val_limit)
    with StopRequest() as stop:
        workers = cluster.join(settings.kv_store, len(ctx), stop)
        try:
            training = Training(settings, config, train_set, val_set, workers, ctx, stop)
            training.start(meta)
            try:
                training.loop()
            except Interrupted:
                with suppress(cluster.Lost):  # everybody stops: what is to be kept is kept
                    workers.close()
                raise
            workers.close()
        except cluster.Lost as error:
            raise cluster.Lost(f"train: worker {workers.rank} {error}") from error
    return settings.save_prefix


class NoBatch(Exception):
    """A batch cannot be made: an image is gone, say."""


def next_batch(batches: Iterator[Batch]) -> Batch:
    """Return the next batch.

    Raises
    ------
    NoBatch
    """
    try:
        return next(batches)
    except InputError as error:
        raise NoBatch(str(error)) from error


class Training:
    """A run of `train`, as this process has it."""

    def __init__(
        self,
        settings: Settings,
        config: ModelConfig,
        train_set: DetectionSet,
        val_set: DetectionSet,
        workers: Alone,
        ctx: list[mx.Context],
        stop: StopRequest,
    ) -> None:
        self._settings, self._val_set, self._ctx = settings, val_set, ctx
        self._workers, self._stop = workers, stop
        self._loader = make_loader(settings, config, train_set, workers.rank, workers.num_workers)
        if workers.rank == 0:
            files.prepare(settings.save_prefix)
            write_split(settings, train_set, val_set)
        resume, base = settings.resume, settings.pretrained_base
        self._net = detector.build(
            config, ctx, settings.seed, settings.freeze_bn, None if resume else base
        )
        if settings.amp:
            start_amp(ctx)
        self._graph = detector.TrainGraph(self._net, settings.rpn_num_sample, settings.ohem)
        self._graph.hybridize(static_alloc=True)
        self._detect = detector.Detector(self._net)
        self._detect.hybridize(static_alloc=True)

    def start(self, meta: dict) -> None:
        """Take over what a checkpoint holds, if there is one, and build the optimizer."""
        settings, workers = self._settings, self._workers
        if settings.resume:
            checkpoint.load_parameters(settings.resume, self._net)
        elif settings.pretrained:
            report = checkpoint.load_fitting(settings.pretrained, self._net)
            if workers.rank == 0:
                print(report)
        cluster.check_same_run(
            workers,
            step=meta["step"],
            batch_size=settings.batch_size,
            images=self._loader.images,
            arguments=_digest(settings),
        )
        self._trainer = make_trainer(settings, self._net, workers)
        if settings.amp:
            amp.init_trainer(self._trainer)
        if settings.resume:
            checkpoint.load_trainer(settings.resume, self._net, self._trainer, meta)
        state = {key: meta[key] for key in ("step", "best", "history")}
        state["arguments"] = settings.to_dict()
        state.update(short=settings.spec.short, max_size=settings.spec.max_size)
        if self._val_set.held_back:
            state["held_back"] = [entry.name for entry in self._val_set.entries]
        writes = workers.rank == 0
        self._statistics = read_statistics(self._net)
        self._log = RunLog(state, settings.save_prefix, self._net, self._trainer, writes)

    def loop(self) -> None:
        """Train until the last step, the time limit or a signal."""
        settings, log, shown = self._settings, self._log, self._workers.rank == 0
        first, started = log.state["step"], time.monotonic()
        batches = self._loader.batches(first)
        if shown:
            print(
                f"training on {self._loader.images} images, {self._loader.batch_size} a step, from "
                f"step {first} to {settings.steps}; the run is in {log.folder}"
            )
        with Progress(settings.steps, "training", "steps", first, shown) as progress:
            try:
                for step in range(first, settings.steps):
                    stops, late = self._step(step, next_batch(batches), started)
                    log.state["step"] = step + 1
                    progress.update()
                    final = step + 1 == settings.steps or late
                    if (step + 1) % settings.log_interval == 0 or final:
                        log.losses(progress)
                    if (step + 1) % settings.val_interval == 0 or final:
                        self._validate(progress)
                    if stops:
                        log.losses(progress)
                        log.save(LAST)
                        hint = self._hint() if log.writes else "worker 0 keeps the checkpoint"
                        raise Interrupted(
                            f"stopped after step {step + 1} of {settings.steps}; {hint}"
                        )
                    if final:
                        break
            except cluster.Lost as error:
                raise cluster.Lost(f"{error}; {self._rescued(first, progress)}") from error
            except NoBatch as error:
                raise InputError(f"{error}; {self._rescued(first, progress)}") from error

    def _step(self, step: int, batch: Batch, started: float) -> tuple[bool, bool]:
        """Do a step; return whether all workers stop after it, for a signal and for the time."""
        settings, workers, several = self._settings, self._workers, self._workers.num_workers > 1

        def wishes() -> np.ndarray:
            limit = settings.max_seconds or math.inf
            return np.array([self._stop.raised, time.monotonic() - started > limit], np.float32)

        agreed = None

        def exchange() -> None:
            nonlocal agreed
            workers.wait(self._sum_gradients, "for the gradients of the others")
            # The statistics are those of worker 0, whoever will write a checkpoint.
            own = read_statistics(self._net)
            own = own if workers.rank == 0 else np.zeros_like(own)
            agreed, self._statistics = np.split(workers.total(np.append(wishes(), own)), [2])

        mx.random.seed((settings.seed * 1_000_003 + step) % 2**31)
        self._log.pending.append(
            train_step(
                self._graph,
                self._trainer,
                batch,
                self._ctx,
                self._loader.batch_size,
                learning_rate(settings, step),
                exchange if several else None,
            )
        )
        if several:
            write_statistics(self._net, self._statistics)
        stops, late = (wishes() if agreed is None else agreed) > 0
        return bool(stops), bool(late)

    def _sum_gradients(self) -> None:
        self._trainer.allreduce_grads()
        mx.nd.waitall()

    def _validate(self, progress: Progress) -> None:
        settings = self._settings
        found = evaluate_together(
            self._workers,
            self._detect,
            self._val_set,
            (settings.spec.short, settings.spec.max_size),
            self._ctx[:1],  # each has statistics of its own
            settings.val_limit,
        )
        if found:
            self._log.scores(found, progress)

    def _rescued(self, first: int, progress: Progress) -> str:
        """Keep the last step that was finished, by all workers, and say where it is."""
        log, rank, resume = self._log, self._workers.rank, self._settings.resume
        if log.state["step"] == first:
            hint = f"go on with --resume {resume}, of step {first}"
            return hint if resume else "no step had been finished"
        if self._workers.num_workers > 1:
            write_statistics(self._net, self._statistics)
        # Worker 0 may be the one that is gone. All others have what it has.
        until = time.monotonic() + min(5 * rank, 15)
        while not log.writes and time.monotonic() < until:
            time.sleep(0.5)
            if self._is_written():
                return self._hint()
        log.writes = True
        log.losses(progress)
        log.save(LAST)
        return self._hint()

    def _is_written(self) -> bool:
        """Return whether the checkpoint of the last step is there."""
        path = self._log.folder / LAST
        with suppress(CheckpointError):
            return checkpoint.read_meta(path)["step"] == self._log.state["step"]
        return False

    def _hint(self) -> str:
        """Say how to go on from the last step."""
        return f"go on with --resume {self._log.folder / LAST}, of step {self._log.state['step']}"


def write_split(settings: Settings, train_set: DetectionSet, val_set: DetectionSet) -> None:
    """Write down which images were held back from training."""
    if val_set.held_back:
        content = {
            "seed": settings.seed,
            "val_share": settings.val_share,
            "held_back": [entry.name for entry in val_set.entries],
            "trained_on": [entry.name for entry in train_set.entries],
        }
        files.write_json(settings.save_prefix / "split.json", content)


def _digest(settings: Settings) -> int:
    """Return a number that tells apart the arguments of workers that are not on the same run."""
    values = settings.to_dict()
    common = [each.name for each in options() if each.compare]
    common += ["steps", "val_interval", "val_limit", "log_interval"]
    text = json.dumps({name: values[name] for name in common}, sort_keys=True)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:3], "big")
