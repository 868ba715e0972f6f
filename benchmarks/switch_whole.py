# SPDX-License-Identifier: Apache-2.0
"""Whole models before and after gluon_roi.optimize: time of a pass, and where it goes.

    OMP_NUM_THREADS=1 python -m benchmarks.switch_whole --only faster_rcnn_fpn [--size 600 800]
    OMP_NUM_THREADS=1 python -m benchmarks.switch_whole --only deformable_rfcn --training
    OMP_NUM_THREADS=1 python -m benchmarks.switch_whole --only faster_rcnn_fpn --profile
    python -m benchmarks.switch_whole --train-weights FILE [--steps 200]
    OMP_NUM_THREADS=1 python -m benchmarks.switch_whole --only faster_rcnn_fpn --weights FILE

Two copies with the same weights, one with MXNet's operators and one switched, take turns in one
process. The fastest pass of each counts. Random weights are the worst case for suppression, because
nearly all boxes are kept. --train-weights trains Faster R-CNN FPN on the signals of demo_rfcn, and
goes on if FILE exists; --weights reads FILE, and shows GluonCV's detectors an image with many
signals. With --profile each operator runs by itself, and the largest shares are printed.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, Callable
from unittest import mock

import mxnet as mx
import numpy as np
from gluoncv.model_zoo import get_model, resnetv1b
from gluoncv.model_zoo.rcnn.faster_rcnn import predefined_models
from gluoncv.nn.coder import NormalizedBoxCenterDecoder
from mxnet import autograd, gluon
from mxnet.gluon import nn
from mxnet.gluon.contrib import cnn

import gluon_roi
from demo_rfcn.data import ensure_dataset, open_datasets
from demo_rfcn.data.loader import normalise
from demo_rfcn.model import HoleNet
from testing.detectors import KEPT, FanIn, make_detector

from .switch_models import gradient, in_turns
from .switch_training import SIGNALS, train

FPN = {
    "faster_rcnn_fpn": "faster_rcnn_fpn_resnet50_v1b_coco",
    "mask_rcnn_fpn": "mask_rcnn_fpn_resnet50_v1b_coco",
}
MODELS = ("rfcn", "deformable_rfcn", *FPN)
DATA = Path("runs/data/signals")
BATCH = 2  # of --train-weights
BINS, CLASSES, STRIDE, ROIS = 7, 20, 16, 300
SHOWN = 20  # operators of a profile

Pass = Callable[[], Any]


class RFCN(gluon.HybridBlock):
    """R-FCN with MXNet's operators on ResNet-50.

    Deformable: res5 has deformable convolutions, and the bins of RoIs move (arXiv:1703.06211).

    Inputs: an image, and rows [height, width, scale]. Outputs: scores and offsets of the RoIs,
    scores and offsets of the anchors, and detections.
    """

    def __init__(self, deformable: bool) -> None:
        super().__init__()
        self._deformable = deformable
        with self.name_scope():
            self.backbone = HoleNet(
                get_model("resnet50_v1b", pretrained=False, norm_kwargs={"use_global_stats": True})
            )
            self.shared = nn.Conv2D(512, 3, padding=1, activation="relu")
            self.score, self.move = nn.Conv2D(18, 1), nn.Conv2D(36, 1)
            self.class_maps = nn.Conv2D((CLASSES + 1) * BINS**2, 1)
            self.box_maps = nn.Conv2D(4 * BINS**2, 1)
            if deformable:
                deform(self.backbone.last[0])
                self.bin_maps = nn.Conv2D(2 * BINS**2, 1)
            self.decode = NormalizedBoxCenterDecoder((0.1, 0.1, 0.2, 0.2), minimal_opset=True)

    def hybrid_forward(self, F: Any, data: Any, info: Any) -> tuple:
        conv4, conv5 = self.backbone(data)
        shared = self.shared(conv4)
        score, move = self.score(shared), self.move(shared)
        probability = F.reshape_like(F.softmax(score.reshape((0, 2, -1, 0)), axis=1), score)
        anchors = {"scales": (8, 16, 32), "ratios": (0.5, 1, 2), "feature_stride": STRIDE}
        rois = F.contrib.MultiProposal(
            probability, move, info, rpn_post_nms_top_n=ROIS, **anchors, name="rois"
        )
        cls, box = self.votes(F, conv5, rois)
        corners = F.slice_axis(rois, axis=1, begin=1, end=5).expand_dims(0)
        corners = self.decode(box.expand_dims(0), corners).reshape((-1, 4))
        scores = F.softmax(cls, axis=1)
        rows = [
            F.concat(F.slice_axis(scores, axis=1, begin=n, end=n + 1), corners, dim=1)
            for n in range(1, CLASSES + 1)
        ]
        rows = F.stack(*rows, axis=0)
        found = F.contrib.box_nms(rows, 0.3, valid_thresh=1e-3, coord_start=1, score_index=0)
        return cls, box, score, move, found

    def votes(self, F: Any, conv5: Any, rois: Any) -> tuple:
        """The mean of the bins of each class and of each offset."""
        sizes = {"spatial_scale": 1 / STRIDE, "group_size": BINS, "pooled_size": BINS}
        maps = self.class_maps(conv5), self.box_maps(conv5)
        if self._deformable:
            pool = partial(F.contrib.DeformablePSROIPooling, **sizes, sample_per_part=4)
            bins = pool(self.bin_maps(conv5), rois, output_dim=2, no_trans=True)
            where = {"part_size": BINS, "trans_std": 0.1}
            pools = [partial(pool, trans=bins, **where)] * 2
        else:
            pools = [partial(F.contrib.PSROIPooling, **sizes)] * 2
        outputs = CLASSES + 1, 4
        pooled = (p(m, rois, output_dim=n) for p, m, n in zip(pools, maps, outputs))
        return tuple(F.mean(votes, axis=(2, 3)) for votes in pooled)


def deform(stage: gluon.HybridBlock) -> None:
    """Put MXNet's deformable convolutions in the place of the 3 x 3 convolutions of a stage."""
    for unit in stage:
        like = unit.conv2._kwargs
        # MXNet refuses a block of another type in the place of one.
        del unit.conv2
        with unit.name_scope():
            unit.conv2 = cnn.DeformableConvolution(
                like["num_filter"],
                kernel_size=like["kernel"],
                padding=like["pad"],
                dilation=like["dilate"],
                use_bias=False,
                # Offsets of 0 would leave out three of four cells of a sample.
                offset_bias_initializer=mx.init.Uniform(2),
            )


def make_rfcn(name: str, image: mx.nd.NDArray) -> gluon.HybridBlock:
    mx.random.seed(0)
    net = RFCN(name == "deformable_rfcn")
    net.initialize(FanIn(factor_type="in", magnitude=1.5))
    net(image, info_of(image))
    # As their authors train them: without the stem, res2 and batch normalisation.
    fixed = (net.backbone.early[:5].collect_params(), net.collect_params(".*(gamma|beta)"))
    for parameters in fixed:
        parameters.setattr("grad_req", "null")
    return net


def info_of(image: mx.nd.NDArray) -> mx.nd.NDArray:
    return mx.nd.array([[*image.shape[2:], 1]])


def make_fpn(name: str, image: mx.nd.NDArray, weights: Path | None) -> gluon.HybridBlock:
    net = make_detector(FPN[name], image)
    net.set_nms(nms_thresh=0.5, nms_topk=-1, post_nms=KEPT)  # every candidate, as GluonCV has it
    if weights:
        # Without the masks, which are not trained.
        net.load_parameters(str(weights), allow_missing=True, ignore_extra=True)
    return net


def boxes_kept(net: gluon.HybridBlock, image: mx.nd.NDArray) -> int:
    """The boxes of the RPN that suppression keeps, out of 6000."""
    after = net.rpn._test_post_nms
    net.rpn._test_post_nms = 6000
    scores, _ = net.rpn(image.zeros_like(), *net.features(image))
    net.rpn._test_post_nms = after
    return int((scores > 0).sum().asscalar())


def passes(
    name: str, switched: bool, training: bool, image: mx.nd.NDArray, weights: Path | None
) -> Pass:
    """A model, and a pass through it that returns when it is done."""
    if name in FPN:
        net = make_fpn(name, image, weights)
        inputs = [image]
        if not switched:
            print(f"{name}: the RPN keeps {boxes_kept(net, image)} of 6000 boxes", flush=True)
    else:
        net = make_rfcn(name, image)
        inputs = [image, info_of(image)]
    if switched:
        gluon_roi.optimize(net, *inputs, static_alloc=True)
    net.hybridize(static_alloc=True)
    if not training:
        return lambda: [out.asnumpy() for out in net(*inputs)]
    if name in FPN:
        return lambda: gradient(net, image)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1e-9})

    def step() -> None:
        with autograd.record():
            loss = sum((out**2).mean() for out in net(*inputs)[:4])
        loss.backward()
        trainer.step(1)
        mx.nd.waitall()

    return step


def profile(title: str, call: Pass) -> None:
    """Print the operators that take most of a pass, each run by itself."""
    call()
    with tempfile.TemporaryDirectory() as folder:
        mx.profiler.set_config(
            profile_symbolic=True,
            profile_imperative=True,
            aggregate_stats=True,
            filename=f"{folder}/profile.json",
        )
        mx.profiler.set_state("run")
        call()
        mx.nd.waitall()
        mx.profiler.set_state("stop")
        measured = json.loads(mx.profiler.dumps(reset=True, format="json"))
    operators = {name: one["Total"] for name, one in measured["Time"]["operator"].items()}
    whole = sum(operators.values())
    print(f"\n| {title} | ms | share |\n|---|---|---|")
    for name in sorted(operators, key=lambda name: -operators[name])[:SHOWN]:
        print(f"| {name} | {operators[name]:.1f} | {operators[name] / whole:.1%} |")
    print(f"| all | {whole:.1f} | |", flush=True)


def mosaic(height: int, width: int) -> mx.nd.NDArray:
    """An image of this size full of the signals' test images."""
    ensure_dataset("signals", DATA, seed=0)
    (images,) = open_datasets(SIGNALS, DATA, ("test",))
    across, down = -(-width // SIGNALS.short), -(-height // SIGNALS.short)
    tiles = [images[n][0].asnumpy() for n in range(across * down)]
    rows = [np.concatenate(tiles[n * across : (n + 1) * across], axis=1) for n in range(down)]
    whole = np.concatenate(rows)[:height, :width]
    return mx.nd.array(normalise(whole)[None])


def train_weights(path: Path, steps: int) -> None:
    """Train Faster R-CNN FPN with GluonCV's targets and losses, its batch normalisation too."""
    mx.random.seed(0)
    np.random.seed(0)
    ensure_dataset("signals", DATA, seed=0)
    (images,) = open_datasets(SIGNALS, DATA, ("train",))
    network, detector = resnetv1b.resnet50_v1b, predefined_models.get_faster_rcnn
    fewer = {"num_sample": 64, "rpn_train_pre_nms": 1000, "rpn_train_post_nms": 200}
    with mock.patch.object(
        resnetv1b, "resnet50_v1b", lambda **given: network(**{**given, "use_global_stats": False})
    ), mock.patch.object(
        predefined_models,
        "get_faster_rcnn",
        lambda **given: detector(**{**given, **fewer, "per_device_batch_size": BATCH}),
    ):
        net = get_model(FPN["faster_rcnn_fpn"], pretrained=False, pretrained_base=False)
    net.initialize(FanIn(factor_type="in", magnitude=2))
    image = mx.nd.zeros((1, 3, SIGNALS.short, SIGNALS.short))
    net(image)
    if path.is_file():
        net.load_parameters(str(path), ignore_extra=True)  # constants of the targets
    gluon_roi.optimize(net, image)
    train(net, images, steps, BATCH)
    net.save_parameters(str(path))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", nargs="+", default=MODELS, choices=MODELS, metavar="MODEL")
    parser.add_argument("--size", type=int, nargs=2, default=(600, 800))
    parser.add_argument("--runs", type=int, default=3, help="of which the fastest counts")
    parser.add_argument("--training", action="store_true", help="a training step, not inference")
    parser.add_argument("--profile", action="store_true", help="shares of operators, not times")
    parser.add_argument("--weights", type=Path, help="of --train-weights, for GluonCV's models")
    parser.add_argument("--train-weights", type=Path, metavar="FILE")
    parser.add_argument("--steps", type=int, default=200, help="of --train-weights")
    given = parser.parse_args()
    if given.train_weights:
        train_weights(given.train_weights, given.steps)
        return
    if given.profile:  # operators would run in groups that the profiler shows as one
        for mode in ("INFERENCE", "TRAIN"):
            os.environ[f"MXNET_EXEC_BULK_EXEC_{mode}"] = "0"
    mx.random.seed(0)
    image = mx.nd.random.uniform(-2, 2, shape=(1, 3, *given.size))
    if given.weights:
        image = mosaic(*given.size)
    what = "training step" if given.training else "inference"
    for name in given.only:
        calls = [passes(name, on, given.training, image, given.weights) for on in (False, True)]
        if given.profile:
            for way, call in zip(("MXNet", "switched"), calls):
                profile(f"{name}, {what}, {way}", call)
        else:
            before, after = in_turns(calls, given.runs)
            print(
                f"{name}, {what}: {before:.3f} s -> {after:.3f} s ({before / after:.2f} x)",
                flush=True,
            )


if __name__ == "__main__":
    main()
