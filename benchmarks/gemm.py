# SPDX-License-Identifier: Apache-2.0
"""Convolutions for inference in MXNet's layout, next to MXNet's own (oneDNN's).

    python -m benchmarks.gemm [--rounds 7] [--only REGEX]

One thread, float32, bias inside. GemmConvolution or DepthwiseConvolution and MXNet's Convolution
take turns; values are medians of processor time. MXNet keeps the weights in oneDNN's layout from
the first call on. Its maps are measured in two ways: in the layouts that oneDNN chooses, as between
two convolutions, and with input and output in MXNet's layout, as between operators that need that.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Layer(NamedTuple):
    """A convolution with a pad of half of its kernel."""

    channels: int
    filters: int
    height: int
    width: int
    kernel: int = 1
    stride: int = 1
    groups: int = 1
    images: int = 1

    @property
    def title(self) -> str:
        text = f"{self.channels} to {self.filters}, {self.height} x {self.width}"
        text += f", kernel {self.kernel}" if self.kernel > 1 else ""
        text += f", stride {self.stride}" if self.stride > 1 else ""
        text += f", {self.groups} groups" if self.groups > 1 else ""
        return text + (f", {self.images} maps" if self.images > 1 else "")

    @property
    def attributes(self) -> dict[str, Any]:
        names = {"kernel": self.kernel, "stride": self.stride, "pad": self.kernel // 2}
        return {
            "num_filter": self.filters,
            **{name: (value, value) for name, value in names.items()},
        }


#: Of detectors with ResNets, of CenterNet's deformable layers, and of the zoo's classifiers.
LAYERS = (
    Layer(64, 64, 150, 200),
    Layer(64, 256, 150, 200),
    Layer(256, 64, 150, 200),
    Layer(256, 512, 150, 200, stride=2),
    Layer(512, 128, 75, 100),
    Layer(128, 512, 75, 100),
    Layer(512, 256, 75, 100),
    Layer(256, 1024, 38, 50),
    Layer(1024, 256, 38, 50),
    Layer(1024, 2048, 38, 50, stride=2),
    Layer(2048, 512, 19, 25),
    Layer(512, 2048, 19, 25),
    Layer(2304, 128, 38, 50),
    Layer(18432, 256, 19, 25),
    Layer(3, 64, 600, 800, 7, 2),
    Layer(3, 32, 224, 224, 3, 2),
    Layer(3, 32, 416, 416, 3),
    Layer(64, 64, 56, 56, 3),
    Layer(128, 128, 75, 100, 3, 2),
    Layer(256, 256, 75, 100, 3, 2),
    Layer(512, 512, 38, 50, 3, 2),
    Layer(512, 512, 7, 7, 3),
    Layer(128, 128, 56, 56, 3, groups=32),
    Layer(512, 512, 28, 28, 3, 2, groups=32),
    Layer(1024, 1024, 7, 7, 3, groups=32),
    Layer(32, 32, 112, 112, 3, groups=32),
    Layer(96, 96, 112, 112, 3, 2, groups=96),
    Layer(512, 512, 14, 14, 3, groups=512),
    Layer(960, 960, 7, 7, 3, groups=960),
    Layer(672, 672, 14, 14, 5, groups=672),
    Layer(32, 16, 112, 112),
    Layer(24, 144, 56, 56),
    Layer(160, 960, 7, 7),
    Layer(320, 1280, 7, 7),
    Layer(512, 2048, 7, 7),
    Layer(2048, 512, 7, 7, images=16),
    Layer(512, 2048, 7, 7, images=16),
    Layer(256, 80, 14, 14, images=100),
    Layer(256, 16, 1, 1),
    Layer(512, 512, 1, 1),
    Layer(2048, 1000, 1, 1),
    Layer(128, 32, 2, 3, images=16),
)


def calls_of(layer: Layer) -> dict[str, Callable[[], Any]]:
    import mxnet as mx

    from gluon_roi.inference import gemm
    from testing.inference_operators import function_for

    random = np.random.RandomState(0)
    shape = (layer.filters, layer.channels // layer.groups, layer.kernel, layer.kernel)
    weights = random.randn(*shape).astype(np.float32) / np.sqrt(np.prod(shape[1:]))
    maps = (layer.images, layer.channels, layer.height, layer.width)
    data, bias = mx.nd.array(random.randn(*maps)), mx.nd.array(random.randn(layer.filters))
    weight = mx.nd.array(weights)
    # The output of a convolution that changes nothing has oneDNN's layout.
    same = mx.nd.array(np.eye(layer.channels)[..., None, None])
    blocked = mx.nd.Convolution(data, same, kernel=(1, 1), num_filter=layer.channels, no_bias=True)
    blocked.wait_to_read()
    operator, groups, packed = gemm.OPERATOR, {"num_group": layer.groups}, weight
    if layer.groups == layer.channels > 1:
        operator, groups = gemm.DEPTHWISE, {}
    else:
        packed = mx.nd.array(gemm.pack_weights(weights, layer.groups))
    ours = function_for(operator, data)

    def theirs(maps: Any) -> Any:
        return mx.nd.Convolution(maps, weight, bias, num_group=layer.groups, **layer.attributes)

    return {
        "gluon_roi": lambda: ours(data, packed, bias, **layer.attributes, **groups),
        "MXNet, oneDNN's layouts": lambda: theirs(data if layer.channels < 8 else blocked),
        # Reshaping needs MXNet's layout.
        "MXNet, MXNet's layout": lambda: theirs(data).reshape((-3, -2)),
    }


def seconds(call: Callable[[], Any], calls: int) -> float:
    start = time.process_time()
    for _ in range(calls):
        call().wait_to_read()
    return (time.process_time() - start) / calls


def measure(layer: Layer, rounds: int) -> str:
    """The line of a layer."""
    calls = calls_of(layer)
    outs = [call().asnumpy().reshape(-1) for call in calls.values()]
    difference = max(np.abs(one - outs[0]).max() for one in outs) / np.abs(outs[0]).max()
    count = max(1, int(0.02 / seconds(calls["gluon_roi"], 1)))
    spent: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            spent[name].append(seconds(call, count))
    ours, blocked, plain = (statistics.median(times) for times in spent.values())
    products = len(outs[0]) * layer.channels // layer.groups * layer.kernel**2
    cells = [f"{1e3 * one:.3g}" for one in (ours, blocked, plain)]
    cells += [f"{2 * products / ours / 1e9:.0f}", f"{ours / blocked:.2f}", f"{ours / plain:.2f}"]
    return f"| {layer.title} | {' | '.join(cells)} | {difference:.0e} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="", metavar="REGEX", help="layers whose line matches")
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    titles = ["gluon_roi ms", "MXNet ms, oneDNN's layouts", "MXNet ms, MXNet's layout"]
    titles += ["GFLOP/s", "of oneDNN's layouts", "of MXNet's layout", "difference"]
    print("| layer |", " | ".join(titles), "|")
    print("|---" * (len(titles) + 1) + "|", flush=True)
    for layer in LAYERS:
        if re.search(given.only, layer.title):
            print(measure(layer, given.rounds), flush=True)


if __name__ == "__main__":
    main()
