# SPDX-License-Identifier: Apache-2.0
"""Trains GluonCV's Faster R-CNN FPN, switched, on the signals of demo_rfcn; prints its mAP.

    python -m benchmarks.switch_training [--steps 1000] [--built-in]

Targets, sampler, losses and the training step are GluonCV's own. The backbone is a thin ResNet with
random initial weights.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import gluoncv
import mxnet as mx
import numpy as np
from gluoncv.data.batchify import Pad, Stack, Tuple
from gluoncv.model_zoo.rcnn.faster_rcnn import get_faster_rcnn
from gluoncv.model_zoo.rcnn.faster_rcnn.data_parallel import ForwardBackwardTask
from gluoncv.model_zoo.rcnn.rpn.rpn_target import RPNTargetGenerator
from gluoncv.nn.feature import FPNFeatureExpander
from mxnet import gluon
from mxnet.gluon import nn
from mxnet.gluon.model_zoo.vision.resnet import BasicBlockV1, ResNetV1

import gluon_roi
from demo_rfcn.data import DATASETS, ensure_dataset, open_datasets
from demo_rfcn.data.loader import normalise
from demo_rfcn.metrics import evaluate
from demo_rfcn.predictor import Predictor
from testing.detectors import FanIn

BATCH = 4
SIGNALS = DATASETS["signals"]


def make_network() -> gluon.HybridBlock:
    features = FPNFeatureExpander(
        network=ResNetV1(BasicBlockV1, [1, 1, 1, 1], [16, 16, 32, 64, 128]),
        outputs=[f"stage{stage}_activation0" for stage in (1, 2, 3, 4)],
        num_filters=[32] * 4,
        use_p6=True,
        pretrained=False,
    )
    box_features = nn.HybridSequential()
    box_features.add(nn.Dense(128, weight_initializer=mx.init.Normal(0.01)), nn.Activation("relu"))
    net = get_faster_rcnn(
        "fpn_resnet10",
        "signals",
        features=features,
        top_features=None,
        box_features=box_features,
        classes=SIGNALS.classes,
        short=SIGNALS.short,
        max_size=SIGNALS.max_size,
        min_stage=2,
        max_stage=6,
        strides=(4, 8, 16, 32, 64),
        scales=(2, 3, 4.5, 6, 8),
        alloc_size=(64, 64),
        roi_size=(7, 7),
        clip=4.14,
        rpn_channel=32,
        rpn_train_pre_nms=1000,
        rpn_train_post_nms=200,
        rpn_test_pre_nms=500,
        rpn_test_post_nms=100,
        rpn_min_size=4,
        nms_thresh=0.5,
        nms_topk=400,
        post_nms=50,
        per_device_batch_size=BATCH,
        num_sample=64,
        max_num_gt=20,
    )
    net.initialize(FanIn(factor_type="in", magnitude=2))
    return net


def one_by_one(net: gluon.HybridBlock) -> Any:
    """GluonCV's detectors take one image at a time outside of training."""
    return lambda data: [mx.nd.concat(*out, dim=0) for out in zip(*(net(x) for x in split(data)))]


def split(data: mx.nd.NDArray) -> list:
    return [data[i : i + 1] for i in range(data.shape[0])]


class Targets:
    """An image and GluonCV's RPN targets for it.

    Its own transform infers the shapes of every level for every image, which takes longer than a
    training step; here all images have one size.
    """

    def __init__(self, net: gluon.HybridBlock) -> None:
        maps = net.features(mx.nd.zeros((1, 3, SIGNALS.short, SIGNALS.short)))
        generators = net.rpn.anchor_generator
        levels = [generate(x).reshape((-1, 4)) for generate, x in zip(generators, maps)]
        self.anchors = mx.nd.concat(*levels, dim=0)
        self.generator = RPNTargetGenerator()

    def __call__(self, image: mx.nd.NDArray, label: np.ndarray) -> tuple:
        size = SIGNALS.short
        if np.random.rand() < SIGNALS.flip_p:
            image = image.flip(axis=1)
            label = gluoncv.data.transforms.bbox.flip(label, (size, size), flip_x=True)
        targets = self.generator(mx.nd.array(label[:, :4]), self.anchors, size, size)
        return mx.nd.array(normalise(image.asnumpy())), mx.nd.array(label), *targets


def train(
    net: gluon.HybridBlock, dataset: gluon.data.Dataset, steps: int, batch: int = BATCH
) -> None:
    loader = gluon.data.DataLoader(
        dataset.transform(Targets(net)),
        batch,
        shuffle=True,
        last_batch="discard",
        batchify_fn=Tuple(Stack(), Pad(pad_val=-1), Stack(), Stack(), Stack()),
    )
    settings = {
        "learning_rate": 2e-3,
        "lr_scheduler": mx.lr_scheduler.MultiFactorScheduler([max(1, steps * 3 // 4)], 0.1),
    }
    trainer = gluon.Trainer(net.collect_train_params(), "adam", settings)
    task = ForwardBackwardTask(
        net,
        trainer,
        gluon.loss.SigmoidBinaryCrossEntropyLoss(from_sigmoid=False),
        gluon.loss.HuberLoss(rho=1 / 9.0),
        gluon.loss.SoftmaxCrossEntropyLoss(),
        gluon.loss.HuberLoss(rho=1.0),
        mix_ratio=1.0,
        amp_enabled=False,
    )
    # As GluonCV's script does.
    net.hybridize(static_alloc=True)
    start = time.perf_counter()
    for step, inputs in zip(range(1, steps + 1), endless(loader)):
        # GluonCV's batches lie in shared memory, which MXNet cannot mix with its parameters'.
        losses = task.forward_backward([part.as_in_context(mx.cpu()) for part in inputs])[:4]
        trainer.step(batch)
        if step % 50 == 0 or step == steps:
            shown = " ".join(f"{float(loss.mean().asscalar()):.3f}" for loss in losses)
            print(f"step {step}: {shown}, {time.perf_counter() - start:.0f} s", flush=True)


def endless(loader: Iterable) -> Iterator:
    while True:
        yield from loader


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--images", type=int, default=300, help="test images")
    parser.add_argument("--data", type=Path, default=Path("runs/data/signals"))
    parser.add_argument("--built-in", action="store_true", help="with MXNet's operators")
    arguments = parser.parse_args()
    mx.random.seed(0)
    np.random.seed(0)
    ensure_dataset("signals", arguments.data, seed=0)
    train_set, test_set = open_datasets(SIGNALS, arguments.data, ("train", "test"))
    net = make_network()
    image = mx.nd.zeros((1, 3, SIGNALS.short, SIGNALS.short))
    if arguments.built_in:
        net(image)
    else:
        gluon_roi.optimize(net, image)
    train(net, train_set, arguments.steps)
    used = {name: uses for name, uses in gluon_roi.count(net).items() if uses}
    net.hybridize(static_alloc=True)
    predictor = Predictor(one_by_one(net), (SIGNALS.short, SIGNALS.max_size), [mx.cpu()])
    scores = evaluate(predictor, test_set, arguments.images)
    print(f"{used} mAP@0.5 {scores['map50']:.3f} mAP@0.75 {scores['map75']:.3f}")


if __name__ == "__main__":
    main()
