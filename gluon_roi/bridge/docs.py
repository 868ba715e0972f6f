"""Entries of docstrings that operators share.

In the docstring of a block, a line of nothing but their names, such as ``rois_grad, bad_index``,
stands for them, and is replaced when the class is made.
"""

from __future__ import annotations

import re

_SHARED = """
pooled_size : int or (int, int)
    Bins of the output, P x Q (height, width).
spatial_scale : float
    Map cells per image pixel, such as 1 / 16.
output_dim : int, optional
    Channels of the output; C / (G * G) if not given.
group_size : int or (int, int), optional
    Groups G per axis; the pooled size if not given.
sampling_ratio : int
    Samples per bin and axis; as many as the bin has cells, rounded up, if not positive.
rois_grad : bool
    Whether rois get their gradient too (in the unit of out per image pixel); zeros if not.
bad_index : {'error', 'padding'}
    What a batch index beyond the batch is: an error, or the mark of a padding row, as for MXNet's
    ``ROIPooling``.
rois : (K, 5), (N, R, 4) or (K, 4), float32 or float64
    Boxes in image coordinates (pixels): rows [batch_index, x1, y1, x2, y2], where a negative batch
    index marks a padding row; or R boxes per image, K = N * R; or boxes without an index, together
    with rois_num. float16 is converted.
rois_num : (N,), int32 or int64, optional
    Boxes per image, for rois without an index.
mxnet.base.MXNetError
    A bad argument, a shape or dtype that does not fit, or on the CPU a batch index that is NaN,
    fractional or beyond the batch. The message names operator, argument, expected and got. (On a
    GPU such a row is NaN.)
"""
ENTRIES = {
    re.match(r"[\w.]+", entry)[0]: entry.rstrip()  # type: ignore[index]
    for entry in re.split(r"\n(?=\S)", _SHARED.strip())
}


def with_shared_entries(docstring: str) -> str:
    """A docstring with the entries in the place of their names."""
    lines: list[str] = []
    for line in docstring.splitlines():
        names = line.split(", ")
        lines += [ENTRIES[name] for name in names] if set(names) <= ENTRIES.keys() else [line]
    return "\n".join(lines)
