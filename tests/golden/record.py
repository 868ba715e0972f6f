# SPDX-License-Identifier: Apache-2.0
"""Records results of torchvision, Paddle and mmcv, for machines where they are not installed.

Run it with the Python of an environment that has the library and NumPy:

    python tests/golden/record.py torchvision
    python tests/golden/record.py paddle
    python tests/golden/record.py mmcv             # needs its roi_align alone
    python tests/golden/record.py deform_conv2d    # of torchvision

The calls are the attribute `recorded` of the rows in tests/operators/. The script writes
<library>.npz next to itself: for each case the inputs, the output and the gradient with respect to
data, and under "about" a JSON text with the versions and the arguments of every call. Known faults
of the libraries are left out: the gradient of torchvision's ps_roi_pool (its bins differ from those
of the forward pass), Paddle's gradient with aligned=True for boxes below one cell, and boxes
without a size with aligned=True (0 / 0). Values are eighths in [-16, 16), so that inputs are exact
in every type and maxima are often tied.

deform_conv2d.npz has the calls RECORDED in tests/support/deformed.py: for each the output, and the
gradients of the inputs in their order.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from typing import Any, Callable, Sequence

import numpy as np

FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.dirname(FOLDER))
from operators import BY_NAME, OPERATORS  # noqa: E402
from support.deformed import RECORDED, Sampled  # noqa: E402

# ---- Cases ---------------------------------------------------------------------------------------

BATCH, HEIGHT, WIDTH = 2, 7, 9

#: Boxes x1 y1 x2 y2 in cells of the map: proper ones first, then those without a proper size.
PROPER = [
    [1, 2, 5, 5],
    [0, 0, WIDTH, HEIGHT],
    [0, 0, WIDTH - 1, HEIGHT - 1],
    [-3, -2, 4, 3],
    [5, 4, 13, 11],
    [0.5, 1.5, 6.5, 4.5],
    [1.3, 0.7, 7.9, 5.2],
    [2.1, 2.2, 4.8, 3.5],
    [20, 20, 30, 30],
    [1, 2, 5, 5],
]
DEGENERATE = [[3, 3, 3, 3], [3.2, 2.6, 3.5, 2.8], [6, 5, 2, 1], [0.5, 0.5, 0.5, 0.5]]

#: Pooled size, spatial_scale, type of data. Scales exact in float32, where float64 is recorded:
#: the libraries round spatial_scale differently.
SETTINGS = [((2, 3), 0.25, "float32"), ((2, 3), 0.25, "float64"), ((4, 4), 0.3, "float32")]

Case = dict  # peer, operator, function, theirs, ours, pooled, scale, dtype, gradient


def cases(peer: str) -> list[Case]:
    """Everything there is to compare with one library."""
    return [
        {
            "peer": peer,
            "operator": operator.name,
            "function": call.function,
            "theirs": call.theirs,
            "ours": call.ours,
            "pooled": list(pooled),
            "scale": scale,
            "dtype": dtype,
            "gradient": call.gradient,
        }
        for operator in OPERATORS
        for call in operator.recorded
        if call.library == peer
        for pooled, scale, dtype in SETTINGS
    ]


def case_name(case: Case) -> str:
    arguments = ",".join(f"{k}={v}" for k, v in case["theirs"].items())
    pooled = "x".join(map(str, case["pooled"]))
    return f"{case['function']}({arguments})-{pooled}-{case['scale']}-{case['dtype']}"


def inputs(case: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """data, rois (rows in the order of the images) and d_out of a case."""
    rng = np.random.RandomState(len(case_name(case)))
    height, width = case["pooled"]
    channels = 2
    of_data = BY_NAME[case["operator"]].channels(channels, case["pooled"], case["ours"])
    aligned = case["theirs"].get("aligned", case["function"] == "ps_roi_align")
    boxes = np.array(PROPER + ([] if aligned else DEGENERATE)) / case["scale"]
    images = np.sort(np.arange(len(boxes)) % BATCH)
    rois = np.hstack([images[:, None], np.vstack([boxes[::2], boxes[1::2]])])
    data = rng.randint(-128, 128, (BATCH, of_data, HEIGHT, WIDTH)) / 8
    d_out = rng.randint(-128, 128, (len(rois), channels, height, width)) / 8
    dtype = case["dtype"]
    return data.astype(dtype), rois.astype(dtype), d_out.astype(dtype)


# ---- Libraries -----------------------------------------------------------------------------------

Result = tuple  # output, gradient with respect to data or None


def run_torchvision(case: Case, data: np.ndarray, rois: np.ndarray, d_out: np.ndarray) -> Result:
    torch, ops = importlib.import_module("torch"), importlib.import_module("torchvision.ops")
    x = torch.from_numpy(data.copy()).requires_grad_(case["gradient"])
    function = getattr(ops, case["function"])
    y = function(x, torch.from_numpy(rois), case["pooled"], case["scale"], **case["theirs"])
    if not case["gradient"]:
        return y.numpy(), None
    y.backward(torch.from_numpy(d_out))
    return y.detach().numpy(), x.grad.numpy()


def run_paddle(case: Case, data: np.ndarray, rois: np.ndarray, d_out: np.ndarray) -> Result:
    paddle, ops = importlib.import_module("paddle"), importlib.import_module("paddle.vision.ops")
    paddle.set_device("cpu")
    x = paddle.to_tensor(data, stop_gradient=False)
    counts = np.bincount(rois[:, 0].astype(int), minlength=len(data)).astype("int32")
    boxes, counts = paddle.to_tensor(rois[:, 1:]), paddle.to_tensor(counts)
    function = getattr(ops, case["function"])
    y = function(x, boxes, counts, case["pooled"], case["scale"], **case["theirs"])
    paddle.autograd.backward([y], [paddle.to_tensor(d_out)])
    return y.numpy(), x.grad.numpy()


def run_mmcv(case: Case, data: np.ndarray, rois: np.ndarray, d_out: np.ndarray) -> Result:
    torch, ops = importlib.import_module("torch"), importlib.import_module("mmcv.ops")
    x = torch.from_numpy(data.copy()).requires_grad_()
    arguments = [case["theirs"][name] for name in ("sampling_ratio", "pool_mode", "aligned")]
    function = getattr(ops, case["function"])  # takes no keywords
    y = function(x, torch.from_numpy(rois), case["pooled"], case["scale"], *arguments)
    y.backward(torch.from_numpy(d_out))
    return y.detach().numpy(), x.grad.numpy()


PEERS: dict[str, Callable[..., Result]] = {
    "torchvision": run_torchvision,
    "paddle": run_paddle,
    "mmcv": run_mmcv,
}
MODULES = {
    "torchvision": ("torch", "torchvision"),
    "paddle": ("paddle",),
    "mmcv": ("torch", "mmcv"),
}


def run_deform_conv2d(call: Sampled) -> list[np.ndarray]:
    torch, ops = importlib.import_module("torch"), importlib.import_module("torchvision.ops")
    arrays, d_out = call.weighted()
    given = [torch.from_numpy(array).requires_grad_() for array in arrays]
    data, offset, *mask, weight = given
    stride, padding, dilation = (call.pair(name) for name in ("stride", "pad", "dilate"))
    out = ops.deform_conv2d(data, offset, weight, None, stride, padding, dilation, *mask)
    out.backward(torch.from_numpy(d_out))
    return [out.detach().numpy(), *(array.grad.numpy() for array in given)]


# ---- Files ---------------------------------------------------------------------------------------


def load(peer: str) -> tuple[dict, dict[str, dict[str, np.ndarray]]]:
    """The recorded results: ("about", arrays by case name)."""
    arrays: dict[str, dict[str, np.ndarray]] = {}
    with np.load(os.path.join(FOLDER, f"{peer}.npz")) as file:
        about = json.loads(str(file["about"]))
        for key in file.files:
            if key != "about":
                name, kind = key.rsplit("/", 1)
                arrays.setdefault(name, {})[kind] = file[key]
    return about, arrays


def record(peer: str) -> str:
    """Run every case and write the file; returns its path."""
    arrays: dict[str, Any] = {}
    for case in cases(peer):
        data, rois, d_out = inputs(case)
        out, d_data = PEERS[peer](case, data, rois, d_out)
        name = case_name(case)
        arrays[f"{name}/data"] = (data * 8).astype(np.int8)
        arrays[f"{name}/rois"] = rois
        arrays[f"{name}/out"] = out
        if d_data is not None:
            arrays[f"{name}/d_out"] = (d_out * 8).astype(np.int8)
            arrays[f"{name}/d_data"] = d_data
    more = {
        "inputs": "data and d_out in eighths",
        "cases": {case_name(case): case for case in cases(peer)},
    }
    return write(peer, MODULES[peer], arrays, more)


def record_convolutions() -> str:
    arrays = {
        f"{name}/{number}": array
        for name, call in RECORDED.items()
        for number, array in enumerate(run_deform_conv2d(call))
    }
    return write("deform_conv2d", ("torch", "torchvision"), arrays, {})


def write(name: str, modules: Sequence[str], arrays: dict, more: dict) -> str:
    versions = {m: importlib.import_module(m).__version__ for m in modules}
    about = {"versions": {**versions, "numpy": np.__version__}, "device": "cpu", **more}
    path = os.path.join(FOLDER, f"{name}.npz")
    np.savez_compressed(path, about=json.dumps(about), **arrays)
    return path


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["deform_conv2d", *sorted(PEERS)])
    what = parser.parse_args().what
    written = record_convolutions() if what == "deform_conv2d" else record(what)
    print(f"{written}: {os.path.getsize(written) / 1e3:.0f} kB")
