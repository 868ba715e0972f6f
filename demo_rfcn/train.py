# SPDX-License-Identifier: Apache-2.0
"""Training, from top to bottom; sections refer to the R-FCN paper, arXiv:1605.06409.

Everything random follows from (seed, step), so a resumed run equals an uninterrupted one. What
surrounds the loop, such as signals, the history and other workers, is in `run.py`.
"""

from __future__ import annotations

import mxnet as mx

from . import networks
from .checkpoint import Checkpoint
from .config import BEST, LAST, Schedule, Settings
from .data.dataset import DetectionSet
from .data.loader import TrainLoader
from .losses import RPNLoss, RPNTargets
from .metrics import evaluate
from .model import RFCN, ModelConfig
from .predictor import Predictor
from .run import open_run


def train(
    settings: Settings,
    train_set: DetectionSet,
    val_set: DetectionSet,
    resumed: Checkpoint | None = None,
    pretrained: Checkpoint | None = None,
) -> None:
    """Train a detector, or continue a run; its files are in the folder --save-prefix.

    Raises InputError if a loss or a parameter is not finite; see also `run.open_run`.
    """
    data, model, schedule = settings.data, settings.model, settings.schedule
    config = settings.model_config(train_set.classes, start=resumed or pretrained)
    if resumed:
        resumed.check_config(config)
    ctx = settings.devices.contexts()

    with open_run(settings, train_set, val_set, resumed, pretrained) as run:
        # The images, scaled to a short side of `--short` pixels and mirrored at random (section 3).
        rank, num_workers = run.workers.rank, run.workers.num_workers
        loader = make_loader(settings, config, train_set, rank, num_workers)
        run.make_folder()

        # The detector: a fully convolutional backbone, the RPN, and the position-sensitive score
        # maps with their vote (section 2). The training graph adds targets, losses and OHEM.
        # --pretrained-base is a classifier for the backbone, --pretrained a detector; a resumed run
        # gets its weights from its checkpoint instead.
        pretrained_base = None if resumed else model.pretrained_base
        net = networks.build(config, ctx, schedule.seed, model.freeze_bn, pretrained_base)
        rpn_loss = RPNLoss(schedule.rpn_num_sample)
        roi_loss = networks.roi_loss(schedule.ohem, schedule.roi_num_sample)
        # Several devices or workers share the statistics of batch normalisation in every step.
        static_shape = run.is_single_worker and len(ctx) == 1
        graph = networks.train_graph(net, rpn_loss, roi_loss, static_shape)
        is_random = networks.draws_random_numbers(graph)
        # Validation refines boxes by box voting (arXiv:1505.01749), which is not in the paper.
        detector = networks.detector(net, voting=True)
        predictor = Predictor(detector, data.scale, ctx[:1])
        if pretrained:
            run.print(pretrained.load_fitting(net))
        trainer = make_trainer(schedule, net, run.workers.kvstore)

        # Resume: weights, optimizer and step come from the checkpoint.
        if resumed:
            resumed.load(net, trainer)
        run.begin(net, trainer, loader)  # shares the weights of the first worker

        for step, batch in zip(run.steps(), loader.batches(run.first)):
            # The random numbers that some variants draw follow from the step.
            if is_random:
                mx.random.seed((schedule.seed * 1_000_003 + step) % 2**31)

            # Forward: the four losses of each image; each device gets its share of the images.
            parts = [mx.gluon.utils.split_and_load(array, ctx, even_split=False) for array in batch]
            with mx.autograd.record():
                losses = [graph(*parts_of_device) for parts_of_device in zip(*parts)]
                totals = [mx.nd.add_n(*four_losses) for four_losses in losses]

            # Backward.
            mx.autograd.backward(totals)

            # Update, with the sum of the gradients of all devices and workers.
            run.sum_gradients(trainer)
            trainer.set_learning_rate(schedule.rate(step))
            trainer.update(loader.batch_size)
            run.finish_step(losses)

            # Validation, and the checkpoints of the best detector so far and of the last step.
            if run.validates:
                run.add_scores(evaluate(predictor, val_set, settings.output.val_limit))
                if run.is_best:
                    run.save(BEST)
            if run.saves:
                run.save(LAST)


def make_loader(
    settings: Settings, config: ModelConfig, train_set: DetectionSet, rank: int, num_workers: int
) -> TrainLoader:
    """Make the stream of batches, of which each worker gets its share."""
    schedule = settings.schedule
    return TrainLoader(
        train_set,
        batch_size=settings.devices.batch_size * num_workers,
        scale=settings.data.scale,
        size_divisor=config.stride,
        rpn_targets=RPNTargets(config.anchors, config.stride, schedule.rpn_num_sample),
        seed=schedule.seed,
        # Augmentation; `scale_jitter` is a range of factors on the short side.
        flip_p=schedule.flip_p,
        scale_jitter=schedule.scale_jitter,
        color_jitter=schedule.color_jitter,
        rank=rank,
        num_workers=num_workers,
    )


def make_trainer(schedule: Schedule, net: RFCN, kvstore: mx.kv.KVStore | None) -> mx.gluon.Trainer:
    """Make the trainer: the kvstore only sums gradients, each worker updates its own weights."""
    rule = {"learning_rate": schedule.lr, "wd": schedule.wd}
    if schedule.optimizer == "sgd":
        rule["momentum"] = schedule.momentum
    if schedule.clip_gradient:
        rule["clip_gradient"] = schedule.clip_gradient
    for parameter in net.head.collect_params().values():
        parameter.lr_mult = schedule.head_lr_mult
    return mx.gluon.Trainer(
        net.collect_params(),
        schedule.optimizer,
        rule,
        kvstore=kvstore,
        update_on_kvstore=False,
    )
