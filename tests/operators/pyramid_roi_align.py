"""The work of PyramidROIAlign.

It reads a list of maps and so has no test row: tests/test_pyramid.py compares it with ROIAlign.
"""

from __future__ import annotations

from benchmarks.work import Item

ORDER = 8

ITEMS = (
    Item(
        "PyramidROIAlign 4 maps C=256 7x7 K=1000",
        "PyramidROIAlign",
        256,
        1000,
        sampling_ratio=2,
        levels=4,
        image=(800, 1216),
        stride=4,
        sides=(16, 800),
    ),
)
