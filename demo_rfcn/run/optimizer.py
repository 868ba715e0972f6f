# SPDX-License-Identifier: Apache-2.0
"""The optimizer, and mixed precision."""

from __future__ import annotations

import mxnet as mx
from mxnet.contrib import amp

from ..distributed.workers import Alone
from ..errors import InputError, reason
from ..model.detector import RFCN
from ..settings import Schedule

# In place of AMP's own lists, of which the one for bfloat16 breaks `full`. The network itself casts
# to float32 wherever a layer is neither a convolution nor fully connected.
AMP_OPERATORS: dict = {
    "target_precision_ops": ["Convolution", "FullyConnected"],
    "conditional_fp32_ops": [],
    "fp32_ops": [],
}


def start_amp(ctx: mx.Context) -> None:
    """Let convolutions and fully connected layers compute in 16 bits until the process ends.

    These are float16 on a GPU and bfloat16 on a CPU. Raises InputError if it has no such operators.
    """
    dtype = "float16" if ctx.device_type == "gpu" else "bfloat16"
    amp.init(dtype, **AMP_OPERATORS)
    ones = mx.nd.ones((1, 16, 8, 8), ctx=ctx)
    try:
        mx.nd.Convolution(ones, ones, no_bias=True, kernel=(8, 8), num_filter=1).wait_to_read()
    except mx.MXNetError as error:
        needed = f"--amp expects a device with {dtype} convolutions, and {ctx} has none"
        raise InputError(f"train: {needed}: {reason(error)}") from error


def make_trainer(schedule: Schedule, net: RFCN, workers: Alone) -> mx.gluon.Trainer:
    """Build the optimizer; each worker updates its own weights, the store only sums gradients."""
    rule = {"learning_rate": schedule.lr, "wd": schedule.wd}
    if schedule.optimizer == "sgd":
        rule["momentum"] = schedule.momentum
    if schedule.clip_gradient:
        rule["clip_gradient"] = schedule.clip_gradient
    for parameter in net.head.collect_params().values():
        parameter.lr_mult = schedule.head_lr_mult
    trainer = mx.gluon.Trainer(
        net.collect_params(),
        schedule.optimizer,
        rule,
        kvstore=workers.kvstore,
        update_on_kvstore=None if workers.kvstore is None else False,
    )
    if schedule.amp:
        amp.init_trainer(trainer)
    return trainer
