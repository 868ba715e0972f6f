# SPDX-License-Identifier: Apache-2.0
"""One step of training: devices, rate, optimizer, update, and the stream of batches."""

from __future__ import annotations

from collections.abc import Callable

import mxnet as mx
from mxnet.contrib import amp

from ..data.augment import Augmentation
from ..data.dataset import DetectionSet
from ..data.loader import Batch, TrainLoader
from ..errors import InputError, reason
from ..model import detector
from ..model.config import ModelConfig
from ..model.targets import RPNTargets
from . import devices
from .cluster import Alone
from .settings import Settings

# In place of AMP's own lists, of which the one for bfloat16 breaks `full`. The network itself casts
# to float32 whatever is not a convolution's or a fully connected layer's business.
AMP_OPERATORS: dict = {
    "target_precision_ops": ["Convolution", "FullyConnected"],
    "conditional_fp32_ops": [],
    "fp32_ops": [],
}


def contexts(settings: Settings) -> list[mx.Context]:
    """Return the devices of this process; each needs an image of every batch."""
    count = len(settings.gpus) or settings.cpus
    if settings.batch_size < count:
        raise InputError(
            f"train: --batch-size {settings.batch_size}, expected at least {count}, one per context"
        )
    return devices.contexts(settings.gpus, settings.cpus)


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
            f"{reason(error)}"
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
    settings: Settings, net: detector.RFCN, workers: Alone | None = None
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
    workers = workers or Alone()
    trainer = mx.gluon.Trainer(
        net.collect_params(),
        settings.optimizer,
        rule,
        kvstore=workers.kvstore,
        update_on_kvstore=None if workers.kvstore is None else False,
    )

    def share_weights() -> None:
        # By itself the trainer would fetch the first worker's weights within the first step, after
        # the backward pass. Nothing would order this before the exchange of gradients under the
        # same keys, and a worker may then get a gradient for a weight. The first forward pass waits
        # for a fetch that has begun before it.
        trainer._init_kvstore()
        trainer._init_params()
        mx.nd.waitall()

    workers.wait(share_weights, "for the weights of worker 0")
    return trainer


def train_step(
    graph: detector.TrainGraph,
    trainer: mx.gluon.Trainer,
    batch: Batch,
    ctx: list[mx.Context],
    batch_size: int,
    rate: float,
    exchange: Callable[[], None] | None = None,
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
    exchange : callable or None
        Sums the gradients of several workers; no parameter has changed before it returns.

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
    if exchange:
        exchange()
        trainer.update(batch_size)
    else:
        trainer.step(batch_size)
    return mx.nd.concat(*(loss.as_in_context(ctx[0]) for loss in losses), dim=1).mean(axis=1)


def make_loader(
    settings: Settings, config: ModelConfig, dataset: DetectionSet, rank: int, num_workers: int
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
