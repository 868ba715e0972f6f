"""Runs an ONNX model: onnxruntime where it is installed, else the reference of the package onnx.

The reference gives wrong results, or none, for some forms of the operators below.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
from pathlib import Path
from typing import Any

import numpy as np

HAS_RUNTIME = importlib.util.find_spec("onnxruntime") is not None


def run(path: Path, *inputs: np.ndarray) -> list:
    """The outputs of a model."""
    if HAS_RUNTIME:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        return session.run(None, dict(zip([v.name for v in session.get_inputs()], inputs)))
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(str(path), new_ops=_operators())
    return list(evaluator.run(None, dict(zip(evaluator.input_names, inputs))))


def _pool(x: np.ndarray, kernel: list, pads: list, strides: list) -> Any:
    """Every window of the padded maps, its cells along the last axis; NaN is padding."""
    axes = len(kernel)
    pads = pads or [0] * 2 * axes
    width = [(0, 0), (0, 0), *zip(pads[:axes], pads[axes:])]
    padded = np.pad(x.astype(np.float64), width, constant_values=np.nan)
    windows = np.lib.stride_tricks.sliding_window_view(padded, kernel, tuple(range(2, 2 + axes)))
    steps = tuple(slice(None, None, step) for step in strides or [1] * axes)
    windows = windows[(slice(None), slice(None), *steps)]
    return windows.reshape(*windows.shape[: 2 + axes], -1)


@functools.lru_cache(maxsize=None)
def _operators() -> list:
    from onnx.reference.op_run import OpRun

    class MaxPool(OpRun):
        def _run(self, x, kernel_shape=None, pads=None, strides=None, **_):
            return (np.nanmax(_pool(x, kernel_shape, pads, strides), -1).astype(x.dtype),)

    class GlobalMaxPool(OpRun):
        def _run(self, x):
            return (x.max(axis=tuple(range(2, x.ndim)), keepdims=True),)

    class AveragePool(OpRun):
        def _run(self, x, kernel_shape=None, pads=None, strides=None, count_include_pad=0, **_):
            windows = _pool(x, kernel_shape, pads, strides)
            count = windows.shape[-1] if count_include_pad else (~np.isnan(windows)).sum(-1)
            return ((np.nansum(windows, -1) / count).astype(x.dtype),)

    class ConvTranspose(OpRun):
        def _run(
            self, x, w, b=None, group=1, pads=None, strides=None, dilations=None,
            output_padding=None, **_
        ):  # fmt: skip
            size, kernel = x.shape[2:], w.shape[2:]
            axes = range(len(size))
            full = [
                (size[a] - 1) * strides[a] + (kernel[a] - 1) * dilations[a] + 1 + output_padding[a]
                for a in axes
            ]
            out = np.zeros((x.shape[0], group, w.shape[1], *full))
            parts = x.reshape(x.shape[0], group, -1, *size)
            weights = w.reshape(group, -1, *w.shape[1:])
            for cell in itertools.product(*map(range, kernel)):
                first = [cell[a] * dilations[a] for a in axes]
                reached = [
                    slice(first[a], first[a] + (size[a] - 1) * strides[a] + 1, strides[a])
                    for a in axes
                ]
                weight = weights[(slice(None), slice(None), slice(None), *cell)]
                out[(slice(None), slice(None), slice(None), *reached)] += np.einsum(
                    "ngi...,gio->ngo...", parts, weight
                )
            cut = [slice(pads[a], full[a] - pads[len(full) + a]) for a in axes]
            out = out[(slice(None), slice(None), slice(None), *cut)]
            out = out.reshape(x.shape[0], -1, *out.shape[3:])
            if b is not None:
                out += b.reshape(-1, *(1 for _ in axes))
            return (out.astype(x.dtype),)

    class LogSoftmax(OpRun):
        def _run(self, x, axis=-1):
            shifted = x - x.max(axis=axis, keepdims=True)
            return (shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True)),)

    return [MaxPool, GlobalMaxPool, AveragePool, ConvTranspose, LogSoftmax]
