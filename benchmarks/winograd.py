# SPDX-License-Identifier: Apache-2.0
"""3 x 3 convolutions for inference: gluon_roi's Winograd, MXNet's convolution and ncnn's Winograd.

    pip install ncnn
    python -m benchmarks.winograd [--rounds 7] [--only REGEX] [--ncnn /path/to/env/bin/python]

One thread, float32, bias inside, and for gluon_roi and ncnn ReLU as well. MXNet and gluon_roi take
turns in one process, ncnn in another one, which is asked in each round; values are medians of
processor time. MXNet's convolution is oneDNN's direct one. ncnn has its float16 and bfloat16
switched off; its time includes converting maps to its layout and back, which a network does only
at its ends. GFLOP/s count the operations of Winograd's products alone. "4 x 4" has tiles of 4 x 4
outputs, "6 x 6" of 6 x 6. "chosen" is the choice of a converted network: the tile that it uses, or
"direct".
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np


class Layer(NamedTuple):
    """A convolution that keeps the size of its map."""

    channels: int
    filters: int
    height: int
    width: int
    images: int = 1
    dilate: int = 1

    @property
    def title(self) -> str:
        sizes = f"{self.channels} to {self.filters}, {self.height} x {self.width}"
        more = f", {self.images} maps" if self.images > 1 else ""
        return sizes + more + (f", dilation {self.dilate}" if self.dilate > 1 else "")

    def arrays(self) -> list[np.ndarray]:
        """Map, weights and bias."""
        random = np.random.RandomState(0)
        data = random.randn(self.images, self.channels, self.height, self.width)
        weight = random.randn(self.filters, self.channels, 3, 3) / np.sqrt(9 * self.channels)
        return [x.astype(np.float32) for x in (data, weight, random.randn(self.filters))]


#: Of ResNets, pyramids, SSD, YOLO and mask heads.
LAYERS = (
    Layer(64, 64, 150, 200),
    Layer(128, 128, 75, 100),
    Layer(256, 256, 150, 200),
    Layer(256, 256, 75, 100),
    Layer(256, 256, 38, 50),
    Layer(256, 256, 19, 25),
    Layer(256, 256, 14, 14),
    Layer(256, 256, 14, 14, images=20),
    Layer(256, 256, 14, 14, images=100),
    Layer(512, 512, 38, 38),
    Layer(512, 512, 38, 50, dilate=2),
    Layer(512, 512, 19, 25),
    Layer(256, 1024, 38, 50),
    Layer(512, 1024, 19, 19),
    Layer(1024, 512, 38, 50),
    Layer(1024, 504, 32, 32),
)


#: Outputs of a tile along an axis.
TILES = {4: "4 x 4", 6: "6 x 6"}


def in_mxnet(layer: Layer) -> dict[str, Callable[[], Any]]:
    import mxnet as mx

    from gluon_roi.inference import winograd
    from testing.inference_operators import winograd_convolution

    arrays = layer.arrays()
    data, weight, bias = map(mx.nd.array, arrays)
    packed = {tile: mx.nd.array(winograd.transform_weights(arrays[1], tile)) for tile in TILES}
    dilate = (layer.dilate, layer.dilate)

    def direct() -> Any:
        return mx.nd.Convolution(
            data, weight, bias, kernel=(3, 3), pad=dilate, dilate=dilate, num_filter=layer.filters
        )

    def ours(tile: int) -> Any:
        return winograd_convolution(
            data, packed[tile], bias, num_filter=layer.filters, dilate=layer.dilate, act_type="relu"
        )

    return {"MXNet": direct, **{name: partial(ours, tile) for tile, name in TILES.items()}}


def in_ncnn(layer: Layer) -> Callable[[], Any]:
    import ncnn

    data, weight, bias = layer.arrays()
    net = ncnn.Net()
    net.opt.num_threads = 1
    for option in ("fp16_packed", "fp16_storage", "fp16_arithmetic", "bf16_storage"):
        setattr(net.opt, f"use_{option}", False)
    with tempfile.TemporaryDirectory() as folder:
        size, dilate = weight.size, layer.dilate
        text = "7767517\n2 2\nInput data 0 1 data\nConvolution conv 1 1 data out "
        text += f"0={layer.filters} 1=3 2={dilate} 3=1 4={dilate} 5=1 6={size} 9=1\n"
        Path(folder, "net.param").write_text(text)
        Path(folder, "net.bin").write_bytes(bytes(4) + weight.tobytes() + bias.tobytes())
        net.load_param(f"{folder}/net.param")
        net.load_model(f"{folder}/net.bin")
    images = [ncnn.Mat(image).clone() for image in data]  # the others borrow memory

    def run() -> Any:
        for image in images:
            extractor = net.create_extractor()
            extractor.input("data", image)
            _, out = extractor.extract("out")
        return np.array(out)

    return run


def seconds(call: Callable[[], Any], calls: int) -> float:
    start = time.process_time()
    for _ in range(calls):
        call()
    return (time.process_time() - start) / calls


def serve() -> None:
    """Answer each layer and number of calls on standard input with ncnn's seconds."""
    known: dict[Layer, Callable[[], Any]] = {}
    for line in sys.stdin:
        *numbers, calls = json.loads(line)
        layer = Layer(*numbers)
        if layer not in known:
            known = {layer: in_ncnn(layer)}
            known[layer]()
        print(json.dumps(seconds(known[layer], calls)), flush=True)


class Ncnn:
    """ncnn in a process of its own: its threads would share those of MXNet's OpenMP."""

    def __init__(self, python: str) -> None:
        command = [python, str(Path(__file__).resolve()), "--serve"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def seconds(self, layer: Layer, calls: int) -> float:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps([*layer, calls]) + "\n")
        self._process.stdin.flush()
        return float(json.loads(self._process.stdout.readline()))


def measure(layer: Layer, ncnn: Ncnn | None, rounds: int) -> str:
    """The line of a layer."""
    from gluon_roi.inference import winograd

    calls = in_mxnet(layer)
    waiting = {name: lambda call=call: call().wait_to_read() for name, call in calls.items()}
    outs = [call().asnumpy() for call in calls.values()]
    exact = np.maximum(outs[0], 0)
    differences = [np.abs(exact - out).max() / np.abs(outs[0]).max() for out in outs[1:]]
    count = max(1, int(0.1 / seconds(waiting[TILES[4]], 1)))
    spent: dict[str, list[float]] = {name: [] for name in (*calls, "ncnn")}
    for _ in range(rounds):
        for name, call in waiting.items():
            spent[name].append(seconds(call, count))
        if ncnn is not None:
            spent["ncnn"].append(ncnn.seconds(layer, count))
    middle = {name: statistics.median(times) for name, times in spent.items() if times}
    shape = (layer.images, layer.channels, layer.height, layer.width)
    chosen = winograd.tile_size(shape, layer.filters, layer.dilate)
    ours = middle[TILES[chosen]]
    tiles = winograd.count_tiles(shape, layer.dilate, chosen)
    rate = 2 * (chosen + 2) ** 2 * tiles * layer.channels * layer.filters / ours / 1e9
    cells = [layer.title, *(f"{middle[name] * 1e3:.1f}" for name in calls)]
    cells.append(f"{middle['ncnn'] * 1e3:.1f}" if "ncnn" in middle else "-")
    pays = winograd.pays(shape, layer.filters, layer.dilate)
    cells.append(TILES[chosen] if pays else "direct")
    cells.append(f"{ours / middle['MXNet']:.2f}")
    cells.append(f"{ours / middle['ncnn']:.2f}" if "ncnn" in middle else "-")
    cells += [f"{rate:.0f}", *(f"{difference:.0e}" for difference in differences)]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="", metavar="REGEX", help="layers whose line matches")
    parser.add_argument("--ncnn", metavar="PYTHON", help="an interpreter that has ncnn")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve()
        return
    os.environ["OMP_NUM_THREADS"] = "1"
    ncnn = Ncnn(given.ncnn) if given.ncnn else None
    titles = ["layer", "MXNet ms", *(f"{name} ms" for name in TILES.values()), "ncnn ms", "chosen"]
    titles += [
        "of MXNet",
        "of ncnn",
        "GFLOP/s",
        *(f"{name}: difference" for name in TILES.values()),
    ]
    print("|", " | ".join(titles), "|")
    print("|---" * len(titles) + "|")
    for layer in LAYERS:
        if re.search(given.only, layer.title):
            print(measure(layer, ncnn, given.rounds), flush=True)


if __name__ == "__main__":
    main()
