"""The work of PyramidROIAlign.

It reads a list of maps and so has no test row: tests/test_pyramid.py compares it with ROIAlign.
"""

from __future__ import annotations

ORDER = 8
