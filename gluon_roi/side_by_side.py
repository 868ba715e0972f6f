# SPDX-License-Identifier: Apache-2.0
"""Compares the speed of four operators with MXNet's on this machine's CPU."""

from __future__ import annotations

import contextlib
import os
import time
from functools import partial
from typing import Any, Callable

import mxnet as mx
import numpy as np

from . import library, nd

#: Feature maps of a 600 x 800 image at stride 16, and 300 boxes on it.
_MAP, _IMAGE, _BOXES, _SCALE, _BINS = (38, 50), (600, 800), 300, 1 / 16, 7
#: Seconds for the calls of each table cell, after the first two.
_BUDGET = 1.5


def _pairs() -> dict[str, tuple[int, Callable, Callable]]:
    """For each operator the channels of the map, gluon_roi's call and MXNet's equivalent call."""
    contrib, grouped = mx.nd.contrib, 21 * _BINS * _BINS
    size: dict[str, Any] = {"pooled_size": (_BINS, _BINS), "spatial_scale": _SCALE}
    options, mxnet_options = {**size, "sampling_ratio": 2}, {**size, "sample_ratio": 2}
    return {
        "ROIPool": (256, partial(nd.ROIPool, **size), partial(mx.nd.ROIPooling, **size)),
        "ROIAlign": (
            256,
            partial(nd.ROIAlign, **options),
            partial(contrib.ROIAlign, **mxnet_options),
        ),
        "PSROIPool": (
            grouped,
            partial(nd.PSROIPool, **size),
            partial(contrib.PSROIPooling, spatial_scale=_SCALE, output_dim=21, pooled_size=_BINS),
        ),
        "PSROIAlign": (
            grouped,
            partial(nd.PSROIAlign, **options, aligned=False),
            partial(contrib.ROIAlign, **mxnet_options, position_sensitive=True),
        ),
    }


def _milliseconds(call: Callable, x: mx.nd.NDArray, rois: mx.nd.NDArray, backward: bool) -> float:
    """The fastest of several calls, without the first one, within a time budget."""
    times: list[float] = []
    while len(times) < 2 or (sum(times[1:]) < _BUDGET and len(times) < 50):
        begin = time.perf_counter()
        with mx.autograd.record() if backward else contextlib.nullcontext():
            out = call(x, rois)
        if backward:
            out.backward()
        mx.nd.waitall()
        times.append(time.perf_counter() - begin)
    return 1e3 * min(times[1:])


def bench() -> int:
    """Print a table of milliseconds; return 1 if results differ, otherwise 0."""
    info = library.build_info()
    rng = np.random.RandomState(0)
    low = rng.uniform(0, 0.6, (_BOXES, 2)) * _IMAGE[::-1]
    high = np.minimum(low + rng.uniform(32, 300, (_BOXES, 2)), np.array(_IMAGE[::-1]) - 1)
    rois = mx.nd.array(np.hstack([np.zeros((_BOXES, 1)), low, high]))
    threads = os.environ.get("OMP_NUM_THREADS", "all")
    print(
        f"Milliseconds for {_BOXES} boxes on one {_MAP[0]} x {_MAP[1]} map, float32, "
        f"CPU ({info['simd']}), OMP_NUM_THREADS: {threads}\n"
    )
    print(f"{'':12}{'forward':^30}{'with backward':^30}{'largest':>11}")
    columns = f"{'MXNet':>10}{'gluon_roi':>11}{'':9}"
    print(f"{'operator':12}{columns}{columns}{'difference':>11}")
    status = 0
    for name, (channels, function, mxnet_function) in _pairs().items():
        x = mx.nd.array(rng.randn(1, channels, *_MAP))
        difference = float((function(x, rois) - mxnet_function(x, rois)).abs().max().asscalar())
        x.attach_grad()
        row = f"{name:12}"
        for backward in (False, True):
            before, after = (
                _milliseconds(call, x, rois, backward) for call in (mxnet_function, function)
            )
            row += f"{before:10.2f}{after:11.2f}{f'{before / after:.1f} x':>8} "
        print(f"{row}{difference:11.0e}", flush=True)
        status |= not difference < 1e-4
    return status
