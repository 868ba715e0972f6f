"""The training loop: reproducible from (seed, step), resumable, on one or several devices."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
from mxnet.contrib import amp
from tqdm import tqdm

from .. import files
from ..data import Dataset
from ..data.augment import Augmentation
from ..data.loader import Batch, TrainLoader
from ..errors import CheckpointError, InputError
from ..model import detector
from ..model.config import ModelConfig
from ..model.targets import RPNTargets
from . import checkpoint, evaluate
from .settings import Settings

CLUSTER = ("ROLE", "PS_ROOT_URI", "PS_ROOT_PORT", "NUM_SERVER", "NUM_WORKER")
LAST, BEST = "last.ckpt", "best.ckpt"

# In place of AMP's own lists, of which the one for bfloat16 breaks `full`. The network itself casts
# to float32 whatever is not a convolution's or a fully connected layer's business.
AMP_OPERATORS: dict = {
    "target_precision_ops": ["Convolution", "FullyConnected"],
    "conditional_fp32_ops": [],
    "fp32_ops": [],
}


class Interrupted(Exception):
    """Training was stopped by a signal after it had written a checkpoint."""


class StopRequest:
    """Turns SIGINT and SIGTERM into a flag, so that a step is never cut in two."""

    def __enter__(self) -> StopRequest:
        self.raised = False
        self._previous = {
            number: signal.signal(number, self._raise) for number in (signal.SIGINT, signal.SIGTERM)
        }
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _raise(self, *_: object) -> None:
        self.raised = True


def contexts(settings: Settings) -> list[mx.Context]:
    """Return the devices of this process: the GPUs that are named, or that many CPU contexts."""
    count = len(settings.gpus) or settings.cpus
    if settings.batch_size < count:
        raise InputError(
            f"train: --batch-size {settings.batch_size}, expected at least {count}, one per context"
        )
    if settings.gpus:
        present = mx.context.num_gpus()
        for number in settings.gpus:
            if number >= present:
                raise InputError(f"train: --gpus {number}, but MXNet sees {present} GPUs")
        return [mx.gpu(number) for number in settings.gpus]
    return [mx.cpu(number) for number in range(settings.cpus)]


def make_kvstore(settings: Settings, ctx: list[mx.Context]) -> mx.kv.KVStore | None:
    """Return what sums the gradients of several contexts or machines; None for one context."""
    if settings.kv_store.startswith("dist"):
        missing = [f"DMLC_{name}" for name in CLUSTER if f"DMLC_{name}" not in os.environ]
        if missing:
            raise InputError(
                f"train: --kv-store {settings.kv_store} expects MXNet's environment variables of a "
                f"cluster; not set: {', '.join(missing)}"
            )
    elif len(ctx) == 1:
        return None
    return mx.kv.create(settings.kv_store)


def start_amp(ctx: list[mx.Context]) -> None:
    """Let convolutions and fully connected layers compute in 16 bits until the process ends.

    In float16 on a GPU; in bfloat16 on a CPU, for which MXNet has no convolution in float16.

    Raises
    ------
    InputError
        The device has no such convolution.
    """
    dtype = "float16" if ctx[0].device_type == "gpu" else "bfloat16"
    amp.init(dtype, **AMP_OPERATORS)
    ones = mx.nd.ones((1, 16, 8, 8), ctx=ctx[0])
    try:
        mx.nd.Convolution(ones, ones, no_bias=True, kernel=(8, 8), num_filter=1).wait_to_read()
    except mx.MXNetError as error:
        raise InputError(
            f"train: --amp expects a device with {dtype} convolutions, and {ctx[0]} has none: "
            f"{str(error).strip().splitlines()[-1]}"
        ) from error


def learning_rate(settings: Settings, step: int) -> float:
    """Return the rate of a step: a linear warm-up, then half a cosine or steps.

    The cosine ends at a hundredth of the highest rate; with `--lr-mode step` the rate is multiplied
    by lr_decay at every step of lr_decay_steps.
    """
    warmup = {
        "base_lr": settings.lr,
        "warmup_steps": min(settings.lr_warmup, settings.steps - 1),
        "warmup_begin_lr": settings.lr / 10,
    }
    if settings.lr_mode == "cosine":
        final = settings.lr / 100
        return mx.lr_scheduler.CosineScheduler(settings.steps, final_lr=final, **warmup)(step)
    steps = settings.lr_decay_steps or [max(settings.steps * 2 // 3, 1)]
    return mx.lr_scheduler.MultiFactorScheduler(steps, factor=settings.lr_decay, **warmup)(step)


def make_trainer(
    settings: Settings, net: detector.RFCN, kvstore: mx.kv.KVStore | None
) -> mx.gluon.Trainer:
    """Build the optimizer; the updates are done here, the key-value store only sums gradients.

    Every worker of a distributed store has the first one's weights from here on.
    """
    rule = {"learning_rate": settings.lr, "wd": settings.wd}
    if settings.optimizer == "sgd":
        rule["momentum"] = settings.momentum
    if settings.clip_gradient:
        rule["clip_gradient"] = settings.clip_gradient
    for parameter in net.head.collect_params().values():
        parameter.lr_mult = settings.head_lr_mult
    update = None if kvstore is None else False
    trainer = mx.gluon.Trainer(
        net.collect_params(), settings.optimizer, rule, kvstore=kvstore, update_on_kvstore=update
    )
    # By itself the trainer would fetch the first worker's weights within the first step, after the
    # backward pass. Nothing would order this before the exchange of gradients under the same keys,
    # and a worker may then get a gradient for a weight. The first forward pass waits for a fetch
    # that has begun before it.
    trainer._init_kvstore()
    trainer._init_params()
    return trainer


def train_step(
    graph: detector.TrainGraph,
    trainer: mx.gluon.Trainer,
    batch: Batch,
    ctx: list[mx.Context],
    batch_size: int,
    rate: float,
) -> mx.nd.NDArray:
    """Do one update.

    Parameters
    ----------
    graph : detector.TrainGraph
    trainer : mxnet.gluon.Trainer
    batch : data.loader.Batch
        The part of this process; it is divided among the contexts.
    ctx : list of mxnet.Context
    batch_size : int
        Images of all processes together, the divisor of the gradients.
    rate : float
        Learning rate.

    Returns
    -------
    mxnet.nd.NDArray
        (4,) mean losses of this process in the order of TrainGraph.LOSSES, on the first context;
        nothing waits for them.
    """
    trainer.set_learning_rate(rate)
    parts = [mx.gluon.utils.split_and_load(part, ctx, even_split=False) for part in batch]
    totals, losses = [], []
    with mx.autograd.record():
        for inputs in zip(*parts):
            outputs = graph(*inputs)
            totals.append(mx.nd.add_n(*outputs))
            losses.append(mx.nd.stack(*outputs))
        if hasattr(trainer, "_amp_loss_scaler"):
            with amp.scale_loss(totals, trainer) as scaled:
                totals = scaled
    mx.autograd.backward(totals)
    trainer.step(batch_size)
    return mx.nd.concat(*(loss.as_in_context(ctx[0]) for loss in losses), dim=1).mean(axis=1)


def make_loader(
    settings: Settings, config: ModelConfig, dataset: Dataset, rank: int, num_workers: int
) -> TrainLoader:
    """Build the stream of batches of one of several workers."""
    return TrainLoader(
        dataset,
        settings.batch_size * num_workers,
        settings.spec.short,
        settings.spec.max_size,
        config.stride,
        Augmentation(settings.flip_p, settings.scale_jitter, settings.color_jitter),
        RPNTargets(config.anchors, config.stride, settings.rpn_num_sample),
        settings.seed,
        rank,
        num_workers,
    )


def run(settings: Settings, train_set: Dataset, val_set: Dataset) -> Path:
    """Train, or go on training, and return the folder of the run.

    `last.ckpt` and `best.ckpt` (highest mAP@.5 on the validation images) are written there, and
    `history.json` beside them. Everything random follows from (seed, step).

    Raises
    ------
    InputError
        Bad input, before any training.
    Interrupted
        A signal came; `last.ckpt` is of the step that had been finished.
    """
    config = settings.config
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
    if settings.pretrained_base and not Path(settings.pretrained_base).is_file():
        raise InputError(f"train: --pretrained-base file {settings.pretrained_base} is missing")
    ctx = contexts(settings)
    evaluate.check_annotated(val_set, settings.val_images)
    kvstore = make_kvstore(settings, ctx)
    rank, num_workers = (kvstore.rank, kvstore.num_workers) if kvstore else (0, 1)
    loader = make_loader(settings, config, train_set, rank, num_workers)
    if rank == 0:
        files.prepare(settings.save_prefix)

    net = detector.build(config, ctx, settings.seed, settings.freeze_bn, settings.pretrained_base)
    if settings.amp:
        start_amp(ctx)
    graph = detector.TrainGraph(net, settings.rpn_num_sample, settings.ohem)
    graph.hybridize(static_alloc=True)
    detect = detector.Detector(net)
    detect.hybridize(static_alloc=True)
    if resume:
        checkpoint.load_parameters(resume, net)
    trainer = make_trainer(settings, net, kvstore)
    if settings.amp:
        amp.init_trainer(trainer)
    if resume:
        checkpoint.load_trainer(resume, net, trainer, meta)
    state = {key: meta[key] for key in ("step", "best", "history")}
    state["arguments"] = settings.to_dict()
    state.update(short=settings.spec.short, max_size=settings.spec.max_size)
    log = RunLog(state, settings.save_prefix, net, trainer, writes=rank == 0)
    _loop(settings, graph, detect, trainer, loader, val_set, log, ctx)
    return log.folder


def _loop(
    settings: Settings,
    graph: detector.TrainGraph,
    detect: detector.Detector,
    trainer: mx.gluon.Trainer,
    loader: TrainLoader,
    val_set: Dataset,
    log: RunLog,
    ctx: list[mx.Context],
) -> None:
    first = log.state["step"]
    started = time.monotonic()
    bar = tqdm(total=settings.steps, initial=first, desc="training", unit="step", mininterval=1)
    with StopRequest() as stop, bar:
        for step, batch in zip(range(first, settings.steps), loader.batches(first)):
            mx.random.seed((settings.seed * 1_000_003 + step) % 2**31)
            rate = learning_rate(settings, step)
            log.pending.append(train_step(graph, trainer, batch, ctx, loader.batch_size, rate))
            log.state["step"] = step + 1
            bar.update()
            late = settings.max_seconds and time.monotonic() - started > settings.max_seconds
            final = step + 1 == settings.steps or late
            if (step + 1) % settings.log_interval == 0 or final:
                log.losses(bar)
            if log.writes and ((step + 1) % settings.val_interval == 0 or final):
                spec = settings.spec
                log.scores(
                    evaluate.evaluate(
                        detect, val_set, spec.short, spec.max_size, ctx[0], settings.val_images
                    ),
                    bar,
                )
            if stop.raised:
                log.losses(bar)
                log.save(LAST)
                raise Interrupted(
                    f"stopped after step {step + 1} of {settings.steps}; go on with "
                    f"--resume {log.folder / LAST}"
                )
            if final:
                break


class RunLog:
    """What a run remembers, and the files that it leaves.

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
        net: detector.RFCN,
        trainer: mx.gluon.Trainer,
        writes: bool,
    ) -> None:
        self.state = state
        self.folder = folder
        self.writes = writes
        self.pending: list[mx.nd.NDArray] = []
        self._net = net
        self._trainer = trainer

    def losses(self, bar: tqdm) -> None:
        """Move the losses of the last steps from the device into the history, as one mean."""
        if not self.pending:
            return
        means = np.mean([losses.asnumpy() for losses in self.pending], axis=0)
        self.pending.clear()
        row = {name: float(v) for name, v in zip(detector.TrainGraph.LOSSES, means)}
        if not np.isfinite(means).all():
            raise InputError(
                f"train: a loss is not finite at step {self.state['step']} ({row}); lower --lr"
            )
        self.state["history"]["losses"].append({"step": self.state["step"], **row})
        bar.set_postfix(loss=f"{means.sum():.3f}", best=f"{self.state['best'] or 0:.3f}")

    def scores(self, scores: dict, bar: tqdm) -> None:
        """Note validation scores, keep the best detector, write everything."""
        row = {"step": self.state["step"], "map50": scores["map50"], "map75": scores["map75"]}
        self.state["history"]["val"].append(row)
        bar.write(f"step {row['step']}: mAP@.5 {row['map50']:.3f}, mAP@.75 {row['map75']:.3f}")
        if self.state["best"] is None or row["map50"] >= self.state["best"]:
            self.state["best"] = row["map50"]
            self.save(BEST)
        self.save(LAST)
        files.write_json(self.folder / "history.json", self.state["history"])

    def save(self, name: str) -> None:
        """Write a checkpoint, if this worker writes."""
        if self.writes:
            checkpoint.save(self.folder / name, self._net, self._trainer, self.state)
