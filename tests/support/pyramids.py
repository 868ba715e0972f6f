# SPDX-License-Identifier: Apache-2.0
"""Maps of a pyramid, and boxes for them."""

from __future__ import annotations

import numpy as np
from support.cases import all_rois

SCALES = (1 / 4, 1 / 8, 1 / 16, 1 / 32)


def pyramid(dtype="float32", channels=5, levels=4):
    """Maps of 2 images, finest first; their sizes are no multiples of each other."""
    rng = np.random.RandomState(0)
    sizes = [(45, 61), (23, 31), (12, 16), (6, 8)][:levels]
    return [rng.randn(2, channels, *size).astype(dtype) for size in sizes]


def boxes(dtype="float32"):
    """Boxes of every size: those of all tests, and some whose level is a near thing."""
    rows = [all_rois(scale, "float64") for scale in (1 / 4, 1 / 16, 1.0)]
    sides = [112, 223.9, 224, 447.9, 448, 448.1, 1e5, 1e20]
    rows.append(np.array([[i % 2, 3, 5, 3 + side, 5 + side] for i, side in enumerate(sides)]))
    rows.append(np.array([[0, 3, 5, np.nan, 9], [1, np.inf, 5, 9, 9]]))
    return np.vstack(rows).astype("float64" if dtype == "float64" else "float32")


def lists_of(rois, levels, maps=4):
    """A list of boxes for each map, with padding rows for those of other maps."""
    lists = np.stack([rois] * maps)
    lists[..., 0] = np.where(np.arange(maps)[:, None] == levels, rois[:, 0], -1)
    return lists.reshape(-1, 5)
