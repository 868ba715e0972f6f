# SPDX-License-Identifier: Apache-2.0
"""The C interface (src/include/gluon_roi.h) from Python, for arrays of NumPy, torch or cupy.

Needs only NumPy, so that checks on a GPU run without MXNet.
"""

from __future__ import annotations

import ctypes
import json
from ast import literal_eval
from pathlib import Path
from typing import Any

import numpy as np

OK, INVALID, NO_CUDA, CUDA_ERROR, NO_MEMORY = range(5)
CPU, CUDA = 0, 1
DTYPES = {"float32": 0, "float64": 1, "float16": 2, "int32": 4, "int64": 6}


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("shape", ctypes.c_int64 * 4),
    ]


class Device(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int32),
        ("stream", ctypes.c_void_p),
        ("workspace", ctypes.c_void_p),
        ("workspace_size", ctypes.c_size_t),
    ]


class Operator:
    """The declaration of an operator: its inputs, and its parameters as a struct."""

    _TYPES = {
        "int32": ctypes.c_int32,
        "int64": ctypes.c_int64,
        "double": ctypes.c_double,
        "double[8]": ctypes.c_double * 8,
    }

    def __init__(self, declared: dict):
        self.name, self.symbol = declared["name"], declared["symbol"]
        self.inputs, self.outputs = declared["inputs"], declared["outputs"]
        self.coordinates = declared["coordinates"]
        self.parameters = {p["name"]: p for p in declared["params"]}
        #: Name in Python -> names in C.
        self.fields = {name: [f[2] for f in p["fields"]] for name, p in self.parameters.items()}
        placed = [field for parameter in declared["params"] for field in parameter["fields"]]
        placed.sort(key=lambda field: field[1])
        fields = [(name, self._TYPES[kind]) for kind, _, name in placed]
        self.struct: Any = type(f"{self.symbol}_params", (ctypes.Structure,), {"_fields_": fields})
        assert ctypes.sizeof(self.struct) == declared["params_size"]

    @property
    def pools_boxes(self) -> bool:
        return any(given["role"] == "rois" for given in self.inputs)

    def params(self, pooled: tuple[int, int], scale: Any, **arguments: Any) -> Any:
        """The struct of an operator that pools boxes."""
        return self.params_of(pooled_size=pooled, spatial_scale=scale, **arguments)

    def params_of(self, **given: Any) -> Any:
        """The struct, from the arguments that the operator's Python function takes."""
        assert not set(given) - set(self.parameters), given
        struct = self.struct()
        for name, parameter in self.parameters.items():
            value, names = given.get(name), self.fields[name]
            if name not in given:
                value = {"None": None, "True": 1, "False": 0}.get(
                    parameter["default"], parameter["default"]
                )
            if value is None:
                continue  # 0 is the default
            if parameter["kind"] == "size":
                values = value if isinstance(value, tuple) else (int(value),) * 2
            elif parameter["kind"] == "positive_list":
                value = literal_eval(value) if isinstance(value, str) else value
                numbers = value if isinstance(value, (list, tuple)) else (value,)
                values = ((ctypes.c_double * 8)(*numbers), len(numbers))
            elif parameter["kind"] == "choice":
                values = (parameter["choices"][value],)
            else:
                values = (float(value) if "." in str(value) else int(value),)
            for field, part in zip(names, values):
                setattr(struct, field, part)
        return struct

    def output_shape(self, p: Any, data: Any, rois: Any) -> tuple[int, ...]:
        """(K, C', P, Q)"""
        groups = 1
        if "output_dim" in self.parameters:
            groups = (getattr(p, "group_height", 0) or p.pooled_height) * (
                getattr(p, "group_width", 0) or p.pooled_width
            )
        rows = int(np.prod(tuple(rois.shape[:-1])))
        if getattr(p, "assignment", 0):
            rows //= p.maps
        return rows, data.shape[1] // groups, p.pooled_height, p.pooled_width


def pointer(array: Any) -> int:
    """Where the elements of an array of NumPy, torch or cupy are."""
    if hasattr(array, "data_ptr"):
        return array.data_ptr()
    return array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr


def tensor(array: Any) -> Tensor:
    """A view of a contiguous array; None becomes the absent tensor."""
    if array is None:
        return Tensor()
    dtype = DTYPES[str(array.dtype).replace("torch.", "")]
    shape = tuple(array.shape)
    return Tensor(pointer(array), dtype, len(shape), (ctypes.c_int64 * 4)(*shape))


def tensors(*arrays: Any) -> Any:
    """The inputs of a call, or their gradients, in order; None becomes the absent tensor."""
    return (Tensor * len(arrays))(*map(tensor, arrays))


def _listed(arrays: Any) -> Any:
    return arrays if isinstance(arrays, list) else [arrays]


class Error(Exception):
    def __init__(self, code: int, message: str):
        super().__init__(message)
        self.code = code


class Library:
    """One shared library, its calls checked: a code other than OK raises Error."""

    def __init__(self, path: Any):
        self.path = Path(path)
        self.c = ctypes.CDLL(str(path))
        for function in ("last_error", "build_info", "operators"):
            getattr(self.c, f"gluon_roi_{function}").restype = ctypes.c_char_p
        declared = [Operator(d) for d in json.loads(self.c.gluon_roi_operators())]
        #: By name in C: roi_pool, ...
        self.operators = {op.symbol: op for op in declared}
        #: Name in Python -> name in C.
        self.symbols = {op.name: op.symbol for op in declared}

    def call(self, function: str, *arguments: Any) -> None:
        code = getattr(self.c, f"gluon_roi_{function}")(*arguments)
        if code != OK:
            raise Error(code, self.c.gluon_roi_last_error().decode())

    def params(self, op: str, pooled: tuple[int, int], scale: Any, **arguments: Any) -> Any:
        return self.operators[op].params(pooled, scale, **arguments)

    def workspace(self, op: str, p: Any, inputs: Any, backward: bool, device: int) -> int:
        size = ctypes.c_size_t(0)
        more = int(backward), device, ctypes.byref(size)
        self.call(f"{op}_workspace", ctypes.byref(p), inputs, len(inputs), *more)
        return size.value

    def forward(self, op: str, p: Any, inputs: Any, out: Any, device: Device) -> None:
        """`out` is an array, or a list of them if there are several outputs."""
        more = tensors(*_listed(out)), ctypes.byref(device)
        self.call(f"{op}_forward", ctypes.byref(p), inputs, len(inputs), *more)

    def backward(
        self, op: str, p: Any, inputs: Any, d_out: Any, d_inputs: Any, device: Device
    ) -> None:
        more = tensors(*_listed(d_out)), tensors(*d_inputs), ctypes.byref(device)
        self.call(f"{op}_backward", ctypes.byref(p), inputs, len(inputs), *more)
