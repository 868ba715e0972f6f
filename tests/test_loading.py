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
import presets
import pytest
from support.processes import forked

import gluon_roi
from gluon_roi import _source

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
def clone(tmp_path):
    """A source folder that is not built."""
    clone = copied(tmp_path / "clone", library=False)
    (clone / "setup.py").touch()
    return clone


@pytest.fixture
def installed(tmp_path):
    return copied(tmp_path / "installed", library=True)


# ---- A source folder that is not built -----------------------------------------------------------

PLACES = "import gluon_roi; print(gluon_roi.library.PATH, gluon_roi.include(), sep='\\n')\n"
#: `python -m gluon_roi`, and where the stand-ins for Arm are: next to _arm.py.
MORE = """
import gluon_roi._arm, runpy
print(gluon_roi._arm.STAND_INS)
runpy.run_module("gluon_roi", run_name="__main__", alter_sys=True)
"""


def test_source_folder_uses_the_installed_package(clone, tmp_path):
    """mxnet first: through _gluon_roi_start, where it is installed. Then reloaded.

    Folders may have any name in any locale: MXNet encodes paths in UTF-8, which Python's names of
    files need not fit. (LC_ALL=C is UTF-8 for Python unless it is told otherwise.)
    """
    installed = copied(tmp_path / "Größe", library=True)
    code = """
import mxnet, gluon_roi, gluon_roi._arm, importlib, os
importlib.reload(gluon_roi)
for path in (gluon_roi.library.PATH, gluon_roi.include(), gluon_roi._arm.STAND_INS):
    print(os.fsencode(path))
"""
    found = python(code, clone, installed, LC_ALL="C", PYTHONUTF8="0")
    names = ("libgluon_roi.so", "include", "arm")
    assert found == [str(os.fsencode(installed / "gluon_roi" / name)) for name in names]


@pytest.mark.night
def test_source_folder_runs_the_installed_package(clone, installed):
    """Both processes overwrite freed memory: MXNet before 1.9.1 ended them with SIGSEGV."""
    library, include = (installed / f"gluon_roi/{name}" for name in ("libgluon_roi.so", "include"))
    path, folder, stand_ins, first, *lines = python(
        PLACES + MORE, clone, installed, MALLOC_PERTURB_="85"
    )
    assert [path, folder] == [str(library), str(include)]
    assert stand_ins == str(installed / "gluon_roi/arm")
    assert first.split() == ["library", str(library)]
    assert sum("agrees with the reference" in line for line in lines) == len(gluon_roi.OPERATORS)
    again = "import importlib; importlib.reload(gluon_roi); print(gluon_roi.library.PATH)"
    lines = python(f"import mxnet, gluon_roi; {again}", clone, installed, MALLOC_PERTURB_="255")
    assert lines == [str(library)]


@pytest.fixture
def search_path(clone, installed, monkeypatch):
    """The package's search path in the source folder; sys.path has the installed package, too."""
    monkeypatch.delenv("GLUON_ROI_LIBRARY", raising=False)
    monkeypatch.setattr(sys, "path", [str(clone), str(installed)])
    return [str(clone / "gluon_roi")]


@pytest.mark.parametrize("edited", ["ops/roi_align.py", "__init__.py", "new.py"])
def test_edited_source_folder_is_not_ignored(clone, installed, search_path, edited):
    with open(clone / "gluon_roi" / edited, "a") as file:
        file.write("\n")
    here = gluon_roi.__version__
    with pytest.raises(ImportError) as error:
        _source.use_installed(search_path)
    assert str(error.value) == (
        f"gluon_roi: the source folder {clone} (version {here}) is not built, and its "
        f"gluon_roi/{edited} differs from that of gluon_roi {here} in {installed}; run {PIP} or "
        "'make build' in the source folder, or start Python in another folder"
    )


def test_another_version_is_installed(clone, installed, search_path):
    file = installed / "gluon_roi/_version.py"
    file.write_text(re.sub(r'__version__ = ".+"', '__version__ = "0.0.1"', file.read_text()))
    with pytest.raises(ImportError) as error:
        _source.use_installed(search_path)
    assert f"(version {gluon_roi.__version__}) is not built" in str(error.value)
    assert f"differs from that of gluon_roi 0.0.1 in {installed}; run {PIP}" in str(error.value)


def test_nothing_is_installed(clone, monkeypatch):
    monkeypatch.delenv("GLUON_ROI_LIBRARY", raising=False)
    monkeypatch.setattr(sys, "path", [str(clone)])
    search_path = [str(clone / "gluon_roi")]
    _source.use_installed(search_path)
    assert search_path == [str(clone / "gluon_roi")]
    monkeypatch.setattr(gluon_roi.library, "PATH", clone / "gluon_roi/libgluon_roi.so")
    with pytest.raises(ImportError) as error:
        gluon_roi.library.load()
    assert str(error.value) == (
        f"gluon_roi: the operator library of the source folder {clone} is not built, "
        "and no installed package has one; run 'pip install .' or 'make build' there"
    )


def test_built_source_folder_uses_itself(clone, search_path):
    shutil.copy(str(LIBRARY), str(clone / "gluon_roi"))
    (clone / "gluon_roi/new.py").touch()
    _source.use_installed(search_path)
    assert search_path == [str(clone / "gluon_roi")]


def test_named_library(clone, search_path, monkeypatch):
    """GLUON_ROI_LIBRARY needs no installed package, and does not use it.

    test_reliability.py loads a library that it names.
    """
    monkeypatch.setenv("GLUON_ROI_LIBRARY", str(LIBRARY))
    (clone / "gluon_roi/new.py").touch()
    _source.use_installed(search_path)
    assert search_path == [str(clone / "gluon_roi")]
    monkeypatch.setattr(gluon_roi.library, "__file__", str(clone / "gluon_roi/library.py"))
    assert gluon_roi.include() == str(clone / "src/include")


# ---- Errors --------------------------------------------------------------------------------------


@pytest.fixture
def load_error(tmp_path, monkeypatch):
    """Return the error of loading the library at a path in tmp_path."""
    monkeypatch.setattr(gluon_roi.library, "PATH", tmp_path / "gluon_roi/libgluon_roi.so")
    (tmp_path / "gluon_roi").mkdir()

    def load():
        with pytest.raises(ImportError) as error:
            gluon_roi.library.load()
        return str(error.value)

    return load


def test_missing_library(load_error):
    assert load_error() == (
        "gluon_roi: the operator library libgluon_roi.so is missing; "
        f"run {PIP} in the source folder of gluon_roi"
    )


def test_invalid_library(load_error):
    gluon_roi.library.PATH.write_text("not a library")
    message = load_error()
    assert "gluon_roi: the operator library cannot be loaded (" in message
    assert f"run {PIP}" in message


def test_library_of_another_lib_api(load_error, tmp_path):
    source = tmp_path / "other.c"
    source.write_text("int _opVersion(void) { return 7; }")
    target = gluon_roi.library.PATH
    subprocess.run(["gcc", "-shared", "-fPIC", str(source), "-o", str(target)], check=True)
    message = load_error()
    found = f"MXNet {mx.__version__} has {gluon_roi.library.mxnet_lib_api()}"
    assert f"built for library API 7, but {found}; run {PIP}" in message


def test_missing_compiler():
    run = subprocess.run(
        [sys.executable, "setup.py", "build_ext", "--build-lib", os.devnull],
        cwd=ROOT,
        env={**os.environ, "CXX": "no-such-compiler", "GLUON_ROI_CUDA": "0"},
        capture_output=True,
        text=True,
    )
    assert run.returncode != 0
    assert run.stderr.strip().splitlines()[-1] == (
        "gluon_roi: the C++ compiler 'no-such-compiler' was not found; "
        "run 'apt-get install g++', or set CXX to a compiler with C++17"
    )


@pytest.mark.parametrize("tool", ["cmake", "ninja"])
def test_missing_or_old_build_tools(tool, tmp_path, monkeypatch):
    """The sentence names what was found."""
    for name in ("cmake", "ninja"):
        (tmp_path / name).write_text("#!/bin/sh\necho cmake version 3.18.4\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / tool).unlink()
    monkeypatch.setattr(presets, "find", lambda name: shutil.which(name, path=str(tmp_path)) or "")
    found = {"cmake": "CMake was not found", "ninja": "Ninja was not found; found CMake 3.18"}
    with pytest.raises(SystemExit) as error:
        presets.build("release")
    assert error.value.code == (
        f"gluon_roi: the build needs CMake 3.25 and Ninja; {found[tool]}; "
        "run 'pip install cmake ninja'"
    )


# ---- What is said of the build -------------------------------------------------------------------


def test_build_info():
    info = gluon_roi.build_info()
    keys = "version mxnet lib_api compiler cuda cuda_archs openmp simd"
    assert set(keys.split()) <= set(info)
    assert info["version"] == gluon_roi.__version__
    assert info["mxnet"] == mx.__version__
    assert info["lib_api"] == ctypes.CDLL(str(LIBRARY))._opVersion()
    assert gluon_roi.has_cuda() is (info["cuda"] is not None)


#: Starts the demo without each package in turn, as if it was not imported yet.
WITHOUT = """
import runpy, sys
for missing in sys.argv[1:]:
    for name in [name for name in sys.modules if name.partition(".")[0] == "demo_rfcn"]:
        del sys.modules[name]
    hidden = {name: sys.modules.pop(name) for name in [*sys.modules]
              if name.partition(".")[0] == missing}
    sys.modules[missing] = None
    try:
        runpy.run_module("demo_rfcn")
    except SystemExit as stopped:
        assert stopped.code == 2
    else:
        sys.exit(f"it needs no {missing}")
    del sys.modules[missing]
    sys.modules.update(hidden)
"""


def test_demo_without_its_requirements():
    """One sentence for each, with status 2."""
    missing = ["matplotlib", "gluoncv", "tqdm", "cv2"]

    def run():
        sys.argv = ["", *missing]
        exec(WITHOUT, {})

    status, _, shown = forked(run, ROOT)
    sentences = shown.splitlines()
    assert status == 0 and len(sentences) == len(missing), shown
    for package, sentence in zip(missing, sentences):
        assert re.fullmatch(
            f"demo_rfcn: .*{package}.*; run \"pip install '.\\[demo\\]' && pip install --no-deps "
            'mxnet==1.9.1 gluoncv==0.10.5" in the source folder of gluon_roi',
            sentence,
        )
