# SPDX-License-Identifier: Apache-2.0
"""BoxNMS and Proposal: shapes, symbols, the switch, errors, C."""

from __future__ import annotations

import itertools
import re
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from support.suppressed import CALLS, Suppressed
from suppression import arrays_of, record_of

import gluon_roi
from testing import c_api

box_nms: Any = gluon_roi.nd.BoxNMS
proposal: Any = gluon_roi.nd.Proposal
propose_symbol: Any = gluon_roi.sym.Proposal
DTYPES = ("float32", "float64", "float16")


# ---- Shapes and symbols --------------------------------------------------------------------------


@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (2, 1, 3), (1, 2, 2, 1, 3)])
def test_leading_dimensions(lead, ctx):
    """Any number: batches one after the other; shapes of symbols and of the record follow."""
    call = Suppressed("box_nms", (*lead, 20, 6), {})
    (data,) = arrays_of(call, "float32", ctx)
    expected = box_nms(data.reshape((-1, 20, 6)))
    np.testing.assert_array_equal(
        box_nms(data).asnumpy().reshape(expected.shape), expected.asnumpy()
    )
    symbol = gluon_roi.sym.BoxNMS(mx.sym.var("data"), name="n")
    assert (
        symbol.list_outputs() == mx.sym.contrib.box_nms(mx.sym.var("data"), name="n").list_outputs()
    )
    _, shapes, _ = symbol.get_internals().infer_shape(data=data.shape)
    assert shapes[-2:] == [data.shape, (*data.shape[:-1], 1)]
    executor = symbol.simple_bind(ctx, data=data.shape)
    executor.forward(is_train=True, data=data)
    executor.backward([mx.nd.ones(data.shape, ctx=ctx)])
    kept = (expected.asnumpy()[..., 1] >= 0).sum()
    assert executor.grad_dict["data"].asnumpy().sum() == 6 * kept


@pytest.mark.parametrize(
    "shape", [(65536,) * 4 + (5, 3, 6), (2**31 - 1, 2, 3, 4, 6), (9, 70000, 70000, 2, 6)]
)
def test_too_many_elements(shape):
    """The sentence has the whole shape, and the product of its sizes does not wrap around."""
    symbol = gluon_roi.sym.BoxNMS(mx.sym.var("data"))
    sentence = f"BoxNMS: data has shape {shape}, expected at most 2147483647 elements"
    with pytest.raises(mx.MXNetError, match=re.escape(sentence)):
        symbol.infer_shape(data=shape)


def test_partial_shapes():
    """While an input has no shape, only the known sizes of the output are inferred."""
    maps = [mx.sym.var(name) for name in ("cls", "pred", "info")]
    symbol = propose_symbol(*maps, output_score=True)
    shapes = {"cls": (2, 24, 5, 6), "pred": (2, 48, 5, 6), "info": (2, 3)}
    subsets = itertools.chain.from_iterable(
        itertools.combinations(shapes, count) for count in range(len(shapes) + 1)
    )
    for names, inside in itertools.product(list(subsets), (False, True)):
        known = {name: shapes[name] for name in names}
        with mx.util.np_shape(inside):
            partial = symbol.infer_shape_partial(**known)[1]
            if len(known) == len(shapes):
                assert partial == [(600, 5), (600, 1)]
            else:
                with pytest.raises(mx.MXNetError, match="has no shape"):
                    symbol.infer_shape(**known)
    symbol = gluon_roi.sym.BoxNMS(mx.sym.var("data"))
    assert symbol.infer_shape_partial()[1] == [()]
    assert symbol.infer_shape_partial(data=(2, 0, 6))[1] in ([(2, 0, 6)], [()])


def test_names_of_proposals(ctx):
    """Outputs have the names that they have in MXNet's operator."""
    maps = [mx.sym.var(name) for name in ("cls", "pred", "info")]
    for attr in (None, {"__lr_mult__": "2"}):
        symbol = propose_symbol(*maps, name="rois", attr=attr)
        assert symbol.list_outputs() == ["rois_output"]
        assert symbol.list_arguments() == ["cls", "pred", "info"]
        assert symbol.attr_dict().get("rois", {}).get("__lr_mult__") == (attr and "2")
    symbol = propose_symbol(*maps, name="rois", output_score=True)
    assert symbol.list_outputs() == ["rois_output", "rois_score_output"]
    numpy_symbol = propose_symbol(*(one.as_np_ndarray() for one in maps))
    assert isinstance(numpy_symbol, mx.sym.numpy._Symbol)
    call = CALLS["corners"]
    inputs = dict(zip(("cls", "pred", "info"), arrays_of(call, "float32", ctx)))
    symbol = propose_symbol(*maps, **call.parameters, output_score=True)
    executor = mx.sym.load_json(symbol.tojson()).bind(ctx, inputs)
    for a, b in zip(
        executor.forward(), proposal(*inputs.values(), **call.parameters, output_score=1)
    ):
        np.testing.assert_array_equal(a.asnumpy(), b.asnumpy())


def test_numpy_arrays_and_out(ctx):
    (data,) = arrays_of(CALLS["plain"], "float32", ctx)
    expected = box_nms(data).asnumpy()
    out = mx.npx.gluon_roi.BoxNMS(data.as_np_ndarray())
    assert isinstance(out, mx.np.ndarray)
    np.testing.assert_array_equal(out.asnumpy(), expected)
    for _ in range(3):
        target = data.copy()
        assert box_nms(target, out=target) is target
        np.testing.assert_array_equal(target.asnumpy(), expected)
    maps = [a.as_np_ndarray() for a in arrays_of(CALLS["corners"], "float32", ctx)]
    boxes, scores = proposal(*maps, **CALLS["corners"].parameters, output_score=True)
    assert isinstance(boxes, mx.np.ndarray) and scores.shape == (21, 1)


def test_empty_arrays(ctx):
    with mx.util.np_shape():
        for shape in ((0, 6), (0, 5, 6), (3, 0, 6)):
            data = mx.nd.zeros(shape, ctx=ctx)
            data.attach_grad()
            with autograd.record():
                out = box_nms(data)
            out.backward()
            assert out.shape == data.grad.shape == shape
        maps = [mx.nd.zeros(shape, ctx=ctx) for shape in ((0, 24, 5, 6), (0, 48, 5, 6), (0, 3))]
        assert proposal(*maps).shape == (0, 5)


# ---- The switch ----------------------------------------------------------------------------------


@pytest.mark.parametrize("head_gradients", ["none", "of any shape"])
@pytest.mark.parametrize("output_score", [False, True])
@pytest.mark.parametrize("switch", [lambda symbol: symbol, gluon_roi.optimize])
def test_a_loss_beside_proposals(switch, output_score, head_gradients):
    """Like MXNet's operator, it reads no gradient of its outputs, and adds none to its inputs."""
    given = {"scales": (2.0,), "ratios": (1.0,), "rpn_post_nms_top_n": 2, "feature_stride": 4}
    inputs = mx.sym.var("scores"), mx.sym.var("moves"), mx.sym.var("info")
    boxes = mx.sym.contrib.Proposal(*inputs, output_score=output_score, name="boxes", **given)
    loss = mx.sym.MakeLoss(mx.sym.sum(inputs[0] * mx.sym.var("weight")), name="loss")
    symbol = switch(mx.sym.Group([boxes, loss]))
    assert symbol.list_outputs()[0] == "boxes_output" and symbol.list_outputs()[-1] == "loss_output"
    arrays = {
        "scores": mx.nd.ones((1, 2, 4, 4)),
        "moves": mx.nd.zeros((1, 4, 4, 4)),
        "info": mx.nd.array([[16, 16, 1]]),
        "weight": mx.nd.ones((1, 2, 4, 4)) * 3,
    }
    gradients = {name: mx.nd.ones(array.shape) * 5 for name, array in arrays.items()}
    executor = symbol.bind(mx.cpu(), arrays, gradients, "add")
    executor.forward(is_train=True)
    if head_gradients == "none":
        executor.backward()
    else:
        executor.backward([mx.nd.ones((7,)) for _ in symbol.list_outputs()])
    for name, expected in (("scores", 8), ("moves", 5), ("info", 5), ("weight", 6)):
        assert (gradients[name].asnumpy() == expected).all(), name


@pytest.mark.parametrize("shown", [False, True])
@pytest.mark.parametrize("name", ["Proposal", "MultiProposal"])
def test_optimize_proposals(name, shown, mxnet_cpu):
    """The same numbers; arguments and names stay. Scores may be used in the graph."""
    call = CALLS["all boxes"]
    inputs = dict(zip(("cls", "pred", "info"), arrays_of(call, "float32", mx.cpu())))
    maps = [mx.sym.var(key) * 1 for key in inputs]
    function = getattr(mx.sym.contrib, name)
    symbol = function(
        *maps, **call.parameters, name="rois", output_score=shown, attr={"__lr_mult__": "3"}
    )
    if shown:
        symbol = mx.sym.Group([symbol[0], mx.sym.sqrt(symbol[1] + 2, name="s"), symbol[0] + 1])
    switched = gluon_roi.optimize(symbol)
    assert switched.list_arguments() == symbol.list_arguments()
    assert switched.list_outputs() == symbol.list_outputs()
    assert switched.attr_dict()["rois"]["__lr_mult__"] == "3"
    used = gluon_roi.count(switched)
    assert used["_gluon_roi_Proposal"] == 1 and used[f"_contrib_{name}"] == 0
    results = [one.bind(mx.cpu(), inputs).forward() for one in (symbol, switched)]
    for theirs, ours in zip(*results):
        assert theirs.asnumpy().tobytes() == ours.asnumpy().tobytes()
    again = gluon_roi.optimize(mx.sym.load_json(switched.tojson()))
    assert again.infer_shape(**{k: v.shape for k, v in inputs.items()})[1][0] == (900, 5)


def test_optimized_scores_keep_their_place(mxnet_cpu):
    """Scores that are an output of the symbol have the name of their node."""
    maps = [mx.sym.var(key) for key in ("cls", "pred", "info")]
    symbol = mx.sym.contrib.Proposal(*maps, name="rois", output_score=True)
    switched = gluon_roi.optimize(symbol)
    assert switched.list_outputs() == ["rois_output", "rois_score_output"]


class Detector(gluon.HybridBlock):
    """Suppression and pooling through F, and a loop whose body suppresses."""

    def hybrid_forward(self, F, rows, maps):
        best = F.contrib.box_nms(rows, overlap_thresh=0.3, id_index=0)
        body = lambda row, state: (F.contrib.box_nms(row), state)  # noqa: E731
        looped, _ = F.contrib.foreach(body, best, [])
        boxes, first = (F.slice_axis(best, axis=2, begin=a, end=b) for a, b in ((2, 6), (0, 1)))
        rois = F.reshape(F.concat(first * 0, boxes, dim=2), shape=(-1, 5))
        return F.ROIPooling(maps, rois, (2, 2), 0.1), looped


@pytest.mark.parametrize("rois_only", [False, True])
@pytest.mark.parametrize("how", ["optimize", "replace"])
def test_switched_networks(how, rois_only, mxnet_cpu):
    rows = arrays_of(CALLS["plain"], "float32", mx.cpu())[0]
    rows[:, :, 2:] = rows[:, :, 2:].clip(0, 90)
    maps = mx.nd.random.normal(shape=(1, 3, 12, 12))
    expected = Detector()(rows, maps)
    net = Detector()
    if how == "optimize":
        gluon_roi.optimize(net, rows, maps, rois_only=rois_only)
        results = net(rows, maps)
    else:
        net.hybridize()
        with gluon_roi.replace_builtins(rois_only=rois_only):
            results = net(rows, maps)
    for got, wanted in zip(results, expected):
        np.testing.assert_array_equal(got.asnumpy(), wanted.asnumpy())
    used = {key: uses for key, uses in gluon_roi.count(net).items() if uses}
    suppressed = "_contrib_box_nms" if rois_only else "_gluon_roi_BoxNMS"
    assert used == {suppressed: 2, "_gluon_roi_ROIPool": 1}


# ---- Errors --------------------------------------------------------------------------------------

#: Scores that are kept of THRESHOLD_ROWS, whose first two overlap by 16 / 20.
THRESHOLDS = (
    ("valid_thresh", -np.inf, [0.75, 0.25, -1]),
    ("valid_thresh", np.inf, [-1, -1, -1]),
    ("valid_thresh", np.nan, [-1, -1, -1]),
    ("overlap_thresh", -np.inf, [0.75, -1, -1]),
    ("overlap_thresh", np.inf, [0.75, 0.5, 0.25]),
    ("overlap_thresh", np.nan, [0.75, 0.5, 0.25]),
)
THRESHOLD_ROWS = [[0.5, 0, 0, 4, 4], [0.75, 0, 0, 4, 5], [0.25, 9, 0, 12, 4]]


@pytest.mark.parametrize(("name", "value", "expected"), THRESHOLDS)
def test_thresholds_that_are_not_finite(name, value, expected, ctx, mxnet_cpu):
    """The result is that of MXNet's operator, before and after the switch."""
    given = {"coord_start": 1, "score_index": 0, name: value}
    data = mx.nd.array([THRESHOLD_ROWS], ctx=ctx)
    symbol = mx.sym.contrib.box_nms(mx.sym.var("data"), **given)
    results = [
        symbol.bind(mx.cpu(), {"data": data.as_in_context(mx.cpu())}).forward()[0],
        gluon_roi.optimize(symbol).bind(ctx, {"data": data}).forward()[0],
        box_nms(data, **given),
    ]
    for result in results:
        assert result.asnumpy()[0, :, 0].tolist() == expected


WRONG_NMS: dict[str, tuple[tuple, dict, str]] = {
    "rank": ((6,), {}, "data has shape (6), expected at least 2 dimensions"),
    "width": (
        (4, 5),
        {},
        "argument coord_start: expected four columns of data, which has 5, got 2",
    ),
    "score": ((4, 6), {"score_index": 9}, "argument score_index: expected a column of data, which"),
    "id": ((4, 6), {"id_index": 6}, "argument id_index: expected a column of data, which has 6"),
    "overlap": ((4, 6), {"score_index": 5}, "argument score_index: expected a column that is not"),
    "same": ((4, 6), {"id_index": 1}, "argument id_index: expected a column that is not of score_"),
    "id in box": (
        (4, 7),
        {"id_index": 2},
        "argument id_index: expected a column that is not of co",
    ),
    "negative": ((4, 6), {"coord_start": -1}, "argument coord_start: expected an int from 0 on"),
    "format": ((4, 6), {"in_format": "xywh"}, "argument in_format: expected 'corner' or 'center'"),
    "threshold": (
        (4, 6),
        {"overlap_thresh": 1e39},
        "argument overlap_thresh: expected a number of",
    ),
    "text": (
        (4, 6),
        {"valid_thresh": "high"},
        "argument valid_thresh: expected a number, inf or nan, got 'high'",
    ),
    "too large": (
        (4, 6),
        {"valid_thresh": "1e999"},
        "argument valid_thresh: expected a number, inf or nan, got '1e999'",
    ),
    "angle": (
        (4, 6),
        {"in_format": "rotated", "out_format": "rotated"},
        "argument coord_start: expected five columns of data, which has 6, got 2",
    ),
    "angle as score": (
        (4, 7),
        {"in_format": "rotated", "out_format": "rotated", "score_index": 6},
        "argument score_index: expected a column that is not of coord_start = 2, got 6",
    ),
    "to upright": (
        (4, 7),
        {"in_format": "rotated"},
        "argument out_format: expected 'rotated', because in_format is 'rotated', got another",
    ),
    "to rotated": (
        (4, 7),
        {"out_format": "rotated"},
        "argument out_format: expected 'corner' or 'center', because in_format is not 'rotated'",
    ),
    "method": ((4, 6), {"method": "soft"}, "argument method: expected 'hard' or 'linear' or 'gau"),
    "sigma": (
        (4, 6),
        {"method": "gaussian", "sigma": 0},
        "argument sigma: expected a finite number > 0, got 0",
    ),
    "min_score": (
        (4, 6),
        {"method": "linear", "min_score": -1},
        "argument min_score: expected a finite number from 0 on, got -1",
    ),
    "topk": ((4, 6), {"topk": 1.5}, "argument topk: expected an int, got '1.5'"),
}


@pytest.mark.parametrize("wrong", WRONG_NMS)
def test_errors_of_box_nms(wrong, ctx):
    shape, arguments, message = WRONG_NMS[wrong]
    with pytest.raises(mx.MXNetError, match=f"^BoxNMS: {re.escape(message)}"):
        box_nms(mx.nd.zeros(shape, ctx=ctx), **arguments).wait_to_read()


SHAPES: dict[str, tuple] = {"cls_prob": (2, 6, 4, 5), "bbox_pred": (2, 12, 4, 5), "im_info": (2, 3)}
SIZES = [[64, 80, 1], [60, 70, 1]]
WRONG_MAPS: dict[str, tuple[dict, dict, str]] = {
    "channels": (
        {"cls_prob": (2, 7, 4, 5)},
        {},
        "cls_prob has shape (2, 7, 4, 5), expected 6 along",
    ),
    "moves": (
        {"bbox_pred": (2, 6, 4, 5)},
        {},
        "bbox_pred has shape (2, 6, 4, 5), expected 12 along",
    ),
    "batch": ({"bbox_pred": (1, 12, 4, 5)}, {}, "expected 2 along axis 0, the batch of cls_prob"),
    "height": ({"bbox_pred": (2, 12, 3, 5)}, {}, "expected 4 along axis 2, the height of cls_prob"),
    "width": ({"bbox_pred": (2, 12, 4, 4)}, {}, "expected 5 along axis 3, the width of cls_prob"),
    "rank": ({"cls_prob": (6, 4, 5)}, {}, "cls_prob has shape (6, 4, 5), expected 4 dimensions"),
    "info": ({"im_info": (2, 4)}, {}, "im_info has shape (2, 4), expected 3 along axis 1"),
    "scales": ({}, {"scales": ()}, "argument scales: expected a list of 1 to 8 numbers > 0"),
    "ratios": ({}, {"ratios": (0, 1, 2)}, "argument ratios: expected a list of 1 to 8 numbers > 0"),
    "stride": ({}, {"feature_stride": 0}, "argument feature_stride: expected an int from 1 to"),
    "rows": ({}, {"rpn_post_nms_top_n": 0}, "argument rpn_post_nms_top_n: expected an int from 1"),
    "threshold": ({}, {"threshold": 1e39}, "argument threshold: expected a number of float32"),
}


@pytest.mark.parametrize("wrong", WRONG_MAPS)
def test_errors_of_proposal(wrong, ctx):
    shapes, arguments, message = WRONG_MAPS[wrong]
    inputs = [mx.nd.zeros({**SHAPES, **shapes}[name], ctx=ctx) for name in SHAPES]
    what = {"scales": (8,), "ratios": (0.5, 1, 2), **arguments}
    with pytest.raises(mx.MXNetError, match=f"^Proposal: .*{re.escape(message)}"):
        proposal(*inputs, **what).wait_to_read()


@pytest.mark.parametrize(
    "place, value, message",
    [
        ((1, 0), np.nan, "im_info row 1 has nan, expected finite numbers from 0 on"),
        ((0, 1), -1, "im_info row 0 has -1, expected finite numbers from 0 on"),
        ((0, 2), np.inf, "im_info row 0 has inf, expected finite numbers from 0 on"),
        ((1, 0), 81, "im_info row 1 has height 81, expected at most 4 cells of 16 pixels"),
        ((0, 1), 97, "im_info row 0 has width 97, expected at most 5 cells of 16 pixels"),
    ],
)
def test_wrong_images(place, value, message):
    info = np.array(SIZES, "float32")
    info[place] = value
    inputs = [mx.nd.zeros(SHAPES[name]) for name in ("cls_prob", "bbox_pred")]
    with pytest.raises(mx.MXNetError, match=f"^Proposal: {re.escape(message)}"):
        proposal(*inputs, mx.nd.array(info), scales=(8,), ratios=(0.5, 1, 2)).wait_to_read()


# ---- The C interface -----------------------------------------------------------------------------

LIBRARY = c_api.Library(gluon_roi.library.PATH)
CPU = c_api.Device(c_api.CPU)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CALLS)
def test_c_interface(name, dtype):
    """The same bytes as through MXNet."""
    call = CALLS[name]
    arrays = arrays_of(call, dtype, mx.cpu())
    for array in arrays:
        array.attach_grad()
    function = box_nms if call.op == "box_nms" else proposal
    more = {} if call.op == "box_nms" else {"output_score": True}
    with autograd.record():
        results = function(*arrays, **call.parameters, **more)
    results = results if isinstance(results, list) else [results]
    outputs = [a.asnumpy() for a in results]
    if call.op == "box_nms":
        outputs.append(record_of(arrays[0], **call.parameters))
    given = call.d_outs(outputs)
    autograd.backward(results, [mx.nd.array(a, dtype=dtype) for a in given[: len(results)]])
    p = LIBRARY.operators[call.op].params_of(**call.parameters)
    kept = call.arrays(dtype)
    inputs = c_api.tensors(*kept)
    written = [np.full_like(a, 99) for a in outputs]
    LIBRARY.forward(call.op, p, inputs, written, CPU)
    for got, wanted in zip(written, outputs):
        assert got.tobytes() == wanted.tobytes()
    gradients = [np.full_like(a.asnumpy(), 99) for a in arrays]
    LIBRARY.backward(call.op, p, inputs, given, gradients, CPU)
    for got, array in zip(gradients, arrays):
        assert got.tobytes() == array.grad.asnumpy().tobytes()
    if call.op == "box_nms":  # a gradient that is not wanted
        LIBRARY.backward(call.op, p, inputs, given, [None], CPU)


def test_programs_that_know_ten_fields():
    """A field that a program in C leaves out is 0, which has the meaning of older structs."""
    call = CALLS["plain"]
    (data,) = call.arrays("float32")
    full = LIBRARY.operators["box_nms"].params_of()
    old = LIBRARY.operators["box_nms"].struct()
    for name, _ in old._fields_[:10]:
        setattr(old, name, getattr(full, name))
    assert old._fields_[9][0] == "out_format" and old.sigma == old.min_score == old.method == 0
    results = []
    for p in (full, old):
        written = [np.full_like(data, 99), np.full((*data.shape[:-1], 1), 99, "int32")]
        LIBRARY.forward("box_nms", p, c_api.tensors(data), written, CPU)
        results.append([array.tobytes() for array in written])
    assert results[0] == results[1]


@pytest.mark.parametrize("bad", [12, -(2**31), 3, 2**31 - 1])
def test_record_with_invalid_rows_is_rejected(bad):
    """A record that names no row of its batch is an error; negative numbers are no rows."""
    data = np.zeros((2, 6, 6), "float32")
    record = np.full((2, 6, 1), -1, "int32")
    record[1, 2] = bad
    p = LIBRARY.operators["box_nms"].params_of()
    arguments = "box_nms", p, c_api.tensors(data), [data, record], [data.copy()], CPU
    if bad < 0:
        LIBRARY.backward(*arguments)
        return
    with pytest.raises(c_api.Error, match=f"record has {bad} for row 8, expected a row of its bat"):
        LIBRARY.backward(*arguments)
