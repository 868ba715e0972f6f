# SPDX-License-Identifier: Apache-2.0
"""Bilinear samples at any place, which the runtimes have for float32."""

from __future__ import annotations

import numpy as np

from ..graph import Tensor


def grid_place(position: Tensor, inside: Tensor, side: Tensor) -> Tensor:
    """Places along one axis of maps as GridSample has them: from -1 to 1, edge to edge.

    Parameters
    ----------
    position : in map cells, float32
    inside : whether it counts; otherwise the place is off any map
    side : (1,), cells of the map along the axis
    """
    edges = position * 2 + 1
    place = edges / side.cast(np.float32) - 1
    return inside.where(place, -3)


def grid_sample(maps: Tensor, places: Tensor, align_corners: int = 0) -> Tensor:
    """Samples (M, C, A, B) of maps (M, C, H, W) at places (M, A, B, 2) of x and y.

    They fade to 0 within one cell around the map. Places -1 and 1 are the edges of the map, or with
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
