# SPDX-License-Identifier: Apache-2.0
"""MXNet and GluonCV give the same results on every Python and NumPy; other code is unaffected.

Expected values are those of Python 3.11 with NumPy 1.23, where gluon_roi/_compat.py does nothing.
"""

import importlib.util
import itertools
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import gluoncv
import mxnet as mx
import numpy as np
import pytest

from gluon_roi import _compat

ROOT = Path(__file__).resolve().parent.parent
NEEDED = _compat.is_needed()
PACKAGES = [Path(package.__file__).parent for package in (mx, gluoncv)]

# What a start of Python does once the package is installed: the line of gluon_roi.pth.
START = f"import sys; sys.path.insert(0, {str(ROOT)!r}); " + (ROOT / "gluon_roi.pth").read_text()


def python(script, folder=None, **variables):
    """What a process with gluon_roi.pth prints, or the last line of its error."""
    path = [str(folder)] if folder else []
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path), **variables}
    command = [sys.executable, "-c", START + script]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    return run.stdout.strip() if run.returncode == 0 else run.stderr.strip().splitlines()[-1]


FINDERS = "[getattr(f, '__name__', type(f).__name__) for f in sys.meta_path]"


def test_start_imports_nothing():
    seen = python("print([m for m in sys.modules if m in ('numpy', 'mxnet', 'gluon_roi')])")
    assert seen == "[]"


@pytest.mark.parametrize("first", ["gluoncv", "gluon_roi"])
def test_finder_is_there_only_where_it_is_needed(first):
    finders = python(f"import {first}, mxnet; mxnet.nd.ones(2); print({FINDERS})")
    assert ("'Finder'" in finders) == NEEDED and "_gluon_roi_start" not in finders


def test_environment_variable_switches_it_off():
    script = f"print('start' in str({FINDERS}))"
    assert python(script, GLUON_ROI_COMPAT="0") == "False"
    alone = python("import mxnet; print(mxnet.__version__)", GLUON_ROI_COMPAT="0")
    assert (alone == mx.__version__) != NEEDED


def test_nobody_else_sees_a_change():
    look = """
import builtins, multiprocessing, numpy
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
    assert python(look) == "[] True"


def test_builtins_that_a_program_replaces():
    script = """
import mxnet
from unittest import mock
with mock.patch("builtins.print") as seen:
    mxnet.viz.print_summary(mxnet.sym.var("x"))
with mock.patch("builtins.open", side_effect=OSError("patched")) as opened:
    try:
        mxnet.recordio.open("file")
    except (AttributeError, OSError):
        pass
    try:
        mxnet.image.ImageDetIter(1, (3, 9, 9), path_imglist="list.txt")
    except OSError as error:
        print(seen.called, error)
"""
    assert python(script) == "True patched"


# What an interrupted removal can leave, and folders that are named like the package.


def test_removed_package(tmp_path):
    """Where _gluon_roi_start.py is left, and the package is not, nothing happens."""
    shutil.copy(ROOT / "_gluon_roi_start.py", tmp_path)
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
    command = [sys.executable, "-c", "import gluon_roi; print(gluon_roi.PSROIPool.__name__)"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (run.stdout.strip(), run.stderr) == ("PSROIPool", "")


@pytest.mark.parametrize("again", ["importlib.reload(gluon_roi)", "forget(); import gluon_roi"])
def test_reload(again):
    script = f"""
import gluon_roi, importlib, mxnet as mx

def forget():
    for name in [name for name in sys.modules if name.partition(".")[0] == "gluon_roi"]:
        del sys.modules[name]

data, rois = mx.nd.ones((1, 1, 4, 4)), mx.nd.array([[0, 0, 0, 3, 3]])
pool = gluon_roi.ROIPool(1, 1.0)
{again}
data.attach_grad()
with mx.autograd.record():
    y = gluon_roi.ROIPool(1, 1.0)(data, rois) + pool(data, rois)
y.backward()
print(mx.sym.gluon_roi is gluon_roi.sym, y.sum().asscalar(), data.grad.sum().asscalar())
"""
    assert python(script) == "True 2.0 2.0"


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


def test_another_mxnet(tmp_path):
    fake(tmp_path, "mxnet", "print('another')", libinfo='__version__ = "1.7.0"\n')
    assert python("import gluon_roi", tmp_path) == (
        "ImportError: gluon_roi needs MXNet 1.9.1, 1.9.0 or 1.8.0, found 1.7.0; "
        "run 'pip install --no-deps mxnet==1.9.1'"
    )
    assert python("import mxnet", tmp_path) == "another"


def test_library_that_the_system_lacks(tmp_path):
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
    vars(module)["base"] = SimpleNamespace(_LIB=library)
    loader("mxnet", str(tmp_path / "__init__.py")).exec_module(module)
    assert calls == expected
    assert os.environ.get("OPENBLAS_CORETYPE") == chosen


OPENBLAS = PACKAGES[0] / "libopenblas.so.0"
needs_avx2 = pytest.mark.skipif(
    not (OPENBLAS.exists() and _compat._has_avx2()),
    reason="needs MXNet's OpenBLAS and a processor with AVX2",
)


@needs_avx2
@pytest.mark.parametrize("first", ["mxnet", "gluon_roi", "gluoncv"])
@pytest.mark.parametrize(
    "own, variables, expected",
    [
        ("Prescott", {}, "Haswell None"),
        ("Barcelona", {}, "Haswell None"),
        ("Zen", {}, "Zen None"),
        ("Prescott", {"OPENBLAS_CORETYPE": "Prescott"}, "Prescott Prescott"),
        ("Prescott", {"GLUON_ROI_COMPAT": "0"}, "Prescott None"),
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


def test_no_mxnet():
    script = """
import importlib.util
import itertools
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "mxnet" else find(name, *rest)
import gluon_roi
"""
    assert python(script) == (
        "ImportError: gluon_roi needs MXNet 1.9.1, 1.9.0 or 1.8.0, found none; "
        "run 'pip install --no-deps mxnet==1.9.1'"
    )


def test_numpy_beyond_those_tried_that_mxnet_cannot_be_imported_with(tmp_path):
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


# Results. Attributes that are made of NumPy's numbers:

THREE, FOUR = np.int64(3), np.int32(4)
DATA = mx.nd.arange(12)
ATTRIBUTES = {
    "nd": (lambda: mx.nd.reshape(DATA, shape=(THREE, FOUR)).shape, (3, 4)),
    "nd list": (lambda: mx.nd.zeros([THREE, FOUR]).shape, (3, 4)),
    "nd float": (lambda: mx.nd.full((THREE,), np.float32(0.1)).asnumpy()[0], np.float32(0.1)),
    "np": (lambda: mx.np.zeros((THREE, FOUR)).shape, (3, 4)),
    "sym": (lambda: mx.sym.zeros((THREE, FOUR)).attr("shape"), "(3, 4)"),
    "var": (lambda: mx.sym.var("x", shape=(THREE, FOUR)).attr("__shape__"), "(3, 4)"),
    "float in a tuple": (
        lambda: mx.sym.contrib.MultiBoxPrior(mx.sym.var("x"), sizes=(np.float32(0.1),)).attr(
            "sizes"
        ),
        "(0.1,)",
    ),
    "own": (
        lambda: (
            mx.nd.gluon_roi.ROIPool(
                mx.nd.zeros((1, 1, 9, 9)), mx.nd.zeros((1, 5)), (THREE, FOUR), np.float32(0.5)
            ).shape
        ),
        (1, 1, 3, 4),
    ),
}


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_attributes(name):
    value, expected = ATTRIBUTES[name]
    assert value() == expected


def test_attribute_text():
    text = _compat.AttributeText
    assert text((THREE, [np.float32(0.1)], True, None)) == "(3, [0.1], True, None)"
    assert text("np.int64(3)") == "np.int64(3)" and type(text(3)) is str
    assert isinstance("text", text) and not isinstance(3, text)


# Sums and products that NumPy 1 makes in float64:

METRICS = {
    "acc": {},
    "mae": {},
    "mse": {},
    "rmse": {},
    "ce": {},
    "nll_loss": {},
    "perplexity": {"ignore_label": 2},
}


@pytest.mark.parametrize("name", METRICS)
def test_metrics_sum_in_float64(name):
    metric = mx.metric.create(name, **METRICS[name])
    one = mx.metric.create(name, **METRICS[name])
    rng = np.random.RandomState(0)
    total, count = 0.0, 0.0
    for _ in range(50):
        scores = rng.uniform(0.01, 1, (7, 3)).astype(np.float32)
        labels = rng.randint(0, 3, 7)
        if name in ("mae", "mse", "rmse"):
            scores, labels = scores[:, 0], scores[:, 1] * 1e4
        pair = [mx.nd.array(labels)], [mx.nd.array(scores / scores.sum(-1, keepdims=True))]
        metric.update(*pair)
        one.reset()
        one.update(*pair)
        total, count = total + float(one.sum_metric), count + float(one.num_inst)
    assert metric.sum_metric == total and metric.num_inst == count
    assert metric.global_sum_metric == total


def test_perplexity_counts_every_label():
    metric = mx.metric.Perplexity(ignore_label=0)
    metric.num_inst = np.float32(2**24)  # where float32 no longer tells odd numbers
    metric.update([mx.nd.array([1])], [mx.nd.array([[0.5, 0.5]])])
    assert metric.num_inst == 2**24 + 1


RATES = {
    "factor": lambda base: mx.lr_scheduler.FactorScheduler(1, 0.9, base_lr=base),
    "poly": lambda base: mx.lr_scheduler.PolyScheduler(100, base_lr=base, warmup_steps=9),
    "cosine": lambda base: mx.lr_scheduler.CosineScheduler(100, base_lr=base, warmup_steps=9),
}


@pytest.mark.parametrize("name", RATES)
@pytest.mark.parametrize("step", [5, 50])
def test_learning_rates_of_float32(name, step):
    base = np.float32(0.1)
    assert RATES[name](base)(step) == RATES[name](float(base))(step)


@pytest.mark.parametrize("name", ["adam", "adamax", "lbsgd", "lars"])
def test_optimizers_with_rates_of_float32(name):
    results = []
    for rate in (np.float32(0.1), float(np.float32(0.1))):
        more = {"warmup_strategy": "lars"} if name == "lbsgd" else {}
        optimizer = mx.optimizer.create(name, learning_rate=rate, wd=0.1, **more)
        weight = mx.nd.array(np.random.RandomState(0).randn(5, 3))
        state = optimizer.create_state(0, weight)
        for i in range(5):
            arguments = [0, weight, mx.nd.array(np.random.RandomState(i).randn(5, 3)), state]
            optimizer.update(*([[a] for a in arguments] if name == "lars" else arguments))
        results.append(weight.asnumpy())
    np.testing.assert_array_equal(*results)


def test_lars_ratio_in_float64():
    optimizer = mx.optimizer.LBSGD(warmup_strategy="lars")
    weight, gradient = mx.nd.array([0.1, 0.7]), mx.nd.array([0.3, 0.2])
    w, g = (float((a * a).asnumpy().sum()) for a in (weight, gradient))
    assert optimizer._get_lars(weight, gradient, 0.1) == (w / (g + 0.1 * w + 1e-18)) ** 0.5


# Files, arrays and functions of NumPy:


def test_recordio():
    header = mx.recordio.IRHeader(0, [1, 2, 3], 7, 0)
    header, content = mx.recordio.unpack(mx.recordio.pack(header, b"abc"))
    assert (header.label.tolist(), header.id, content) == ([1, 2, 3], 7, b"abc")
    image = np.random.RandomState(0).randint(0, 256, (8, 9, 3)).astype(np.uint8)
    packed = mx.recordio.pack_img(mx.recordio.IRHeader(0, 4.0, 1, 0), image, img_fmt=".png")
    np.testing.assert_array_equal(mx.recordio.unpack_img(packed)[1], image)


@pytest.mark.filterwarnings("ignore:NumPy will stop allowing conversion")
def test_numbers_out_of_range_wrap_around():
    for array in (mx.nd.array, mx.np.array):
        assert array([-1, 300], dtype="uint8").asnumpy().tolist() == [255, 44]


def test_ndarray_as_an_array():
    array = mx.nd.array([[1, 2], [3, 4]], dtype="int32")
    assert np.all(array == array)
    assert not np.all(array == 1)
    if np.__version__ >= "2":  # NumPy 1 makes an array of 32 dimensions and NDArrays of it
        assert np.asarray(array).tolist() == [[1, 2], [3, 4]]
        assert np.asarray(array, dtype=np.float64).dtype == np.float64


POSITIVE = mx.np.array([[2.5, 1], [0, 3]])
DISPATCHED = {
    "any": True,
    "all": False,
    "prod": 0.0,
    "around": [[2, 1], [0, 3]],
    "sum": 6.5,
    "max": 3.0,
    "isnan": [[0, 0], [0, 0]],
    "fix": [[2, 1], [0, 3]],
}


@pytest.mark.parametrize("name", DISPATCHED)
def test_numpy_functions_of_mx_np_arrays(name):
    result = getattr(np, name)(POSITIVE)
    assert type(result) is mx.np.ndarray and result.asnumpy().tolist() == DISPATCHED[name]


def test_named_tuples_of_numpy():
    left, values, right = np.linalg.svd(POSITIVE)
    assert all(type(array) is mx.np.ndarray for array in (left, values, right))
    assert left.shape == right.shape == (2, 2) and values.dtype == np.float32


DROPPED = {
    "alltrue": (lambda np: np.alltrue(POSITIVE), False),
    "in1d": (lambda np: np.in1d(POSITIVE, mx.np.array([1, 3])), [False, True, False, True]),
    "msort": (lambda np: np.msort(POSITIVE)[0], [0, 1]),
    "trapz": (lambda np: np.trapz(POSITIVE[0]), 1.75),
    "pad": (lambda np: np.pad(POSITIVE, ((1, 0), (0, 0)), mode="edge")[0], [2.5, 1]),
    "bool": (lambda np: np.ones((2,), dtype=np.bool), [True, True]),
    "PZERO": (lambda np: (np.PZERO, np.NINF), [0.0, float("-inf")]),
}


@pytest.mark.parametrize("name", DROPPED)
def test_names_that_numpy_dropped(name):
    value, expected = DROPPED[name]
    found = value(mx.np)
    found = found.asnumpy() if isinstance(found, mx.np.ndarray) else found
    np.testing.assert_array_equal(found, expected)


def test_names_that_numpy_had_dropped_before():
    with pytest.raises(RuntimeError, match="removed from NumPy"):
        mx.np.npv(0.1, [1, 2])


# Processes:


class Squares(mx.gluon.data.Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        return np.float32(index) ** 2

    def __reduce__(self):
        raise AssertionError("with fork nothing is pickled")


def test_data_loader_forks():
    loader = mx.gluon.data.DataLoader(Squares(), 5, num_workers=2)
    assert [batch.asnumpy().sum() for batch in loader] == [30, 255]


@pytest.mark.skipif(not NEEDED, reason="MXNet has Python's own multiprocessing here")
def test_start_method():
    """fork for MXNet whatever Python's default is, but for spawn, if the program has chosen it."""
    view = mx.gluon.data.dataloader.multiprocessing
    chosen = multiprocessing.get_start_method(allow_none=True)
    try:
        multiprocessing.set_start_method("spawn", force=True)
        assert view.get_context().get_start_method() == "spawn"
        multiprocessing.set_start_method(None, force=True)
        assert view.get_context().get_start_method() == "fork"
    finally:
        multiprocessing.set_start_method(chosen, force=True)
    assert view.queues is multiprocessing.queues


# GluonCV:


def test_gluoncv_check_version():
    gluoncv.utils.check_version("0.9")
    with pytest.raises(AssertionError):
        gluoncv.utils.check_version("99.10")


def float32_boxes(count=64):
    rng = np.random.RandomState(0)
    low = rng.uniform(0, 40, (count, 2))
    return np.hstack([low, low + rng.uniform(1, 50, (count, 2))]).astype(np.float32)


def test_yolo_targets():
    from gluoncv.model_zoo.yolo.yolo_target import YOLOV3PrefetchTargetGenerator

    box = float32_boxes()[:, None]
    size, width = 97, 3
    anchors = [mx.nd.array([[10.0, 10]])]
    maps, offsets = [mx.nd.zeros((1, 1, width, width))], [mx.nd.zeros((1, width * width, 1, 2))]
    generate = YOLOV3PrefetchTargetGenerator(2)
    for one in box:
        boxes, ids = mx.nd.array(one[None]), mx.nd.zeros((1, 1, 1))
        image = mx.nd.zeros((1, 3, size, size))
        _, centers, _, weights, _ = generate(image, maps, anchors, offsets, boxes, ids)
        gtx, gty, gtw, gth = (a.asnumpy().item() for a in generate.bbox2center(boxes[0]))
        x, y = (value / size * width for value in (gtx, gty))
        cell = int(y) * width + int(x)
        expected = np.array([x - int(x), y - int(y)], np.float32)
        np.testing.assert_array_equal(centers.asnumpy()[0, cell].ravel(), expected)
        area = float(np.float32(gtw) * np.float32(gth))
        weight = np.array([2.0 - area / size / size] * 2, np.float32)
        np.testing.assert_array_equal(weights.asnumpy()[0, cell].ravel(), weight)


def test_center_net_targets():
    from gluoncv.model_zoo.center_net import target_generator

    sizes = np.ceil(float32_boxes()[:, 2:])
    for size in sizes:
        radius = target_generator._gaussian_radius(size)
        assert radius == target_generator._gaussian_radius(size.astype(np.float64))
    generate = target_generator.CenterNetTargetGenerator(2, 16, 16)
    heatmap = generate(float32_boxes(3) / 8, np.ones((3, 1), np.float32))[0].asnumpy()
    assert heatmap[1].max() == 1 and not heatmap[0].any()


def test_alpha_pose_crops():
    from gluoncv.data.transforms.pose import alpha_pose_image_cropper

    boxes = float32_boxes()
    boxes[0] = [47.1, 30, 82.2, 60]
    image = np.zeros((120, 120, 3), np.uint8)
    _, corners = alpha_pose_image_cropper(image, mx.nd.array(boxes), None, (16, 12))
    for box, corner in zip(boxes, corners):
        margin = [float(np.float32(box[i + 2] - box[i])) * 0.3 / 2 for i in (0, 1)]
        assert corner[:2].tolist() == [int(max(0, float(box[i]) - margin[i])) for i in (0, 1)]


def test_siamrpn_scores_in_float32(monkeypatch):
    from gluoncv.model_zoo.siamrpn import siamrpn_tracker

    class Model:
        def template(self, z):
            pass

        def track(self, x):
            rng = np.random.RandomState(0)
            boxes, scores = rng.randn(4, cells), rng.randn(2, cells)
            shapes = (1, 4 * 5, size, size), (1, 2 * 5, size, size)
            arrays = [mx.nd.array(a.reshape(s)) for a, s in zip((boxes, scores), shapes)]
            return dict(zip(("loc", "cls"), arrays))

    tracker = siamrpn_tracker.SiamRPNTracker(Model())
    cells = len(tracker.anchors)
    size = int((cells / 5) ** 0.5)
    image = np.random.RandomState(0).randint(0, 255, (200, 200, 3)).astype(np.uint8)
    tracker.init(image, np.array([60.0, 60, 40, 50]), mx.cpu())
    dtypes = []
    exp = np.exp

    def watched(x):
        dtypes.append(x.dtype)
        return exp(x)

    monkeypatch.setattr(siamrpn_tracker.np, "exp", watched)
    assert len(tracker.track(image, mx.cpu())["bbox"]) == 4
    assert dtypes == [np.dtype("float32")] * 3


def test_color_distortion():
    from gluoncv.data.transforms.experimental.image import np_random_color_distort

    image = np.random.RandomState(0).uniform(0, 255, (6, 6, 3)).astype(np.float32)
    distorted = np_random_color_distort(image, np.random.RandomState(0))
    assert distorted.dtype == np.float32


def test_quantization_thresholds():
    from mxnet.contrib import quantization

    old = (np.ones(8, np.int64), None, np.float32(-0.1), np.float32(0.1), np.float32(0.1))
    values = np.array([0.7, -0.3], np.float32)
    histogram, edges, *_, threshold = quantization.combine_histogram(
        old, values, np.float32(-0.3), np.float32(0.7), np.float32(0.7)
    )
    step = 2 * float(np.float32(0.1)) / 8
    more = int(float(np.float32(0.7) - np.float32(0.1)) // step + 1)
    assert threshold == more * step + float(np.float32(0.1)) and histogram.sum() == 10


def test_quantization_by_entropy():
    from mxnet.contrib import quantization

    data = mx.sym.var("data")
    symbol = mx.sym.FullyConnected(data, num_hidden=4, name="fc")
    rng = np.random.RandomState(0)
    arguments = {"fc_weight": mx.nd.array(rng.randn(4, 6)), "fc_bias": mx.nd.zeros((4,))}
    batches = mx.io.NDArrayIter(rng.randn(8, 6).astype(np.float32), batch_size=4)
    quantized, _, _ = quantization.quantize_model(
        symbol, arguments, {}, ctx=mx.cpu(), calib_mode="entropy", calib_data=batches,
        num_calib_examples=8, label_names=None,
    )  # fmt: skip
    ranges = [key for node in quantized.attr_dict().values() for key in node if "calib" in key]
    assert ranges
