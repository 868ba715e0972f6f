# SPDX-License-Identifier: Apache-2.0
"""MXNet's functions, replaced by our operators and restored."""

import itertools
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import mxnet as mx
import numpy as np
import pytest

import gluon_roi

SCRIPTS = Path(__file__).parents[1] / "scripts"
NAMES = ("ROIPooling", "roi_pooling", "ROIAlign", "PSROIPooling")
CALLS = {
    "pool": lambda F, *args, **kw: F.ROIPooling(*args, pooled_size=(2, 2), spatial_scale=1, **kw),
    "align": lambda F, *args, **kw: F.contrib.ROIAlign(
        *args, pooled_size=(2, 2), spatial_scale=1, **kw
    ),
    "ps_pool": lambda F, *args, **kw: F.contrib.PSROIPooling(
        *args, spatial_scale=1, output_dim=1, pooled_size=2, **kw
    ),
}
calls = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


def held():
    """Everything that a module of MXNet has under one of the names."""
    return {
        (path, name): getattr(module, name)
        for path, module in list(sys.modules.items())
        if isinstance(module, ModuleType)
        for name in NAMES
        if path.split(".")[0] == "mxnet" and hasattr(module, name)
    }


@pytest.fixture
def importer():
    """A module that imported one of the functions under a name of its own."""
    module = ModuleType("importer")
    vars(module)["align"] = mx.nd.contrib.ROIAlign
    sys.modules["importer"] = module
    yield module
    del sys.modules["importer"]


def test_every_module_and_back(importer):
    before, align = held(), importer.align
    assert len(before) > 20
    with gluon_roi.replace_builtins():
        for where, function in held().items():
            assert function is not before[where], where
        assert importer.align is mx.nd.contrib.ROIAlign
        # One within another.
        outer = held()
        with gluon_roi.replace_builtins("padding"):
            pass
        assert held() == outer
    assert held() == before and importer.align is align


@pytest.mark.parametrize("order", [*itertools.permutations(range(3))], ids=str)
def test_overlapping_replacements(order):
    """MXNet's functions return with the last one, in any order of ending."""
    before = held()
    replacements = [gluon_roi.replace_builtins() for _ in order]
    during = held()
    for i in order:
        assert held() == during
        replacements[i].close()
        replacements[i].close()  # twice is once
    assert held() == before


def test_threads():
    before = held()
    inside, outside = (threading.Barrier(3, timeout=60) for _ in range(2))

    def hold():
        for _ in range(20):
            with gluon_roi.replace_builtins():
                assert mx.nd.ROIPooling is not before["mxnet.ndarray", "ROIPooling"]
        with gluon_roi.replace_builtins():
            inside.wait()
            outside.wait()

    with ThreadPoolExecutor(2) as pool:
        held_by = [pool.submit(hold) for _ in range(2)]
        inside.wait()
        with gluon_roi.replace_builtins():
            during = held()
        assert held() == during and all(during[key] is not before[key] for key in before)
        outside.wait()
        for one in held_by:
            one.result()
    assert held() == before


def test_nested_replacements_use_the_innermost_bad_index():
    data, rois = mx.nd.ones((1, 1, 4, 4)), mx.nd.array([[5, 0, 0, 3, 3]])

    def accepted():
        try:
            return mx.nd.ROIPooling(data, rois, (1, 1), 1).asscalar() == 0
        except mx.MXNetError:
            return False

    first, second, third = map(gluon_roi.replace_builtins, ("error", "padding", "error"))
    assert not accepted()
    third.close()
    assert accepted()
    first.close()
    assert accepted()
    second.close()
    assert accepted()  # MXNet's own


def test_functions_taken_while_replaced_are_restored():
    """A module that was imported, and a variable: both end with MXNet's function."""
    module = ModuleType("importer")
    data, rois = mx.nd.ones((1, 1, 4, 4)), mx.nd.array([[5, 0, 0, 3, 3]])
    try:
        with gluon_roi.replace_builtins():
            taken = vars(module)["pool"] = mx.nd.ROIPooling
            sys.modules["importer"] = module
            with pytest.raises(mx.MXNetError, match="batch index 5"):
                taken(data, rois, (1, 1), 1).asnumpy()
        assert module.pool is mx.nd.ROIPooling
        assert taken(data, rois, (1, 1), 1).asscalar() == 0
    finally:
        del sys.modules["importer"]


@pytest.mark.night
def test_automatic_mixed_precision():
    """The wrappers of MXNet's AMP hide the signatures of its functions."""
    subprocess.run([sys.executable, str(SCRIPTS / "amp_replaced.py")], check=True)


def test_wrong_bad_index():
    before = held()
    with pytest.raises(ValueError, match="replace_builtins: argument bad_index: expected 'error'"):
        gluon_roi.replace_builtins("zeros")
    assert held() == before


def test_functions_are_restored_after_an_error():
    before = held()
    with pytest.raises(KeyError), gluon_roi.replace_builtins():
        raise KeyError
    assert held() == before


def test_close_restores_every_function():
    before = held()
    replaced = gluon_roi.replace_builtins()
    during = held()
    replaced.close()
    assert all(during[where] is not function for where, function in before.items())
    assert held() == before


@pytest.mark.parametrize("path", ["mx.nd.contrib", "mx.contrib.nd", "mx.nd", "mx.npx"])
def test_arrays(path):
    data = mx.nd.ones((1, 4, 4, 4))
    rois = mx.nd.array([[0, 0, 0, 3, 3], [-1, 0, 0, 0, 0]])
    if path == "mx.npx":
        data, rois = data.as_np_ndarray(), rois.as_np_ndarray()
    name = {"mx.nd": "ROIPooling", "mx.npx": "roi_pooling"}.get(path, "ROIAlign")
    with gluon_roi.replace_builtins():
        out = getattr(eval(path), name)(data, rois, pooled_size=(2, 2), spatial_scale=1)
    assert type(out) is type(data)
    np.testing.assert_array_equal(out[0].asnumpy(), np.ones((4, 2, 2)))
    np.testing.assert_array_equal(out[1].asnumpy(), np.zeros((4, 2, 2)))


@calls
def test_out(call):
    data, rois = mx.nd.ones((1, 4, 4, 4)), mx.nd.array([[0, 0, 0, 3, 3]])
    with gluon_roi.replace_builtins():
        expected = call(mx.nd, data, rois)
        out = expected.zeros_like()
        assert call(mx.nd, data=data, rois=rois, out=out, name="unused") is out
    np.testing.assert_array_equal(out.asnumpy(), expected.asnumpy())


# Whatever MXNet makes of the call, ours has the same names and attributes.
SYMBOLS = {
    "automatic": {},
    "named": {"name": "x"},
    "attributes": {"name": "x", "attr": {"__note__": "a"}},
    "keywords": {"data": mx.sym.var("data"), "rois": mx.sym.var("boxes")},
    "no data": {"rois": mx.sym.var("boxes") * 2},
}


@pytest.mark.parametrize("arguments", SYMBOLS.values(), ids=SYMBOLS)
@pytest.mark.parametrize("scope", ["prefix", "attributes", "none"])
@calls
def test_symbols(call, scope, arguments):
    def make():
        scopes = {"prefix": mx.name.Prefix("a_"), "attributes": mx.AttrScope(__group__="b")}
        with mx.name.NameManager(), scopes.get(scope, mx.AttrScope()):
            return [call(mx.sym, **arguments) for _ in range(2)]

    right = make()
    with gluon_roi.replace_builtins():
        actual = make()
    for expected, ours in zip(right, actual):
        assert ours.name == expected.name
        for names in ("list_arguments", "list_outputs"):
            assert getattr(ours, names)() == getattr(expected, names)()
        for key in ("__note__", "__group__"):
            assert ours.attr(key) == expected.attr(key)
        used = gluon_roi.count(ours)
        assert sum(used.values()) == 1 and not any(
            used[name] for name in gluon_roi.switch.mapping.builtins()
        )


WRONG: dict = {
    "unknown": ({"wrong": 1}, TypeError, "ROIAlign: got an unexpected keyword argument 'wrong'"),
    "pooled_size": ({"pooled_size": -1}, mx.MXNetError, "ROIAlign: .*pooled_size"),
    "rois": ({"rois": None}, TypeError, "ROIAlign: argument rois: expected a mxnet"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments(case):
    change, error, message = WRONG[case]
    data, rois = mx.nd.ones((1, 4, 4, 4)), mx.nd.array([[0, 0, 0, 3, 3]])
    arguments = {"data": data, "rois": rois, "pooled_size": (2, 2), "spatial_scale": 1, **change}
    with gluon_roi.replace_builtins(), pytest.raises(error, match=message):
        mx.nd.contrib.ROIAlign(**arguments)
