# SPDX-License-Identifier: Apache-2.0
"""Which library is loaded, `python -m gluon_roi`, and the errors of building and loading."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import mxnet as mx
import pytest

import gluon_roi

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = gluon_roi.library.PATH
PIP = "'pip install --force-reinstall --no-deps .'"


def python(code: str, folder: Path, installed: Path | None = None, **variables: str) -> list[str]:
    """The last line on stderr, or else the lines on stdout, of Python started in a folder.

    It finds gluon_roi there first, and then in `installed`, but not in this repository.
    """
    hidden = f"import sys; sys.path[:] = [f for f in sys.path if f != {str(ROOT)!r}]\n"
    run = subprocess.run(
        [sys.executable, "-c", hidden + code],
        env={**os.environ, "PYTHONPATH": str(installed or folder), **variables},
        cwd=folder,
        capture_output=True,
        encoding="utf-8",
    )
    assert bool(run.returncode) == bool(run.stderr), run.stderr
    return run.stderr.strip().splitlines()[-1:] or run.stdout.splitlines()


def copied(folder: Path, library: bool) -> Path:
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "include", "cmake")
    shutil.copytree(str(ROOT / "gluon_roi"), str(folder / "gluon_roi"), ignore=ignored)
    if library:
        shutil.copy(str(LIBRARY), str(folder / "gluon_roi"))
        (folder / "gluon_roi/include").mkdir()
    return folder


@pytest.fixture
def package(tmp_path):
    """The folder of a package that lacks its library."""
    return copied(tmp_path / "package", library=False)


@pytest.fixture
def clone(tmp_path):
    """A source folder that is not built."""
    clone = copied(tmp_path / "clone", library=False)
    (clone / "setup.py").touch()
    return clone


@pytest.fixture
def installed(tmp_path):
    return copied(tmp_path / "installed", library=True)


# ---- A source folder that is not built -----------------------------------------------------------

PLACES = "import gluon_roi; print(gluon_roi.library.PATH, gluon_roi.include(), sep='\\n')"
SELF_CHECK = "import runpy; runpy.run_module('gluon_roi', run_name='__main__', alter_sys=True)"


def test_source_folder_uses_the_installed_package(clone, installed):
    library, include = (installed / f"gluon_roi/{name}" for name in ("libgluon_roi.so", "include"))
    assert python(PLACES, clone, installed) == [str(library), str(include)]
    # The stand-ins for Arm lie beside _arm.py.
    code = "import gluon_roi._arm; print(gluon_roi._arm.STAND_INS)"
    assert python(code, clone, installed) == [str(installed / "gluon_roi/arm")]
    # mxnet first: through _gluon_roi_start, where it is installed.
    again = "import importlib; importlib.reload(gluon_roi); print(gluon_roi.library.PATH)"
    assert python(f"import mxnet, gluon_roi; {again}", clone, installed) == [str(library)]
    lines = python(SELF_CHECK, clone, installed)
    assert lines[0].split() == ["library", str(library)]
    assert sum("agrees with the reference" in line for line in lines) == len(gluon_roi.OPERATORS)


@pytest.mark.parametrize("edited", ["ops/roi_align.py", "__init__.py", "new.py"])
def test_edited_source_folder_is_not_ignored(clone, installed, edited):
    with open(clone / "gluon_roi" / edited, "a") as file:
        file.write("\n")
    here = gluon_roi.__version__
    assert python(PLACES, clone, installed) == [
        f"ImportError: gluon_roi: the source folder {clone} (version {here}) is not built, and its "
        f"gluon_roi/{edited} differs from that of gluon_roi {here} in {installed}; run {PIP} or "
        "'make build' in the source folder, or start Python in another folder"
    ]


def test_another_version_is_installed(clone, installed):
    file = installed / "gluon_roi/_version.py"
    file.write_text(re.sub(r'__version__ = ".+"', '__version__ = "0.0.1"', file.read_text()))
    (message,) = python(PLACES, clone, installed)
    assert f"(version {gluon_roi.__version__}) is not built" in message
    assert f"differs from that of gluon_roi 0.0.1 in {installed}; run {PIP}" in message


def test_nothing_is_installed(clone):
    assert python(PLACES, clone) == [
        f"ImportError: gluon_roi: the operator library of the source folder {clone} is not built, "
        "and no installed package has one; run 'pip install .' or 'make build' there"
    ]


def test_built_source_folder_uses_itself(clone, installed):
    shutil.copy(str(LIBRARY), str(clone / "gluon_roi"))
    (clone / "gluon_roi/new.py").touch()
    assert python(PLACES, clone, installed)[0] == str(clone / "gluon_roi/libgluon_roi.so")


def test_named_library(clone, installed):
    """GLUON_ROI_LIBRARY needs no installed package, and does not use it."""
    (clone / "gluon_roi/new.py").touch()
    lines = python(PLACES, clone, installed, GLUON_ROI_LIBRARY=str(LIBRARY))
    assert lines == [str(LIBRARY), str(clone / "src/include")]


# ---- Errors --------------------------------------------------------------------------------------


def import_error(folder):
    """The error of `import gluon_roi` for the copy of the package in folder."""
    (message,) = python("import gluon_roi", folder)
    return message


def test_missing_library(package):
    assert import_error(package) == (
        "ImportError: gluon_roi: the operator library libgluon_roi.so is missing; "
        f"run {PIP} in the source folder of gluon_roi"
    )


def test_invalid_library(package):
    (package / "gluon_roi/libgluon_roi.so").write_text("not a library")
    message = import_error(package)
    assert "gluon_roi: the operator library cannot be loaded (" in message
    assert f"run {PIP}" in message


def test_library_of_another_lib_api(package):
    source = package / "other.c"
    source.write_text("int _opVersion(void) { return 7; }")
    target = package / "gluon_roi/libgluon_roi.so"
    subprocess.run(["gcc", "-shared", "-fPIC", str(source), "-o", str(target)], check=True)
    message = import_error(package)
    found = f"MXNet {mx.__version__} has {gluon_roi.build_info()['lib_api']}"
    assert f"built for library API 7, but {found}; run {PIP}" in message


def test_folder_with_any_name_in_any_locale(tmp_path):
    """MXNet encodes paths in UTF-8, which Python's names of files need not fit."""
    folder = copied(tmp_path / "Größe", library=True)
    code = "import gluon_roi, os; print(os.fsencode(gluon_roi.library.PATH))"
    expected = os.fsencode(folder / "gluon_roi/libgluon_roi.so")
    # LC_ALL=C is UTF-8 for Python unless it is told otherwise.
    assert python(code, folder, LC_ALL="C", PYTHONUTF8="0") == [str(expected)]


def build_error(**environment):
    run = subprocess.run(
        [sys.executable, "setup.py", "build_ext", "--build-lib", os.devnull],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert run.returncode != 0
    return run.stderr.strip().splitlines()[-1]


def test_missing_compiler():
    message = build_error(CXX="no-such-compiler", GLUON_ROI_CUDA="0")
    assert message == (
        "gluon_roi: the C++ compiler 'no-such-compiler' was not found; "
        "run 'apt-get install g++', or set CXX to a compiler with C++17"
    )


@pytest.mark.parametrize("tool", ["cmake", "ninja"])
def test_missing_or_old_build_tools(tool, tmp_path):
    """The sentence names what was found."""
    for name in ("cmake", "ninja"):
        (tmp_path / name).write_text("#!/bin/sh\necho cmake version 3.18.4\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / tool).unlink()
    code = "import presets; presets.find = lambda tool: shutil.which(tool, path=path) or ''"
    code = f"import shutil; path = {str(tmp_path)!r}; {code}; presets.build('release')"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / "build_tools", capture_output=True, text=True
    )
    found = {"cmake": "CMake was not found", "ninja": "Ninja was not found; found CMake 3.18"}
    assert run.stderr == (
        f"gluon_roi: the build needs CMake 3.25 and Ninja; {found[tool]}; "
        "run 'pip install cmake ninja'\n"
    )


def test_missing_nvcc(tmp_path):
    message = build_error(CUDA_HOME=str(tmp_path), GLUON_ROI_CUDA="1")
    assert message.startswith("gluon_roi: GLUON_ROI_CUDA=1, but nvcc was not found; set CUDA_HOME")


def test_end_of_a_process():
    """With freed memory overwritten, MXNet before 1.9.1 ended in SIGSEGV."""
    for fill in ("85", "255"):
        run = [sys.executable, "-c", "import gluon_roi"]
        subprocess.run(run, env={**os.environ, "MALLOC_PERTURB_": fill}, check=True)


# ---- What is said of the build -------------------------------------------------------------------


def test_build_info():
    info = gluon_roi.build_info()
    keys = "version mxnet lib_api compiler cuda cuda_archs openmp simd"
    assert set(keys.split()) <= set(info)
    assert info["version"] == gluon_roi.__version__
    assert info["mxnet"] == mx.__version__
    assert info["lib_api"] == ctypes.CDLL(str(LIBRARY))._opVersion()
    assert gluon_roi.has_cuda() is (info["cuda"] is not None)


def test_self_check_into_a_pipe_that_is_closed():
    """`python -m gluon_roi | head`: no traceback, whichever write comes after the last read."""
    reader, writer = os.pipe()
    os.close(reader)
    run = subprocess.run(
        [sys.executable, "-m", "gluon_roi"], stdout=writer, stderr=subprocess.PIPE, text=True
    )
    os.close(writer)
    assert run.returncode and not run.stderr


@pytest.mark.parametrize("missing", ["matplotlib", "gluoncv", "tqdm", "cv2"])
def test_demo_without_its_requirements(tmp_path, missing):
    """One sentence, with status 2."""
    code = f"import runpy, sys; sys.modules[{missing!r}] = None; runpy.run_module('demo_rfcn')"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False
    )
    assert run.returncode == 2
    assert re.fullmatch(
        f"demo_rfcn: .*{missing}.*; run \"pip install '.\\[demo\\]' && pip install --no-deps "
        'mxnet==1.9.1 gluoncv==0.10.5" in the source folder of gluon_roi\n',
        run.stderr,
    )
