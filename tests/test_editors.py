# SPDX-License-Identifier: Apache-2.0
"""What editors and type checkers see of the functions: kinds of arrays, and whole docstrings."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
import stubs

import gluon_roi
from gluon_roi import nd

FUNCTIONS = {name: getattr(nd, name) for name in nd.__all__}

#: A user's file. MXNet has no types of its own, so stand-ins for its classes are beside it.
EXAMPLE = """
import gluon_roi
from mxnet.nd import NDArray
from mxnet.np import ndarray
from mxnet.sym import Symbol

def calls(x: NDArray, y: ndarray, s: Symbol) -> None:
    reveal_type(gluon_roi.nd.ROIAlign(x, x, 7, 1 / 16))                          # mxnet.nd.NDArray
    reveal_type(gluon_roi.nd.ROIAlign(y, y, 7, 1 / 16))                          # mxnet.np.ndarray
    reveal_type(gluon_roi.sym.ROIAlign(s, s, 7, 1 / 16, name="align"))           # mxnet.sym.Symbol
    reveal_type(gluon_roi.nd.PSROIPool(x, x, (7, 7), 1 / 16, rois_num=x, out=x)) # mxnet.nd.NDArray
    reveal_type(gluon_roi.nd.DeformablePSROIPool(x, x, 7, 1 / 16))               # mxnet.nd.NDArray
    reveal_type(gluon_roi.nd.DeformablePSROIPool(x, x, None, 7, 1 / 16))         # mxnet.nd.NDArray
    reveal_type(gluon_roi.nd.DeformablePSROIPool(y, y, 7, 1 / 16, trans=y))      # mxnet.np.ndarray
    reveal_type(gluon_roi.nd.PyramidROIAlign([x, x], x, 7, (1 / 4, 1 / 8)))      # mxnet.nd.NDArray
    gluon_roi.nd.ROIAlign(3, x, 7, 1 / 16)                                       # type-var
    gluon_roi.nd.ROIAlign(x, x, 7)                                               # call-arg
    gluon_roi.nd.ROIAlign(x, x, 7, 1 / 16, sampling_ratio="2")                   # arg-type
    gluon_roi.nd.ROIAlign(x, x, 7, 1 / 16, sample_ratio=2)                       # call-arg
"""
CLASSES = {
    "__init__": "from . import nd as nd, np as np, sym as sym",
    "nd": "class NDArray: ...",
    "np": "from .nd import NDArray\nclass ndarray(NDArray): ...",
    "sym": "class Symbol: ...",
}


def test_types(tmp_path):
    """mypy knows each result's kind, and finds wrong calls."""
    pytest.importorskip("mypy", reason="mypy is not installed")
    (tmp_path / "mxnet").mkdir()
    for name, text in CLASSES.items():
        (tmp_path / f"mxnet/{name}.pyi").write_text(text)
    (tmp_path / "calls.py").write_text(EXAMPLE)
    (tmp_path / "mypy.ini").write_text("[mypy]\nfollow_imports = silent\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--show-error-codes", "calls.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    found = re.findall(r'calls.py:(\d+): .*?(?:is "(.+)"|\[(.+)\])$', done.stdout, re.M)
    expected = {
        number: line.split("# ")[1]
        for number, line in enumerate(EXAMPLE.splitlines(), start=1)
        if "# " in line
    }
    assert {int(number): kind or code for number, kind, code in found} == expected, done.stdout


def test_stubs():
    """nd.pyi is what the functions are now."""
    assert stubs.STUB.read_text() == stubs.text(FUNCTIONS), "run python build_tools/stubs.py"


@pytest.mark.parametrize("name", nd.__all__)
def test_an_editor_shows(name):
    """The docstring in the stub is whole: each argument once, in order, with all sections."""
    defined = [
        node
        for node in ast.parse(stubs.STUB.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name == name
    ]
    docstring = ast.get_docstring(defined[0])
    assert docstring == inspect.getdoc(FUNCTIONS[name])
    sections = re.split(r"^(\w+)\n-+$", docstring or "", flags=re.M)
    assert set(sections[1::2]) >= {"Parameters", "Returns", "Raises", "References", "Examples"}
    entries = re.findall(r"^(\w[\w, ]*)(?: :|$)", sections[2], re.M)
    shown = re.findall(r"\w+", " ".join(entries))
    assert set(shown) == set(inspect.signature(FUNCTIONS[name]).parameters)
    assert len(set(shown)) == len(shown)
    for parameter in inspect.signature(FUNCTIONS[name]).parameters.values():
        if parameter.name in ("data", "rois", "offset", "rois_num", "out"):
            assert "Tensor" in parameter.annotation


def test_types_are_shipped():
    package = Path(gluon_roi.__file__).parent
    assert (package / "py.typed").is_file() and (package / "nd.pyi").is_file()
