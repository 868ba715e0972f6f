# SPDX-License-Identifier: Apache-2.0
"""MXNet and GluonCV give the same results on every Python and NumPy; other code is unaffected.

Expected values are those of Python 3.11 with NumPy 1.23, where gluon_roi/_compat.py does nothing.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import gluoncv
import mxnet as mx
import pytest
from support.processes import python

from gluon_roi import _compat, self_check

ROOT = Path(__file__).resolve().parents[2]
NEEDED = _compat.is_needed()
PACKAGES = [Path(package.__file__).parent for package in (mx, gluoncv)]

FINDERS = "[getattr(f, '__name__', type(f).__name__) for f in sys.meta_path]"


def test_start_imports_nothing():
    seen = python("print([m for m in sys.modules if m in ('numpy', 'mxnet', 'gluon_roi')])")
    assert seen == "[]"


@pytest.mark.night
@pytest.mark.parametrize("first", ["gluoncv", "gluon_roi"])
def test_finder_is_there_only_where_it_is_needed(first):
    finders = python(f"import {first}, mxnet; mxnet.nd.ones(2); print({FINDERS})")
    assert ("'Finder'" in finders) == NEEDED and "_gluon_roi_start" not in finders


def test_environment_variable_switches_it_off():
    script = f"print('start' in str({FINDERS}))"
    assert python(script, GLUON_ROI_COMPAT="0") == "False"
    alone = python("import mxnet; print(mxnet.__version__)", GLUON_ROI_COMPAT="0")
    assert (alone == mx.__version__) != NEEDED


RELOAD = """
import gluon_roi, importlib, mxnet as mx

def forget():
    for name in [name for name in sys.modules if name.partition(".")[0] == "gluon_roi"]:
        del sys.modules[name]

data, rois = mx.nd.ones((1, 1, 4, 4)), mx.nd.array([[0, 0, 0, 3, 3]])
pool = gluon_roi.ROIPool(1, 1.0)
for again in ("importlib.reload(gluon_roi)", "forget(); import gluon_roi"):
    exec(again)
    data.attach_grad()
    with mx.autograd.record():
        y = gluon_roi.ROIPool(1, 1.0)(data, rois) + pool(data, rois)
    y.backward()
    print(mx.sym.gluon_roi is gluon_roi.sym, y.sum().asscalar(), data.grad.sum().asscalar())
"""


def test_other_modules_are_unaffected():
    """The finder of the start is gone after an import, too; MXNet's stays where it is needed.

    Then importlib.reload, and an import after the modules were removed from sys.modules.
    """
    look = """
import builtins, multiprocessing, numpy, sys
def look():
    return (
        sorted(vars(numpy)), numpy.__dict__.get("bool"), id(builtins.__import__), builtins.str,
        multiprocessing.get_start_method(allow_none=True),
    )
before = look()
import mxnet
assert sys.modules["numpy"] is numpy and sys.modules["multiprocessing"] is multiprocessing
new = [name for name in look()[0] if name not in before[0]]
# Modules that NumPy imports when they are first used are all that is new.
print([n for n in new if f"numpy.{n}" not in sys.modules], look()[1:] == before[1:])
"""
    first, finders, *reloaded = python(f"{look}print({FINDERS})\n{RELOAD}").splitlines()
    assert first == "[] True"
    assert reloaded == ["True 2.0 2.0"] * 2
    assert ("'Finder'" in finders) == NEEDED and "_gluon_roi_start" not in finders


def test_builtins_that_a_program_replaces():
    """MXNet sees those, too."""
    with mock.patch("builtins.print") as printed:
        mx.viz.print_summary(mx.sym.var("x"))
    assert printed.called
    opened = mock.patch("builtins.open", side_effect=OSError("patched"))
    with opened, pytest.raises(OSError, match="patched"):
        mx.image.ImageDetIter(1, (3, 9, 9), path_imglist="list.txt")


# What an interrupted removal can leave, and folders that are named like the package.


def test_removed_package(tmp_path):
    """Where _gluon_roi_start.py is left, and the package is not, nothing happens."""
    shutil.copy(ROOT / "build_tools/start/_gluon_roi_start.py", tmp_path)
    fake(tmp_path, "mxnet", "print('by itself')")
    script = f"""
import sys; sys.path.insert(0, {str(tmp_path)!r})
import _gluon_roi_start, importlib.util
print(importlib.util.find_spec("gluoncv_of_nobody"), importlib.util.find_spec("mxnet").origin)
import mxnet
print([m for m in sys.modules if "gluon_roi" in m], "_gluon_roi_start" in {FINDERS})
"""
    environment = {**os.environ, "PYTHONPATH": ""}
    command = [sys.executable, "-I", "-S", "-c", script]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    expected = [f"None {tmp_path}/mxnet/__init__.py", "by itself", "['_gluon_roi_start'] False"]
    assert (run.stdout.splitlines(), run.stderr) == (expected, "")


def test_folder_above_a_clone(tmp_path):
    """A clone that is named gluon_roi is a folder without __init__.py, and no package."""
    (tmp_path / "gluon_roi").mkdir()
    code = "import importlib.util; print(importlib.util.find_spec('gluon_roi').origin)"
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert (run.stdout.strip(), run.stderr) == (str(ROOT / "gluon_roi/__init__.py"), "")


# Errors: one sentence, not a traceback of NumPy's or MXNet's.


def fake(folder, package, init, **files):
    (folder / package).mkdir()
    (folder / package / "__init__.py").write_text(init)
    for name, text in files.items():
        (folder / package / f"{name}.py").write_text(text)


@pytest.mark.parametrize("first", ["mxnet", "gluon_roi"])
def test_numpy_that_cannot_be_imported(tmp_path, first):
    fake(tmp_path, "numpy", "raise ImportError('no such ABI')")
    assert python(f"import {first}", tmp_path) == (
        "ImportError: MXNet needs NumPy, which cannot be imported here (no such ABI); "
        "run 'pip install --force-reinstall numpy'"
    )


def test_another_mxnet(tmp_path, monkeypatch):
    """`import mxnet` finds it; test_command_line.py has what happens where there is none."""
    fake(tmp_path, "mxnet", "print('another')", libinfo='__version__ = "1.7.0"\n')
    assert python("import mxnet", tmp_path) == "another"
    found = SimpleNamespace(origin=str(tmp_path / "mxnet/__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found)
    with pytest.raises(ImportError) as error:
        _compat.check_mxnet()
    assert str(error.value) == (
        "gluon_roi needs MXNet 1.9.1, 1.9.0 or 1.8.0, found 1.7.0; "
        "run 'pip install --no-deps mxnet==1.9.1'"
    )


def test_missing_system_library(tmp_path):
    init = "raise OSError('libquadmath.so.0: cannot open shared object file: No such file')"
    fake(tmp_path, "mxnet", init, libinfo='__version__ = "1.9.1"\n')
    assert python("import mxnet", tmp_path) == (
        "ImportError: MXNet needs libquadmath.so.0, which this system does not have; "
        "run 'apt-get install libquadmath0'"
    )


@pytest.mark.parametrize("sme, chosen", [(False, None), (True, None), (True, "ARMV8SVE")])
def test_stand_ins_on_arm(tmp_path, monkeypatch, sme, chosen):
    """Arm's own libraries win; OpenBLAS comes from its package; a sentence where it is missing.

    Its kernels for SME are not used, unless somebody chooses them.
    """
    loaded: list[str] = []
    cores = []

    def load(path):
        if path is None:
            return SimpleNamespace(getauxval=lambda which: 0x7F877FFF if sme else 0x7F077FFF)
        loaded.append(path)
        if path.endswith("libscipy_openblas.so"):
            cores.append(os.environ.get("OPENBLAS_CORETYPE"))
        if "/" not in path and path != "libastring.so":
            raise OSError("no such file")
        return None

    monkeypatch.delenv("OPENBLAS_CORETYPE", raising=False)
    if chosen:
        monkeypatch.setenv("OPENBLAS_CORETYPE", chosen)
    script = _compat._sibling("_arm")
    script.ctypes = SimpleNamespace(CDLL=load, c_ulong=None)
    fake(tmp_path, "scipy_openblas32", "raise AssertionError('it is not imported')")
    sys.path.insert(0, str(tmp_path))
    try:
        script.load_libraries(str(tmp_path))
        (tmp_path / "libamath.so").touch()
        script.load_libraries(str(tmp_path))
    finally:
        sys.path.remove(str(tmp_path))
    stand_in = f"{Path(_compat.__file__).parent}/arm/libarmpl_lp64_mp.so"
    last = [
        "libarmpl_lp64_mp.so",
        f"{tmp_path}/scipy_openblas32/lib/libscipy_openblas.so",
        stand_in,
    ]
    middle = ["libamath.so", stand_in.replace("libarmpl_lp64_mp", "libamath")]
    assert loaded == ["libastring.so", *middle, *last, "libastring.so", *last]
    assert cores == [chosen or ("NEOVERSEN1" if sme else None)] * 2
    assert os.environ.get("OPENBLAS_CORETYPE") == chosen
    script.importlib.invalidate_caches()
    script.importlib = SimpleNamespace(util=SimpleNamespace(find_spec=lambda name: None))
    with pytest.raises(ImportError, match="run 'pip install scipy-openblas32'"):
        script.openblas()


def test_untested_numpy_that_breaks_mxnet(tmp_path):
    fake(tmp_path, "mxnet", "import gone", libinfo='__version__ = "1.9.1"\n')
    fake(tmp_path, "numpy", "__version__ = '9.1.0'")
    message = python("import mxnet", tmp_path)
    assert message.startswith("ImportError: mxnet cannot be imported with Python ")
    assert "NumPy 9.1 (No module named 'gone')" in message


@pytest.mark.parametrize("version", ["3.6", "3.7"])
def test_python_before_3_8(version):
    old = [*Path.home().glob(f".pyenv/versions/{version}.*/bin/python")]
    if not old:
        pytest.skip(f"no Python {version} here")
    for command in (["-c", "import gluon_roi"], ["setup.py", "--version"]):
        run = subprocess.run([str(old[0]), *command], cwd=ROOT, capture_output=True, text=True)
        last = run.stderr.strip().splitlines()[-1]
        assert re.search(rf"gluon_roi needs Python 3.8 or newer, this is {version}.\d+$", last)


# What is written there applies to the installed MXNet and GluonCV.


def source(module):
    found = importlib.util.find_spec(module)
    assert found is not None and found.origin is not None
    return Path(found.origin).read_text()


@pytest.mark.parametrize("module", _compat.EDITS)
def test_edits_find_their_lines(module):
    text = source(module)
    for old, _ in _compat.EDITS[module]:
        assert old in text, old


@pytest.mark.skipif(not NEEDED, reason="nothing is edited here")
def test_check_names_edits_that_find_no_line(monkeypatch, capsys):
    """In MXNet, in GluonCV, and in a module that is not there."""
    assert _compat.unmatched() == []
    edits = [("no such line", "")]
    for module in ("mxnet.metric", "gluoncv.data.dataloader", "mxnet.nowhere"):
        monkeypatch.setattr(_compat, "EDITS", {module: edits})
        expected = f"{module}: not patched, there is no 'no such line' in it"
        assert _compat.unmatched()[-1] == expected
        monkeypatch.setattr(self_check, "cases", lambda: [])
        assert self_check.check() == 1
        assert expected in capsys.readouterr().out.splitlines()
    monkeypatch.setenv("GLUON_ROI_COMPAT", "0")
    assert _compat.unmatched() == []


def numpy_names(text):
    """Every x of np.x, for all names that a file imports NumPy by."""
    for alias in set(re.findall(r"^ *import numpy(?: as (\w+))?", text, re.M)):
        yield from re.findall(rf"(?<![\w.]){alias or 'numpy'}\.([A-Za-z]\w*)", text)


@pytest.mark.filterwarnings("ignore")
def test_numpy_has_every_name_that_is_used():
    files = {path for package in PACKAGES for path in package.rglob("*.py")}
    texts = [f.read_text() for f in files if "gluoncv/torch" not in str(f)]  # needs PyTorch
    names = {name for text in texts for name in numpy_names(text)}
    # In a comment of GluonCV stands "numpy.arrays".
    missing = {name for name in names if not hasattr(_compat._numpy(), name)} - {"arrays"}
    assert not missing and len(names) > 200


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python says nothing about it before 3.12")
def test_no_warnings_of_backslashes(recwarn):
    loader = _compat.Loader("mxnet.anything", "anything.py")
    loader.source_to_code(b"'\\d'", "anything.py")
    assert not recwarn
