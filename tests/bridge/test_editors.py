# SPDX-License-Identifier: Apache-2.0
"""Types, as editors and type checkers see them."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gluon_roi

#: A user's file. MXNet has no types of its own, so stand-ins for its classes are beside it.
EXAMPLE = """
import gluon_roi
from mxnet.nd import NDArray
from mxnet.np import ndarray
from mxnet.sym import Symbol
from mxnet.gluon import HybridBlock

class Net(HybridBlock): ...

def calls(x: NDArray, y: ndarray, s: Symbol) -> None:
    reveal_type(gluon_roi.nd.ROIAlign(x, x, 7, 1 / 16))                          # mxnet.nd.NDArray
    reveal_type(gluon_roi.nd.ROIAlign(y, y, 7, 1 / 16))                          # mxnet.np.ndarray
    reveal_type(gluon_roi.sym.ROIAlign(s, s, 7, 1 / 16, name="align"))           # mxnet.sym.Symbol
    reveal_type(gluon_roi.nd.PSROIPool(x, x, (7, 7), 1 / 16, rois_num=x, out=x)) # mxnet.nd.NDArray
    reveal_type(gluon_roi.nd.DeformablePSROIPool(x, x, 7, 1 / 16))               # mxnet.nd.NDArray
    reveal_type(gluon_roi.nd.DeformablePSROIPool(x, x, None, 7, 1 / 16))         # mxnet.nd.NDArray
    reveal_type(gluon_roi.nd.DeformablePSROIPool(y, y, 7, 1 / 16, trans=y))      # mxnet.np.ndarray
    reveal_type(gluon_roi.nd.DeformableROIAlign(x, x, 7, 1 / 16))                # mxnet.nd.NDArray
    reveal_type(gluon_roi.nd.DeformableROIAlign(x, x, x, 7, 1 / 16, mask=x))     # mxnet.nd.NDArray
    reveal_type(gluon_roi.nd.DeformableROIAlign(x, x, x, x, 7, 1 / 16))          # mxnet.nd.NDArray
    reveal_type(gluon_roi.nd.DeformableSampling(x, x, 3, 1, mask=x, pad=1))      # mxnet.nd.NDArray
    reveal_type(gluon_roi.nd.PyramidROIAlign([x, x], x, 7, (1 / 4, 1 / 8)))      # mxnet.nd.NDArray
    reveal_type(gluon_roi.ROIAlign(7, 1 / 16, prefix="a"))        # gluon_roi.ops.roi_align.ROIAlign
    reveal_type(gluon_roi.optimize(s))                                           # mxnet.sym.Symbol
    reveal_type(gluon_roi.optimize("net-symbol.json", rois_only=True))           # mxnet.sym.Symbol
    reveal_type(gluon_roi.optimize(Net(), x, static_alloc=True))                 # calls.Net
    gluon_roi.optimize(3)                                                        # call-overload
    gluon_roi.nd.ROIAlign(3, x, 7, 1 / 16)                                       # type-var
    gluon_roi.nd.ROIAlign(x, x, 7)                                               # call-arg
    gluon_roi.nd.ROIAlign(x, x, 7, 1 / 16, sampling_ratio="2")                   # arg-type
    gluon_roi.nd.ROIAlign(x, x, 7, 1 / 16, sample_ratio=2)                       # call-arg
    gluon_roi.ROIAlign(7, 1 / 16, sample_ratio=2)                                # call-arg
    gluon_roi.ROIAlign(7, "1 / 16")                                              # arg-type
"""
CLASSES = {
    "__init__": "from . import gluon as gluon, nd as nd, np as np, sym as sym",
    "gluon": "class Block: ...\nclass HybridBlock(Block): ...",
    "nd": "class NDArray: ...",
    "np": "from .nd import NDArray\nclass ndarray(NDArray): ...",
    "sym": "class Symbol: ...",
}


@pytest.mark.night
def test_types(tmp_path):
    """mypy knows each result's kind, and finds wrong calls, even if it is strict."""
    pytest.importorskip("mypy", reason="mypy is not installed")
    (tmp_path / "mxnet").mkdir()
    for name, text in CLASSES.items():
        (tmp_path / f"mxnet/{name}.pyi").write_text(text)
    (tmp_path / "calls.py").write_text(EXAMPLE)
    # The types of other packages take long.
    settings = "[mypy]\nfollow_imports = silent\n[mypy-numpy.*,onnx.*]\nfollow_imports = skip\n"
    (tmp_path / "mypy.ini").write_text(settings)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--show-error-codes", "calls.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    # (Other notes list the overloads of a call that fits none.)
    line = r'calls.py:(\d+): (?:note: Revealed type is "(.+)"|error: .*\[(.+)\])$'
    found = re.findall(line, done.stdout, re.M)
    expected = {
        number: line.split("# ")[1]
        for number, line in enumerate(EXAMPLE.splitlines(), start=1)
        if "# " in line
    }
    assert {int(number): kind or code for number, kind, code in found} == expected, done.stdout


def test_overloads_repeat_the_whole_signature():
    """Where an input may be left out among positional arguments, the other overload is exact."""
    repeated = 0
    for file in (Path(gluon_roi.__file__).parent / "ops").glob("*.py"):
        functions = [n for n in ast.parse(file.read_text()).body if isinstance(n, ast.FunctionDef)]
        for previous, function in zip(functions, functions[1:]):
            if previous.name == function.name and ast.get_docstring(function):
                assert ast.dump(previous.args) == ast.dump(function.args), function.name
                repeated += 1
    assert repeated == 3


def test_types_are_shipped():
    assert (Path(gluon_roi.__file__).parent / "py.typed").is_file()
