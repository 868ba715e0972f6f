# SPDX-License-Identifier: Apache-2.0
"""Docstring entries that operators share.

A line of only their names in the docstring of a block, such as ``rois_grad, bad_index``, is
replaced by the entries when the class is created.
"""

from __future__ import annotations

import inspect
import re
from typing import Callable

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
    Samples per bin and axis; if not positive, as many as the bin has cells, rounded up.
rois_grad : bool
    Whether rois get a gradient (in units of out per image pixel) instead of zeros.
bad_index : {'error', 'padding'}
    How to treat a batch index beyond the batch: 'error' raises, 'padding' takes the row for a
    padding row, as MXNet's ``ROIPooling`` does.
rois : (K, 5), (N, R, 4) or (K, 4), float32 or float64
    Boxes in image coordinates (pixels): rows [batch_index, x1, y1, x2, y2], where a negative batch
    index marks a padding row; or R boxes per image, K = N * R; or boxes without an index, together
    with rois_num. float16 is converted.
rois_num : (N,), int32 or int64, optional
    Number of boxes of each image, for rois without an index.
mxnet.base.MXNetError
    An invalid argument, shape or dtype; on the CPU, also a batch index that is NaN, fractional or
    beyond the batch. The message names the operator, the argument, the expected value and the
    actual one. (On a GPU such a row is NaN.)
"""
#: What a function takes and a block does not.
_OF_FUNCTIONS = """
out : array, optional
    For the result, which is returned; arrays only.
name : str, optional
    Of the node; symbols only.
attr : dict, optional
    Further attributes of the node; symbols only.
"""


def _entries(text: str) -> dict[str, str]:
    """The entries of a section, by the first name of each."""
    return {
        re.match(r"[\w.]+", entry)[0]: entry.rstrip()  # type: ignore[index]
        for entry in re.split(r"\n(?=\S)", text.strip())
    }


ENTRIES = _entries(_SHARED)


def with_shared_entries(docstring: str) -> str:
    """A docstring whose names of shared entries are replaced by the entries."""
    lines: list[str] = []
    for line in docstring.splitlines():
        names = line.split(", ")
        lines += [ENTRIES[name] for name in names] if set(names) <= ENTRIES.keys() else [line]
    return "\n".join(lines)


def docstring_of_function(function: Callable, block: str) -> str:
    """The docstring of an operator's function: its block's, with all arguments as parameters.

    They are in the order of the signature. The function's own words follow the description.
    """
    head, *rest = re.split(r"^(\w+)\n-+\n", block, flags=re.M)
    sections = dict(zip(rest[::2], rest[1::2]))
    parameters = _entries(sections["Parameters"] + sections.pop("Inputs") + _OF_FUNCTIONS)
    order = list(inspect.signature(function).parameters)
    sections["Parameters"] = "\n".join(
        parameters[name] for name in sorted(parameters, key=order.index)
    )
    texts = [head.strip(), inspect.getdoc(function)]
    for title, text in sections.items():
        title = "Returns" if title == "Outputs" else title
        texts.append(f"{title}\n{'-' * len(title)}\n{text.strip()}")
    return "\n\n".join(map(str, texts))
