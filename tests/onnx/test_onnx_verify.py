# SPDX-License-Identifier: Apache-2.0
"""export(..., verify=...) compares the model in onnxruntime with MXNet's before it is written."""

from __future__ import annotations

import sys
from typing import Any

import mxnet as mx
import numpy as np
import pytest

import gluon_roi
from gluon_roi.__main__ import main
from gluon_roi.onnx.graph import OnnxGraph
from gluon_roi.onnx.registry import RULES

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime", minversion="1.20")
from gluon_roi.onnx import verification  # noqa: E402

S = mx.sym


def _network() -> Any:
    net = mx.gluon.nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(mx.gluon.nn.Conv2D(4, 3, in_channels=3))
        net.add(mx.gluon.nn.BatchNorm(in_channels=4))
        net.add(mx.gluon.nn.LeakyReLU(0.1))
        net.add(mx.gluon.nn.Dense(5, in_units=4 * 6 * 6))
    net.initialize()
    return net


@pytest.mark.parametrize("fold", [True, False])
def test_a_network(fold, tmp_path):
    path = tmp_path / "model.onnx"
    for verify in (True, [np.ones((3, 3, 8, 8))], {"data": mx.nd.ones((2, 3, 8, 8))}):
        path.unlink(missing_ok=True)
        gluon_roi.onnx.export(
            _network(), [(1, 3, 8, 8)], path, dynamic=[(0,)], verify=verify, fold=fold
        )
        assert path.is_file()


def _plant(monkeypatch: Any, operator: str, attribute: str, value: Any) -> None:
    """Write an attribute of nodes wrongly."""
    original = OnnxGraph.__call__

    def planted(self: OnnxGraph, op: str, *inputs: Any, outputs: int = 1, **attributes: Any) -> Any:
        if op == operator:
            attributes[attribute] = value
        return original(self, op, *inputs, outputs=outputs, **attributes)

    monkeypatch.setattr(OnnxGraph, "__call__", planted)


@pytest.mark.parametrize("dynamic", [None, [(0,)]])
def test_the_first_node_that_differs_is_named(dynamic, monkeypatch, tmp_path):
    """And nothing is written."""
    path = tmp_path / "model.onnx"
    path.write_bytes(b"before")
    _plant(monkeypatch, "LeakyRelu", "alpha", 0.2)
    with pytest.raises(RuntimeError) as raised:
        gluon_roi.onnx.export(_network(), [(1, 3, 8, 8)], path, dynamic=dynamic, verify=True)
    found = str(raised.value)
    assert found.startswith("onnx.export: verify: output net_dense0_fwd_output differs by up to 0.")
    assert found.endswith("; the first node that differs is net_leakyrelu0_fwd (LeakyReLU)")
    assert path.read_bytes() == b"before" and [*tmp_path.iterdir()] == [path]


def test_a_node_before_a_folded_layer_is_named(monkeypatch, tmp_path):
    _plant(monkeypatch, "Conv", "pads", [2, 2, 0, 0])
    x = S.var("x")
    conv = S.Convolution(x, kernel=(3, 3), pad=(1, 1), num_filter=2, no_bias=True, name="c")
    norm = S.BatchNorm(conv, name="norm")
    symbol = S.Activation(norm, act_type="softsign", name="a")
    shapes, _, states = symbol.infer_shape(x=(1, 2, 6, 6))
    names = zip(symbol.list_arguments() + symbol.list_auxiliary_states(), shapes + states)
    params = {name: np.full(shape, 0.5, "float32") for name, shape in names if name != "x"}
    with pytest.raises(RuntimeError, match=r"the first node that differs is norm \(BatchNorm\)$"):
        gluon_roi.onnx.export(symbol, [(1, 2, 6, 6)], tmp_path / "m.onnx", params, verify=True)


F = gluon_roi.sym
DATA, ROIS, NUM = S.var("data"), S.var("rois"), S.var("num")
#: A symbol, and the shapes of its inputs, which verify=True draws.
DRAWN: dict[str, tuple[Any, dict]] = {
    "rois": (F.ROIAlign(DATA, ROIS, 2, 0.25, sampling_ratio=2), {"rois": (6, 5)}),
    "behind a cast": (F.ROIPool(DATA, S.BlockGrad(ROIS), 2, 0.25), {"rois": (6, 5)}),
    "batch": (F.PSROIPool(DATA, ROIS, 2, 0.25), {"rois": (2, 3, 4)}),
    "counts": (
        F.ROIAlign(DATA, ROIS, 2, 0.25, sampling_ratio=2, rois_num=NUM),
        {"rois": (5, 4), "num": (2,)},
    ),
    "rotated": (F.RotatedROIAlign(DATA, ROIS, 2, 0.25, sampling_ratio=2), {"rois": (6, 6)}),
    "pyramid": (
        F.PyramidROIAlign([DATA, S.var("small")], ROIS, 2, (0.25, 0.125), sampling_ratio=2),
        {"small": (2, 8, 6, 5), "rois": (6, 5)},
    ),
    "sizes of images": (
        F.Proposal(
            S.slice_axis(DATA, axis=1, begin=0, end=2), S.slice_axis(DATA, axis=1, begin=0, end=4),
            S.var("im_info"), scales=(2,), ratios=(1,), feature_stride=4, rpn_pre_nms_top_n=50,
            rpn_post_nms_top_n=10,
        ),
        {"im_info": (2, 3)},
    ),
    "bytes": (S.cast(DATA, dtype="float32") / 255, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", DRAWN)
def test_drawn_inputs(name, monkeypatch, tmp_path):
    symbol, shapes = DRAWN[name]
    arrays = {}
    original = verification._drawn

    def drawn(*arguments: Any) -> Any:
        arrays.update(original(*arguments))
        return arrays

    monkeypatch.setattr(verification, "_drawn", drawn)
    shapes = {"data": (2, 8, 12, 9), **shapes}
    types = {"data": "uint8"} if name == "bytes" else None
    path = tmp_path / "model.onnx"
    gluon_roi.onnx.export(symbol, shapes, path, input_types=types, verify=True)
    assert path.is_file() and {name: a.shape for name, a in arrays.items()} == shapes
    if name == "bytes":
        assert arrays["data"].max() > 200
    if name == "counts":
        np.testing.assert_array_equal(arrays["num"], [3, 2])
    if name == "sizes of images":
        np.testing.assert_array_equal(arrays["im_info"], [[48, 36, 1]] * 2)
    if arrays.get("rois", np.empty(0)).shape == (6, 5):
        rois = arrays["rois"]
        assert set(rois[:, 0]) == {0, 1} and (rois[:, 1:3] < rois[:, 3:]).all()
        assert rois[:, 1:].min() >= 0 and rois[:, [1, 3]].max() <= 36 < rois[:, 2:].max() <= 48


def _sizes_compared(monkeypatch: Any) -> list[dict[str, tuple]]:
    """The shapes of the inputs of each comparison, which the list gets."""
    compared: list[dict[str, tuple]] = []
    original = verification._compare

    def compare(*arguments: Any) -> None:
        compared.append({name: array.shape for name, array in arguments[-2].items()})
        original(*arguments)

    monkeypatch.setattr(verification, "_compare", compare)
    return compared


ROWS = {"rois": (6, 5)}
#: A symbol, the shapes of its inputs, their dynamic axes, and the other sizes that are compared.
OTHER_SIZES: dict[str, tuple[Any, dict, dict, list[dict]]] = {
    "all axes": (
        DRAWN["rois"][0], {"data": (1, 8, 12, 640), **ROWS}, {"data": (0, 2, 3), "rois": (0,)},
        [{"data": (2, 8, 24, 576), "rois": (12, 5)}],
    ),
    "counts": (
        DRAWN["counts"][0], {"data": (2, 8, 12, 9), "rois": (5, 4), "num": (2,)},
        {"data": {0: "batch"}, "rois": (0,), "num": {0: "batch"}},
        [{"data": (4, 8, 12, 9), "rois": (10, 4), "num": (4,)}],
    ),
    "sizes of images": (
        DRAWN["sizes of images"][0], {"data": (2, 8, 12, 9), "im_info": (2, 3)},
        {"data": (0, 2, 3), "im_info": (0,)},
        [{"data": (4, 8, 24, 18), "im_info": (4, 3)}],
    ),
    # GluonCV's detectors store anchors for a fixed number of cells and slice them to the map.
    "a smaller map": (
        S.broadcast_add(S.slice_like(S.ones((1, 1, 400, 400)), DATA, axes=(2, 3)), DATA),
        {"data": (1, 3, 200, 150)}, {"data": (2, 3)}, [{"data": (1, 3, 136, 86)}],
    ),
    # The number of rows is the product of two sizes.
    "products": (
        S.reshape(S.broadcast_mul(DATA, S.var("other")), shape=(-1,)) + S.var("rows"),
        {"data": (2, 1), "other": (1, 3), "rows": (6,)},
        {"data": (0,), "other": (1,), "rows": (0,)},
        [{"data": (4, 1), "other": (1, 6), "rows": (24,)}],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER_SIZES)
def test_other_sizes(name, monkeypatch, tmp_path):
    """Each dynamic axis has another size in one of the comparisons."""
    symbol, shapes, dynamic, others = OTHER_SIZES[name]
    compared = _sizes_compared(monkeypatch)
    gluon_roi.onnx.export(symbol, shapes, tmp_path / "m.onnx", dynamic=dynamic, verify=True)
    assert compared == [shapes, *others]


def test_arrays_are_compared_alone(monkeypatch, tmp_path):
    """A user who gives arrays chooses their sizes."""
    compared = _sizes_compared(monkeypatch)
    arrays = {"data": np.ones((3, 3, 8, 8))}
    path = tmp_path / "m.onnx"
    gluon_roi.onnx.export(_network(), [(1, 3, 8, 8)], path, dynamic=[(0,)], verify=arrays)
    assert compared == [{"data": (3, 3, 8, 8)}]


def test_a_file_that_is_right_for_one_size(monkeypatch, tmp_path):
    """The error has the other size, and nothing is written."""
    rows = S.slice_axis(S.shape_array(DATA, name="sizes"), axis=0, begin=0, end=1)
    symbol = S.broadcast_mul(DATA, S.cast(rows, dtype="float32"), name="scaled")
    # A constant, which is in the file without a node.
    monkeypatch.setitem(
        RULES, "shape_array", lambda graph, node: graph.constant(np.array([2, 8]), "fixed")
    )
    path = tmp_path / "m.onnx"
    gluon_roi.onnx.export(symbol, [(2, 8)], path, verify=True)
    path.unlink()
    with pytest.raises(RuntimeError) as raised:
        gluon_roi.onnx.export(symbol, [(2, 8)], path, dynamic=[(0,)], verify=True)
    found = str(raised.value)
    assert found.startswith("onnx.export: verify: with data (4, 8): output scaled_output differs")
    assert found.endswith("; the first node that differs is scaled (broadcast_mul)")
    assert not path.exists()


def test_a_network_that_runs_at_one_size(monkeypatch, tmp_path):
    """A warning names the axes without another size."""
    original = verification._run_mxnet

    def run(symbol: Any, source: Any, arrays: dict) -> Any:
        if arrays["data"].shape[0] != 1:
            raise ValueError("MXNet rejects the inputs")
        return original(symbol, source, arrays)

    monkeypatch.setattr(verification, "_run_mxnet", run)
    symbol = S.Pooling(DATA, kernel=(2, 2))
    compared = _sizes_compared(monkeypatch)
    with pytest.warns(UserWarning, match="input_shapes are compared along axis 0 of data, because"):
        gluon_roi.onnx.export(
            symbol, [(1, 3, 8, 8)], tmp_path / "m.onnx", dynamic=[(0, 2, 3)], verify=True
        )
    heights, widths = ({each["data"][axis] for each in compared} for axis in (2, 3))
    assert len(heights) == len(widths) == 2 and len(compared) == 3


@pytest.mark.parametrize("shape", [(2, 100, 1), (2, 100)])
def test_rows_in_another_order(shape):
    """95 of 100 rows, where rounding may change their order; none without such an operator."""
    random = np.random.RandomState(0)
    scores, boxes = random.rand(*shape), random.rand(2, 100, 4) * 300
    order = random.permutation(100)
    expected = [scores.astype("float32"), boxes.astype("float32"), np.ones(3, "float32")]
    found = [expected[0][:, order], expected[1][:, order] * np.float32(1.00005), expected[2]]
    names = ["scores", "boxes", "mean"]
    assert verification._difference(names, found, expected, rows_may_change=True) is None
    assert verification._difference(names, expected, expected, rows_may_change=False) is None
    said = verification._difference(names, found, expected, rows_may_change=False)
    assert said is not None and said.startswith("output scores differs by up to 0.")
    found[1][0, :11] += 1
    assert verification._difference(names, found, expected, True) == (
        "only 189 of 200 rows of scores, boxes are those of MXNet"
    )
    # Masks may differ by 1e-3 beside boxes; a map alone by 1e-4.
    masks = random.rand(2, 100, 7, 7).astype("float32")
    with_masks, moved = [*expected[:2], masks], [*(a[:, order] for a in expected[:2])]
    for off, is_same in ((9e-4, True), (2e-3, False)):
        moved[2:] = [masks[:, order] + np.float32(off)]
        said = verification._difference(["scores", "boxes", "masks"], moved, with_masks, True)
        assert (said is None) == is_same
    said = verification._difference(["map"], [masks + np.float32(9e-4)], [masks], True)
    assert said == "only 0 of 200 rows of map are those of MXNet"
    # One row twice is one row.
    found = [np.repeat(each[:, :1], 100, axis=1) for each in expected[:2]] + [expected[2]]
    said = verification._difference(names, found, expected, True)
    assert said == "only 2 of 200 rows of scores, boxes are those of MXNet"


@pytest.mark.parametrize(
    "found, expected, is_same",
    [
        ([1.0, np.nan, np.inf], [1.0, np.nan, np.inf], True),
        ([1.0, np.nan], [1.0, np.inf], False),
        ([np.nan], [1.0], False),
        ([-np.inf], [np.inf], False),
        ([1000.05], [1000.0], True),
        ([1000.5], [1000.0], False),
    ],
)
def test_numbers(found, expected, is_same):
    ours, theirs = ([np.array(values, "float32")] for values in (found, expected))
    assert (verification._difference(["x"], ours, theirs, False) is None) == is_same


REFUSED: dict[str, tuple[Any, str]] = {
    "an array of another shape": (
        [np.ones((1, 3, 9, 8)), np.zeros((2, 5))],
        "input data: expected float32 (None, 3, 8, 8), got float64 (1, 3, 9, 8)",
    ),
    "a dtype": (
        [np.ones((1, 3, 8, 8), "complex64"), np.zeros((2, 5))],
        "input data: expected float32 (None, 3, 8, 8), got complex64 (1, 3, 8, 8)",
    ),
    "one of two": ({"rois": np.zeros((2, 5))}, "expected an array for input data, got none"),
    "another name": ({"x": 0}, "the model has no input 'x', expected one of data, rois"),
    "too few": ([np.zeros((2, 5))], "verify has 1 entries, expected one for each of the 2 inputs"),
    "no list": (np.ones(3), "expected a list with an entry for each input, or a dict of their"),
    "what MXNet rejects": (
        [np.ones((1, 3, 8, 8)), np.full((2, 5), 3)],
        "MXNet rejects the inputs, give arrays that the model accepts: ROIPool: rois",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_inputs(name, tmp_path):
    given, message = REFUSED[name]
    symbol, path = F.ROIPool(DATA, ROIS, 2, 0.25), tmp_path / "model.onnx"
    with pytest.raises(ValueError) as raised:
        gluon_roi.onnx.export(
            symbol, [(1, 3, 8, 8), (2, 5)], path, dynamic={"data": (0,)}, verify=given
        )
    found = str(raised.value)
    assert found.startswith("onnx.export: verify") and message in found and "\n" not in found
    assert not path.exists()


def test_without_onnxruntime(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError, match="verify needs the package onnxruntime .*; run 'pip ins"):
        gluon_roi.onnx.export(_network(), [(1, 3, 8, 8)], tmp_path / "m.onnx", verify=True)
    gluon_roi.onnx.export(_network(), [(1, 3, 8, 8)], tmp_path / "m.onnx")


def test_the_command(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    net = _network()
    net.hybridize()
    net(mx.nd.ones((1, 3, 8, 8)))
    net.export("net")
    np.savez("inputs.npz", data=np.ones((2, 3, 8, 8)))
    line = "export net-symbol.json net-0000.params -o net.onnx --shape data=1,3,8,8"
    line += " --dynamic data=0"
    for options in ("--verify", "--verify-inputs inputs.npz --no-fold"):
        assert main([*line.split(), *options.split()]) == 0
        assert capsys.readouterr().out == "net.onnx\n"
    for file in ("net-0000.params", "net-symbol.json", "none.npz"):
        assert main([*line.split(), "--verify-inputs", file]) == 2
        assert "--verify-inputs: " in capsys.readouterr().err
    _plant(monkeypatch, "LeakyRelu", "alpha", 0.2)
    assert main([*line.split(), "--verify"]) == 2
    assert "the first node that differs is net_leakyrelu0_fwd" in capsys.readouterr().err
