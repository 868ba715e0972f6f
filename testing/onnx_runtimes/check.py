# SPDX-License-Identifier: Apache-2.0
"""Runs exported models in onnxruntime, OpenVINO and PyTorch against recorded outputs.

Needs no MXNet:

    python -m venv build/runtimes
    build/runtimes/bin/pip install onnxruntime openvino==2026.4.1 'numpy>=2'
    .venv/bin/python tests/onnx/onnx_models.py build/models
    build/runtimes/bin/python -m testing.onnx_runtimes.check build/models

Prints the largest difference of each model in each runtime, and exits with 1 if one exceeds its
tolerance. The outputs are the golden ones. With `--large`, onnx_models.py writes large maps and
batches, with their outputs; they have no tolerance.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path
from typing import Any, Callable, Iterator

import numpy as np

ARRAYS = Path(__file__).resolve().parents[2] / "tests/golden/onnx.npz"

#: Greatest difference: of whole cells; of bilinear samples of standard normal maps, which are moved
#: by up to 1e-5 of a cell where a bin is a RoI of its own; of boxes in pixels.
EXACT, SAMPLED, BOXES = 1e-6, 5e-5, 5e-5
FLOAT16 = 2e-3


def tolerance(model: str) -> float:
    if model.endswith("float16"):
        return FLOAT16
    if "nms" in model:
        return BOXES
    return EXACT if model.startswith(("ROIPool", "PSROIPool")) else SAMPLED


def onnxruntime(path: str, threads: int = 0) -> Callable[..., list]:
    """A model as a function; 0 threads are as many as the runtime likes."""
    import onnxruntime as runtime

    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    return lambda *inputs: session.run(None, dict(zip(names, inputs)))


def openvino(path: str, threads: int = 0, precision: str | None = "f32") -> Callable[..., list]:
    """The same in OpenVINO; precision None is the runtime's own choice."""
    import openvino as runtime

    settings: dict[str, Any] = {"INFERENCE_NUM_THREADS": threads}
    if precision:
        settings["INFERENCE_PRECISION_HINT"] = precision
    model = runtime.Core().compile_model(path, "CPU", settings)
    return lambda *inputs: list(model(list(inputs)).values())


def torch(path: str, threads: int = 0) -> Callable[..., list]:
    """The same as a module of PyTorch."""
    import torch as framework

    from gluon_roi_torch import to_torch

    if threads:
        framework.set_num_threads(threads)
    module = to_torch(path)

    def run(*inputs: np.ndarray) -> list:
        with framework.no_grad():
            found = module(*map(framework.tensor, inputs))
        return [one.detach().numpy() for one in (found if isinstance(found, tuple) else (found,))]

    return run


RUNTIMES = {"onnxruntime": onnxruntime, "openvino": openvino}
#: The same, and to_torch, by the name of the package that each one needs.
WAYS: dict[str, Callable] = {**RUNTIMES, "torch": torch}


def installed() -> list[str]:
    """The names of WAYS whose packages are installed."""
    return [name for name in WAYS if importlib.util.find_spec(name)]


def difference(found: Any, expected: np.ndarray) -> float:
    """The largest difference; infinite if shapes, types, or places of NaN differ."""
    found = np.asarray(found)
    if found.shape != expected.shape or (np.isnan(found) != np.isnan(expected)).any():
        return np.inf
    both = found.astype(np.float64), expected.astype(np.float64)
    return float(np.nanmax(np.abs(np.subtract(*both)), initial=0))


def differences(run: Callable[..., list], arrays: Any, name: str) -> float:
    """The largest difference of a model's outputs from the recorded ones."""
    inputs = [arrays[key] for key in arrays.files if key.startswith(f"{name}/in")]
    outputs = [arrays[key] for key in arrays.files if key.startswith(f"{name}/out")]
    found = run(*inputs)
    assert len(found) == len(outputs)
    return max(map(difference, found, outputs))


def recorded(folder: Path) -> Iterator[tuple[str, Any, float]]:
    """Each model, its arrays and its tolerance: large ones in the folder, or the golden ones."""
    large = sorted(folder.glob("*.npz"))
    for path in large:
        yield path.stem, np.load(path), np.inf
    if not large:
        arrays = np.load(ARRAYS)
        for name in sorted({key.rsplit("/", 1)[0] for key in arrays.files}):
            yield name, arrays, tolerance(name)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runtimes", nargs="+", choices=WAYS, default=installed())
    arguments = parser.parse_args()
    print(f"{'model':44}", *(f"{name:>12}" for name in arguments.runtimes))
    failed = False
    for name, arrays, limit in recorded(arguments.folder):
        row = []
        for runtime in arguments.runtimes:
            if runtime == "openvino" and name.endswith("float64"):
                row.append(f"{'float32':>12}")  # is what it computes float64 in
                continue
            run = WAYS[runtime](str(arguments.folder / f"{name}.onnx"))
            greatest = differences(run, arrays, name)
            failed |= greatest > limit
            row.append(f"{greatest:11.1e}{'!' if greatest > limit else ' '}")
        print(f"{name:44}", *row, flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
