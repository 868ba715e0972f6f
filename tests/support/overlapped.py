# SPDX-License-Identifier: Apache-2.0
"""Calls of BoxIoU that tests of MXNet, C and CUDA share. Needs nothing but NumPy."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Overlapped(NamedTuple):
    """Shapes of lhs and rhs without the last dimension, and the parameters."""

    lhs: tuple[int, ...]
    rhs: tuple[int, ...]
    parameters: dict[str, Any]

    @property
    def out(self) -> tuple[int, ...]:
        return self.lhs if self.parameters.get("aligned") else self.lhs + self.rhs

    def arrays(self, dtype: str, seed: int = 0) -> list[np.ndarray]:
        """Boxes on a grid of eighths, some of them equal, inverted or empty."""
        rng = np.random.RandomState(seed)
        return [self._boxes(rng, lead).astype(dtype) for lead in (self.lhs, self.rhs)]

    def _boxes(self, rng: np.random.RandomState, lead: tuple[int, ...]) -> np.ndarray:
        form = self.parameters.get("format", "corner")
        low = rng.uniform(0, 40, (*lead, 2))
        side = rng.uniform(4, 40, (*lead, 2)) * rng.choice([1, 1, 1, 1, 1, 0, -1], (*lead, 2))
        parts = [low, low + side if form == "corner" else side]
        if form == "rotated":
            angle = rng.uniform(-400, 400, (*lead, 1))
            parts.append(np.where(rng.rand(*lead, 1) < 0.3, 90 * rng.randint(-4, 5), angle))
        boxes = np.round(8 * np.concatenate(parts, -1)) / 8
        flat = boxes.reshape(-1, boxes.shape[-1])
        flat[3::7] = flat[: len(flat[3::7])]
        return boxes


#: By name: every format, around a block of lanes, and leading dimensions of all kinds.
CALLS = {
    "corner": Overlapped((9,), (37,), {}),
    "center": Overlapped((2, 3), (16,), {"format": "center"}),
    "rotated": Overlapped((12,), (2, 9), {"format": "rotated"}),
    "one": Overlapped((1,), (1,), {"format": "rotated"}),
    "first area": Overlapped((7,), (18,), {"mode": "iof"}),
    "first rotated area": Overlapped((7,), (11,), {"format": "rotated", "mode": "iof"}),
    "rows": Overlapped((2, 21), (42,), {"aligned": True}),
    "rotated rows": Overlapped((40,), (40,), {"format": "rotated", "aligned": True}),
}
