# SPDX-License-Identifier: Apache-2.0
"""The export to ONNX: graphs, their results in runtimes, and errors.

Models run in onnxruntime if it is installed, otherwise MXNet's operators run in the reference of
onnx. OpenVINO has its own environment: tests/onnx_runtimes/check.py.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import onnx_models
import pytest
from support import cases, pyramids
from support.onnx_evaluator import HAS_RUNTIME, run

import gluon_roi

onnx = pytest.importorskip("onnx")
from gluon_roi.onnx import file  # noqa: E402

HERE = Path(__file__).resolve().parent
MODELS = onnx_models.models()

sys.path.insert(0, str(HERE / "onnx_runtimes"))
import check  # noqa: E402  (a script beside MXNet's environment)


@pytest.fixture(scope="module")
def golden():
    return np.load(check.ARRAYS)


# ---- Models --------------------------------------------------------------------------------------


def test_the_graphs_are_the_recorded_ones(tmp_path):
    """Number of nodes of each operator, inputs, outputs; standard operators of one opset alone."""
    recorded = json.loads(onnx_models.GRAPHS.read_text())
    path = tmp_path / "model.onnx"
    for name, model in MODELS.items():
        model.export(path)
        found = onnx_models.graph(path)
        for side in ("inputs", "outputs"):  # names of blocks depend on what was made before
            assert [v.split(" ", 1)[1] for v in found.pop(side)] == [
                v.split(" ", 1)[1] for v in recorded[name].pop(side)
            ], name
        assert found == recorded[name], name
        assert found["opset"] == {"": 16}


@pytest.mark.parametrize("name", MODELS)
def test_the_golden_outputs_are_those_of_the_operators(name, golden):
    for number, output in enumerate(MODELS[name].outputs()):
        assert check.difference(output, golden[f"{name}/out{number}"]) <= check.tolerance(name)


@pytest.mark.skipif(not HAS_RUNTIME, reason="onnxruntime is not installed")
@pytest.mark.parametrize("name", MODELS)
def test_onnxruntime_gives_the_golden_outputs(name, golden, tmp_path):
    path = tmp_path / "model.onnx"
    MODELS[name].export(path)
    run = check.onnxruntime(str(path))
    assert check.differences(run, golden, name) <= check.tolerance(name)


def _rows_for(name, rois):
    return cases.turned(rois) if name.startswith("Rotated") else rois


@pytest.mark.skipif(not HAS_RUNTIME, reason="onnxruntime is not installed")
def test_free_sizes(tmp_path):
    """A model exported at one size runs at another, and with no row at all."""
    path = tmp_path / "model.onnx"
    random = np.random.RandomState(0)
    for name, model in MODELS.items():
        if name.split("-")[0] not in onnx_models.NAMES or not name.endswith("-beyond"):
            continue
        model.export(path)
        run = check.onnxruntime(str(path))
        maps = [
            random.randn(3, one.shape[1], 9 - n, 31 - n).astype("float32")
            for n, one in enumerate(model.inputs[: model.maps or 1])
        ]
        rois = np.array([[2, 3, 4, 50, 20], [3, 0, 0, 9, 9], [-1, 0, 0, 9, 9]], "float32")
        rois = _rows_for(name, rois)
        expected = model.call(*maps, rois).asnumpy()
        assert check.difference(run(*maps, rois)[0], expected) <= check.tolerance(name), name
        assert run(*maps, rois[:0])[0].shape == (0, *expected.shape[1:])


#: The map of each row in a pyramid of four; -1: padding, 9: in two lists, nan: a bad batch index.
LEVELS: dict[str, list] = {
    "no row": [],
    "one row": [2],
    "padding only": [-1, -1],
    "one map": [1] * 7,
    "every map": [3, 0, -1, 2, 2, np.nan, 1, 0],
    "two maps": [9, 1, 9],
}


@pytest.mark.skipif(not HAS_RUNTIME, reason="onnxruntime is not installed")
@pytest.mark.parametrize("form", ["size", "given"])
def test_rows_of_pyramids(form, tmp_path):
    """Each box is pooled on its own map alone; no mask has the size of the output."""
    path = tmp_path / "model.onnx"
    given = form == "given"
    block = gluon_roi.PyramidROIAlign(3, pyramids.SCALES, sampling_ratio=2, assignment=form)
    maps = pyramids.pyramid("float32", 2)
    shapes = [[one.shape for one in maps], (4 * given + 4, 5)]
    gluon_roi.onnx.export(block, shapes, path, dynamic=[()] * 4 + [(0,)])
    graph = onnx.shape_inference.infer_shapes(onnx.load(str(path))).graph
    ranks = {v.name: len(v.type.tensor_type.shape.dim) for v in graph.value_info}
    masks = [n.name for n in graph.node if n.op_type == "Where" and ranks[n.output[0]] == 4]
    assert not masks
    run = check.onnxruntime(str(path))
    for name, levels in LEVELS.items():
        numbers = np.array(levels)
        bad = np.isnan(numbers)
        corner = np.arange(len(levels))[:, None] * [3.0, 2.0]
        side = 224 * 2.0 ** (np.where(bad, 0, numbers) % 4 - 2.5)[:, None]
        rois = np.hstack([np.where(numbers < 0, -1, 1)[:, None], corner, corner + side])
        expected = rois.copy()
        expected[bad, 0] = 0
        rois[bad, 0] = 7  # beyond the batch, an error of the operator
        if given:
            rois, expected = (
                np.vstack([_list(rows, numbers, n) for n in range(4)]) for rows in (rois, expected)
            )
        rois, expected = rois.astype("float32"), expected.astype("float32")
        (found,) = run(*maps, rois)
        assert found.shape == (len(levels), maps[0].shape[1], 3, 3), name
        assert np.isnan(found[bad]).all(), name
        if levels:
            (wanted,) = onnx_models.Model(block, (*maps, expected), maps=4).outputs()
            np.testing.assert_allclose(found[~bad], wanted[~bad], atol=2e-6, err_msg=name)


def _list(rows, numbers, number):
    """The rows of one map's list, the others padding."""
    of_map = np.isin(numbers, [number, 9 if number in (1, 3) else number]) | np.isnan(numbers)
    return np.where(of_map[:, None], rows, -1)


@pytest.mark.skipif(not HAS_RUNTIME, reason="onnxruntime is not installed")
def test_a_bad_batch_index_gives_a_row_of_nan(tmp_path):
    path = tmp_path / "model.onnx"
    rois = np.array([[i, 1, 1, 5, 5] for i in (0, 2, 0.5, np.nan, -3)], "float32")
    first = {name.split("-")[0]: model for name, model in reversed(MODELS.items())}
    for name in onnx_models.NAMES:
        model = first[name]
        maps = [np.ones(one.shape, "float32") for one in model.inputs[: model.maps or 1]]
        own = _rows_for(name, rois)
        dataclasses.replace(model, inputs=(*maps, own)).export(path)
        rows = run(path, *maps, own)[0].reshape(5, -1)
        assert np.isnan(rows).all(axis=1).tolist() == [False, True, True, True, False], name
        assert (rows[4] == 0).all() and (np.abs(rows[0] - 1) < 1e-6).all()


# ---- Operators of MXNet --------------------------------------------------------------------------

A, B, ROW = (2, 3, 4, 5), (2, 1, 4, 5), (4, 6)
S = mx.sym
#: (function of symbols, shapes of its inputs)
BUILTINS: dict[str, Any] = {
    "abs": (lambda x: S.abs(x), A),
    "add_n": (lambda x, y: S.add_n(x, y, x), A, A),
    "arange_like": (lambda x: S.contrib.arange_like(x, axis=-2, start=2, step=0.5), A),
    "arange_like_all": (lambda x: S.contrib.arange_like(x), A),
    "arange": (lambda x: S.broadcast_add(x, S.arange(2, 12, 2, repeat=1)), A),
    "arange_repeat": (lambda x: S.broadcast_add(x, S.arange(3, repeat=2)), ROW),
    "argmax": (lambda x: S.argmax(x, axis=-1, keepdims=True), A),
    "argmax_all": (lambda x: S.argmax(x, axis=None, keepdims=True), A),
    "argmax_of_a_vector": (lambda x: S.argmax(x, axis=0), (7,)),
    "argmin_of_all": (lambda x: S.argmin(x, axis=None), A),
    "argsort": (lambda x: S.argsort(x, axis=1, is_ascend=False), A),
    "argsort_all": (lambda x: S.argsort(x, axis=None), A),
    "batch_dot": (lambda x, y: S.batch_dot(x, y, transpose_b=True), (2, 3, 4), (2, 5, 4)),
    "blockgrad": (lambda x: S.BlockGrad(x) * 2, A),
    "broadcast_add": (lambda x, y: S.broadcast_add(x, y), A, B),
    "broadcast_axis": (lambda x: S.broadcast_axis(x, axis=(1,), size=(7,)), B),
    "broadcast_greater": (lambda x, y: S.broadcast_greater(x, y), A, B),
    "broadcast_like": (lambda x, y: S.broadcast_like(x, y), B, A),
    "broadcast_like_axes": (
        lambda x, y: S.broadcast_like(x, y, lhs_axes=(1,), rhs_axes=(-1,)),
        B,
        ROW,
    ),
    "broadcast_logical_or": (lambda x, y: S.broadcast_logical_or(S.floor(x), S.floor(y)), A, B),
    "broadcast_to": (lambda x: S.broadcast_to(x, shape=(0, 7, 0, 0)), B),
    "cast": (lambda x: S.cast(S.cast(x * 3, dtype="int32"), dtype="float16"), A),
    "ceil": (lambda x: S.ceil(x), A),
    "clip": (lambda x: S.clip(x, -0.5, 0.25), A),
    "compare_scalar": (lambda x: S.concat(x > 0.1, x <= 0.1, x != 0, x >= 5, x == 0, x < -1), A),
    "concat": (lambda x, y: S.concat(x, y, dim=1), A, B),
    "div_scalar": (lambda x: (x + 4) / 3 + 2 / (x + 4) - (1 - x), A),
    "dropout": (lambda x: S.Dropout(x, p=0.5) + S.Dropout(x, p=0), A),
    "exp": (lambda x: S.exp(x), A),
    "expand_dims": (lambda x: S.expand_dims(x, axis=-1), A),
    "flatten": (lambda x: S.flatten(x), A),
    "full": (lambda x: S.broadcast_add(x, S.full((1, 6), -1.5)), ROW),
    "gather_nd": (lambda x: S.gather_nd(x, S.stack(S.ones((3,)), S.arange(3), axis=0)), A),
    "log2": (lambda x: S.floor(S.log2(S.abs(x) + 1)), A),
    "log_softmax": (lambda x: S.log_softmax(x, axis=1), A),
    "logical_not": (lambda x: S.logical_not(S.floor(x)), A),
    "max": (lambda x: S.max(x, axis=(1, 2)), A),
    "maximum": (lambda x, y: S.maximum(x, y) - S.minimum(x, 0.2), A, A),
    "mean": (lambda x: S.mean(x, axis=(2, 3), keepdims=True), A),
    "mean_all": (lambda x: S.mean(x), A),
    "mean_exclude": (lambda x: S.mean(x, axis=1, exclude=True), A),
    "ones_like": (lambda x: S.ones_like(x) + S.zeros_like(x), A),
    "power": (lambda x: S.abs(x) ** 1.5 + S.square(x), A),
    "prod": (lambda x: S.prod(x, axis=-1), A),
    "repeat": (lambda x: S.repeat(x, repeats=3, axis=1), A),
    "repeat_flat": (lambda x: S.repeat(x, repeats=2), ROW),
    "reshape_0": (lambda x: S.reshape(x, shape=(0, -1)), A),
    "reshape_2": (lambda x: S.reshape(x, shape=(0, 0, -2)), A),
    "reshape_3": (lambda x: S.reshape(x, shape=(0, -3, 0)), A),
    "reshape_4": (lambda x: S.reshape(x, shape=(-4, 1, -1, -3, 5)), A),
    "reshape_4_split": (lambda x: S.reshape(x, shape=(0, 0, -4, -1, 2, 0)), A),
    "reshape_reverse": (lambda x: S.reshape(x, shape=(-1, 0), reverse=True), A),
    "reshape_like": (
        lambda x, y: S.reshape_like(x, y, lhs_begin=0, lhs_end=1, rhs_begin=0, rhs_end=2),
        (6, 4),
        (2, 3, 5),
    ),
    "reshape_like_all": (lambda x, y: S.reshape_like(x, y), (6, 4), (2, 3, 4)),
    "reverse": (lambda x: S.reverse(x, axis=(1, 3)), A),
    "shape_array": (lambda x: S.shape_array(x), A),
    "sigmoid": (lambda x: S.sigmoid(x) + S.tanh(x) + S.relu(x), A),
    "slice": (lambda x: S.slice(x, begin=(None, 1, -3), end=(1, None, -1), step=(1, 2, 1)), A),
    "slice_back": (lambda x: S.slice(x, (None, 2, -1), (None, None, 0), (-1, -2, -1)), A),
    "slice_axis": (lambda x: S.slice_axis(x, axis=-1, begin=-3, end=None), A),
    "slice_axis_back": (lambda x: S.slice_axis(x, axis=2, begin=1, end=-1), A),
    "slice_like": (lambda x, y: S.slice_like(x, y, axes=(-1,)), A, (1, 1, 1, 3)),
    "slice_like_all": (lambda x, y: S.slice_like(x, y), A, B),
    "softmax": (lambda x: S.softmax(x, axis=1, temperature=0.5), A),
    "softmax_activation": (lambda x: S.SoftmaxActivation(x, mode="channel"), A),
    "softmax_activation_rows": (lambda x: S.SoftmaxActivation(x), A),
    "sort": (lambda x: S.sort(x, axis=-1), A),
    "sort_all": (lambda x: S.sort(x, axis=None, is_ascend=False), A),
    "split": (lambda x: S.Group(list(S.split(x, num_outputs=3, axis=1, squeeze_axis=True))), A),
    "split_one": (lambda x: S.split(x, num_outputs=1, axis=1), A),
    "squeeze": (lambda x: S.squeeze(x, axis=1), B),
    "squeeze_all": (lambda x: S.squeeze(x), (1, 3, 1)),
    "squeeze_nothing": (lambda x: S.squeeze(x), ROW),
    "squeeze_everything": (lambda x: S.squeeze(x), (1, 1)),
    "stack": (lambda x, y: S.stack(x, y, axis=-1), A, A),
    "sum": (lambda x: S.sum(x, axis=(0, 2)), A),
    "sum_over_nothing": (lambda x: S.sum(x, axis=(0, 1), exclude=True), ROW),
    "sum_of_integers": (lambda x: S.add_n(*[S.floor(S.cast(x * 9, dtype="int32"))] * 3), ROW),
    "swapaxes": (lambda x: S.swapaxes(x, dim1=1, dim2=3), A),
    "take": (lambda x: S.take(x, S.arange(-2, 9), axis=0), ROW),
    "take_wrap": (lambda x: S.take(x, S.arange(-2, 9), axis=1, mode="wrap"), ROW),
    "tile": (lambda x: S.tile(x, reps=(2, 1, 3)), ROW),
    "tile_short": (lambda x: S.tile(x, reps=(2,)), ROW),
    "topk": (lambda x: S.Group(list(S.topk(x, k=3, axis=1, ret_typ="both"))), ROW),
    "topk_ascending": (lambda x: S.topk(x, k=2, is_ascend=True), ROW),
    "topk_value": (lambda x: S.topk(x, k=2, ret_typ="value"), ROW),
    "transpose": (lambda x: S.transpose(x), A),
    "transpose_axes": (lambda x: S.transpose(x, axes=(0, 2, 3, 1)), A),
    "where": (lambda x, y: S.where(x > 0, x, y), A, A),
    "where_rows": (lambda x, y: S.where(S.slice_axis(x, axis=1, begin=0, end=1).reshape((-1,)) > 0,
                                        x, y), ROW, ROW),
    "zeros": (lambda x: S.broadcast_add(x + S.zeros((4, 6)), S.ones((4, 1))), ROW),
    # Layers; the weights are inputs as well.
    "activation": (lambda x: S.Activation(x, act_type="softrelu"), A),
    "adaptive_average": (lambda x: S.contrib.AdaptiveAvgPooling2D(x, output_size=1), A),
    "batch_norm": (
        lambda x, g, b, m, v: S.BatchNorm(x, g, b, m, v, fix_gamma=False),
        A, (3,), (3,), (3,), (3,),
    ),
    "batch_norm_last_axis": (
        lambda x, g, b, m, v: S.BatchNorm(x, g, b, m, v, fix_gamma=False, axis=-1),
        A, (5,), (5,), (5,), (5,),
    ),
    "batch_norm_fixed": (
        lambda x, g, b, m, v: S.BatchNorm(x, g, b, m, v, use_global_stats=True, eps=1e-4),
        A, (3,), (3,), (3,), (3,),
    ),
    "convolution": (
        lambda x, w, b: S.Convolution(x, w, b, kernel=(3, 2), num_filter=4, stride=(2, 1),
                                      pad=(1, 2), dilate=(1, 2)),
        A, (4, 3, 3, 2), (4,),
    ),
    "convolution_group": (
        lambda x, w: S.Convolution(x, w, kernel=(1, 1), num_filter=6, num_group=3, no_bias=True),
        A, (6, 1, 1, 1),
    ),
    "deconvolution": (
        lambda x, w, b: S.Deconvolution(x, w, b, kernel=(3, 3), num_filter=2, stride=(2, 2),
                                        pad=(1, 1), adj=(1, 1), no_bias=False),
        A, (3, 2, 3, 3), (2,),
    ),
    "fully_connected": (lambda x, w, b: S.FullyConnected(x, w, b, num_hidden=7), A, (7, 60), (7,)),
    "fully_connected_rows": (
        lambda x, w: S.FullyConnected(x, w, num_hidden=7, no_bias=True, flatten=False), A, (7, 5)
    ),
    "embedding": (lambda w: S.Embedding(S.arange(-1, 6), w, input_dim=4, output_dim=6), ROW),
    "leaky": (lambda x: S.LeakyReLU(x, slope=0.1) + S.LeakyReLU(x, act_type="elu", slope=0.7), A),
    "prelu": (lambda x, g: S.LeakyReLU(x, g, act_type="prelu"), A, (3,)),
    "pool_max": (lambda x: S.Pooling(x, kernel=(3, 2), stride=(2, 1), pad=(1, 1)), A),
    "pool_average": (lambda x: S.Pooling(x, kernel=(3, 3), pad=(1, 1), pool_type="avg"), A),
    "pool_average_inside": (
        lambda x: S.Pooling(x, kernel=(3, 3), pad=(1, 1), pool_type="avg", count_include_pad=False),
        A,
    ),
    "pool_global": (lambda x: S.Pooling(x, global_pool=True, pool_type="avg", kernel=(1, 1)), A),
    "upsampling": (lambda x: S.UpSampling(x, scale=3, sample_type="nearest"), A),
    "box_decode": (
        lambda x, a: S.contrib.box_decode(x, a, 0.1, 0.2, 0.3, 0.4, 0.2), (2, 6, 4), (1, 6, 4)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BUILTINS)
def test_operators_of_mxnet(name, tmp_path):
    function, *shapes = BUILTINS[name]
    names = [f"x{i}" for i in range(len(shapes))]
    symbol = function(*map(mx.sym.var, names))
    random = np.random.RandomState(1)
    inputs = {n: random.randn(*shape).astype("float32") for n, shape in zip(names, shapes)}
    arrays = {n: mx.nd.array(value) for n, value in inputs.items()}
    states = {n: arrays.pop(n).abs() for n in symbol.list_auxiliary_states()}
    expected = symbol.bind(mx.cpu(), arrays, aux_states=states).forward()
    params = {f"aux:{n}": value for n, value in states.items()}
    wanted = [n for n in symbol.list_inputs() if n not in states]
    path = tmp_path / "model.onnx"
    gluon_roi.onnx.export(symbol, [inputs[n].shape for n in wanted], path, params)
    found = run(path, *(inputs[n] for n in wanted))
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected):
        theirs = theirs.asnumpy()
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("eps", [1e-3, 1e-5, 1e-7, 1e-12])
def test_small_variances(eps, tmp_path):
    """MXNet's CPU operator adds the eps that it is given, however small."""
    names = ("data", "gamma", "beta", "moving_mean", "moving_var")
    symbol = S.BatchNorm(*map(mx.sym.var, names), fix_gamma=False, eps=eps)
    values = [mx.nd.array([[1.0, 1.0, 1.0]])]
    values += [mx.nd.array(row) for row in ([1, 1, 1], [0, 0, 0], [0, 0, 0], [0, 1e-6, 1e-2])]
    given = dict(zip(names, values))
    states = {name: given.pop(name) for name in names[3:]}
    (expected,) = symbol.bind(mx.cpu(), dict(given), aux_states=states).forward()
    path = tmp_path / "model.onnx"
    params = {name: value for name, value in {**given, **states}.items() if name != "data"}
    gluon_roi.onnx.export(symbol, [(1, 3)], path, params)
    (found,) = run(path, values[0].asnumpy())
    np.testing.assert_allclose(found, expected.asnumpy(), rtol=1e-6)


def test_roi_operators_of_mxnet_become_ours(tmp_path):
    """The exporter switches them as optimize does, so that no second table can differ from that."""

    def exported(symbol):
        path = tmp_path / "model.onnx"
        shapes = {"data": (2, 12, 9, 9), "rois": (5, 5), "turned": (5, 6), "trans": (5, 2, 2, 2)}
        inputs = symbol.list_arguments()
        gluon_roi.onnx.export(symbol, [shapes[name] for name in inputs], path)
        return onnx.load(str(path)).graph

    data, rois = mx.sym.var("data"), mx.sym.var("rois")
    turned, trans = mx.sym.var("turned"), mx.sym.var("trans")
    part: dict = {"spatial_scale": 0.5, "output_dim": 3, "group_size": 2, "pooled_size": 4}
    size, contrib = (2, 2), mx.sym.contrib
    for theirs in (
        mx.sym.ROIPooling(data, rois, size, 0.5),
        contrib.ROIAlign(data, rois, size, 0.5, sample_ratio=2),
        contrib.ROIAlign(data, rois, size, 0.5, position_sensitive=True, aligned=True),
        contrib.PSROIPooling(data, rois, spatial_scale=0.5, output_dim=3, pooled_size=2),
        contrib.RROIAlign(data, turned, size, 0.5, sampling_ratio=2),
        contrib.DeformablePSROIPooling(data, rois, trans, part_size=2, **part),
        contrib.DeformablePSROIPooling(data, rois, no_trans=True, trans_std=0.1, **part),
    ):
        assert exported(theirs) == exported(gluon_roi.optimize(theirs))


def test_sums_of_aligns_become_pyramids(tmp_path):
    """Of MXNet's operators, and of ours, which an optimized block has."""

    def nodes(align, **options):
        rois, level = _var("rois"), _var("level")
        total: Any = 0
        for number, scale in enumerate((0.5, 0.25)):
            own = S.where(level == number, rois, -S.ones_like(rois))
            pooled = align(_var(f"map{number}"), own, (2, 2), scale, **options)
            total = total + pooled if number else pooled
        shapes = {"map0": (1, 3, 9, 9), "map1": (1, 3, 5, 5), "rois": (4, 5), "level": (4,)}
        path = tmp_path / "model.onnx"
        gluon_roi.onnx.export(total, [shapes[n] for n in total.list_arguments()], path)
        return onnx_models.graph(path)["nodes"]

    theirs = nodes(S.contrib.ROIAlign, sample_ratio=2)
    assert nodes(gluon_roi.sym.ROIAlign, sampling_ratio=2) == theirs
    assert theirs["RoiAlign"] == theirs["NonZero"] == 2  # each pools the boxes of its map


# ---- Forms of models -----------------------------------------------------------------------------


class Head(mx.gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.maps = mx.gluon.nn.Conv2D(12, 1)
            self.pool = gluon_roi.PSROIPool(2, 0.5)

    def hybrid_forward(self, F, data, rois):
        return F.mean(self.pool(self.maps(data), rois), axis=(2, 3)), F.identity(rois)


SHAPES = [(1, 4, 9, 9), (3, 5)]


def test_blocks_and_symbols_give_the_same_file(tmp_path):
    """Hybridized or not, with shapes of parameters still to be settled or not, exported before."""
    head = Head()
    head.initialize()
    paths = [tmp_path / f"{n}.onnx" for n in range(4)]
    gluon_roi.onnx.export(head, SHAPES, paths[0])
    head.hybridize(static_alloc=True)
    inputs = np.ones(SHAPES[0], "float32"), np.array([[0, 0, 0, 9, 9]] * 3, "float32")
    expected = head(*map(mx.nd.array, inputs))
    gluon_roi.onnx.export(head, SHAPES, paths[1])
    stem = str(tmp_path / "head")
    head.export(stem)
    symbol, arguments, states = mx.model.load_checkpoint(stem, 0)
    gluon_roi.onnx.export(symbol, SHAPES, paths[2], {**arguments, **states})
    imported = mx.gluon.SymbolBlock.imports(
        f"{stem}-symbol.json", ["data0", "data1"], f"{stem}-0000.params"
    )
    gluon_roi.onnx.export(imported, SHAPES, paths[3])
    for path in paths:
        assert [v.name for v in onnx.load(str(path)).graph.input] == ["data0", "data1"]
        assert onnx_models.graph(path)["nodes"] == onnx_models.graph(paths[0])["nodes"]
        if HAS_RUNTIME:
            for ours, theirs in zip(run(path, *inputs), expected):
                np.testing.assert_allclose(ours, theirs.asnumpy(), atol=1e-6)


def test_a_block_of_float16_that_has_not_run(tmp_path):
    """Its input has the type of its parameters, whose shapes follow without a call."""
    head = Head()
    head.initialize()
    head.cast("float16")
    path = tmp_path / "model.onnx"
    gluon_roi.onnx.export(head, SHAPES, path)
    types = [value.type.tensor_type.elem_type for value in onnx.load(str(path)).graph.input]
    assert types == [onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT]


def test_long_numbers_of_python_2(tmp_path):
    symbol = mx.sym.Pooling(_var(), kernel=(3, 2), stride=(2, 1), pad=(1, 0), name="p")
    pool = mx.sym.ROIPooling(symbol, _var("rois"), (2, 2), 0.5, name="r")
    text = pool.tojson()
    for now, then in (("(3, 2)", "(3L, 2L)"), ("(2, 1)", "[2L, 1L]"), ("(2, 2)", "(2L, 2L)")):
        assert text.count(f'"{now}"') == 1
        text = text.replace(f'"{now}"', f'"{then}"')
    graphs = []
    for name, made in (("now", pool), ("then", mx.sym.load_json(text))):
        path = tmp_path / name
        gluon_roi.onnx.export(made, [(1, 3, 9, 9), (4, 5)], path)
        graphs.append(onnx.load(str(path)).graph)
    assert graphs[0] == graphs[1]


def test_casts_of_amp_are_kept(tmp_path):
    """MXNet leaves them out of the files that it writes."""
    symbol = mx.sym.floor(mx.sym.amp_cast(_var(), dtype="float16")) * 2
    path = tmp_path / "model.onnx"
    gluon_roi.onnx.export(symbol, [(2, 3)], path)
    assert onnx.load(str(path)).graph.output[0].type.tensor_type.elem_type == 10
    (found,) = run(path, np.full((2, 3), 1.25, "float32"))
    assert (found == 2).all() and found.dtype == np.float16


def test_outputs_keep_their_names_and_order(tmp_path):
    x = mx.sym.var("x")
    symbol = mx.sym.Group([mx.sym.exp(x, name="z"), x, mx.sym.abs(x, name="a")])
    path = tmp_path / "model.onnx"
    gluon_roi.onnx.export(symbol, [(2, 3)], path)
    names = [value.name for value in onnx.load(str(path)).graph.output]
    assert [name.replace("x_1", "x") for name in names] == ["z_output", "x", "a_output"]


def test_weights_of_large_models_have_their_own_file(monkeypatch, tmp_path):
    """The limit is lowered for it."""
    symbol = S.FullyConnected(_var(), _var("w"), num_hidden=40, no_bias=True)
    symbol = S.broadcast_add(symbol, _var("b"))
    random = np.random.RandomState(0)
    params = {"w": random.randn(40, 30).astype("float32"), "b": random.randn(1, 40)}
    x = random.randn(2, 30).astype("float32")
    params["b"] = params["b"].astype("float32")
    path, data = tmp_path / "model.onnx", tmp_path / "model.onnx.data"

    def found():
        gluon_roi.onnx.export(symbol, [(2, 30)], path, params)
        return run(path, x)[0]

    whole = found()
    size = path.stat().st_size
    assert sorted(tmp_path.iterdir()) == [path]
    monkeypatch.setattr(file, "LIMIT", 4000)
    assert (found() == whole).all()
    assert data.read_bytes() == params["w"].tobytes()  # the bias is small
    assert path.stat().st_size < size - 4000
    assert sorted(tmp_path.iterdir()) == [path, data]
    before = path.read_bytes()
    monkeypatch.setattr(file, "_external", lambda *arguments: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        found()
    assert sorted(tmp_path.iterdir()) == [path, data] and path.read_bytes() == before


# ---- Refusals ------------------------------------------------------------------------------------


def _var(name="x"):
    return mx.sym.var(name)


REFUSALS: dict[str, Any] = {
    "operator": (lambda: mx.sym.gamma(_var(), name="g"), [(2, 3)], "node g (gamma): this operator"),
    "quantized": (
        lambda: mx.sym.contrib.quantize_v2(_var(), name="q")[0],
        [(2, 3)],
        "node q (_contrib_quantize_v2): quantized models have no translation; export the float",
    ),
    "MKLDNN": (
        lambda: mx.sym.Convolution(
            _var(), kernel=(1, 1), num_filter=2, name="c"
        ).get_backend_symbol("MKLDNN"),
        [(1, 3, 5, 5), (2, 3, 1, 1), (2,)],
        "(_sg_mkldnn_conv): nodes of MKLDNN have no translation; export the model before",
    ),
    "attribute": (
        lambda: mx.sym.Pooling(_var(), kernel=(2, 2), pool_type="lp", p_value=2, name="p"),
        [(1, 3, 5, 5)],
        "node p (Pooling): pool_type=lp has no translation",
    ),
    "layout": (
        lambda: mx.sym.Convolution(_var(), kernel=(1, 1), num_filter=2, layout="NHWC", name="c"),
        [(1, 5, 5, 3), (2, 1, 1, 3), (2,)],
        "node c (Convolution): layout=NHWC has no translation",
    ),
    "threshold": (
        lambda: mx.sym.contrib.box_nms(_var(), overlap_thresh=2, name="n"),
        [(1, 5, 6)],
        "node n (_gluon_roi_BoxNMS): overlap_thresh=2.0 has no translation",
    ),
    "argument": (
        lambda: gluon_roi.sym.RotatedROIAlign(_var("x"), _var("r"), 2, 1.0, name="r"),
        [(1, 3, 5, 5), (4, 6)],
        "node r (_gluon_roi_RotatedROIAlign): argument sampling_ratio: expected a number above 0, "
        "got -1",
    ),
    "inputs": (lambda: _var("x") + _var("y"), [(2, 3)], "2 inputs without a value (x, y), but"),
    "shapes": (lambda: _var("x") + _var("y"), [(2, 3), (4, 3)], "the shapes do not fit"),
    "no shape": (lambda: _var(), [(2, None)], "expected a shape of whole numbers, got"),
    "one shape": (lambda: _var(), (2, 3), "expected a shape of whole numbers, got 2"),
    "type": (
        lambda: mx.sym.exp(mx.sym.cast(_var(), dtype="int32"), name="e"),
        [(2, 3)],
        "node e (exp): int32 data have no translation",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_unsupported_models_are_refused(name, tmp_path):
    make, shapes, message = REFUSALS[name]
    path = tmp_path / "model.onnx"
    with pytest.raises((ValueError, NotImplementedError)) as raised:
        gluon_roi.onnx.export(make(), shapes, path)
    assert message in str(raised.value) and "\n" not in str(raised.value)
    assert not path.exists()


def test_blocks_that_do_not_fit_are_refused(tmp_path):
    path = tmp_path / "model.onnx"
    pool = gluon_roi.ROIPool(2, 1.0)
    shapes = [(1, 3, 9, 9), (4, 5)]
    keywords: Any
    for (model, given), keywords, kind, message in (
        ((Head(), SHAPES), {}, ValueError, "has no value; initialize the block"),
        ((pool, shapes), {"params": {}}, ValueError, "params is for a Symbol"),
        ((pool, shapes), {"dynamic": [()]}, ValueError, "dynamic has 1 entries, expected one for"),
        ((pool, shapes), {"dynamic": [(-1,), ()]}, ValueError, r"dynamic=\(-1,\) for input data0"),
        (
            (pool, shapes),
            {"dynamic": [(), (0, 2)]},
            ValueError,
            "expected a list of axes from 0 to",
        ),
        ((pool, shapes), {"dynamic": [0, ()]}, ValueError, "expected a list of axes from 0 to 3"),
        ((pool, shapes), {"input_types": ["word", "float32"]}, ValueError, "word is no type of in"),
        ((pool, shapes[:1]), {}, ValueError, "cannot be called with 1 inputs"),
        ((pool, shapes), {"input_types": ["float64", "float32"]}, NotImplementedError, "float64"),
        ((print, shapes), {}, TypeError, "expected a gluon.HybridBlock, a Symbol or"),
    ):
        with pytest.raises(kind, match=message):
            gluon_roi.onnx.export(model, given, path, **keywords)
    assert not path.exists()


def test_without_the_package_onnx(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ImportError, match="run 'pip install onnx'"):
        gluon_roi.onnx.export(gluon_roi.ROIPool(2, 1.0), [(1, 3, 9, 9), (4, 5)], tmp_path / "x")
