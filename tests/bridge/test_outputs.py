# SPDX-License-Identifier: Apache-2.0
"""The argument out: arrays that share memory with an input, and arrays of another dtype."""

import functools
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from operators import OPERATORS
from support.cases import row_id
from support.layers import numbers
from support.suppressed import CALLS

import gluon_roi
from gluon_roi.inference import winograd
from testing.inference_operators import upsample_add, winograd_convolution

IMAGES, POOLED, SCALE = 2, 2, 1.0
nd = gluon_roi.nd


def inputs_of(op, ctx):
    """Maps as large as the output, and boxes that exchange the images."""
    channels = op.channels(1, (POOLED, POOLED), {})
    data = mx.nd.array(numbers(0, IMAGES, channels, POOLED, POOLED), ctx=ctx)
    return data, mx.nd.array(op.rois([[1, 0, 0, 1, 1], [0, 0, 0, 1, 1]]), ctx=ctx)


def refused(operator, argument):
    message = (
        f"^{operator}: argument out: expected memory of its own, got some that is shared with "
        f"{argument}$"
    )
    return pytest.raises(mx.MXNetError, match=message)


@pytest.mark.parametrize("numpy", [False, True], ids=["nd", "np"])
@pytest.mark.parametrize("op", OPERATORS, ids=row_id)
def test_output_that_shares_memory_with_the_map(op, numpy, ctx):
    """The array itself, a reshaped view, a slice that begins or ends inside: refused at once."""
    data, rois = inputs_of(op, ctx)
    expected = op.function(data, rois, POOLED, SCALE).asnumpy()
    size = expected.size
    buffer = mx.nd.zeros(2 * size + data.size, ctx=ctx)
    maps = buffer[size : size + data.size].reshape(data.shape)
    maps[:] = data
    inputs = [array.as_np_ndarray() if numpy else array for array in (maps, rois)]

    def view(begin):
        array = buffer[begin : begin + size].reshape(expected.shape)
        return array.as_np_ndarray() if numpy else array

    for begin in 0, size + data.size:
        out = view(begin)
        assert op.function(*inputs, POOLED, SCALE, out=[out]) is out
        np.testing.assert_array_equal(out.asnumpy(), expected)
    for begin in 1, size, size + data.size - 1:
        with refused(op.name, "data0?"):
            op.function(*inputs, POOLED, SCALE, out=view(begin))
    np.testing.assert_array_equal(maps.asnumpy(), data.asnumpy())


def test_output_that_shares_memory_with_boxes(ctx):
    data = mx.nd.ones((1, 5, 1, 1), ctx=ctx)
    rois = mx.nd.array([[0, 0, 0, 1, 1]], ctx=ctx)
    with refused("ROIPool", "rois"):
        nd.ROIPool(data, rois, 1, 1.0, out=rois.reshape((1, 5, 1, 1)))
    counts = mx.nd.ones(1, ctx=ctx)
    with refused("ROIPool", "rois_num"):
        nd.ROIPool(
            data[:, :1], rois[:, 1:], 1, 1.0, rois_num=counts, out=counts.reshape((1, 1, 1, 1))
        )
    boxes = mx.nd.array(numbers(0, 4, 4), ctx=ctx)
    for lhs, rhs, name in ((boxes, boxes.copy(), "lhs"), (boxes.copy(), boxes, "rhs")):
        with refused("BoxIoU", name):
            nd.BoxIoU(lhs, rhs, out=boxes)
    maps = [mx.nd.ones((1, 1, 2, 2), ctx=ctx) for _ in range(2)]
    with refused("PyramidROIAlign", "data1"):
        nd.PyramidROIAlign(maps, rois, 2, [1.0, 0.5], out=maps[1])


@pytest.mark.parametrize("indices", [False, True])
@pytest.mark.parametrize("name", [name for name, call in CALLS.items() if call.name == "BoxNMS"])
def test_suppression_in_place(name, indices, ctx):
    """BoxNMS writes its rows to its input, as MXNet's code does with box_nms."""
    call = CALLS[name]
    data = mx.nd.array(call.arrays("float32")[0], ctx=ctx)
    rows, kept = nd.BoxNMS(data, **{**call.parameters, "return_indices": True})
    out = [data.copy(), mx.nd.zeros(kept.shape, ctx=ctx, dtype="int32")][: 1 + indices]
    parameters = {**call.parameters, "return_indices": indices}
    nd.BoxNMS(out[0].reshape(data.shape), **parameters, out=out if indices else out[0])
    np.testing.assert_array_equal(out[0].asnumpy(), rows.asnumpy())
    if indices:
        np.testing.assert_array_equal(out[1].asnumpy(), kept.asnumpy())


def test_suppression_of_rows_that_overlap_its_output(ctx):
    data = mx.nd.array(numbers(0, 6, 6), ctx=ctx)
    expected = nd.BoxNMS(data).asnumpy()
    both = mx.nd.concat(data, data, dim=0)
    nd.BoxNMS(both[:6], out=both[3:9])
    np.testing.assert_array_equal(both[3:9].asnumpy(), expected)


def proposals(ctx):
    """Proposal with its inputs and parameters, and its two results."""
    call = CALLS["corners"]
    inputs = [mx.nd.array(array, ctx=ctx) for array in call.arrays("float32")]
    propose: Any = functools.partial(nd.Proposal, *inputs, **call.parameters)
    return propose, propose(output_score=True)


def test_outputs_that_share_memory(ctx):
    propose, (boxes, scores) = proposals(ctx)
    buffer = mx.nd.zeros(boxes.size + scores.size, ctx=ctx)
    first = buffer[: boxes.size].reshape(boxes.shape)
    for begin in boxes.size - 1, boxes.size:
        second = buffer[begin : begin + scores.size].reshape(scores.shape)
        if begin < boxes.size:
            with refused("Proposal", "another array of out"):
                propose(output_score=True, out=[first, second])
        else:
            propose(output_score=True, out=[first, second])
    np.testing.assert_array_equal(first.asnumpy(), boxes.asnumpy())
    np.testing.assert_array_equal(second.asnumpy(), scores.asnumpy())


def test_dtype(ctx):
    """Numbers are not converted, whether the operator has hidden outputs or not."""
    propose, (boxes, scores) = proposals(ctx)
    for output_score in (False, True):
        for dtype in ("int32", "float16", "float64"):
            out = [mx.nd.full(a.shape, 7, ctx, dtype) for a in (boxes, scores)][: 1 + output_score]
            with pytest.raises(mx.MXNetError, match=rf"Proposal: argument out: .*{dtype}"):
                propose(output_score=output_score, out=out)
            assert (out[0].asnumpy() == 7).all()
    data = mx.nd.array(numbers(0, 6, 6), ctx=ctx)
    out = mx.nd.full((6, 6), 7, ctx, "int32")
    message = "BoxNMS: argument out: expected dtype float32, got int32"
    for target, rows in ((out, data), (out.as_np_ndarray(), data.as_np_ndarray())):
        with pytest.raises(mx.MXNetError, match=message):
            nd.BoxNMS(rows, out=target)
        assert (out.asnumpy() == 7).all()


@pytest.mark.parametrize("name", ["DeformableConvolution", "ModulatedDeformableConvolution"])
def test_deformable_convolutions(name, ctx):
    data = mx.nd.array(numbers(0, 3, 4, 3, 3), ctx=ctx)
    weight = mx.nd.array(numbers(1, 4, 4, 3, 3), ctx=ctx)
    offset, mask = mx.nd.zeros((3, 18, 3, 3), ctx=ctx), mx.nd.ones((3, 9, 3, 3), ctx=ctx)
    inputs = {"data": data, "offset": offset, "mask": mask, "weight": weight}
    if name == "DeformableConvolution":
        del inputs["mask"]

    def call(out):
        return getattr(nd, name)(**inputs, kernel=3, pad=1, no_bias=True, out=out)

    expected = call(None).asnumpy()
    with refused(name, "data"):
        call(data)
    with refused(name, "weight"):
        call(weight[:3])
    for out, message in (
        (mx.nd.zeros(expected.shape, ctx, "int32"), "expected dtype float32, got int32"),
        (mx.nd.zeros((3, 4, 3, 2), ctx), r"expected shape \(3, 4, 3, 3\), got \(3, 4, 3, 2\)"),
    ):
        with pytest.raises(mx.MXNetError, match=f"{name}: argument out: {message}"):
            call(out)
    with pytest.raises(TypeError, match=f"{name}: argument out: expected 1, got 2 arrays"):
        call([data, data])
    out = mx.nd.zeros(expected.shape, ctx)
    assert call([out]) is out
    np.testing.assert_array_equal(out.asnumpy(), expected)


def test_registered_operators():
    """Functions below the public ones: the operator itself refuses, when it runs."""
    data = mx.nd.array(numbers(0, 2, 1, 2, 2), ctx=mx.cpu())
    rois = mx.nd.array([[1, 0, 0, 1, 1], [0, 0, 0, 1, 1]], ctx=mx.cpu())
    message = "ROIPool: output: expected memory of its own, got some that is shared with data"
    with pytest.raises(mx.MXNetError, match=message):
        mx.nd._internal._gluon_roi_ROIPool(
            data, rois, pooled_size=(2, 2), spatial_scale=1.0, out=data
        ).wait_to_read()


@pytest.mark.parametrize("size", [4, 13])
def test_operators_for_inference(size):
    """A residual or a level of a pyramid that is also the output."""
    weight = winograd.transform_weights(numbers(0, 4, 4, 3, 3))
    shape = 1, 4, size, size
    arrays = {
        "data": numbers(0, *shape),
        "weight": weight,
        "bias": np.zeros(4, np.float32),
        "residual": numbers(1, *shape),
    }

    def inputs():
        return {name: mx.nd.array(array, ctx=mx.cpu()) for name, array in arrays.items()}

    expected = winograd_convolution(**inputs(), num_filter=4).asnumpy()
    for name in "data", "residual":
        given = inputs()
        with pytest.raises(mx.MXNetError, match=f"output: .* is shared with {name}"):
            winograd_convolution(**given, num_filter=4, out=given[name]).wait_to_read()
    out = mx.nd.zeros(shape, ctx=mx.cpu())
    winograd_convolution(**inputs(), num_filter=4, out=out)
    np.testing.assert_array_equal(out.asnumpy(), expected)
    low = mx.nd.ones((1, 4, -(-size // 2), -(-size // 2)), ctx=mx.cpu())
    high = inputs()["residual"]
    with pytest.raises(mx.MXNetError, match="UpsampleAdd: output: .* is shared with high"):
        upsample_add(low, high, out=high).wait_to_read()


@pytest.mark.parametrize("flags", [{}, {"static_alloc": True, "static_shape": True}])
def test_graphs_plan_no_output_in_an_input(flags):
    """Every input is computed in the graph, and read for the last time."""
    inputs = {
        "data": numbers(0, 1, 4, 13, 13),
        "weight": winograd.transform_weights(numbers(1, 4, 4, 3, 3)),
        "bias": numbers(2, 4),
        "residual": numbers(3, 1, 4, 13, 13),
    }
    arrays = {name: mx.nd.array(array, ctx=mx.cpu()) for name, array in inputs.items()}
    variables = {name: mx.sym.var(name) for name in inputs}
    computed = {name: mx.sym.relu(variable) for name, variable in variables.items()}
    block = mx.gluon.SymbolBlock(
        mx.sym.relu(winograd_convolution(**computed, num_filter=4)), list(variables.values())
    )
    block.hybridize(**flags)
    positive = {name: mx.nd.relu(array) for name, array in arrays.items()}
    expected = mx.nd.relu(winograd_convolution(**positive, num_filter=4)).asnumpy()
    for _ in range(3):
        np.testing.assert_array_equal(block(*arrays.values()).asnumpy(), expected)
