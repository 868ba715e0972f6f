# SPDX-License-Identifier: Apache-2.0
"""The export to ONNX: graphs, their results in runtimes, and errors.

Models run in onnxruntime, by night in OpenVINO, too.
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
from support.onnx_evaluator import run

import gluon_roi

onnx = pytest.importorskip("onnx")
from gluon_roi.onnx import file  # noqa: E402

TESTS = Path(__file__).resolve().parents[1]
MODELS = onnx_models.models()

from testing.onnx_runtimes import check  # noqa: E402


@pytest.fixture(scope="module")
def golden():
    return np.load(check.ARRAYS)


# ---- Models --------------------------------------------------------------------------------------


GRAPHS = json.loads(onnx_models.GRAPHS.read_text())


def test_every_graph_is_recorded():
    assert MODELS.keys() == GRAPHS.keys()


@pytest.mark.parametrize("name", MODELS)
def test_the_golden_outputs_are_those_of_the_operators(name, golden):
    for number, output in enumerate(MODELS[name].outputs()):
        assert check.difference(output, golden[f"{name}/out{number}"]) <= check.tolerance(name)


@pytest.mark.parametrize("name", MODELS)
def test_graphs_and_their_outputs_are_the_recorded_ones(name, golden, tmp_path):
    """Number of nodes of each operator, inputs, outputs; standard operators of one opset alone."""
    path = tmp_path / "model.onnx"
    MODELS[name].export(path)
    found, recorded = onnx_models.graph(path), dict(GRAPHS[name])
    for side in ("inputs", "outputs"):  # names of blocks depend on what was made before
        assert [v.split(" ", 1)[1] for v in found.pop(side)] == [
            v.split(" ", 1)[1] for v in recorded.pop(side)
        ]
    assert found == recorded
    assert found["opset"] == {"": 16}
    run = check.onnxruntime(str(path))
    assert check.differences(run, golden, name) <= check.tolerance(name)


@pytest.mark.night
@pytest.mark.parametrize(
    "name",
    [name for name in MODELS if not name.endswith("float64")],  # which it computes in float32
)
def test_openvino_gives_the_recorded_outputs(name, golden, tmp_path):
    pytest.importorskip("openvino")
    path = tmp_path / "model.onnx"
    MODELS[name].export(path)
    run = check.openvino(str(path))
    assert check.differences(run, golden, name) <= check.tolerance(name)


def _rows_for(name, rois):
    return cases.turned(rois) if name.startswith("Rotated") else rois


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
    assert names == ["z_output", "x", "a_output"]


def test_weights_of_large_models_have_their_own_file(monkeypatch, tmp_path):
    """The limit is lowered for it."""
    symbol = mx.sym.FullyConnected(_var(), _var("w"), num_hidden=40, no_bias=True)
    symbol = mx.sym.broadcast_add(symbol, _var("b"))
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
    "rotated suppression": (
        lambda: gluon_roi.sym.BoxNMS(_var(), in_format="rotated", out_format="rotated", name="n"),
        [(1, 5, 7)],
        "node n (_gluon_roi_BoxNMS): in_format=rotated has no translation: NonMaxSuppression has "
        "upright boxes only",
    ),
    "soft suppression": (
        lambda: gluon_roi.sym.BoxNMS(_var(), method="gaussian", name="n"),
        [(1, 5, 6)],
        "node n (_gluon_roi_BoxNMS): method=gaussian has no translation: each row that is kept "
        "changes the scores of the others, which needs a loop",
    ),
    "rotated overlaps": (
        lambda: gluon_roi.sym.BoxIoU(_var("x"), _var("y"), format="rotated", name="n"),
        [(5, 5), (6, 5)],
        "node n (_gluon_roi_BoxIoU): format=rotated has no translation: ONNX has no operator for "
        "polygons",
    ),
    "argument": (
        lambda: gluon_roi.sym.RotatedROIAlign(_var("x"), _var("r"), 2, 1.0, name="r"),
        [(1, 3, 5, 5), (4, 6)],
        "node r (_gluon_roi_RotatedROIAlign): argument sampling_ratio: expected a number above 0, "
        "got -1",
    ),
    "inputs": (lambda: _var("x") + _var("y"), [(2, 3)], "2 inputs without a value (x, y), but"),
    "shapes": (lambda: _var("x") + _var("y"), [(2, 3), (4, 3)], "the shapes do not fit"),
    "no shape": (lambda: _var(), [(2, None)], "expected a shape of integers, got"),
    "one shape": (lambda: _var(), (2, 3), "such as [(2, 3)], got (2, 3)"),
    "type": (
        lambda: mx.sym.exp(mx.sym.cast(_var(), dtype="int32"), name="e"),
        [(2, 3)],
        "node e (exp): int32 data have no translation",
    ),
    "batch normalisation of a vector": (
        lambda: mx.sym.BatchNorm(_var(), axis=0, name="b"),
        [(3,)] * 5,
        "node b (BatchNorm): data of shape (3,) have no translation, expected a batch",
    ),
    "smooth_l1": (
        lambda: mx.sym.smooth_l1(_var(), scalar=0, name="s"),
        [(3,)],
        "node s (smooth_l1): scalar=0 has no translation, expected another number",
    ),
    "scalar beyond the type": (
        lambda: mx.sym.cast(_var(), dtype="uint8") + 300,
        [(3,)],
        "(_plus_scalar): scalar=300 has no translation for uint8 data, whose numbers are from 0 to",
    ),
    "compared scalar beyond the type": (
        lambda: mx.sym.cast(_var(), dtype="uint8") == -1,
        [(3,)],
        "(_equal_scalar): scalar=-1 has no translation for uint8 data, whose numbers are from 0 to",
    ),
    "type that ONNX refuses": (
        lambda: mx.sym.softmax(mx.sym.cast(_var(), dtype="int32"), name="s"),
        [(2, 3)],
        "node s (softmax): int32 data have no translation",
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
        (
            (pool, shapes),
            {"input_types": ["word", "float32"]},
            ValueError,
            "word is not a dtype for",
        ),
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
