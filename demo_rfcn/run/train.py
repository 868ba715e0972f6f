# SPDX-License-Identifier: Apache-2.0
"""Training, from top to bottom; sections are those of the R-FCN paper, arXiv:1605.06409.

Everything random follows from (seed, step), so a resumed run equals an uninterrupted one.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from contextlib import nullcontext
from pathlib import Path

import mxnet as mx
from mxnet.contrib import amp

from ..data.dataset import DetectionSet
from ..data.loader import TrainLoader
from ..distributed import workers as distributed
from ..distributed.stop import StopRequest
from ..errors import CheckpointError, InputError, Interrupted, LostImage, reason
from ..model import detector
from ..model.detections import Finder
from ..model.detector import RFCN
from ..model.targets import RPNTargets
from ..progress import Progress
from ..settings import OPTIONS, Schedule, Settings
from . import checkpoint, evaluate
from .record import LAST, Record

# In place of AMP's own lists, of which the one for bfloat16 breaks `full`. The network itself casts
# to float32 wherever a layer is neither a convolution nor fully connected.
AMP_OPERATORS: dict = {
    "target_precision_ops": ["Convolution", "FullyConnected"],
    "conditional_fp32_ops": [],
    "fp32_ops": [],
}


def train(settings: Settings, train_set: DetectionSet, val_set: DetectionSet) -> None:
    """Train a detector, or continue; the run is in the folder `--save-prefix`.

    Raises InputError for bad input, before any training; Interrupted after a signal; Lost if
    another worker died. In the last two cases `last.ckpt` holds the last finished step.
    """
    data, model, schedule, run = settings.data, settings.model, settings.schedule, settings.run
    config = settings.config(train_set.classes)
    resumed = checkpoint.read(run.resume) if run.resume else None
    if resumed:
        resumed.check_config(config)
        if (used := resumed.arguments.get("optimizer")) != schedule.optimizer:
            why = f"is of another run: optimizer: {used}, not {schedule.optimizer}"
            raise CheckpointError(f"checkpoint: {run.resume} {why}")
    ctx = settings.devices.contexts()
    if (batch_size := settings.devices.batch_size) < len(ctx):
        expected = f"expected at least {len(ctx)}, one per context"
        raise InputError(f"train: --batch-size {batch_size}, {expected}")
    evaluate.check_annotated(val_set, run.val_limit)

    with StopRequest() as stop, distributed.join(run.kv_store, len(ctx), stop) as workers:
        # The images: scaled so that the short side has `short` pixels, mirrored at random (3).
        loader = TrainLoader(
            train_set,
            batch_size * workers.num_workers,
            data.scale,
            config.stride,
            RPNTargets(config.anchors, config.stride, schedule.rpn_num_sample),
            schedule.seed,
            schedule.flip_p,
            schedule.scale_jitter,
            schedule.color_jitter,
            workers.rank,
            workers.num_workers,
        )
        record = Record(settings, workers, resumed)
        record.open_folder(train_set, val_set)

        # The detector: a fully convolutional backbone, the RPN, and the position-sensitive score
        # maps with their vote (2). The training graph adds targets, losses and OHEM (2, Training).
        base = None if resumed else model.pretrained_base
        net = detector.build(config, ctx, schedule.seed, model.freeze_bn, base)
        if schedule.amp:
            start_amp(ctx[0])
        graph = detector.TrainGraph(net, schedule.rpn_num_sample, schedule.ohem)
        graph.hybridize(static_alloc=True)
        detect = detector.Detector(net)
        detect.hybridize(static_alloc=True)
        find = Finder(detect, data.scale, ctx[:1])
        if resumed:
            resumed.load_parameters(net)
        elif model.pretrained:
            record.print(checkpoint.read(model.pretrained).load_fitting(net))

        # The optimizer. All workers begin with the same weights.
        trainer = make_trainer(schedule, net, workers)
        same = {"step": record.step, "batch_size": batch_size, "images": len(train_set)}
        workers.start(net, trainer, **same, arguments=digest(settings))
        if resumed:
            resumed.load_optimizer(net, trainer)
        record.net, record.trainer = net, trainer

        first, started = record.step, time.monotonic()
        images = f"{len(train_set)} images of {train_set}, {loader.batch_size} a step"
        steps = f"{schedule.steps} steps = {schedule.steps / loader.steps_per_epoch:.3g} passes"
        where = f"from step {first}; the run is in {run.save_prefix}"
        record.print(f"training on {images}: {steps}, {where}")
        alone = stop.ends_at_once = workers.num_workers == 1
        stop.announcement = "stopping as soon as all workers agree"
        batches = loader.batches(first)
        with Progress(
            "training", "steps", total=schedule.steps, initial=first, disable=not record.writes
        ) as progress:
            try:
                for step in range(first, schedule.steps):
                    if alone:
                        stop.announcement = f"stopping after step {step + 1} of {schedule.steps}"
                    batch = next(batches)
                    parts = [mx.gluon.utils.split_and_load(p, ctx, even_split=False) for p in batch]

                    # Forward and backward: the four losses of each image, on each device.
                    mx.random.seed((schedule.seed * 1_000_003 + step) % 2**31)
                    with mx.autograd.record():
                        losses = [graph(*inputs) for inputs in zip(*parts)]
                        totals = [mx.nd.add_n(*each) for each in losses]
                        scaling = amp.scale_loss(totals, trainer) if schedule.amp else None
                        with scaling or nullcontext(totals) as scaled:
                            totals = scaled
                    mx.autograd.backward(totals)

                    # Update, with the gradients of all devices and workers.
                    elapsed = time.monotonic() - started
                    late = elapsed > (run.max_seconds or math.inf)
                    stops, late = workers.reduce(trainer, stop.raised, late)
                    trainer.set_learning_rate(schedule.rate(step))
                    trainer.update(loader.batch_size)

                    # This waits for the forward pass, before which the previous step has ended: so
                    # the progress is of finished steps, and at most two are queued.
                    stacked = [mx.nd.stack(*each).as_in_context(ctx[0]) for each in losses]
                    record.losses.append(mx.nd.concat(*stacked, dim=1).mean(axis=1).asnumpy())
                    record.step = step + 1
                    progress.reach(step)
                    stops |= alone and stop.raised

                    final = record.step == schedule.steps or late
                    if record.step % run.log_interval == 0 or final or stops:
                        record.write_losses(progress)
                    if record.step % run.val_interval == 0 or final:
                        scores = workers.evaluate(find, val_set, run.val_limit)
                        progress.reach(record.step)
                        if scores:
                            record.write_scores(scores, progress)
                    if stops:
                        record.save(LAST)
                        progress.reach(record.step)
                        done = f"step {record.step} of {schedule.steps}"
                        raise Interrupted(f"stopped after {done}; {record.hint()}")
                    if final:
                        break
            except (distributed.Lost, LostImage) as error:
                raise type(error)(f"{error}; {record.rescue(first, progress)}") from error


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


def make_trainer(schedule: Schedule, net: RFCN, workers: distributed.Alone) -> mx.gluon.Trainer:
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


def check_files(settings: Settings) -> None:
    """Reject missing or foreign files of the first weights before the data is read."""
    resume, base = settings.run.resume, settings.model.pretrained_base
    if first := resume or settings.model.pretrained:
        checkpoint.read(first)
    if base and not resume and not Path(base).is_file():
        raise InputError(
            f"train: --pretrained-base file {base} is missing; "
            "gluoncv.model_zoo.get_model(NAME, pretrained=True) downloads one to ~/.mxnet/models"
        )


def digest(settings: Settings) -> int:
    """Return a number that differs if workers have different arguments."""
    values = settings.to_dict()
    common = [name for name, each in OPTIONS.items() if not each.metadata["same_run"]]
    common += ["steps", "val_interval", "val_limit", "log_interval"]
    text = json.dumps({name: values[name] for name in common}, sort_keys=True)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:3], "big")
