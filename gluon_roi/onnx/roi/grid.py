# SPDX-License-Identifier: Apache-2.0
"""Bilinear samples at any place, which the runtimes have for float32."""

from __future__ import annotations

import numpy as np

from ..graph import Graph


def grid_place(g: Graph, position: str, inside: str, side: str) -> str:
    """Places along one axis of maps as GridSample has them: from -1 to 1, edge to edge.

    Parameters
    ----------
    position : in map cells, float32
    inside : whether it counts; otherwise the place is off any map
    side : (1,), cells of the map along the axis
    """
    edges = g("Add", g("Mul", position, np.float32(2)), np.float32(1))
    place = g("Sub", g("Div", edges, g.cast(side, np.float32)), np.float32(1))
    return g("Where", inside, place, np.float32(-3))


def grid_sample(g: Graph, maps: str, places: str, align_corners: int = 0) -> str:
    """Samples (M, C, A, B) of maps (M, C, H, W) at places (M, A, B, 2) of x and y.

    They fade to 0 within one cell around the map. Places -1 and 1 are the edges of the map, or with
    align_corners the centres of its first and last cells.
    """
    return g(
        "GridSample",
        maps,
        places,
        mode="bilinear",
        padding_mode="zeros",
        align_corners=align_corners,
    )
