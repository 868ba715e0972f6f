# SPDX-License-Identifier: Apache-2.0
"""Peak memory of whole detectors: switched, converted for inference, and in the runtimes.

    pip install onnxruntime openvino==2026.4.1
    OMP_NUM_THREADS=1 python -m benchmarks.inference_memory [--only ssd yolo3]

Each value is the largest resident memory of a process, in MiB, on one thread: of one that makes a
network with random weights, optimizes it and calls it three times on an image of 600 x 800; and of
one that loads the files of such a network (a symbol and its parameters, or an ONNX file) and calls
it three times.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
from typing import Any, Callable

import numpy as np

from testing.onnx_runtimes.check import RUNTIMES


def hybridized(name: str) -> tuple[Any, list]:
    """A network of the benchmark of whole models, hybridized, and its inputs."""
    from . import onnx

    inputs = onnx.inputs_of(onnx.MODELS[name])
    net = onnx.make(onnx.MODELS[name], inputs[0])
    net.hybridize(static_alloc=True)
    return net, inputs


def call_network(name: str, way: str) -> None:
    import mxnet as mx

    import gluon_roi

    from .onnx import OURS

    net, inputs = hybridized(name)
    gluon_roi.optimize(net, *inputs, **OURS[way], static_alloc=True)
    for _ in range(3):
        net(*inputs)
        mx.nd.waitall()


def write_files(name: str, folder: str) -> None:
    """Write the files of each way, and the inputs."""
    import mxnet as mx

    import gluon_roi

    from .onnx import OURS

    net, inputs = hybridized(name)
    gluon_roi.optimize(net, *inputs)
    gluon_roi.onnx.export(net, [x.shape for x in inputs], f"{folder}/model.onnx")
    net.export(f"{folder}/switched")
    symbol, arguments, states = mx.model.load_checkpoint(f"{folder}/switched", 0)
    names = sorted(set(symbol.list_inputs()) - {*arguments, *states})
    shapes = dict(zip(names, (x.shape for x in inputs)))
    for way in OURS.keys() - {"switched"}:
        converted, arrays = gluon_roi.optimize(
            f"{folder}/switched-symbol.json",
            params=f"{folder}/switched-0000.params",
            shapes=shapes,
            **OURS[way],
        )
        converted.save(f"{folder}/{way}-symbol.json")
        mx.nd.save(f"{folder}/{way}-0000.params", arrays)
    np.savez(f"{folder}/inputs.npz", **dict(zip(names, (x.asnumpy() for x in inputs))))


def call_files(way: str, folder: str) -> None:
    inputs = dict(np.load(f"{folder}/inputs.npz"))
    is_onnx = way in RUNTIMES
    call = _load_onnx(way, folder) if is_onnx else _load_symbol(f"{folder}/{way}", inputs)
    for _ in range(3):
        call(inputs)


def _load_symbol(prefix: str, inputs: dict[str, np.ndarray]) -> Callable[[dict], Any]:
    import mxnet as mx

    import gluon_roi  # noqa: F401 (registers the operators)

    symbol, arguments, states = mx.model.load_checkpoint(prefix, 0)
    given = {**arguments, **{name: mx.nd.array(value) for name, value in inputs.items()}}
    executor = symbol.bind(mx.cpu(), given, aux_states=states, grad_req="null")
    return lambda _: [out.asnumpy() for out in executor.forward()]


def _load_onnx(way: str, folder: str) -> Callable[[dict], Any]:
    run = RUNTIMES[way](f"{folder}/model.onnx", 1)
    return lambda inputs: run(*inputs.values())


def measure(*arguments: str) -> str:
    """Run this file in a new process; return its peak memory."""
    command = [sys.executable, "-m", "benchmarks.inference_memory", "--run", *arguments]
    made = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return made.stdout.split()[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--only", nargs="+", default=[], metavar="MODEL", help="of benchmarks.onnx")
    parser.add_argument("--run", nargs="+", help=argparse.SUPPRESS)  # what a process does
    options = parser.parse_args()
    if options.run:
        step, *arguments = options.run
        {"network": call_network, "write": write_files, "files": call_files}[step](*arguments)
        print(round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))
        return
    from .onnx import MODELS, OURS

    of_files = (*OURS, *RUNTIMES)
    columns = [f"{way}, network" for way in OURS] + [f"{way}, files" for way in of_files]
    print(f"| model | {' | '.join(columns)} |")
    print("|---" * (1 + len(columns)) + "|", flush=True)
    for name in options.only or MODELS:
        cells = [measure("network", name, way) for way in OURS]
        with tempfile.TemporaryDirectory() as folder:
            measure("write", name, folder)
            cells += [measure("files", way, folder) for way in of_files]
        print(f"| {MODELS[name].title} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
