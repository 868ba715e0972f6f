"""The C interface (src/gluon_roi.h) from Python, for arrays of NumPy, torch or cupy.

Needs NumPy alone, so that the checks on a GPU run without MXNet.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np

OK, INVALID, NO_CUDA, CUDA_ERROR = range(4)
CPU, CUDA = 0, 1
DTYPES = {"float32": 0, "float64": 1, "float16": 2, "int32": 4, "int64": 6}


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("shape", ctypes.c_int64 * 4),
    ]


class Inputs(ctypes.Structure):
    _fields_ = [("data", Tensor), ("rois", Tensor), ("rois_num", Tensor)]


class Device(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int32),
        ("stream", ctypes.c_void_p),
        ("workspace", ctypes.c_void_p),
        ("workspace_size", ctypes.c_size_t),
    ]


def _params(name: str, *more: tuple[str, Any]) -> type:
    fields = [
        ("pooled_height", ctypes.c_int32),
        ("pooled_width", ctypes.c_int32),
        ("spatial_scale", ctypes.c_double),
        *more,
    ]
    return type(name, (ctypes.Structure,), {"_fields_": fields})


_SAMPLES = tuple((f, ctypes.c_int32) for f in ("sampling_ratio", "aligned", "rois_grad"))
PARAMS = {
    "roi_pool": _params("RoiPool"),
    "roi_align": _params("RoiAlign", *_SAMPLES),
    "ps_roi_pool": _params(
        "PsRoiPool",
        ("output_dim", ctypes.c_int64),
        ("group_height", ctypes.c_int32),
        ("group_width", ctypes.c_int32),
        ("convention", ctypes.c_int32),
    ),
    "ps_roi_align": _params("PsRoiAlign", ("output_dim", ctypes.c_int64), *_SAMPLES),
}
DEFAULTS = {
    "roi_pool": {},
    "roi_align": {"sampling_ratio": -1},
    "ps_roi_pool": {},
    "ps_roi_align": {"sampling_ratio": -1, "aligned": 1},
}
#: The operators' names in Python -> in C.
SYMBOLS = {
    "ROIPool": "roi_pool",
    "ROIAlign": "roi_align",
    "PSROIPool": "ps_roi_pool",
    "PSROIAlign": "ps_roi_align",
}


def params(op: str, pooled: tuple[int, int], spatial_scale: float, **arguments: Any) -> Any:
    """The struct of an operator, from the arguments that its Python function takes."""
    fields = {**DEFAULTS[op], **arguments}
    group = fields.pop("group_size", None)
    if group is not None:
        fields["group_height"], fields["group_width"] = (group, group)
    if "convention" in fields:
        fields["convention"] = ("rfcn", "torchvision").index(fields["convention"])
    return PARAMS[op](*pooled, spatial_scale, **fields)


def output_shape(op: str, p: Any, data: Any, rois: Any) -> tuple[int, int, int, int]:
    """(K, C', P, Q)"""
    groups = 1
    if op.startswith("ps_"):
        groups = (getattr(p, "group_height", 0) or p.pooled_height) * (
            getattr(p, "group_width", 0) or p.pooled_width
        )
    rows = int(np.prod(tuple(rois.shape[:-1])))
    return rows, data.shape[1] // groups, p.pooled_height, p.pooled_width


def pointer(array: Any) -> int:
    """Where the elements of an array of NumPy, torch or cupy are."""
    if hasattr(array, "data_ptr"):
        return array.data_ptr()
    return array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr


def tensor(array: Any) -> Tensor:
    """A view of a contiguous array; None gives the absent tensor."""
    if array is None:
        return Tensor()
    dtype = DTYPES[str(array.dtype).replace("torch.", "")]
    shape = tuple(array.shape)
    return Tensor(pointer(array), dtype, len(shape), (ctypes.c_int64 * 4)(*shape))


class Error(Exception):
    def __init__(self, code: int, message: str):
        super().__init__(message)
        self.code = code


class Library:
    """One shared library, its calls checked: a code other than OK raises Error."""

    def __init__(self, path: Any):
        self.path = Path(path)
        self.c = ctypes.CDLL(str(path))
        self.c.gluon_roi_last_error.restype = ctypes.c_char_p
        self.c.gluon_roi_build_info.restype = ctypes.c_char_p

    def call(self, function: str, *arguments: Any) -> None:
        code = getattr(self.c, f"gluon_roi_{function}")(*arguments)
        if code != OK:
            raise Error(code, self.c.gluon_roi_last_error().decode())

    def workspace(self, op: str, p: Any, inputs: Inputs, backward: bool, device: int) -> int:
        size = ctypes.c_size_t(0)
        self.call(
            f"{op}_workspace",
            ctypes.byref(p),
            ctypes.byref(inputs),
            int(backward),
            device,
            ctypes.byref(size),
        )
        return size.value

    def forward(self, op: str, p: Any, inputs: Inputs, out: Any, device: Device) -> None:
        self.call(f"{op}_forward", *map(ctypes.byref, (p, inputs, tensor(out), device)))

    def backward(
        self, op: str, p: Any, inputs: Inputs, d_out: Any, d_data: Any, d_rois: Any, device: Device
    ) -> None:
        self.call(
            f"{op}_backward",
            *map(ctypes.byref, (p, inputs, tensor(d_out), tensor(d_data))),
            None if d_rois is None else ctypes.byref(tensor(d_rois)),
            ctypes.byref(device),
        )
