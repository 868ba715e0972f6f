# SPDX-License-Identifier: Apache-2.0
"""Times the four classic operators beside MXNet's own, on this machine's CPU."""

from __future__ import annotations

import os
import time
from typing import Any, Callable, NamedTuple

import mxnet as mx
import numpy as np

from . import library, nd

#: Feature maps of a 600 x 800 image at stride 16, and 300 boxes on it.
_MAP, _IMAGE, _BOXES, _SCALE, _BINS = (38, 50), (600, 800), 300, 1 / 16, 7
#: Seconds for the calls of a cell of the table, beyond the first two.
_BUDGET = 1.5


class _Pair(NamedTuple):
    """An operator, and MXNet's call of the same meaning."""

    name: str
    channels: int  # of the map
    ours: Callable
    theirs: Callable


def _pairs() -> tuple[_Pair, ...]:
    size, scale, grouped = (_BINS, _BINS), _SCALE, 21 * _BINS * _BINS
    contrib = mx.nd.contrib
    return (
        _Pair(
            "ROIPool",
            256,
            lambda x, r: nd.ROIPool(x, r, size, scale),
            lambda x, r: mx.nd.ROIPooling(x, r, size, scale),
        ),
        _Pair(
            "ROIAlign",
            256,
            lambda x, r: nd.ROIAlign(x, r, size, scale, 2),
            lambda x, r: contrib.ROIAlign(x, r, size, scale, 2),
        ),
        _Pair(
            "PSROIPool",
            grouped,
            lambda x, r: nd.PSROIPool(x, r, size, scale),
            lambda x, r: contrib.PSROIPooling(x, r, scale, 21, _BINS),
        ),
        _Pair(
            "PSROIAlign",
            grouped,
            lambda x, r: nd.PSROIAlign(x, r, size, scale, sampling_ratio=2, aligned=False),
            lambda x, r: contrib.ROIAlign(x, r, size, scale, 2, True),
        ),
    )


def _milliseconds(step: Callable[[], Any]) -> float:
    """The fastest of several calls; after the second one, up to a budget of time."""
    times: list[float] = []
    while len(times) < 2 or (sum(times[1:]) < _BUDGET and len(times) < 50):
        begin = time.perf_counter()
        step()
        mx.nd.waitall()
        times.append(time.perf_counter() - begin)
    return 1e3 * min(times[1:])


def _forward(call: Callable, x: mx.nd.NDArray, rois: mx.nd.NDArray) -> Callable:
    return lambda: call(x, rois)


def _with_backward(call: Callable, x: mx.nd.NDArray, rois: mx.nd.NDArray) -> Callable:
    x.attach_grad()

    def step() -> None:
        with mx.autograd.record():
            out = call(x, rois)
        out.backward()

    return step


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
    for name, channels, ours, theirs in _pairs():
        x = mx.nd.array(rng.randn(1, channels, *_MAP))
        difference = float((ours(x, rois) - theirs(x, rois)).abs().max().asscalar())
        row = f"{name:12}"
        for step in (_forward, _with_backward):
            before, after = (_milliseconds(step(call, x, rois)) for call in (theirs, ours))
            row += f"{before:10.2f}{after:11.2f}{f'{before / after:.1f} x':>8} "
        print(f"{row}{difference:11.0e}", flush=True)
        status |= not difference < 1e-4
    return status
