# SPDX-License-Identifier: Apache-2.0
"""Converted networks of GluonCV's zoo next to MXNet's own fusion, with the same flags.

    OMP_NUM_THREADS=1 python -m benchmarks.inference_zoo [--only resnet50_v1b] [--rounds 7]
    OMP_NUM_THREADS=1 python -m benchmarks.inference_zoo --layouts

Milliseconds of processor time of one image, on one thread: networks with random weights, as MXNet
runs them, with MXNet's fusion (``optimize_for(backend='MKLDNN')``), and converted by
gluon_roi.optimize(inference=True), all compiled with static_alloc and static_shape. Each network
has a process of its own, in which the ways take turns; values are medians. The largest differences
of outputs from those of MXNet follow, of the largest output.

--layouts compares the two layouts of maps instead: networks are converted with MXNet's for all
convolutions, and with those of oneDNN, whichever is chosen. Ratios are of the times with MXNet's
layout to those with oneDNN's; gluon_roi/inference/layouts.py chooses by the estimated one.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import warnings
from functools import partial
from typing import Any, Callable

import numpy as np

#: Networks, and the height and width of their images.
NETWORKS = {
    "alexnet": 224,
    "vgg16": 224,
    "squeezenet1.1": 224,
    "densenet121": 224,
    "inceptionv3": 299,
    "googlenet": 224,
    "mobilenet1.0": 224,
    "mobilenetv2_1.0": 224,
    "mobilenetv3_large": 224,
    "resnet18_v1": 224,
    "resnet50_v1b": 224,
    "resnet50_v2": 224,
    "resnext50_32x4d": 224,
    "se_resnext50_32x4d": 224,
    "resnest50": 224,
    "darknet53": 224,
    "xception": 299,
    "hrnet_w18_small_v1_c": 224,
    "fcn_resnet50_ade": 320,
    "simple_pose_resnet50_v1b": 256,
}
OPTIONS = {"fcn_resnet50_ade": {"crop_size": 320}}
WAYS = ("MXNet", "MXNet's fusion", "inference")
LAYOUTS = ("MXNet's layout", "oneDNN's")
FLAGS = {"static_alloc": True, "static_shape": True}


def _outputs(net: Any, image: Any) -> list:
    from testing.onnx_runtimes import zoo

    return zoo.flat(net(image))


def _image(name: str) -> Any:
    import mxnet as mx

    size = NETWORKS[name]
    return mx.nd.array(np.random.RandomState(0).uniform(-2, 2, (1, 3, size, size)))


def _network(name: str, image: Any) -> Any:
    """A network with the same random weights each time."""
    import mxnet as mx

    from testing.onnx_runtimes import zoo

    mx.random.seed(0)
    np.random.seed(0)
    return zoo.built(zoo.Model(name, (image.shape,), options=OPTIONS.get(name, {})), [image])


def measure(name: str, rounds: int) -> str:
    """The line of a network."""
    import mxnet as mx

    import gluon_roi
    from testing.onnx_runtimes.classics import times

    image = _image(name)
    nets = {way: _network(name, image) for way in WAYS}
    nets["MXNet"].hybridize(**FLAGS)
    nets["MXNet's fusion"].hybridize(backend="MKLDNN", **FLAGS)
    gluon_roi.optimize(nets["inference"], image, inference=True)
    calls: dict[Any, Callable[[], list]] = {}
    outputs = {}
    for way, net in nets.items():
        call = partial(_outputs, net, image)
        with contextlib.suppress(
            mx.MXNetError
        ):  # MXNet's fusion exchanges weights of some networks
            outputs[way] = call()
            calls[way] = call
    spent = times(calls, rounds)
    cells = [f"{1e3 * spent[way]:.1f}" if way in spent else "fails" for way in WAYS]
    fused = spent.get("MXNet's fusion")
    cells.append(f"{spent['inference'] / fused:.2f}" if fused else "-")
    for way in ("inference", "MXNet's fusion"):
        pairs = list(zip(outputs.get(way, ()), outputs["MXNet"]))
        errors = [np.abs(one - other).max() / np.abs(other).max() for one, other in pairs]
        cells.append(f"{max(errors):.0e}" if errors else "-")
    return f"| {name} | {NETWORKS[name]} | {' | '.join(cells)} |"


def measure_layouts(name: str, rounds: int) -> str:
    """The line of a network, converted with each layout."""
    import gluon_roi
    from gluon_roi.inference import gemm_layers, layouts
    from testing.onnx_runtimes.classics import times

    image = _image(name)
    estimated: list[float] = []
    calls: dict[Any, Callable[[], list]] = {}
    for way in LAYOUTS:

        def is_mxnets(graph: Any, layers: Any, way: str = way) -> bool:
            nchw, onednn = layouts.estimates(graph, layers, graph.shapes())
            estimated.append(nchw / onednn)
            return way == LAYOUTS[0]

        gemm_layers.mxnets_layout_pays = is_mxnets
        net = gluon_roi.optimize(_network(name, image), image, inference=True)
        calls[way] = partial(_outputs, net, image)
    spent = times(calls, rounds)
    cells = [f"{1e3 * spent[way]:.1f}" for way in LAYOUTS]
    cells += [f"{spent[LAYOUTS[0]] / spent[LAYOUTS[1]]:.2f}", f"{estimated[0]:.2f}"]
    return f"| {name} | {NETWORKS[name]} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--only", nargs="+", default=list(NETWORKS), choices=NETWORKS)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--layouts", action="store_true", help="MXNet's layout and oneDNN's")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)  # of one process
    options = parser.parse_args()
    if options.here:
        warnings.simplefilter("ignore")
        measured = measure_layouts if options.layouts else measure
        print(measured(options.only[0], options.rounds))
        return
    columns = ["network", "pixels", *WAYS, "of MXNet's fusion"]
    columns += ["inference: difference", "MXNet's fusion: difference"]
    if options.layouts:
        columns = ["network", "pixels", *LAYOUTS, "measured ratio", "estimated ratio"]
    print(f"| {' | '.join(columns)} |")
    print("|---" * len(columns) + "|", flush=True)
    for name in options.only:
        command = [sys.executable, "-m", "benchmarks.inference_zoo", "--here", "--only", name]
        command += ["--rounds", str(options.rounds), *["--layouts"] * options.layouts]
        environment = {**os.environ, "MXNET_SUBGRAPH_VERBOSE": "0"}
        made = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        print(made.stdout.splitlines()[-1], flush=True)


if __name__ == "__main__":
    main()
