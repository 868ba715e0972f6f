# SPDX-License-Identifier: Apache-2.0
"""Runs an ONNX model in onnxruntime if it is installed, otherwise in the reference of onnx.

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
if HAS_RUNTIME:
    import onnxruntime


def run(path: Path, *inputs: np.ndarray) -> list:
    """The outputs of a model."""
    if HAS_RUNTIME:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        return session.run(None, dict(zip([v.name for v in session.get_inputs()], inputs)))
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(str(path), new_ops=_operators())
    return list(evaluator.run(None, dict(zip(evaluator.input_names, inputs))))


def _pool(x: np.ndarray, kernel: list, pads: list, strides: list, ceil: int = 0) -> Any:
    """Every window of the padded maps, its cells along the last axis; NaN is padding."""
    axes = len(kernel)
    pads, strides = pads or [0] * 2 * axes, strides or [1] * axes
    width, steps = [(0, 0), (0, 0)], []
    for n, (size, k, step) in enumerate(zip(x.shape[2:], kernel, strides)):
        begin, end = pads[n], pads[n + axes]
        count = (size + begin + end - k + ceil * (step - 1)) // step + 1
        if ceil and (count - 1) * step >= size + begin:
            count -= 1  # ONNX leaves out a window that begins behind the map
        width.append((begin, max((count - 1) * step + k - size - begin, end)))
        steps.append(slice(0, (count - 1) * step + 1, step))
    padded = np.pad(x.astype(np.float64), width, constant_values=np.nan)
    windows = np.lib.stride_tricks.sliding_window_view(padded, kernel, tuple(range(2, 2 + axes)))
    windows = windows[(slice(None), slice(None), *steps)]
    return windows.reshape(*windows.shape[: 2 + axes], -1)


@functools.lru_cache(maxsize=None)
def _operators() -> list:
    from onnx.reference.op_run import OpRun

    class MaxPool(OpRun):
        def _run(self, x, kernel_shape=None, pads=None, strides=None, ceil_mode=0, **_):
            windows = _pool(x, kernel_shape, pads, strides, ceil_mode)
            return (np.nanmax(windows, -1).astype(x.dtype),)

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

    class LRN(OpRun):
        def _run(self, x, alpha=1e-4, beta=0.75, bias=1.0, size=1):
            before, behind = (size - 1) // 2, size // 2
            squares = np.pad(x**2, [(0, 0), (before, behind), (0, 0), (0, 0)])
            total = sum(squares[:, n : n + x.shape[1]] for n in range(size))
            return ((x / (bias + alpha / size * total) ** beta).astype(x.dtype),)

    class Gather(OpRun):
        def _run(self, x, indices, axis=0):
            return (np.take(x, indices, axis),)

    class GatherElements(OpRun):
        def _run(self, x, indices, axis=0):
            return (np.take_along_axis(x, indices, axis),)

    class GridSample(OpRun):
        def _run(self, x, grid, mode=None, padding_mode=None, align_corners=None):
            assert (mode, padding_mode) == ("bilinear", "zeros")
            out = np.zeros((*x.shape[:2], *grid.shape[1:3]))
            # From the centre of the first cell to that of the last, or from edge to edge.
            sizes = np.array(x.shape[:1:-1])
            steps = sizes - 1 if align_corners else sizes
            places = (grid.astype(np.float64) + 1) / 2 * steps - (0 if align_corners else 0.5)
            column, row = np.moveaxis(places, -1, 0)
            for n, i, j in np.ndindex(out.shape[0], *out.shape[2:]):
                for dy, dx in itertools.product((0, 1), repeat=2):
                    y, u = np.floor(row[n, i, j]) + dy, np.floor(column[n, i, j]) + dx
                    if 0 <= y < x.shape[2] and 0 <= u < x.shape[3]:
                        weight = (1 - abs(row[n, i, j] - y)) * (1 - abs(column[n, i, j] - u))
                        out[n, :, i, j] += weight * x[n, :, int(y), int(u)]
            return (out.astype(x.dtype),)

    class MaxRoiPool(OpRun):
        def _run(self, x, rois, pooled_shape=None, spatial_scale=1.0):
            out = np.zeros((len(rois), x.shape[1], *pooled_shape), x.dtype)
            for number, (image, *corners) in enumerate(rois):
                x1, y1, x2, y2 = np.floor(np.multiply(corners, spatial_scale) + 0.5)
                sides = max(y2 - y1 + 1, 1), max(x2 - x1 + 1, 1)
                for p, q in np.ndindex(*pooled_shape):
                    cells = []
                    for n, (bin_, low) in enumerate(((p, y1), (q, x1))):
                        size = sides[n] / pooled_shape[n]
                        edges = np.floor(bin_ * size) + low, np.ceil((bin_ + 1) * size) + low
                        cells.append(slice(*np.clip(edges, 0, x.shape[2 + n]).astype(int)))
                    window = x[(int(image), slice(None), *cells)]
                    if window.size:
                        out[number, :, p, q] = window.max(axis=(1, 2))
            return (out,)

    return [
        *(AveragePool, ConvTranspose, Gather, GatherElements, GlobalMaxPool, GridSample),
        *(LogSoftmax, LRN, MaxPool, MaxRoiPool),
    ]
