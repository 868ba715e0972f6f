# SPDX-License-Identifier: Apache-2.0
"""Declarations in C++ agree with Python; symbol files keep their meaning."""

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
from golden import record_symbols
from mxnet import autograd
from operators import OPERATORS, ROWS
from support.cases import feature_map, row_id

import gluon_roi
from gluon_roi.bridge import call_operator

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "build_tools"))
import presets  # noqa: E402

DECLARED = gluon_roi.library.operators()


@pytest.mark.parametrize("block", gluon_roi.OPERATORS, ids=lambda block: block.__name__)
def test_signatures(block):
    """Block and function have the parameters and the defaults of the library, in its order."""
    declared = DECLARED[block.__name__]
    of_block = dict(inspect.signature(block).parameters)
    assert of_block.pop("prefix").default is of_block.pop("params").default is None
    function = getattr(gluon_roi.nd, block.__name__)
    assert function is getattr(gluon_roi.sym, block.__name__)
    of_function = dict(inspect.signature(function).parameters)
    for extra in ("out", "name", "attr", *(given.name for given in declared.inputs)):
        assert of_function.pop(extra).default in (inspect.Parameter.empty, None)
    assert list(of_block.values()) == list(of_function.values())  # types as well
    assert list(of_block) == list(declared.parameters)
    for name, default in declared.parameters.items():
        given = of_block[name].default
        assert (None if given is inspect.Parameter.empty else str(given)) == default


@pytest.mark.parametrize("block", gluon_roi.OPERATORS, ids=lambda block: block.__name__)
@pytest.mark.parametrize("hybrid", [False, True])
def test_too_many_inputs(block, hybrid):
    scale = (1.0,) if DECLARED[block.__name__].several_maps else 1.0
    net = block(3, scale)
    net.hybridize(hybrid)
    inputs = [mx.nd.ones((1, 5))] * (len(DECLARED[block.__name__].inputs) + 1)
    with pytest.raises(TypeError, match=f"{block.__name__}: expected at most .* inputs .*, got"):
        net(*inputs)


@pytest.mark.parametrize("block", gluon_roi.OPERATORS, ids=lambda block: block.__name__)
def test_function_and_block_pass_every_argument_by_its_name(block, monkeypatch):
    declared, calls = DECLARED[block.__name__], []

    def call(operator_name, inputs, parameters, *args, **kwargs):
        calls.append((operator_name, dict(inputs), dict(parameters)))

    module = inspect.getmodule(block)
    monkeypatch.setattr(module, "call_operator", call)
    function = getattr(gluon_roi.nd, block.__name__)
    values: dict = {name: f"value of {name}" for name in inspect.signature(function).parameters}
    if declared.several_maps:
        values["data"] = [values["data"]]
    inputs = {name: values[name] for name in declared.input_names}
    parameters = {name: values[name] for name in declared.parameters}
    function(**values)
    net = block(**parameters)
    net.hybrid_forward(mx.nd, **inputs)
    assert calls == [(block.__name__, inputs, parameters)] * 2
    for name, value in parameters.items():
        assert f"{name}={value!r}" in repr(net)


def test_a_debugger_meets_the_body_of_the_operator():
    """In gluon_roi/ops/, after nothing but what explains wrong calls."""
    files = []

    def trace(frame, event, argument):
        if event == "call" and "/gluon_roi/" in frame.f_code.co_filename:
            files.append(frame.f_code.co_filename.rpartition("/gluon_roi/")[2])

    data, rois = mx.nd.ones((1, 4, 8, 8)), mx.nd.array([[0, 0, 0, 9, 9]])
    sys.settrace(trace)
    try:
        gluon_roi.nd.PSROIPool(data, rois, 2, 0.5)
    finally:
        sys.settrace(None)
    assert files[:3] == ["bridge/signature.py", "ops/ps_roi_pool.py", "bridge/call.py"]


@pytest.fixture
def halves(monkeypatch):
    """A function of a declared operator without boxes, which has two outputs: halves of rows.

    MXNet's own split() stands in for what a library would register.
    """
    rows = gluon_roi.library.Input("data", "rows", 3, False, True, False)
    parameters = {"axis": "1", "num_outputs": None}
    declared = gluon_roi.library.Declared(
        "Halves", "halves", (rows,), ("low", "high"), 0, parameters
    )
    monkeypatch.setitem(DECLARED, "Halves", declared)
    for namespace in (mx.nd, mx.sym):
        monkeypatch.setattr(
            namespace._internal, "_gluon_roi_Halves", namespace.SliceChannel, raising=False
        )

    def function(data, num_outputs=2, axis=1, out=None, name=None, attr=None, shown=2):
        parameters = {"num_outputs": num_outputs, "axis": axis}
        return call_operator("Halves", {"data": data}, parameters, out, name, attr, shown)

    return function


@pytest.mark.parametrize("shown", [1, 2])
def test_several_outputs(halves, shown):
    """The bridge follows the declaration: hidden outputs, a list of several, out=, gradients."""
    x = mx.nd.arange(24).reshape((2, 4, 3))
    low, high = x[:, :2].asnumpy(), x[:, 2:].asnumpy()
    x.attach_grad()
    outs = [mx.nd.zeros(low.shape) for _ in range(shown)]
    for _ in range(3):  # the second call compiles
        with autograd.record():
            results = halves(x, shown=shown)
        returned = halves(x, shown=shown, out=outs)
        for got in (results, returned, outs):
            got = [got] if isinstance(got, mx.nd.NDArray) else got
            assert len(got) == shown
            for array, wanted in zip(got, (low, high)):
                np.testing.assert_array_equal(array.asnumpy(), wanted)
    autograd.backward(results)
    assert (x.grad[:, :2] == 1).asnumpy().all()
    assert (x.grad[:, 2:] == shown - 1).asnumpy().all()
    with pytest.raises(TypeError, match=f"Halves: argument out: expected {shown}, got 3 arrays"):
        halves(x, shown=shown, out=[x] * 3)
    with pytest.raises(
        mx.MXNetError, match=r"Halves: argument out: expected shape \(2, 2, 3\), got"
    ):
        halves(x, shown=1, out=x)
    arrays = halves(x.as_np_ndarray(), shown=shown)
    assert isinstance(arrays if shown == 1 else arrays[1], mx.np.ndarray)

    symbol = halves(mx.sym.var("x"), shown=shown, name="n")
    assert len(symbol.list_outputs()) == shown
    assert symbol.infer_shape(x=(2, 4, 3))[1] == [(2, 2, 3)] * shown
    numpy_symbol = halves(mx.sym.var("x").as_np_ndarray(), shown=shown)
    assert isinstance(numpy_symbol, mx.sym.numpy._Symbol)
    with mx.util.np_shape():
        for array in halves(mx.nd.zeros((2, 4, 0))):
            assert array.shape == (2, 2, 0)


def test_parameters_go_by_name(halves):
    """Neither their order nor a forgotten one can give another parameter's value."""
    x = mx.nd.arange(24).reshape((2, 4, 3))
    assert halves(x, 4, 1)[0].shape == (2, 1, 3)
    assert halves(x, 3, 2)[0].shape == (2, 4, 1)
    with pytest.raises(KeyError, match="axis"):
        call_operator("Halves", {"data": x}, {"num_outputs": 2})


def test_every_operator_is_there():
    names = {block.__name__ for block in gluon_roi.OPERATORS}
    convolutions = {"DeformableConvolution", "ModulatedDeformableConvolution"}  # of samples
    assert names == set(DECLARED) == set(gluon_roi.nd.__all__) - convolutions
    # Tables and pictures keep one order.
    order = [block.__name__ for block in gluon_roi.OPERATORS]
    assert [name for name in order if DECLARED[name].rois_name] == [op.name for op in OPERATORS]
    page = (ROOT / "docs/operators.md").read_text()
    rows = re.findall(r"^\| \[(\w+)\]\(operators/", page, re.M)
    assert order == rows


SYMBOLS = sorted((ROOT / "tests/golden").glob("symbol-*.json"))


@pytest.mark.parametrize("file", SYMBOLS, ids=lambda file: file.stem)
def test_symbol_file_of_a_version(file, ctx):
    """A symbol that a version saved loads, and gives the bytes that it gave in that version."""
    symbol = mx.sym.load(str(file))
    with np.load(file.with_suffix(".npz")) as arrays:
        recorded = dict(arrays)
    for name, array in record_symbols.results(symbol, recorded, ctx).items():
        np.testing.assert_array_equal(array, recorded[name], err_msg=name)


def test_this_version_has_a_symbol_file():
    assert f"symbol-{gluon_roi.__version__}" in {file.stem for file in SYMBOLS}


@pytest.mark.parametrize("op, arguments", ROWS, ids=row_id)
def test_bad_index(op, arguments, ctx):
    """'padding' takes rows beyond the batch for padding rows; NaN and fractions stay errors."""
    pooled, scale = (2, 3), 0.3
    function = op.function
    x = mx.nd.array(feature_map(op.channels(3, pooled, arguments)), ctx=ctx)
    rois = op.all_rois(scale)
    rois[::3, 0] = np.resize([2, 7, 1e9, np.inf], len(rois[::3]))
    padded = rois.copy()
    padded[::3, 0] = -1
    results = []
    for rows, how in ((padded, "error"), (rois, "padding")):
        x.attach_grad()
        with autograd.record():
            boxes = mx.nd.array(rows, ctx=ctx)
            out = function(x, boxes, pooled, scale, bad_index=how, **arguments)
        out.backward()
        results.append((out.asnumpy(), x.grad.asnumpy()))
    for wanted, got in zip(*results):
        np.testing.assert_array_equal(got, wanted)
    with pytest.raises(mx.MXNetError, match=f"{op.name}: rois row 0 has batch index 2"):
        function(x, mx.nd.array(rois, ctx=ctx), pooled, scale, **arguments).wait_to_read()
    for index in (np.nan, 0.5, 2.5):
        rois[0, 0] = index
        with pytest.raises(mx.MXNetError, match=f"{op.name}: rois row 0 has batch index"):
            boxes = mx.nd.array(rois, ctx=ctx)
            function(x, boxes, pooled, scale, bad_index="padding", **arguments).wait_to_read()
    with pytest.raises(mx.MXNetError, match="bad_index: expected 'error' or 'padding', got 'pad'"):
        function(x, boxes, pooled, scale, bad_index="pad", **arguments)


@pytest.mark.night  # of the build; such a library fails each test
@pytest.mark.slow
def test_more_operators_than_the_maximum_are_refused():
    """A library with an operator that MXNet could not be told of does not load."""
    library = str(presets.build("debug", target="few_operators") / "libfew_operators.so")
    done = subprocess.run(
        [sys.executable, "-c", "import gluon_roi"],
        env={**os.environ, "GLUON_ROI_LIBRARY": library},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert done.returncode != 0
    found = re.search(r"gluon_roi has (\d+) operators, expected at most 3", done.stderr)
    assert found and int(found[1]) >= len(DECLARED)  # those of graphs for inference as well
