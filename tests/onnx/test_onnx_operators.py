# SPDX-License-Identifier: Apache-2.0
"""MXNet's own operators as ONNX: each rule, and RoI operators that are switched first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import onnx_models
import pytest
from support.onnx_evaluator import run

import gluon_roi

onnx = pytest.importorskip("onnx")

TESTS = Path(__file__).resolve().parents[1]
MODELS = onnx_models.models()


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
    "depth_to_space": (lambda x: S.depth_to_space(x, block_size=2), (2, 12, 3, 4)),
    "div_scalar": (lambda x: (x + 4) / 3 + 2 / (x + 4) - (1 - x), A),
    "dropout": (lambda x: S.Dropout(x, p=0.5) + S.Dropout(x, p=0), A),
    "exp": (lambda x: S.exp(x), A),
    "expand_dims": (lambda x: S.expand_dims(x, axis=-1), A),
    "flatten": (lambda x: S.flatten(x), A),
    "full": (lambda x: S.broadcast_add(x, S.full((1, 6), -1.5)), ROW),
    "gelu": (lambda x: S.LeakyReLU(x * 3, act_type="gelu"), A),
    "gather_nd": (lambda x: S.gather_nd(x, S.stack(S.ones((3,)), S.arange(3), axis=0)), A),
    "linalg_gemm2": (
        lambda x, y: S.linalg.gemm2(x, y, transpose_a=True, transpose_b=True, alpha=-0.5),
        (2, 4, 3),
        (2, 5, 4),
    ),
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
    "selu": (lambda x: S.LeakyReLU(x * 3, act_type="selu"), A),
    "sequence_mask": (
        lambda x, n: S.SequenceMask(x, S.abs(S.round(n)), use_sequence_length=True, value=-1.5),
        A,
        (3,),
    ),
    "sequence_mask_of_rows": (
        lambda x, n: S.SequenceMask(
            x, S.abs(S.round(n * 2)), use_sequence_length=True, axis=1
        ),
        (4, 6),
        (4,),
    ),
    "sequence_mask_without_lengths": (lambda x: S.SequenceMask(x), ROW),
    "shape_array": (lambda x: S.shape_array(x), A),
    "sigmoid": (lambda x: S.sigmoid(x) + S.tanh(x) + S.relu(x), A),
    "size_array": (lambda x: S.size_array(x), A),
    "slice": (lambda x: S.slice(x, begin=(None, 1, -3), end=(1, None, -1), step=(1, 2, 1)), A),
    "slice_back": (lambda x: S.slice(x, (None, 2, -1), (None, None, 0), (-1, -2, -1)), A),
    "slice_axis": (lambda x: S.slice_axis(x, axis=-1, begin=-3, end=None), A),
    "slice_axis_back": (lambda x: S.slice_axis(x, axis=2, begin=1, end=-1), A),
    "slice_like": (lambda x, y: S.slice_like(x, y, axes=(-1,)), A, (1, 1, 1, 3)),
    "slice_like_all": (lambda x, y: S.slice_like(x, y), A, B),
    "softmax": (lambda x: S.softmax(x, axis=1, temperature=0.5), A),
    "softmax_of_the_first": (
        lambda x, n: S.softmax(
            x, S.cast(S.abs(S.round(n)), dtype="int32"), use_length=True, axis=1, temperature=2.0
        ),
        A,
        (2, 4, 5),
    ),
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
    "space_to_depth": (lambda x: S.space_to_depth(x, block_size=2), (2, 3, 4, 6)),
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
    """The ROIAligns are MXNet's, or gluon_roi's, as in an optimized block."""

    def nodes(align, **options):
        rois, level = mx.sym.var("rois"), mx.sym.var("level")
        total: Any = 0
        for number, scale in enumerate((0.5, 0.25)):
            own = S.where(level == number, rois, -S.ones_like(rois))
            pooled = align(mx.sym.var(f"map{number}"), own, (2, 2), scale, **options)
            total = total + pooled if number else pooled
        shapes = {"map0": (1, 3, 9, 9), "map1": (1, 3, 5, 5), "rois": (4, 5), "level": (4,)}
        path = tmp_path / "model.onnx"
        gluon_roi.onnx.export(total, [shapes[n] for n in total.list_arguments()], path)
        return onnx_models.graph(path)["nodes"]

    theirs = nodes(S.contrib.ROIAlign, sample_ratio=2)
    assert nodes(gluon_roi.sym.ROIAlign, sampling_ratio=2) == theirs
    assert theirs["RoiAlign"] == theirs["NonZero"] == 2  # each pools the boxes of its map
