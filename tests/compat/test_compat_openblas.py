# SPDX-License-Identifier: Apache-2.0
"""Which of OpenBLAS's kernels MXNet uses, and that their products are right."""

import itertools
import os
from pathlib import Path
from types import ModuleType, SimpleNamespace

import gluoncv
import mxnet as mx
import numpy as np
import pytest
from support.processes import python

from gluon_roi import _compat

NEEDED = _compat.is_needed()
PACKAGES = [Path(package.__file__).parent for package in (mx, gluoncv)]


@pytest.mark.parametrize("loader", [_compat.Loader, _compat.LibraryLoader])
@pytest.mark.parametrize(
    "core, cpuinfo, chosen, expected",
    [
        ("Prescott", "flags\t\t: fpu sse4_2 avx fma avx2 avx512f\n", None, ["", "Haswell"]),
        ("Barcelona", "processor\t: 0\nflags\t\t: avx2 fma", None, ["", "Haswell"]),
        ("Prescott", "flags\t\t: avx2 fma", "Prescott", []),
        ("Prescott", "flags\t\t: avx2 fma", "", []),
        ("Prescott", "flags\t\t: sse4_2 avx fma\n\nbugs\t\t: avx2", None, []),
        ("Prescott", "flags\t\t: avx2 fma4", None, []),
        ("Prescott", "Features\t: asimd", None, []),
        ("Prescott", None, None, []),
        ("Zen", "flags\t\t: avx2 fma", None, []),
        ("SkylakeX", "flags\t\t: avx2 fma", None, []),
        (None, "flags\t\t: avx2 fma", None, []),
    ],
)
def test_choice_of_openblas_kernels(tmp_path, monkeypatch, loader, core, cpuinfo, chosen, expected):
    """It is changed only if OpenBLAS does not know the processor and nobody has chosen."""
    calls: list = []
    library = SimpleNamespace()
    if core:
        library.openblas_get_corename = lambda: core.encode()
        library.gotoblas_dynamic_quit = lambda: calls.append("")
        library.gotoblas_dynamic_init = lambda: calls.append(os.environ.get("OPENBLAS_CORETYPE"))
    monkeypatch.delenv("OPENBLAS_CORETYPE", raising=False)
    if chosen is not None:
        monkeypatch.setenv("OPENBLAS_CORETYPE", chosen)
    if cpuinfo is not None:
        (tmp_path / "cpuinfo").write_text(cpuinfo)
    monkeypatch.setattr(_compat, "CPUINFO", str(tmp_path / "cpuinfo"))
    (tmp_path / "__init__.py").touch()
    module = ModuleType("mxnet")
    vars(module)["base"] = SimpleNamespace(_LIB=library, get_last_ffi_error=None)
    loader("mxnet", str(tmp_path / "__init__.py")).exec_module(module)
    assert calls == expected
    assert os.environ.get("OPENBLAS_CORETYPE") == chosen


OPENBLAS = PACKAGES[0] / "libopenblas.so.0"
needs_avx2 = pytest.mark.skipif(
    not (OPENBLAS.exists() and _compat._has_avx2()),
    reason="needs MXNet's OpenBLAS and a processor with AVX2",
)


@needs_avx2
@pytest.mark.parametrize(
    "first, own, variables, expected",
    [
        ("mxnet", "Prescott", {}, "Haswell None"),
        # By the same code; test_choice_of_openblas_kernels has the choice.
        pytest.param("gluon_roi", "Prescott", {}, "Haswell None", marks=pytest.mark.night),
        pytest.param("gluoncv", "Prescott", {}, "Haswell None", marks=pytest.mark.night),
        pytest.param("gluon_roi", "Barcelona", {}, "Haswell None", marks=pytest.mark.night),
        pytest.param("gluoncv", "Zen", {}, "Zen None", marks=pytest.mark.night),
        pytest.param(
            "mxnet",
            "Prescott",
            {"OPENBLAS_CORETYPE": "Prescott"},
            "Prescott Prescott",
            marks=pytest.mark.night,
        ),
        ("gluon_roi", "Prescott", {"GLUON_ROI_COMPAT": "0"}, "Prescott None"),
    ],
)
def test_kernels_of_a_process(first, own, variables, expected):
    """The library of MXNet has chosen `own` before the import, as on an unknown processor."""
    if NEEDED and "GLUON_ROI_COMPAT" in variables:
        pytest.skip("MXNet cannot be imported here without the patches")
    script = f"""
import ctypes, os
chosen = os.environ.pop("OPENBLAS_CORETYPE", None)
os.environ["OPENBLAS_CORETYPE"] = {own!r}
corename = ctypes.CDLL({str(OPENBLAS)!r}).openblas_get_corename
corename.restype = ctypes.c_char_p
del os.environ["OPENBLAS_CORETYPE"]
if chosen:
    os.environ["OPENBLAS_CORETYPE"] = chosen
import {first}
print(corename().decode(), os.environ.get("OPENBLAS_CORETYPE"))
"""
    assert python(script, **variables) == expected


@pytest.fixture
def kernels(request, monkeypatch):
    """MXNet's OpenBLAS with the kernels of a core; None leaves them as they are."""
    library = mx.base._LIB
    mx.nd.waitall()
    if request.param:
        monkeypatch.setenv("OPENBLAS_CORETYPE", request.param)
        library.gotoblas_dynamic_quit()
        library.gotoblas_dynamic_init()
    yield
    if request.param:
        monkeypatch.undo()
        library.gotoblas_dynamic_quit()
        library.gotoblas_dynamic_init()
        _compat._choose_core(library)


CORES = ("Prescott", "Barcelona", "Sandybridge", "Haswell", "Zen")


@pytest.mark.parametrize(
    "kernels", [None, *(pytest.param(core, marks=needs_avx2) for core in CORES)], indirect=True
)
@pytest.mark.parametrize("dtype, close", [("float32", 1e-4), ("float64", 1e-12)])
@pytest.mark.parametrize("m, k, n", [(3, 5, 7), (16, 16, 16), (20, 50, 30), (64, 64, 98)])
def test_products_of_mxnet(m, k, n, dtype, close, kernels):
    """The kernels that MXNet multiplies with; some of OpenBLAS's for Arm are wrong."""
    rng = np.random.RandomState(m)
    a, b = rng.randn(m, k), rng.randn(k, n)
    wanted = np.einsum("ik,kj->ij", a, b)
    for flip_a, flip_b in itertools.product((False, True), repeat=2):
        left, right = a.T if flip_a else a, b.T if flip_b else b
        given = mx.nd.array(left, dtype=dtype), mx.nd.array(right, dtype=dtype)
        for multiply in (mx.nd.dot, mx.nd.linalg.gemm2):
            found = multiply(*given, transpose_a=flip_a, transpose_b=flip_b)
            np.testing.assert_allclose(found.asnumpy(), wanted, rtol=0, atol=close)
