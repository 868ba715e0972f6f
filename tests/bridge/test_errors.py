# SPDX-License-Identifier: Apache-2.0
"""Bad input raises one sentence that names operator, argument, expected and got."""

import re
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
from operators import OPERATORS
from support.cases import feature_map, row_id

import gluon_roi

POOLED, SCALE = (3, 3), 0.5
operators = pytest.mark.parametrize("op", OPERATORS, ids=row_id)

POSITIVE = "argument spatial_scale: expected a number > 0, at most 1e30"
# (keyword arguments, what the message says after "<operator>: ")
ATTRIBUTES = [
    (
        {"pooled_size": 0},
        "argument pooled_size: expected a positive int or (height, width), got '0'",
    ),
    (
        {"pooled_size": (3, -1)},
        "argument pooled_size: expected a positive int or (height, width), ",
    ),
    (
        {"pooled_size": (3, 3, 3)},
        "argument pooled_size: expected a positive int or (height, width), ",
    ),
    ({"pooled_size": 2.5}, "argument pooled_size: expected a positive int or (height, width), "),
    ({"pooled_size": None}, "argument pooled_size: expected a positive int or (height, width), "),
    ({"pooled_size": 2**31}, "argument pooled_size: expected at most 16777216, got '2147483648'"),
    ({"pooled_size": (1, 2**24 + 1)}, "argument pooled_size: expected at most 16777216, got"),
    ({"pooled_size": 65536}, "argument pooled_size: expected at most 2147483647 bins, got 65536 *"),
    ({"spatial_scale": 0}, f"{POSITIVE}, got '0'"),
    ({"spatial_scale": -1.0}, f"{POSITIVE}, got '-1.0'"),
    ({"spatial_scale": float("nan")}, f"{POSITIVE}, "),
    ({"spatial_scale": float("inf")}, f"{POSITIVE}, "),
    ({"spatial_scale": "wide"}, f"{POSITIVE}, got 'wide'"),
    ({"spatial_scale": [0.5]}, f"{POSITIVE}, got '[0.5]'"),
]


def shapes(box):
    """(shapes of data and rois, dtypes, rois_num, message) for boxes of so many coordinates."""
    row = box + 1
    return [
        ((2, 27, 5), (4, row), {}, "data has shape (2, 27, 5), expected 4 dimensions (N, C, H, W)"),
        (
            (2, 27, 5, 5),
            (4, row + 1),
            {},
            f"rois has shape (4, {row + 1}), expected (K, {row}) rows",
        ),
        ((2, 27, 5, 5), (4, box), {}, f"rois has shape (4, {box}), expected (K, {row}) rows"),
        ((2, 27, 5, 5), (row,), {}, f"rois has shape ({row}), expected (K, {row}) rows"),
        (
            (2, 27, 5, 5),
            (1, 1, 4, row),
            {},
            f"rois has shape (1, 1, 4, {row}), expected (K, {row}) rows",
        ),
        ((2, 27, 5, 5), (3, 2, box), {}, f"rois has shape (3, 2, {box}), expected (2, R, {box})"),
        (
            (2, 27, 5, 5),
            (4, row),
            {"counts": [2, 2]},
            f"rois has shape (4, {row}), expected (K, {box}) rows",
        ),
        (
            (2, 27, 5, 5),
            (4, box),
            {"counts": [4]},
            "rois_num has shape (1), expected (2,), the batch size",
        ),
        (
            (2, 27, 5, 5),
            (4, box),
            {"counts": [[2, 2]]},
            "rois_num has shape (1, 2), expected 1 dimension",
        ),
        (
            (2, 27, 5, 5),
            (4, row),
            {"data": "int32"},
            "data has dtype int32, expected float16, float32 or",
        ),
        (
            (2, 27, 5, 5),
            (4, row),
            {"data": np.dtype([("bfloat16", np.uint16)])},  # what MXNet calls so
            "data has dtype bfloat16, expected float16, float32 or",
        ),
        (
            (2, 27, 5, 5),
            (4, row),
            {"rois": "int32"},
            "rois has dtype int32, expected float16, float32 or float64",
        ),
        (
            (2, 27, 5, 5),
            (4, box),
            {"counts": [2, 2], "rois_num": "uint8"},
            "rois_num has dtype uint8, expected int32, int64, float32 or float64",
        ),
    ]


def raises(op, message):
    return pytest.raises(mx.MXNetError, match="^" + re.escape(f"{op.name}: {message}"))


@operators
def test_bad_arguments(op):
    x, rois = mx.nd.array(feature_map(27)), mx.nd.array(op.rois([[0, 0, 0, 4, 4]]))
    for arguments, message in (*ATTRIBUTES, *op.refused):
        if op.several_maps and "spatial_scale" in arguments:
            expected = "a list of 1 to 8 numbers > 0, at most 1e30"
            message = f"argument spatial_scale: expected {expected}, got '("
        arguments = {"pooled_size": POOLED, "spatial_scale": SCALE, **arguments}
        with raises(op, message):
            op.function(x, rois, **arguments).wait_to_read()
        symbol_or_error = pytest.raises(mx.MXNetError, match=re.escape(message))
        with symbol_or_error:
            symbol = op.function(mx.sym.var("x"), mx.sym.var("r"), **arguments)
            symbol.infer_shape(x=(2, 27, 5, 5), r=(4, op.coordinates + 1))


@operators
def test_bad_shapes_and_types(op):
    for data, rois, more, message in shapes(op.coordinates):
        x = mx.nd.zeros(data, dtype=more.get("data", "float32"))
        r = mx.nd.zeros(rois, dtype=more.get("rois", "float32"))
        extra = {}
        if "counts" in more:
            extra["rois_num"] = mx.nd.array(more["counts"], dtype=more.get("rois_num", "int32"))
        with raises(op, message):
            op.function(x, r, POOLED, SCALE, **extra).wait_to_read()


def test_too_many_rows():
    """684784 rows of 64 * 7 * 7 elements fit into 2^31 - 1, one more does not."""
    symbol = gluon_roi.sym.ROIAlign(mx.sym.var("x"), mx.sym.var("rois"), 7, 1.0)
    for rows in (684785, 700000, 2**31 - 1):
        expected = (
            f"rois has {rows} rows, expected at most 684784, for which the output ({rows}, 64"
        )
        with pytest.raises(mx.MXNetError, match=re.escape(expected)):
            symbol.infer_shape(x=(1, 64, 8, 8), rois=(rows, 5))
    _, (out,), _ = symbol.infer_shape(x=(1, 64, 8, 8), rois=(684784, 5))
    assert out == (684784, 64, 7, 7)


@operators
def test_bad_values(op):
    x = mx.nd.array(feature_map(27))
    function = op.function
    for index, shown in ((2, "2"), (1e9, "1e+09"), (0.5, "0.5"), (np.nan, "nan"), (np.inf, "inf")):
        rois = mx.nd.array(op.rois([[0, 0, 0, 4, 4], [index, 0, 0, 4, 4]]))
        message = f"rois row 1 has batch index {shown}, expected an integer below 2"
        with raises(op, message):
            function(x, rois, POOLED, SCALE).wait_to_read()
        x.attach_grad()
        with raises(op, message):
            with mx.autograd.record():
                out = function(x, rois, POOLED, SCALE)
            out.backward()
            x.grad.wait_to_read()
    boxes = mx.nd.zeros((4, op.coordinates))
    for counts, message in (
        ([2, 1], "rois_num sums to 3, expected 4 (the rows of rois)"),
        ([3, 2], "rois_num sums to 5, expected 4 (the rows of rois)"),
        ([5, -1], "rois_num of image 1 is -1, expected a whole number >= 0"),
    ):
        with raises(op, message):
            counted = mx.nd.array(counts, dtype="int32")
            function(x, boxes, POOLED, SCALE, rois_num=counted).wait_to_read()


@pytest.mark.parametrize("call", [gluon_roi.nd.PSROIAlign, gluon_roi.PSROIAlign])
def test_hints_for_arguments_of_other_libraries(call):
    """Functions and blocks name the argument that a beginner means."""
    arrays = [mx.nd.ones((1, 4, 6, 6)), mx.nd.zeros((1, 5))] if call.__module__[-2:] == "nd" else []
    for wrong, meant in (
        ("sample_ratio", "sampling_ratio"),
        ("sampling_ration", "sampling_ratio"),
        ("output_size", "pooled_size"),
        ("align", "aligned"),
    ):
        with pytest.raises(TypeError) as raised:
            call(*arrays, spatial_scale=SCALE, **{"pooled_size": POOLED, wrong: 2})
        assert f"; did you mean {meant}?" in str(raised.value)
    with pytest.raises(TypeError, match=r"missing .* 'pooled_size'.*; did you mean pooled_size\?"):
        call(*arrays, output_size=POOLED, spatial_scale=SCALE)
    with pytest.raises(TypeError) as raised:
        call(*arrays, POOLED, SCALE, colour="red")
    assert "did you mean" not in str(raised.value)


@operators
def test_hints_for_boxes(op):
    x, boxes = mx.nd.array(feature_map(27)), op.rois([[0, 0, 0, 4, 4]])
    with pytest.raises(TypeError, match=r"argument rois: .*; gluon_roi.rois.from_list converts"):
        op.function(x, [[[0, 0, 4, 4]]], POOLED, SCALE)
    with pytest.raises(TypeError, match=r"argument rois: .*; mx.nd.array\(rois\) converts it"):
        op.function(x, np.array(boxes), POOLED, SCALE)


@operators
def test_unknown_and_missing_arguments(op):
    x, rois = mx.nd.array(feature_map(27)), mx.nd.array(op.rois([[0, 0, 0, 4, 4]]))
    function = op.function
    with pytest.raises(TypeError, match=f"{op.name}: .*pool_size.*; expected {op.name}"):
        function(x, rois, POOLED, SCALE, pool_size=3)
    with pytest.raises(TypeError, match=f"{op.name}: missing a required argument: 'pooled_size'"):
        function(x, rois)
    with pytest.raises(TypeError, match=f"{op.name}: missing a required argument: 'rois'"):
        function(x, pooled_size=POOLED, spatial_scale=SCALE)
    with pytest.raises(TypeError, match=f"{op.name}: multiple values for argument 'rois'"):
        function(x, rois, rois=rois, pooled_size=POOLED, spatial_scale=SCALE)
    with pytest.raises(TypeError, match=f"{op.name}: too many positional arguments; expected"):
        function(x, rois, *[1] * 20)
    block = getattr(gluon_roi, op.name)
    with pytest.raises(TypeError, match=f"{op.name}: .*pool_size.*; expected {op.name}.pooled_"):
        block(POOLED, SCALE, pool_size=3)
    with pytest.raises(TypeError, match=f"{op.name}: missing a required argument: 'spatial_scale'"):
        block(POOLED)
    with pytest.raises(TypeError, match=f"{op.name}: argument data0?: expected an array .*, got "):
        function(x.asnumpy(), rois, POOLED, SCALE)
    with pytest.raises(TypeError, match=f"{op.name}: argument rois: .*, got mxnet.numpy.ndarray"):
        function(x, mx.np.array(op.rois([[0, 0, 0, 4, 4]])), POOLED, SCALE)
    with pytest.raises(TypeError, match=f"{op.name}: argument rois: expected .*got .*sparse.CSR"):
        function(x, mx.nd.array(op.rois([[0, 0, 0, 4, 4]])).tostype("csr"), POOLED, SCALE)
    with pytest.raises(TypeError, match=f"{op.name}: argument out: expected a .*NDArray, got .*"):
        function(x, rois, POOLED, SCALE, out="x")
    with raises(op, "argument out: Shape inconsistent, Provided = "):
        function(x, rois, POOLED, SCALE, out=x)
    with pytest.raises(TypeError, match=f"{op.name}: argument rois: expected a .*Symbol, got .*"):
        op.function(mx.sym.var("x"), rois, POOLED, SCALE)
    # The registered operator itself, as a symbol file from elsewhere might call it.
    raw = getattr(mx.nd._internal, f"_gluon_roi_{op.name}")
    with raises(op, "unknown argument pool_size, expected one of "):
        raw(x, rois, pooled_size=3, spatial_scale="(1,)" if op.several_maps else 1, pool_size=3)
    with raises(
        op, "argument pooled_size: expected a positive int or (height, width), got nothing"
    ):
        raw(x, rois, spatial_scale=1)


@operators
def test_repeated_errors_show_one_message(op):
    """The third failure shows its own sentence only, and the operator still works after it."""
    x, rois = mx.nd.array(feature_map(27)), mx.nd.array(op.rois([[0, 0, 0, 4, 4]]))
    function = op.function
    for _ in range(3):
        with pytest.raises(mx.MXNetError) as caught:
            function(x, rois, POOLED, -1).wait_to_read()
        assert str(caught.value).count(op.name) == 1
    assert function(x, rois, POOLED, SCALE).shape[0] == 1
    # What an accepted call left behind lets nothing through, and a refused one spoils nothing.
    with raises(op, "argument pooled_size: expected a positive int or (height, width), got '(3.0"):
        function(x, rois, (3.0, 3.0), SCALE).wait_to_read()
    for prefix in ("", "net_"):
        with mx.name.Prefix(prefix), raises(
            op, f"rois has shape (3, 7), expected (K, {op.coordinates + 1}) rows"
        ):
            function(x, mx.nd.zeros((3, 7)), POOLED, SCALE + len(prefix)).wait_to_read()
    assert function(x, rois, POOLED, SCALE).shape[0] == 1


@operators
def test_static_alloc_reports_bad_rows(op):
    """An error raised while a static graph runs is that same sentence; the process goes on."""
    net = op.block(POOLED, SCALE)
    net.hybridize(static_alloc=True, static_shape=True)
    x = mx.nd.array(feature_map(27))
    for _ in range(2):
        with raises(op, "rois row 0 has batch index 7, expected an integer below 2"):
            net(x, mx.nd.array(op.rois([[7, 0, 0, 4, 4]]))).wait_to_read()
        assert np.isfinite(net(x, mx.nd.array(op.rois([[1, 0, 0, 4, 4]]))).asnumpy()).all()


class Quantizable(mx.gluon.HybridBlock):
    """A convolution, and ROIAlign with the batch index 1 beside coordinates."""

    def __init__(self):
        super().__init__()
        self.conv = mx.gluon.nn.Conv2D(4, 3)

    def hybrid_forward(self, F, data):
        corner = F.slice_axis(10 * F.mean(data, axis=(2, 3)), axis=1, begin=0, end=2)
        index = F.slice_axis(corner, axis=1, begin=0, end=1) * 0 + 1
        rois = F.concat(index, corner, corner + 20, dim=1)
        return F.contrib.ROIAlign(self.conv(data), rois, (3, 3), 0.5, 2)


@pytest.mark.skipif(not mx.runtime.Features().is_enabled("MKLDNN"), reason="MXNet has no MKLDNN")
@pytest.mark.filterwarnings("ignore:.*quantize_net_v2")
def test_quantized_batch_index():
    """MXNet quantizes it unless Concat is excluded, as the page and the error say."""
    data = mx.nd.array(np.random.RandomState(0).rand(2, 3, 20, 20))
    net = Quantizable()
    net.initialize()
    net(data)
    batches = mx.gluon.data.DataLoader(mx.gluon.data.ArrayDataset(data, mx.nd.zeros(2)), 2)

    def quantized(**options):
        quantize_net = mx.contrib.quantization.quantize_net
        return quantize_net(net, calib_mode="naive", calib_data=batches, **options)(data).asnumpy()

    excluded = ["Concat", "slice_axis", "SliceChannel"]
    expected = quantized(exclude_operators=excluded)  # with MXNet's ROIAlign
    gluon_roi.optimize(net, data)
    with pytest.raises(mx.MXNetError, match="0.99.*; quantization has to exclude 'Concat'"):
        quantized()
    found = quantized(exclude_operators=excluded)
    assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize("function", [lambda x: x, mx.nd.relu], ids=["map", "computed map"])
def test_second_derivatives(function):
    """MXNet's own error, in the words of the page: it names the first node without a gradient."""
    x = mx.nd.ones((1, 1, 4, 4), ctx=mx.cpu())
    x.attach_grad()
    rois = mx.nd.array([[0, 0, 0, 2, 2]], ctx=mx.cpu())
    with mx.autograd.record():
        out = gluon_roi.nd.ROIAlign(function(x), rois, POOLED, SCALE)
        (gradient,) = mx.autograd.grad(out, [x], create_graph=True)
        squares = (gradient**2).sum()
    with pytest.raises(mx.MXNetError) as error:
        squares.backward()
    (name,) = re.findall("Operator (\\w+) is non-differentiable", str(error.value))
    page = (Path(__file__).parents[2] / "docs/operators.md").read_text()
    assert name in ("_backward_reshape", "_backward__gluon_roi_ROIAlign") and name in page
