# SPDX-License-Identifier: Apache-2.0
"""Prints how the package was built, and checks every operator."""

from __future__ import annotations

from typing import Any, Callable

import mxnet as mx
import numpy as np

import gluon_roi
from gluon_roi.bridge import OperatorBlock


def _agrees(block: Callable[..., OperatorBlock]) -> bool:
    """Compare an operator with its NumPy reference on one batch, in float64."""
    declared = gluon_roi.library.operators()[block.__name__]
    rng = np.random.RandomState(0)
    if declared.rois_name is None:
        arrays, arguments = _inputs(block.__name__, rng)
        expected = getattr(gluon_roi.reference, declared.symbol)(*arrays, **arguments)
        if isinstance(expected, tuple):
            expected = expected[0]
        inputs = (mx.nd.array(value, dtype="float64") for value in arrays)
        return np.allclose(block(**arguments)(*inputs).asnumpy(), expected, 1e-12, 1e-12)
    data: Any = rng.randn(2, 27, 20, 30)
    low = rng.uniform(0, 200, (16, 2))
    boxes = np.hstack([rng.randint(0, 2, (16, 1)), low, low + rng.uniform(1, 150, (16, 2))])
    # Rotated boxes have an angle as well.
    if declared.coordinates == 5:
        boxes = np.hstack([boxes, rng.uniform(-180, 180, (16, 1))])
    x, rois = (mx.nd.array(value, dtype="float64") for value in (data, boxes))
    scale: Any = 0.1
    if declared.several_maps:
        x, data, scale = [x, x[:, :, ::2, ::2]], [data, data[:, :, ::2, ::2]], (0.1, 0.05)
    expected = getattr(gluon_roi.reference, declared.symbol)(data, boxes, 3, scale)
    return np.allclose(block(3, scale)(x, rois).asnumpy(), expected, rtol=1e-12, atol=1e-12)


def _inputs(name: str, rng: np.random.RandomState) -> tuple[list, dict[str, Any]]:
    """Inputs and arguments of an operator that does not pool boxes."""
    if name == "BoxNMS":
        return [np.sort(rng.rand(2, 90, 6))], {"overlap_thresh": 0.25}
    if name == "Proposal":
        maps = [rng.rand(2, 6, 9, 8), 0.3 * rng.randn(2, 12, 9, 8), np.full((2, 3), 120.0)]
        return maps, {"scales": (4.0,), "rpn_post_nms_top_n": 30, "rpn_min_size": 0}
    return [rng.randn(2, n, 20, 30) for n in (4, 18, 9)], {"kernel": 3, "pad": 1}


def check() -> int:
    """Print the build and the verdict on each operator; return 1 if one differs, otherwise 0."""
    shown = {"library": gluon_roi.library.PATH, **gluon_roi.build_info()}
    for key, value in shown.items():
        print(f"{key:12} {value}")
    failed = 0
    for block in gluon_roi.OPERATORS:
        ok = _agrees(block)
        failed += not ok
        verdict = "agrees with" if ok else "DIFFERS from"
        print(f"{block.__name__:20} {verdict} the reference")
    return 1 if failed else 0
