# SPDX-License-Identifier: Apache-2.0
"""Short forms of the tests in docs/reliability.md: hostile calls, a soak, the debug build."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Iterator

import numpy as np
import presets
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from operators import ROWS
from support.cases import row_id
from support.processes import forked
from support.threads import openmp_threads

import gluon_roi
from testing import c_api

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]


def script(*command, **variables):
    """The output of a script; a failure shows all of it."""
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=ROOT,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-8000:]
    return done.stdout


def test_every_operator_is_called():
    """The driver calls those that the header lists."""
    header = (ROOT / "src/include/gluon_roi.h").read_text()
    listed = re.findall(r"\bX\((\w+)\)", header.split("#define GLUON_ROI_OPERATORS(X)")[1])
    assert sorted(listed) == sorted(c_api.Library(gluon_roi.library.PATH).operators)


@pytest.mark.night
def test_hostile_calls():
    lines = script("tests/sanitize/run.py", "--calls", 100, "--seed", 15).splitlines()
    assert any(line.startswith("the same results at sse2") for line in lines)
    assert lines[-1].startswith("tsan at ") and "10 calls without a fault" in lines[-1]


@pytest.mark.night
def test_soak():
    lines = script("tests/scripts/soak.py", "--calls", 96).splitlines()
    ways = ("nd", "hybrid", "static", "Executor", "Module", "new K", "new maps", "errors")
    for way in (*ways, "convolutions", "suppression"):
        assert any(line.startswith(f"{way}: 96 calls") for line in lines)
    assert any(line.startswith("8 threads: 96 calls") for line in lines)
    assert sum(line.startswith("fork after") for line in lines) == 2


# ---- The debug build, whose scratch memory is full of NaN ----------------------------------------


@pytest.fixture(scope="module")
def debug() -> Iterator[str]:
    """The library, for three threads in this process."""
    folder = script("build_tools/presets.py", "debug").splitlines()[-1]
    with openmp_threads(3):
        yield f"{folder}/libgluon_roi.so"


def test_programs_of_ctest(debug):
    """CONTRIBUTING.md: a C++ programmer tests with CMake's programs alone."""
    ctest = [presets.find("ctest"), "--preset", "debug"]
    done = subprocess.run(ctest, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0
    # CMake 4.4 does not count the failed ones.
    assert re.search("^100% tests passed(, 0 tests failed)? out of 3$", done.stdout, re.M)


@pytest.mark.night  # by day test_contract.py loads a library that the environment names
def test_named_by_the_environment(debug):
    printed = script(
        "-c",
        "import mxnet as mx, gluon_roi; print(gluon_roi.library.PATH);"
        "x, rois = mx.nd.ones((1, 1, 8, 8)), mx.nd.array([[0, 0, 0, 4, 4]]);"
        "print(gluon_roi.nd.ROIAlign(x, rois, 1, 1.0).asnumpy().item())",
        GLUON_ROI_LIBRARY=debug,
    )
    assert printed.split() == [debug, "1.0"]


def test_the_environment_names_no_library():
    def load():
        os.environ["GLUON_ROI_LIBRARY"] = "no/such.so"
        importlib.reload(gluon_roi.library).load()

    status, _, error = forked(load)
    assert status == 1 and "variable GLUON_ROI_LIBRARY names " in error


def wide(cells):
    """(low, high) around an axis of so many cells, 10^6 to 10^9.5 cells away."""
    distance = st.floats(6, 9.5).map(lambda exponent: 10**exponent)
    pairs = st.tuples(st.floats(0, cells), distance, distance)
    return pairs.map(lambda drawn: (drawn[0] - drawn[1], drawn[0] + drawn[2]))


@st.composite
def boxes(draw, height, width):
    """A box that is wide, or ordinary, or inverted, along each axis."""
    axes = [
        draw(st.one_of(wide(cells), st.tuples(st.floats(-9, 40), st.floats(-9, 40))))
        for cells in (width, height)
    ]
    (x1, x2), (y1, y2) = (axis[::-1] if draw(st.booleans()) else axis for axis in axes)
    return x1, y1, x2, y2


@pytest.mark.parametrize("op, arguments", ROWS, ids=row_id)
def test_wide_boxes(debug, op, arguments):
    """Nothing is read that was not written: finite, and the bytes of the release build."""
    libraries = [c_api.Library(debug), c_api.Library(gluon_roi.library.PATH)]
    cpu, pooled, scale = c_api.Device(c_api.CPU), (3, 5), 0.5
    more = {**arguments, "rois_grad": True} if op.rois_grad else arguments

    @settings(
        max_examples=12,
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )
    @given(
        st.lists(boxes(13, 29), min_size=1, max_size=4),
        st.sampled_from(["float32", "float64", "float16"]),
    )
    def check(rows, dtype):
        rois = op.rois([[0, *box] for box in rows])
        rois = rois.astype("float64" if dtype == "float64" else "float32")
        data = np.random.RandomState(0).randn(1, op.channels(2, pooled, arguments), 13, 29)
        data = data.astype(dtype)
        results = []
        for library in libraries:
            symbol = library.symbols[op.name]
            p = library.params(symbol, pooled, scale, **more)
            inputs = c_api.tensors(data, rois)
            out = np.empty(library.operators[symbol].output_shape(p, data, rois), dtype)
            d_data, d_rois = np.empty_like(data), np.empty_like(rois)
            library.forward(symbol, p, inputs, out, cpu)
            library.backward(symbol, p, inputs, np.ones_like(out), (d_data, d_rois), cpu)
            results.append((out, d_data, d_rois))
        for got, expected in zip(*results):
            assert np.isfinite(got).all()
            np.testing.assert_array_equal(got, expected)

    check()
