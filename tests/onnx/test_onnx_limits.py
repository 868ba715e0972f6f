# SPDX-License-Identifier: Apache-2.0
"""docs/onnx_operators.md lists everything that the rules of the exporter reject."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Iterator

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/onnx_operators.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("## What cannot be exported\n")[2].partition("\n## ")[0]
CHANNELS, GRIDS = "dynamic channels", "`affine` grids"
ROTATED, INTEGERS = "rotated boxes", "| integers |"

#: A function, and the attribute that it expects, or the beginning of what its error says -> words
#: of the page; None if it expects all of MXNet's values.
LIMITS: dict[str, str | None] = {
    "ps_roi_align: channels": CHANNELS,
    "align_boxes: channels": CHANNELS,
    "roi_pool: float64 data have no translation": "| `ROIPool` | float64 |",
    "roi_pool: channels": CHANNELS,
    "ps_roi_pool: channels": CHANNELS,
    "deformable_roi_align: channels": CHANNELS,
    "pr_roi_pool: channels": CHANNELS,
    "_largest_samples: argument sampling_ratio": "`ROIAlign` with `mode='max'`",
    "_largest_samples: channels": CHANNELS,
    "rotated_roi_align: argument sampling_ratio": "`sampling_ratio` of 0 or less",
    "rotated_roi_align: channels": CHANNELS,
    "deformable_ps_roi_pool: channels": CHANNELS,
    "_deformable_sampling: floats": INTEGERS,
    "_deformable_sampling: channels": CHANNELS,
    "_box_decode: sizes": "that the graph or parameters fix",
    "_box_decode: format": None,
    "_box_iou: format": ROTATED,
    "_box_iou: mode": None,
    "_box_iou: floats": INTEGERS,
    "_box_iou: format=rotated has no translation": ROTATED,
    "_suppression: in_format": ROTATED,
    "_suppression: out_format": ROTATED,
    "_suppression: in_format=rotated has no translation": ROTATED,
    "_suppression: method=": "a soft `method`",
    "_suppression:  boxes have no translation": "float64, integers | `NonMaxSuppression`",
    "_suppression: overlap_thresh=": "a threshold that",
    "_settings:  data have no translation": "float64, integers | `NonMaxSuppression`",
    "_settings: threshold=": "a threshold that",
    "_scalar_of: a fractional scalar on ": "a fraction, or a number beyond the range",
    "_scalar_of: scalar=": "a fraction, or a number beyond the range",
    "_dropout: mode": "`mode='always'`",
    "_smooth_l1: scalar=0 has no translation": "`scalar` of 0",
    "_log2: floats": INTEGERS,
    "_clip: a_min=": "`a_min` above `a_max`, or limits beyond the range",
    "_fill: shape=": "(`_zeros`, `_ones`, `_full`) whose size no tensor has",
    "_arange: infer_range": "`infer_range`",
    "_arange_like: repeat": "`repeat`",
    "_arange_like: start=": "a fractional `start` or `step`",
    "_take: mode": "`mode='raise'`",
    "_pick: mode": None,
    "_topk: ret_typ": "`ret_typ='mask'`",
    "_norm: out_dtype": "`out_dtype`",
    "_norm: ord": None,
    "_norm: floats": INTEGERS,
    "_softmax: dtype": "an output of another `dtype`",
    "_batch_dot: axis": "`axis` other than -2",
    "_batch_dot: floats": INTEGERS,
    "_convolution_attributes: layout": "`layout` with channels last",
    "_deconvolution: target_shape": "| `Deconvolution` | `target_shape` |",
    "_activation: act_type=": "an `act_type` that",
    "_leaky_relu: act_type=": "an `act_type` that",
    "_leaky_relu: sizes": "that the graph or parameters fix",
    "_multi_box_detection: sizes": "that the graph or parameters fix",
    "_multi_box_detection:  data have no translation": INTEGERS,
    "_batch_norm: output_mean_var": "`output_mean_var`",
    "_batch_norm: sizes": "that the graph or parameters fix",
    "_batch_norm: data of shape ": "`BatchNorm` of one axis",
    "_instance_norm: sizes": "that the graph or parameters fix",
    "_group_norm: output_mean_var": "`output_mean_var`",
    "_group_norm: gamma or beta has shape ": "`GroupNorm` with a gamma for each channel",
    "_layer_norm: output_mean_var": "`output_mean_var`",
    "_l2_normalization: mode": None,
    "_local_response: nsize=": "an even `nsize`",
    "_local_response: data of rank ": "data of other ranks than 2 and 4",
    "_pooling: floats": INTEGERS,
    "_pooling: layout": "`layout` with channels last",
    "_pooling: pool_type": "`pool_type='lp'`",
    "_pooling: pooling_convention": None,
    "_pooling: pool_type=sum with global_pool=True has no translation": "`pool_type='sum'` with",
    "_upsampling: sample_type": "`sample_type='bilinear'`",
    "_upsampling: several inputs have no translation": "several inputs",
    "_bilinear_resize: mode": None,
    "_resized_side: sizes in the graph": "a dynamic axis that the graph",
    "_grid_generator: transform_type": None,
    "_grid_generator: floats": INTEGERS,
    "_grid_generator: sizes in the graph": GRIDS,
    "_reshape: a shape that is not given has no translation": "no `shape`",
    "_reshape: shape=": "`reverse` with the code -4",
    "_squeeze: without axis, an axis whose size is dynamic has no translation": "`squeeze` without",
    "_blocks: floats": INTEGERS,
    "_pad: mode": None,
}
#: Methods of nodes that reject without a text.
REJECTING = {"expect_floats": "floats", "expect_equal_sizes": "sizes"}
SIZES = {"static_size", "static_out_size"}


def _rejections() -> Iterator[str]:
    """What the rules reject, as keys of LIMITS."""
    for folder in ("rules", "roi"):
        for path in sorted((ROOT / "gluon_roi/onnx" / folder).glob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            for function in ast.walk(tree):
                if isinstance(function, ast.FunctionDef):
                    yield from (f"{function.name}: {key}" for key in _keys(function))


def _keys(function: ast.FunctionDef) -> Iterator[str]:
    for call in ast.walk(function):
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
            continue
        method = call.func.attr
        if method in REJECTING:
            yield REJECTING[method]
        elif method in SIZES:
            is_channels = isinstance(call.args[0], ast.Constant) and call.args[0].value == 1
            yield "channels" if is_channels else "sizes in the graph"
        elif method in ("expect", "refusal"):
            texts = [n.value for n in ast.walk(call.args[0]) if isinstance(n, ast.Constant)]
            yield str(texts[0]).partition(":")[0].partition(", expected")[0]


def test_every_rejection_is_listed():
    assert sorted({*_rejections()}) == sorted(LIMITS)


@pytest.mark.parametrize("words", sorted({words for words in LIMITS.values() if words}))
def test_the_page_has_it(words):
    assert words in SECTION
