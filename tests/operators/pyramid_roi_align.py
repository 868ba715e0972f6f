# SPDX-License-Identifier: Apache-2.0
"""The row of PyramidROIAlign on one map; with several, tests/ops/test_pyramid.py."""

from __future__ import annotations

from typing import Any

import numpy as np
from support.cases import (
    BAD_ROIS_GRAD,
    BAD_SAMPLES,
    TOO_MANY_BINS,
    Operator,
    of_one_map,
    of_reference,
    same_channels,
)

ORDER = 8


def _backward(*args: Any, **arguments: Any) -> tuple[np.ndarray, np.ndarray]:
    backward = of_one_map(of_reference("pyramid_roi_align_backward"), first=1)
    (d_data,), d_rois = backward(*args, **arguments)
    return d_data, d_rois


OPERATOR = Operator(
    name="PyramidROIAlign",
    forward=of_one_map(of_reference("pyramid_roi_align")),
    backward=_backward,
    arguments=({}, {"sampling_ratio": 2, "aligned": True}),
    rois_grad=True,
    sampled=True,
    linear=True,
    channels=same_channels,
    several_maps=True,
    refused=(TOO_MANY_BINS, *BAD_SAMPLES, BAD_ROIS_GRAD),
)
