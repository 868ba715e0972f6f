# SPDX-License-Identifier: Apache-2.0
"""The C interface: from C itself, and from ctypes against the same operators in Gluon."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from operators import ROWS
from support.cases import feature_map, row_id

import gluon_roi
from testing import c_api

HEADER = Path(__file__).parents[2] / "src/include/gluon_roi.h"
CPU = c_api.Device(c_api.CPU)
LIBRARY = c_api.Library(gluon_roi.library.PATH)
#: Operators that pool boxes; tests/ops/test_deformable_convolution.py calls the other.
OF_BOXES = [op for op, operator in LIBRARY.operators.items() if operator.pools_boxes]

PROGRAM = (Path(__file__).parents[1] / "scripts/program.c").read_text()


def compile_c(folder: Path, text: str, *flags: str) -> Path:
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("gcc is not installed")
    source = folder / "program.c"
    source.write_text(text)
    command = [compiler, "-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror"]
    # A trailing {0} for an absent tensor is C's own idiom.
    command += ["-Wno-missing-field-initializers", f"-I{HEADER.parent}", str(source), *flags]
    subprocess.run([*command, "-o", str(folder / "program")], check=True)
    return folder / "program"


def test_plain_c(tmp_path):
    """The header is C99, and a C program gets the numbers of the worked example."""
    path = gluon_roi.library.PATH
    program = compile_c(tmp_path, PROGRAM, str(path), f"-Wl,-rpath,{path.parent}")
    done = subprocess.run([program], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "14 16 26 28 28 0",
        "1",
        "1 ROIPool: argument pooled_size: expected positive height and width, got 2, 0",
    ]


TWO_OF_A_NAME = """
#include "core/registry.h"
using namespace gluon_roi;
using Tensors = std::vector<Tensor>;
struct Empty : public Operator {
  explicit Empty(const char* name) : Operator({name, name, {}, {}, 0, 0}, &operators()) {}
  void visit(ParamVisitor*, void*) const override {}
  std::vector<Input> inputs(const Attributes&) const override { return {}; }
  Tensors infer(const Attributes&, const Tensors&) const override { return {}; }
  void forward(const Attributes&, const Tensors&, const Tensors&,
               const gluon_roi_device&) const override {}
  void backward(const Attributes&, const Tensors&, const Tensors&, const Tensors&,
                const gluon_roi_device&) const override {}
  size_t workspace(const Attributes&, const Tensors&, bool) const override { return 0; }
};
const Empty pool("ROIPool"), align("ROIAlign"), other("ROIPool");
int main() {}
"""


@pytest.mark.night  # a mistake of a developer, which ends each process
def test_two_operators_of_a_name(tmp_path):
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("g++ is not installed")
    source = HEADER.parents[1]
    (tmp_path / "program.cc").write_text(TWO_OF_A_NAME)
    files = [source / f"core/{name}.cc" for name in ("registry", "contract", "params")]
    command = [compiler, "-std=c++17", f"-I{source}", f"-I{HEADER.parent}", *map(str, files)]
    command += [str(tmp_path / "program.cc"), "-o", str(tmp_path / "program")]
    subprocess.run(command, check=True)
    done = subprocess.run([str(tmp_path / "program")], capture_output=True, text=True)
    assert done.returncode == -signal.SIGABRT
    assert done.stderr == "gluon_roi: two operators have the name ROIPool\n"


def test_structs(tmp_path):
    """The structs of c_api are those of the header, each field under its name."""
    structs: dict[str, Any] = {
        "tensor": c_api.Tensor,
        "device": c_api.Device,
        **{f"{op.symbol}_params": op.struct for op in LIBRARY.operators.values()},
    }
    lines, expected = [], []
    for name, struct in structs.items():
        lines.append(f'printf("%d\\n", (int)sizeof(gluon_roi_{name}));')
        expected.append(ctypes.sizeof(struct))
        for field, _ in struct._fields_:
            lines.append(f'printf("%d\\n", (int)offsetof(gluon_roi_{name}, {field}));')
            expected.append(getattr(struct, field).offset)
    include = '#include <stdio.h>\n#include "gluon_roi.h"\n'
    text = f"{include}int main(void) {{ {' '.join(lines)} return 0; }}\n"
    done = subprocess.run([compile_c(tmp_path, text)], check=True, capture_output=True, text=True)
    assert list(map(int, done.stdout.split())) == expected


@pytest.mark.parametrize("dtype", ("float32", "float64", "float16"))
@pytest.mark.parametrize("op, arguments", ROWS, ids=row_id)
def test_equals_gluon(op, arguments, dtype):
    """The same bytes as gluon_roi.nd, forward and backward."""
    pooled, scale = (2, 3), 0.3
    symbol = LIBRARY.symbols[op.name]
    more = {**arguments, "rois_grad": True} if op.rois_grad else arguments
    data = feature_map(op.channels(3, pooled, arguments), dtype)
    rois = op.all_rois(scale)
    x, r = mx.nd.array(data, dtype=dtype), mx.nd.array(rois)
    x.attach_grad()
    r.attach_grad()
    with autograd.record():
        expected = op.function(x, r, pooled, scale, **more)
    d_out = np.random.RandomState(1).randn(*expected.shape).astype(dtype)
    expected.backward(mx.nd.array(d_out, dtype=dtype))

    p = LIBRARY.params(symbol, pooled, scale, **more)
    inputs = c_api.tensors(data, rois)
    out, d_data = np.full(expected.shape, 99, dtype), np.full(data.shape, 99, dtype)
    d_rois = np.full(rois.shape, 99, rois.dtype)
    LIBRARY.forward(symbol, p, inputs, out, CPU)
    LIBRARY.backward(symbol, p, inputs, d_out, (d_data, d_rois), CPU)
    assert LIBRARY.workspace(symbol, p, inputs, True, c_api.CPU) == 0
    np.testing.assert_array_equal(out, expected.asnumpy())
    np.testing.assert_array_equal(d_data, x.grad.asnumpy())
    np.testing.assert_array_equal(d_rois, r.grad.asnumpy())
    # d_rois is optional.
    again = np.full(data.shape, 99, dtype)
    LIBRARY.backward(symbol, p, inputs, d_out, (again, None), CPU)
    np.testing.assert_array_equal(again, d_data)


@pytest.mark.slow
@pytest.mark.parametrize("used_before", ("c", "mxnet"))
def test_fork(used_before):
    """A child of a process that has used all its threads computes the same, in good time."""
    script = Path(__file__).parents[1] / "scripts" / "fork.py"
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    command = [sys.executable, str(script), used_before, str(LIBRARY.path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["equal"] * 4, done.stdout + done.stderr
