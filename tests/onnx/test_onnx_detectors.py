# SPDX-License-Identifier: Apache-2.0
"""The export of other parts of detectors than RoI operators.

Proposals, suppression, deformable convolution, pooling at the border, losses.
"""

from __future__ import annotations

import itertools
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from support.onnx_evaluator import run
from support.overlapped import CALLS
from support.turns import in_turn

import gluon_roi

onnx = pytest.importorskip("onnx")

S = mx.sym


def exported(symbol, arrays, path, is_dynamic=False, **options):
    """What the exported model gives for the inputs of a symbol, by name, and what MXNet gives."""
    given = {name: mx.nd.array(value, dtype=value.dtype) for name, value in arrays.items()}
    expected = symbol.bind(mx.cpu(), given).forward()
    inputs = [arrays[name] for name in symbol.list_inputs()]
    if is_dynamic:
        fixed = {"weight", "bias"}
        axes = {4: (0, 2, 3)} if fixed & set(arrays) else {}  # channels are those of the weight
        options["dynamic"] = [
            () if name in fixed else axes.get(arrays[name].ndim, range(arrays[name].ndim))
            for name in symbol.list_inputs()
        ]
    types = [value.dtype for value in inputs]
    gluon_roi.onnx.export(symbol, [v.shape for v in inputs], path, input_types=types, **options)
    return run(path, *inputs), [out.asnumpy() for out in expected]


# ---- Proposals -----------------------------------------------------------------------------------


def _proposal(multi: bool = True, **attributes: Any) -> Any:
    names = ("cls_prob", "bbox_pred", "im_info")
    operator = S.contrib.MultiProposal if multi else S.contrib.Proposal
    return operator(*map(S.var, names), **attributes)


def _maps(
    images: int, anchors: int, size: tuple, stride: int, seed: int = 0, spread: float = 0.3
) -> dict:
    """Scores with ties, boxes of some pixels, images that are as large as the map or smaller."""
    random = np.random.RandomState(seed)
    scores = np.round(random.rand(images, 2 * anchors, *size) * 16) / 16
    info = np.array([[size[0] * stride, size[1] * stride, 1.0]] * images)
    info[1:] *= [0.7, 0.55, 1.6]
    return {
        "cls_prob": scores.astype("float32"),
        "bbox_pred": (random.randn(images, 4 * anchors, *size) * spread).astype("float32"),
        "im_info": info.astype("float32"),
    }


PROPOSALS: dict[str, Any] = {
    "defaults": ({"rpn_post_nms_top_n": 20}, 12, (2, 7, 5), 16),
    "one image": ({"multi": False, "rpn_post_nms_top_n": 20}, 12, (1, 7, 5), 16),
    "scores": ({"scales": (8,), "ratios": (1,), "output_score": True}, 1, (3, 3, 4), 16),
    "all boxes": ({"scales": (2, 4), "rpn_pre_nms_top_n": -1, "threshold": 0.5}, 6, (2, 4, 6), 16),
    "few boxes": ({"scales": (2, 4), "rpn_pre_nms_top_n": 7, "threshold": 0.3}, 6, (2, 4, 6), 16),
    "corners": ({"scales": (1, 3.5), "iou_loss": True, "threshold": 0.6}, 6, (2, 5, 3), 8),
    "small boxes": ({"scales": (1, 2), "rpn_min_size": 24}, 6, (2, 5, 5), 8),
    "no smallest": ({"scales": (1, 2), "rpn_min_size": 0}, 6, (2, 5, 5), 8),
    "odd ratios": ({"scales": (3,), "ratios": (0.33, 3)}, 2, (2, 6, 6), 12),
    "no overlap": ({"scales": (1,), "threshold": 0.0}, 3, (2, 4, 4), 16),
    "any overlap": ({"scales": (1,), "threshold": 1.0, "output_score": True}, 3, (2, 4, 4), 16),
}


@pytest.mark.parametrize("name", PROPOSALS)
def test_proposals(name, tmp_path):
    attributes, anchors, (images, *size), stride = PROPOSALS[name]
    attributes = {"rpn_post_nms_top_n": 40, "feature_stride": stride, **attributes}
    symbol = _proposal(**attributes)
    for spread in (0, 0.3):  # boxes on whole pixels, which tie, and any
        arrays = _maps(images, anchors, size, stride, spread=spread)
        if attributes.get("iou_loss"):
            arrays["bbox_pred"] *= 20
        found, expected = exported(symbol, arrays, tmp_path / "model.onnx", is_dynamic=images > 1)
        assert len(found) == len(expected) == 1 + attributes.get("output_score", False)
        for ours, theirs in zip(found, expected):
            np.testing.assert_allclose(ours, theirs, atol=2e-5, rtol=1e-6)


def test_proposals_of_another_size(tmp_path):
    symbol = _proposal(scales=(2, 4), rpn_post_nms_top_n=30, rpn_min_size=4)
    path = tmp_path / "model.onnx"
    exported(symbol, _maps(2, 6, (4, 6), 16), path, is_dynamic=True)
    arrays = _maps(3, 6, (7, 5), 16, seed=1)
    given = {name: mx.nd.array(value) for name, value in arrays.items()}
    (expected,) = symbol.bind(mx.cpu(), given).forward()
    (found,) = run(path, *arrays.values())
    np.testing.assert_allclose(found, expected.asnumpy(), atol=2e-5, rtol=1e-6)


@pytest.mark.parametrize(
    "attributes, message",
    [
        ({"scales": (8,)}, "cls_prob has shape (1, 24, 4, 4), expected 6 along axis 1, 2 for each"),
        ({"threshold": 1.5}, "node rois_boxes (_gluon_roi_Proposal): threshold=1.5 has no transl"),
    ],
)
def test_proposals_that_are_refused(attributes, message, tmp_path):
    symbol = S.contrib.MultiProposal(*map(S.var, "abc"), name="rois", **attributes)
    shapes = [(1, 24, 4, 4), (1, 48, 4, 4), (1, 3)]
    with pytest.raises((NotImplementedError, ValueError)) as raised:
        gluon_roi.onnx.export(symbol, shapes, tmp_path / "model.onnx")
    assert message in str(raised.value)


# ---- Suppression ---------------------------------------------------------------------------------

SUPPRESSIONS: dict[str, dict] = {
    "corners": {},
    "classes": {"id_index": 0, "background_id": 1},
    "together": {"id_index": 0, "force_suppress": True, "topk": 9},
    "centres": {"in_format": "center", "out_format": "center"},
    "to corners": {"in_format": "center", "id_index": 0},
    "to centres": {"out_format": "center", "topk": 12},
    "columns": {"coord_start": 1, "score_index": 0},
    "no overlap": {"overlap_thresh": 0.0, "id_index": 0},
    "any overlap": {"overlap_thresh": 1.0, "topk": 15},
    "as it is": {"topk": 0, "out_format": "center"},
    "nothing": {"valid_thresh": 2.0},
}


@pytest.mark.parametrize("name", SUPPRESSIONS)
def test_suppression(name, tmp_path):
    """Ties of scores and overlaps that are the threshold, inverted boxes, rows of any rank."""
    attributes = {"overlap_thresh": 0.5, "valid_thresh": 0.2, **SUPPRESSIONS[name]}
    random = np.random.RandomState(0)
    corner = random.randint(-2, 12, (2, 3, 20, 2)) * 2
    boxes = np.concatenate([corner, corner + random.randint(-1, 5, corner.shape) * 2], axis=-1)
    if attributes.get("in_format") == "center":
        boxes[..., 2:] -= corner
    scores, kinds = random.randint(0, 9, (2, 3, 20, 1)) / 8, random.randint(-1, 3, (2, 3, 20, 1))
    rows = np.concatenate([kinds, scores, boxes, kinds + 7], axis=-1)
    if "score_index" in attributes:
        rows = np.concatenate([scores, boxes], axis=-1)
    symbol = S.contrib.box_nms(S.var("rows"), **attributes)
    for shape in ((2, 3, 20), (6, 20), (120,)):
        given = {"rows": rows.reshape(*shape, -1).astype("float32")}
        (found,), (expected, *_) = exported(symbol, given, tmp_path / "model.onnx", len(shape) < 3)
        np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("name", SUPPRESSIONS)
def test_indices_of_suppression(name, tmp_path):
    """The indices of kept rows, counted over all batches, are int32 and a second output."""
    attributes = {"overlap_thresh": 0.5, "valid_thresh": 0.2, **SUPPRESSIONS[name]}
    random = np.random.RandomState(1)
    rows = random.randint(0, 8, (2, 3, 20, 6)) / 8.0
    rows[..., -2:] += 1
    rows[..., 0] = random.randint(-1, 3, (2, 3, 20))
    symbol = gluon_roi.sym.BoxNMS(S.var("rows"), **attributes, return_indices=True)
    for shape in ((2, 3, 20), (6, 20), (120,)):
        given = {"rows": rows.reshape(*shape, -1).astype("float32")}
        found, expected = exported(symbol, given, tmp_path / "model.onnx", len(shape) < 3)
        np.testing.assert_allclose(found[0], expected[0], atol=1e-6)
        np.testing.assert_array_equal(found[1], expected[1])
        assert found[1].dtype == expected[1].dtype == np.int32


# ---- Overlaps ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["corner", "center", "first area", "rows"])
def test_overlaps(name, tmp_path):
    """Upright boxes: every pair, or row by row; NaN and infinity give 0."""
    call = CALLS[name]
    symbol = gluon_roi.sym.BoxIoU(S.var("lhs"), S.var("rhs"), **call.parameters)
    for spoiled in (False, True):
        given = dict(zip(("lhs", "rhs"), call.arrays("float32")))
        if spoiled:
            given["lhs"].flat[::17], given["rhs"].flat[::19] = np.nan, np.inf
        is_dynamic = not call.parameters.get("aligned")
        (found,), (expected,) = exported(symbol, given, tmp_path / "model.onnx", is_dynamic)
        np.testing.assert_allclose(found, expected, 1e-6)


# ---- Deformable convolution ----------------------------------------------------------------------


def _sample(cells: np.ndarray, y: float, x: float, fades: bool) -> float:
    """One bilinear sample of a map (H, W), from the definition."""
    height, width = cells.shape
    if fades:
        if not (y > -1 and x > -1 and y < height and x < width):
            return 0
    elif not (y >= 0 and x >= 0 and y < height and x < width):
        return 0
    else:
        y, x = min(y, height - 1), min(x, width - 1)
    total = 0.0
    for i, j in itertools.product((int(np.floor(y)), int(np.floor(y)) + 1),
                                  (int(np.floor(x)), int(np.floor(x)) + 1)):  # fmt: skip
        if 0 <= i < height and 0 <= j < width:
            total += cells[i, j] * (1 - abs(y - i)) * (1 - abs(x - j))
    return total


def _deformed(data, offset, mask, weight, kernel, stride, pad, dilate, groups, parts):
    """The convolution as a plain loop, in float64."""
    images, channels = data.shape[:2]
    filters, cells = len(weight), kernel[0] * kernel[1]
    out = np.zeros((images, filters, *offset.shape[2:]))
    for n, f, y, x in np.ndindex(*out.shape):
        for c, k in itertools.product(range(channels // groups), range(cells)):
            channel = c + f // (filters // groups) * (channels // groups)
            part = channel // (channels // parts)
            place = 2 * (part * cells + k)
            i, j = divmod(k, kernel[1])
            value = _sample(
                data[n, channel],
                y * stride[0] - pad[0] + i * dilate[0] + offset[n, place, y, x],
                x * stride[1] - pad[1] + j * dilate[1] + offset[n, place + 1, y, x],
                fades=mask is not None,
            )
            if mask is not None:
                value *= mask[n, part * cells + k, y, x]
            out[n, f, y, x] += weight[f, c, i, j] * value
    return out


#: kernel, stride, pad, dilate, num_group, num_deformable_group, channels, filters
DEFORMABLE = {
    "3x3": ((3, 3), (1, 1), (1, 1), (1, 1), 1, 1, 3, 4),
    "dilated": ((3, 3), (1, 1), (2, 2), (2, 2), 1, 2, 4, 4),
    "groups": ((2, 3), (2, 1), (1, 0), (1, 2), 2, 4, 8, 4),
    "1x1": ((1, 1), (1, 2), (0, 0), (1, 1), 3, 1, 3, 6),
}


@pytest.mark.parametrize("modulated", [False, True])
@pytest.mark.parametrize("name", DEFORMABLE)
def test_deformable_convolution(name, modulated, tmp_path):
    """A plain loop and MXNet give the same: samples on, around and far off the map, and NaN."""
    kernel, stride, pad, dilate, groups, parts, channels, filters = DEFORMABLE[name]
    random = np.random.RandomState(3)
    height, width = 5, 7
    size = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, p, d, k, s in zip((height, width), pad, dilate, kernel, stride)
    ]
    cells = kernel[0] * kernel[1]
    offset = random.randint(-24, 25, (2, 2 * parts * cells, *size)) / 4
    offset.flat[::11] = np.resize([1e9, -1e9, np.nan, np.inf], offset.flat[::11].size)
    arrays = {
        "data": random.randn(2, channels, height, width),
        "offset": offset,
        "mask": random.rand(2, parts * cells, *size),
        "weight": random.randn(filters, channels // groups, *kernel),
        "bias": random.randn(filters),
    }
    if not modulated:
        del arrays["mask"]
    arrays = {key: value.astype("float32") for key, value in arrays.items()}
    operator = "ModulatedDeformableConvolution" if modulated else "DeformableConvolution"
    attributes = dict(
        kernel=kernel, stride=stride, pad=pad, dilate=dilate, num_filter=filters,
        num_group=groups, num_deformable_group=parts,
    )  # fmt: skip
    loop = (kernel, stride, pad, dilate, groups, parts)
    data, offset, weight = (arrays[key] for key in ("data", "offset", "weight"))
    expected = _deformed(data, offset, arrays.get("mask"), weight, *loop)
    for bias, is_dynamic in ((True, False), (False, True)):
        names = [key for key in arrays if bias or key != "bias"]
        symbol = getattr(S.contrib, operator)(*map(S.var, names), no_bias=not bias, **attributes)
        given = {key: arrays[key] for key in names}
        (found,), (theirs,) = exported(symbol, given, tmp_path / "model.onnx", is_dynamic)
        wanted = expected + arrays["bias"].reshape(-1, 1, 1) * bias
        np.testing.assert_allclose(found, wanted, atol=2e-5, rtol=1e-5)
        np.testing.assert_allclose(found, theirs, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("modulated", [False, True])
def test_deformable_convolution_of_float16(modulated, tmp_path):
    """Samples and their product in float32, rounded once; MXNet has it on the GPU alone.

    The graph rounds the samples, too, but onnxruntime leaves that out (docs/onnx_operators.md).
    """
    random = np.random.RandomState(3)
    arrays = {
        "data": random.randn(1, 3, 5, 7),
        "offset": random.uniform(-6, 6, (1, 18, 5, 7)),
        "mask": random.rand(1, 9, 5, 7),
        "weight": random.randn(4, 3, 3, 3),
    }
    if not modulated:
        del arrays["mask"]
    arrays = {key: value.astype("float16") for key, value in arrays.items()}
    operator = "ModulatedDeformableConvolution" if modulated else "DeformableConvolution"
    symbol = getattr(S.contrib, operator)(
        *map(S.var, arrays), kernel=(3, 3), pad=(1, 1), num_filter=4, no_bias=True
    )
    path = tmp_path / "model.onnx"
    shapes = [value.shape for value in arrays.values()]
    gluon_roi.onnx.export(symbol, shapes, path, input_types=["float16"] * len(arrays))
    nodes = onnx.load(str(path)).graph.node
    to_float16 = [n for n in nodes if n.op_type == "Cast" and n.attribute[0].i == 10]
    assert len(to_float16) == 1 and nodes[-1].op_type == "Conv"
    (found,) = run(path, *arrays.values())
    data, offset, weight = (arrays[key].astype("float64") for key in ("data", "offset", "weight"))
    loop = ((3, 3), (1, 1), (1, 1), (1, 1), 1, 1)
    expected = _deformed(data, offset, arrays.get("mask"), weight, *loop)
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, expected, rtol=2**-11, atol=1e-5)


def test_nan_and_infinite_cells_at_the_border(tmp_path):
    """Samples outside of the map read nothing, not even 0 times a cell."""
    data = np.zeros((1, 1, 3, 4), "float32")
    data[0, 0, 0, 0], data[0, 0, 2, 3] = np.nan, np.inf
    offset = np.zeros((1, 2, 3, 4), "float32")
    offset[0, :, 0] = 9
    offset[0, :, 1, 3] = 0.5
    arrays = {"data": data, "offset": offset, "weight": np.ones((1, 1, 1, 1), "float32")}
    symbol = S.contrib.DeformableConvolution(
        *map(S.var, arrays), kernel=(1, 1), num_filter=1, no_bias=True
    )
    (found,), (expected,) = exported(symbol, arrays, tmp_path / "model.onnx")
    # Cells beyond the last count as 0 times its value in MXNet: NaN where it is infinite.
    np.testing.assert_array_equal(np.where(np.isfinite(found), found, np.nan), expected)
    assert (found[0, 0, 0] == 0).all() and not np.isfinite(found[0, 0, 2, 3])


# ---- Pooling at the border -----------------------------------------------------------------------

#: kernel, stride, pad: with the last window full, short, and behind the map.
WINDOWS = [(3, 2, 0), (3, 2, 1), (2, 2, 0), (2, 3, 1), (1, 2, 0), (3, 3, 2), (2, 1, 1)]


@pytest.mark.parametrize("kind, is_dynamic", in_turn(["max", "avg", "sum"], [False, True], every=2))
def test_full_pooling(kind, is_dynamic, tmp_path):
    """Every window of MXNet, also the last one that begins behind the map."""
    random = np.random.RandomState(0)
    path = tmp_path / "model.onnx"
    for (k, s, p), size, include in itertools.product(WINDOWS, (4, 5, 6, 7), (None, True, False)):
        if include is not None and kind != "avg" or k > size + 2 * p:
            continue
        attributes = {} if include is None else {"count_include_pad": include}
        symbol = S.Pooling(
            S.var("x"), kernel=(k, 2), stride=(s, 1), pad=(p, 0), pool_type=kind,
            pooling_convention="full", **attributes,
        )  # fmt: skip
        x = random.randn(1, 2, size, 3).astype("float32")
        (found,), (expected,) = exported(symbol, {"x": x}, path, is_dynamic)
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6, err_msg=f"{k, s, p}")


@pytest.mark.parametrize("kind", ["max", "avg", "sum"])
def test_same_pooling(kind, tmp_path):
    """MXNet has it along one axis; of float32 with padding its CPU has the sum alone."""
    for kernel, stride in ((3, 2), (2, 3), (3, 1), (1, 2)):
        symbol = S.Pooling(
            S.var("x"), kernel=(kernel,), stride=(stride,), pad=(0, 0, 0), pool_type=kind,
            pooling_convention="same",
        )  # fmt: skip
        x = np.random.RandomState(0).randn(1, 2, 5)
        path = tmp_path / "model.onnx"
        (expected,) = symbol.bind(mx.cpu(), {"x": mx.nd.array(x, dtype="float64")}).forward()
        gluon_roi.onnx.export(symbol, [x.shape], path)
        (found,) = run(path, x.astype("float32"))
        np.testing.assert_allclose(found, expected.asnumpy(), rtol=1e-6, atol=1e-6)


def test_a_map_that_others_read_is_not_padded(tmp_path):
    """onnxruntime would fuse the padding and lose the map."""
    x = S.var("x")
    y = S.relu(x)
    pool = S.Pooling(y, kernel=(2, 2), stride=(3, 3), pad=(1, 1), pooling_convention="full")
    path = tmp_path / "model.onnx"
    value = np.random.RandomState(0).randn(1, 2, 4, 4).astype("float32")
    found, expected = exported(S.Group([pool, y]), {"x": value}, path)
    for ours, theirs in zip(found, expected):
        np.testing.assert_array_equal(ours, theirs)


# ---- Losses --------------------------------------------------------------------------------------


@pytest.mark.parametrize("attributes", [{}, {"multi_output": True}, {"preserve_shape": True}])
def test_outputs_of_training_need_no_label(attributes, tmp_path):
    data = S.var("data")
    rest = [S.LogisticRegressionOutput(data), S.LinearRegressionOutput(data), S.MakeLoss(data)]
    symbol = S.Group([S.SoftmaxOutput(data, name="prob", **attributes), *rest])
    value = np.random.RandomState(0).randn(2, 3, 4).astype("float32")
    bound = symbol.simple_bind(mx.cpu(), data=value.shape)
    expected = bound.forward(data=mx.nd.array(value))
    path = tmp_path / "model.onnx"
    gluon_roi.onnx.export(symbol, [value.shape], path)
    assert [one.name for one in onnx.load(str(path)).graph.input] == ["data"]
    for ours, theirs in zip(run(path, value), expected):
        np.testing.assert_allclose(ours, theirs.asnumpy(), rtol=1e-6, atol=1e-6)
