# SPDX-License-Identifier: Apache-2.0
"""Effects of gluon_roi.optimize on real models: outputs, gradients, repeatability, time.

    OMP_NUM_THREADS=1 python -m benchmarks.switch_models [--size 600 800] [--runs 3]

GluonCV's detectors with random weights, and the heads of Fast R-CNN and R-FCN as symbols. The
reference runs MXNet's own operators without padding rows. In GluonCV's FPN models each level of the
pyramid gets all RoIs, with those of other levels as padding rows.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import time
import warnings
from typing import Any, Callable, Iterator

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

import gluon_roi
from testing.detectors import KEPT, make_detector

warnings.simplefilter("ignore")

DETECTORS = (
    "faster_rcnn_resnet50_v1b_voc",
    "faster_rcnn_fpn_resnet50_v1b_coco",
    "mask_rcnn_fpn_resnet50_v1b_coco",
)
MXNET_ALIGN = mx.nd.contrib.ROIAlign


def without_padding(data: Any, rois: Any, *args: Any, **kwargs: Any) -> mx.nd.NDArray:
    """MXNet's ROIAlign of the rows that are no padding, and zeros for the others."""
    valid = np.flatnonzero(rois[:, 0].asnumpy() >= 0)
    if not len(valid):
        valid = np.array([0])
    out = MXNET_ALIGN(data, rois.take(mx.nd.array(valid)), *args, **kwargs)
    place = np.full(rois.shape[0], len(valid))
    place[valid] = np.arange(len(valid))
    place[rois[:, 0].asnumpy() < 0] = len(valid)
    return mx.nd.concat(out, out[:1] * 0, dim=0).take(mx.nd.array(place))


@contextlib.contextmanager
def align_is(function: Callable) -> Iterator[list]:
    """Another ROIAlign in array code, and the arguments of each of its calls."""
    calls: list = []

    def recorded(*args: Any, **kwargs: Any) -> mx.nd.NDArray:
        calls.append((args, kwargs))
        return function(*args, **kwargs)

    mx.nd.contrib.ROIAlign = recorded
    try:
        yield calls
    finally:
        mx.nd.contrib.ROIAlign = MXNET_ALIGN


def detections(net: gluon.HybridBlock, image: mx.nd.NDArray) -> np.ndarray:
    """A row of numbers for each detection."""
    outputs = [out.asnumpy() for out in net(image)]
    return np.concatenate([out[0].reshape(len(out[0]), -1) for out in outputs], axis=1)[:KEPT]


def gradient(net: gluon.HybridBlock, image: mx.nd.NDArray, seed: int = 7) -> np.ndarray:
    """Gradient of a training pass with respect to the parameters of backbone and pyramid."""
    mx.random.seed(seed)
    height, width = image.shape[2:]
    boxes = mx.nd.array([[[0.1, 0.1, 0.4, 0.5], [0.3, 0.2, 0.9, 0.9], [0.5, 0.5, 0.6, 0.6]]])
    boxes = boxes * mx.nd.array([width, height, width, height])
    with autograd.record():
        predictions = net(image, boxes, mx.nd.array([[[0], [1], [2]]]))[:2]
        loss = sum((prediction**2).mean() for prediction in predictions)
    loss.backward()
    parameters = net.features.collect_params().values()
    return np.concatenate([p.grad().asnumpy().ravel() for p in parameters if p.grad_req != "null"])


def in_turns(calls: list[Callable], runs: int) -> list[float]:
    """The fastest of some runs of each, after one to warm up, in seconds."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(runs + 1):
        for call, own in zip(calls, times):
            start = time.perf_counter()
            call()
            mx.nd.waitall()
            own.append(time.perf_counter() - start)
    return [min(own[1:]) for own in times]


def seconds(call: Callable, runs: int) -> float:
    return in_turns([call], runs)[0]


def operator_seconds(calls: list, align: Callable, runs: int) -> tuple[float, float]:
    """Seconds of the RoI operators of one pass: forward, and forward with backward."""
    maps = {id(args[0]): args[0].copy() for args, _ in calls}
    for copy in maps.values():
        copy.attach_grad()

    def forward() -> list:
        return [align(maps[id(args[0])], *args[1:], **kwargs) for args, kwargs in calls]

    def both() -> None:
        with autograd.record():
            outputs = forward()
        autograd.backward(outputs)

    return seconds(forward, runs), seconds(both, runs)


def ours(*args: Any, **kwargs: Any) -> mx.nd.NDArray:
    kwargs["sampling_ratio"] = kwargs.pop("sample_ratio")
    return gluon_roi.nd.ROIAlign(*args, **kwargs)


def study_detector(name: str, image: mx.nd.NDArray, runs: int) -> None:
    net = make_detector(name, image)
    with align_is(without_padding) as calls:
        right = detections(net, image)
    rows = [int((args[1][:, 0] >= 0).sum().asscalar()) for args, _ in calls]
    print(f"\n{name}: rows of each RoI operator that are no padding: {rows}")
    training = "fpn" in name
    if training:
        with align_is(without_padding):
            right_gradient = gradient(net, image)
        norm = np.linalg.norm(right_gradient)
    before = operator_seconds(calls, MXNET_ALIGN, runs)
    after = operator_seconds(calls, ours, runs)
    print(
        f"operators: {before[0]:.3f} s -> {after[0]:.3f} s ({before[0] / after[0]:.2f} x), ", end=""
    )
    print(f"with backward {before[1]:.3f} -> {after[1]:.3f} ({before[1] / after[1]:.2f} x)")
    for way in ("built-in", "switched"):
        if way == "switched":
            gluon_roi.optimize(net, image, static_alloc=True)
        else:
            net.hybridize(static_alloc=True)
        first, second = detections(net, image), detections(net, image)
        off = (np.abs(first - right) > 1e-3).any(axis=1).sum()
        error, difference = np.abs(first - right).max(), np.abs(first - second).max()
        print(
            f"{way}: {off} of {len(right)} detections off by more than 1e-3, largest difference "
            f"{error:.2g}; two runs differ by {difference:.2g}; "
            f"{seconds(lambda: net(image), runs):.2f} s",
            flush=True,
        )
        if training:
            net.hybridize(active=False)
            one, two = gradient(net, image), gradient(net, image)
            error = np.linalg.norm(one - right_gradient) / norm
            difference = np.linalg.norm(one - two) / norm
            net.hybridize(static_alloc=True)
            took = seconds(lambda: gradient(net, image), runs)
            print(
                f"  gradient off by {error:.2g}, two runs differ by {difference:.2g}; {took:.2f} s"
            )
            net.hybridize(static_alloc=True)


def fast_rcnn() -> tuple[mx.sym.Symbol, int]:
    """The head of Girshick 2015 on conv5 of VGG16, with narrower layers after the pooling."""
    x, rois = maps_and_rois(512)
    x = mx.sym.ROIPooling(
        name="roi_pool5", data=x, rois=rois, pooled_size=(7, 7), spatial_scale=0.0625
    )
    for name in ("fc6", "fc7"):
        x = mx.sym.relu(mx.sym.FullyConnected(x, num_hidden=1024, name=name))
    scores = mx.sym.softmax(mx.sym.FullyConnected(x, num_hidden=21, name="cls_score"))
    boxes = mx.sym.FullyConnected(x, num_hidden=84, name="bbox_pred")
    return per_image(scores, 21, boxes, 84), 512


def rfcn() -> tuple[mx.sym.Symbol, int]:
    """The head of Dai et al. 2016 on ResNet-101's maps of 1024 channels."""
    x, rois = maps_and_rois(1024)
    votes = []
    for name, outputs in (("cls", 21), ("bbox", 8)):
        maps = mx.sym.Convolution(x, kernel=(1, 1), num_filter=49 * outputs, name=f"rfcn_{name}")
        pooled = mx.contrib.sym.PSROIPooling(
            name=f"psroipooled_{name}_rois",
            data=maps,
            rois=rois,
            group_size=7,
            pooled_size=7,
            output_dim=outputs,
            spatial_scale=0.0625,
        )
        votes.append(mx.sym.mean(pooled, axis=(2, 3)))
    return per_image(mx.sym.softmax(votes[0]), 21, votes[1], 8), 1024


def per_image(scores: mx.sym.Symbol, classes: int, boxes: mx.sym.Symbol, values: int) -> Any:
    """Module wants the batch in front."""
    return mx.sym.Group(
        [
            mx.sym.reshape(scores, shape=(1, -1, classes)),
            mx.sym.reshape(boxes, shape=(1, -1, values)),
        ]
    )


def maps_and_rois(channels: int) -> tuple[mx.sym.Symbol, mx.sym.Symbol]:
    x = mx.sym.Convolution(
        mx.sym.var("data"), kernel=(3, 3), pad=(1, 1), num_filter=channels, name="conv"
    )
    return x, mx.sym.reshape(mx.sym.var("rois"), shape=(-1, 5))


def study_symbol(name: str, make: Callable, runs: int) -> None:
    symbol, channels = make()
    random = np.random.RandomState(0)
    low, size = random.uniform(0, 500, (300, 2)), random.uniform(16, 300, (300, 2))
    rois = mx.nd.array(np.hstack([np.zeros((300, 1)), low, low + size])[None])
    maps = mx.nd.array(random.randn(1, channels, 38, 50))
    with tempfile.TemporaryDirectory() as folder:
        module = bound(symbol, maps, rois)
        mx.random.seed(0)
        module.init_params(mx.init.Xavier())
        module.save_checkpoint(f"{folder}/old", 0)
        old, arguments, auxiliary = mx.model.load_checkpoint(f"{folder}/old", 0)
        files = f"{folder}/old-symbol.json", ["data", "rois"], f"{folder}/old-0000.params"
        block = gluon.SymbolBlock.imports(*files)
    results, times = [], []
    for one in (old, gluon_roi.optimize(old)):
        module = bound(one, maps, rois)
        module.set_params(arguments, auxiliary)
        results.append(passes(module, maps, rois))
        times.append(seconds(lambda m=module: passes(m, maps, rois), runs))
    gluon_roi.optimize(block, maps, rois)
    results.append([out.asnumpy() for out in block(maps, rois)])
    through = [largest(results[0][: len(result)], result) for result in results[1:]]
    used = {key: uses for key, uses in gluon_roi.count(block).items() if uses}
    print(
        f"\n{name}: Module off by {through[0]:.2g} (outputs and gradient), SymbolBlock by "
        f"{through[1]:.2g}; step {times[0]:.2f} s -> {times[1]:.2f} s; {used}"
    )


def bound(symbol: mx.sym.Symbol, maps: mx.nd.NDArray, rois: mx.nd.NDArray) -> mx.mod.Module:
    module = mx.mod.Module(symbol, ["data", "rois"], None)
    module.bind([("data", maps.shape), ("rois", rois.shape)], inputs_need_grad=True)
    return module


def passes(module: mx.mod.Module, maps: mx.nd.NDArray, rois: mx.nd.NDArray) -> list:
    module.forward(mx.io.DataBatch([maps, rois]), is_train=True)
    outputs = module.get_outputs()
    module.backward([out.ones_like() * out for out in outputs])
    return [array.asnumpy() for array in (*outputs, module.get_input_grads()[0])]


def largest(right: list, actual: list) -> float:
    """The largest difference, as a part of the largest value."""
    return max(np.abs(a - b).max() / np.abs(a).max() for a, b in zip(right, actual))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", help="some of GluonCV's; all three if not given")
    parser.add_argument("--size", type=int, nargs=2, default=(600, 800))
    parser.add_argument("--runs", type=int, default=3, help="of which the fastest counts")
    arguments = parser.parse_args()
    mx.random.seed(0)
    image = mx.nd.random.uniform(-2, 2, shape=(1, 3, *arguments.size))
    for name, make in (("Fast R-CNN", fast_rcnn), ("R-FCN", rfcn)):
        study_symbol(name, make, arguments.runs)
    for name in arguments.models or DETECTORS:
        study_detector(name, image, arguments.runs)


if __name__ == "__main__":
    main()
