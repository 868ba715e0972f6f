# SPDX-License-Identifier: Apache-2.0
"""Bilinear samples at arbitrary positions, which the runtimes support in float32."""

from __future__ import annotations

import numpy as np

from ..graph import Tensor


def grid_place(position: Tensor, inside: Tensor, side: Tensor) -> Tensor:
    """Positions along one axis in GridSample's coordinates: from -1 to 1, edge to edge.

    Parameters
    ----------
    position : in map cells, float32
    inside : whether the sample is valid; otherwise the position is outside any map
    side : (1,), cells of the map along the axis
    """
    edges = position * 2 + 1
    place = edges / side.cast(np.float32) - 1
    return inside.where(place, -3)


def grid_sample(maps: Tensor, places: Tensor, align_corners: int = 0) -> Tensor:
    """Samples (M, C, A, B) of maps (M, C, H, W) at positions (M, A, B, 2) of x and y.

    The maps are padded with zeros. Positions -1 and 1 are the edges of the map, or with
    align_corners the centres of its first and last cells.
    """
    return maps.graph(
        "GridSample",
        maps,
        places,
        mode="bilinear",
        padding_mode="zeros",
        align_corners=align_corners,
    )
