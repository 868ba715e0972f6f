# SPDX-License-Identifier: Apache-2.0
"""Makes MXNet 1.9.1 and GluonCV 0.10.5 run with newer Python, NumPy and processors.

Both support Python up to 3.11 and NumPy up to 1.23. This module patches their modules for later
versions. ``Finder``, in ``sys.meta_path``, runs them with a modified ``__import__``, for which
``numpy`` still has the removed names, ``distutils.version`` exists and ``multiprocessing`` forks. A
few source lines are edited on import. Other modules in the process are unaffected, and on Python
3.8 to 3.11 with NumPy 1.23 only an error message is extended, and GluonCV is imported without
torch. On processors that MXNet's OpenBLAS does not recognize, it is made to use its kernels for
AVX2.

``install()`` is called by ``import gluon_roi``, and through gluon_roi.pth if mxnet or gluoncv is
imported first. GLUON_ROI_COMPAT=0 in the environment disables it. Each patch has a test in
tests/compat/test_compat_patches.py and a row in docs/compat_reference.md.
"""

import builtins
import ctypes
import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import re
import sys
import warnings
from types import ModuleType, SimpleNamespace
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

PACKAGES = ("mxnet", "gluoncv")
# Newest first. The library of 1.8.0.post0 calls itself 1.8.0.
MXNETS = ("1.9.1", "1.9.0", "1.8.0")
# The newest tested versions. Newer ones are accepted without a warning; if MXNet cannot be imported
# with them, the error names the tested versions.
TRIED_PYTHON = (3, 14)
TRIED_NUMPY = (2, 5)


# Set by `python -m gluon_roi run` for child processes: this installation of the package, and how
# they replace MXNet's functions. Other installations may have other options.
RUN = "GLUON_ROI_RUN"
PACKAGE = os.path.dirname(os.path.realpath(__file__))


def options_of_parent() -> Optional[Dict[str, Any]]:
    """The arguments of replace_builtins in a child of `python -m gluon_roi run`, or None."""
    value = os.environ.get(RUN) or "{}"
    try:
        options = dict(json.loads(value))
    except (TypeError, ValueError):
        raise ImportError(
            f"environment variable {RUN}: expected what 'python -m gluon_roi run' sets, "
            f"got {value!r}"
        ) from None
    return options if options.pop("package", None) == PACKAGE else None


# Finding and loading.


def install() -> None:
    """Make ``Finder`` load mxnet and gluoncv from now on."""
    start = sys.modules.get("_gluon_roi_start")
    if start in sys.meta_path:
        sys.meta_path.remove(start)
    wanted = os.environ.get("GLUON_ROI_COMPAT") != "0" and "mxnet" not in sys.modules
    if wanted and finder not in sys.meta_path:
        sys.meta_path.insert(0, finder)


def check_mxnet() -> None:
    """Raise ImportError, in one sentence, if MXNet is missing or not a supported version."""
    spec = importlib.util.find_spec("mxnet")
    version = None if spec is None or spec.origin is None else mxnet_version(spec.origin)
    if version is None or not version.startswith(MXNETS):
        raise ImportError(
            f"gluon_roi needs MXNet {', '.join(MXNETS[:-1])} or {MXNETS[-1]}, found "
            f"{version or 'none'}; run 'pip install --no-deps mxnet=={MXNETS[0]}'"
        )


def mxnet_version(init: str) -> str:
    """The version of the MXNet with this __init__.py, without importing it."""
    try:
        with open(os.path.join(os.path.dirname(init), "libinfo.py")) as file:
            found = re.search(r'^__version__ = "(.+)"', file.read(), re.M)
    except OSError:
        found = None
    return found[1] if found else "one without a version"


def is_needed() -> bool:
    """Whether NumPy or Python is too new for MXNet without patches."""
    return _numpy_version() >= (1, 24) or sys.version_info >= (3, 12)


def _numpy_version() -> Tuple[int, ...]:
    """The first two numbers, such as (1, 26). Imports NumPy, as MXNet does first."""
    try:
        import numpy
    except Exception as error:
        raise ImportError(
            f"MXNet needs NumPy, which cannot be imported here ({error}); "
            "run 'pip install --force-reinstall numpy'"
        ) from None
    return tuple(map(int, re.findall(r"\d+", numpy.__version__)[:2]))


class Finder(importlib.abc.MetaPathFinder):
    """Finds mxnet, gluoncv and their submodules as Python does, and loads them by ``Loader``."""

    def find_spec(
        self, name: str, path: Optional[Sequence[str]], target: Optional[ModuleType] = None
    ) -> Optional[importlib.machinery.ModuleSpec]:
        if name.partition(".")[0] not in PACKAGES:
            return None
        spec = self._found_by_others(name, path, target)
        if spec is None or type(spec.loader) is not importlib.machinery.SourceFileLoader:
            return spec
        if name == "mxnet" and not mxnet_version(spec.loader.path).startswith(MXNETS):
            sys.meta_path.remove(self)
        elif is_needed() or name == "gluoncv":  # which refuses torch 2 everywhere
            spec.loader = Loader(spec.loader.name, spec.loader.path)
        elif name == "mxnet":
            spec.loader = LibraryLoader(spec.loader.name, spec.loader.path)
        return spec

    def _found_by_others(
        self, name: str, path: Optional[Sequence[str]], target: Optional[ModuleType]
    ) -> Optional[importlib.machinery.ModuleSpec]:
        for other in sys.meta_path:
            if other is not self:
                spec = other.find_spec(name, path, target)
                if spec is not None:
                    return spec
        return None


finder = Finder()


class LibraryLoader(importlib.machinery.SourceFileLoader):
    """Provides the libraries that libmxnet.so needs, or reports which one is missing.

    Then chooses OpenBLAS's kernels, and imports gluon_roi in children of `python -m gluon_roi run`.
    """

    def exec_module(self, module: ModuleType) -> None:
        if self.name != "mxnet":
            super().exec_module(module)
            return
        # GluonCV, which may be imported later, is patched for torch.
        has_torch = "torch" in sys.modules or importlib.util.find_spec("torch") is not None
        if not (is_needed() or has_torch) and finder in sys.meta_path:
            sys.meta_path.remove(finder)
        if sys.platform == "linux" and os.uname().machine == "aarch64":
            _sibling("_arm").load_libraries(os.path.dirname(self.path))
        try:
            super().exec_module(module)
        except OSError as error:
            # "libgomp.so.1: cannot open shared object file: No such file or directory"
            missing = re.match(r"(lib[\w+]+)\.so\.(\d+): cannot open shared object", str(error))
            if missing is None:
                raise
            raise ImportError(
                f"MXNet needs {missing[1]}.so.{missing[2]}, which this system does not have; "
                f"run 'apt-get install {missing[1]}{missing[2]}'"
            ) from None
        _choose_core(module.base._LIB)
        _add_hint(module.base)
        if options_of_parent() is not None:
            importlib.import_module("gluon_roi")  # its end replaces MXNet's functions


def _add_hint(base: Any) -> None:
    """Extend MXNet's error about an unregistered operator of this package."""
    last_error = base.get_last_ffi_error

    def get_last_ffi_error() -> Exception:
        error = last_error()
        if re.search(r"Operator _gluon_roi_\w+ is not registered", str(error)):
            error.args = (f"{str(error).rstrip()}; 'import gluon_roi' registers it",)
        return error

    base.get_last_ffi_error = get_last_ffi_error


# The kernels of OpenBLAS.

CORE = "OPENBLAS_CORETYPE"
# The cores that it falls back to on unknown processors of Intel and AMD; both have no AVX2.
FALLBACKS = (b"Prescott", b"Barcelona")
CPUINFO = "/proc/cpuinfo"


def _choose_core(libmxnet: ctypes.CDLL) -> None:
    """Make MXNet's OpenBLAS use AVX2 on processors that it does not recognize, unless CORE is set.

    The OpenBLAS in MXNet's wheels (0.3.13; 0.3.7 in 1.8.0) recognizes the processors of its time by
    their model numbers. On later ones (Ice Lake servers, Tiger Lake, Zen 5) it uses kernels for
    SSE3. Its newest kernels are for Haswell: the wheels have none for AVX-512, and those for Zen
    are not faster.
    """
    try:
        corename = libmxnet.openblas_get_corename
        forget, choose = libmxnet.gotoblas_dynamic_quit, libmxnet.gotoblas_dynamic_init
    except AttributeError:  # an MXNet with a different BLAS
        return
    corename.restype = ctypes.c_char_p
    if CORE in os.environ or corename() not in FALLBACKS or not _has_avx2():
        return
    os.environ[CORE] = "Haswell"  # read by choose()
    try:
        forget()
        choose()
    finally:
        del os.environ[CORE]


def _has_avx2() -> bool:
    """Whether processor and system support the instructions of OpenBLAS's Haswell kernels."""
    try:
        with open(CPUINFO) as file:
            flags = re.search(r"^flags\s*:(.*)", file.read(), re.M)
    except OSError:
        return False
    return flags is not None and {"avx2", "fma"} <= set(flags[1].split())


def _sibling(name: str) -> Any:
    """A module next to this one, loaded by path, because importing gluon_roi imports mxnet."""
    file = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"gluon_roi.{name}", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Loader(LibraryLoader):
    """Runs a module with modified builtins, edited source lines and additions."""

    def exec_module(self, module: ModuleType) -> None:
        overrides: Dict[str, Any] = {"__import__": _import}
        overrides.update((name, _look_up_late(name)) for name in REPLACED_BUILTINS)
        if self.name in WRITES_ATTRIBUTES:
            overrides["str"] = AttributeText
        vars(module)["__builtins__"] = {**vars(builtins), **overrides}
        try:
            super().exec_module(module)
        except Exception as error:
            tried = sys.version_info[:2] <= TRIED_PYTHON and _numpy_version() <= TRIED_NUMPY
            if tried or self.name not in PACKAGES:
                raise
            raise ImportError(
                f"{self.name} cannot be imported with Python {_dotted(sys.version_info[:2])} and "
                f"NumPy {_dotted(_numpy_version())} ({error}); the newest that gluon_roi was tried "
                f"with are Python {_dotted(TRIED_PYTHON)} and NumPy {_dotted(TRIED_NUMPY)}"
            ) from None
        if self.name in ADDITIONS:
            ADDITIONS[self.name](module)

    def get_code(self, fullname: str) -> Any:
        if fullname in EDITS:  # Python's cache has the unedited lines
            return self.source_to_code(self.get_data(self.path), self.path)
        return super().get_code(fullname)

    def source_to_code(self, data: Any, path: Any, **options: Any) -> Any:  # type: ignore[override]
        for old, new in EDITS.get(self.name, ()):
            data = data.replace(old.encode(), new.encode())
        with warnings.catch_warnings():
            # Python 3.12 and later warn about the backslashes in MXNet's docstrings.
            warnings.simplefilter("ignore", SyntaxWarning)
            return super().source_to_code(data, path, **options)


# Builtins that programs replace temporarily (mock.patch). All others are fixed at import, because
# looking them up at each use makes small operators of MXNet take up to 1.2 times as long.
REPLACED_BUILTINS = ("input", "open", "print")


def _look_up_late(name: str) -> Callable[..., Any]:
    """A function that looks up a builtin at each call."""

    @functools.wraps(getattr(builtins, name))
    def builtin(*args: Any, **kwargs: Any) -> Any:
        return getattr(builtins, name)(*args, **kwargs)

    return builtin


def _dotted(version: Sequence[int]) -> str:
    return ".".join(map(str, version))


# Imports of the patched modules.


def _import(
    name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
) -> Any:
    """The ``__import__`` of the patched modules; level 0 is an absolute import."""
    if level == 0 and name == "distutils.version" and sys.version_info >= (3, 12):
        return _distutils_version()
    module = builtins.__import__(name, globals, locals, fromlist, level)
    if level == 0 and module.__name__ == "numpy":
        return _numpy()
    if level == 0 and module.__name__ == "multiprocessing":
        return _multiprocessing()
    return module


class _View(ModuleType):
    """A module with some attributes replaced."""

    def __init__(self, module: ModuleType, **replaced: Any) -> None:
        super().__init__(module.__name__, module.__doc__)
        vars(self).update({**vars(module), **replaced})
        self._module = module

    def __getattr__(self, name: str) -> Any:  # attributes that the module creates on first use
        return getattr(self._module, name)


@functools.lru_cache(maxsize=None)
def _numpy() -> ModuleType:
    """numpy, with the removed names of NumPy 1.23 that MXNet or GluonCV use."""
    import numpy

    def removed(function: Callable[..., Any]) -> Callable[..., Any]:
        """A NumPy function under a removed name, which dispatches arrays of mx.np to MXNet.

        Each is a new function, because MXNet's dispatch table is keyed by function: otherwise
        np.sometrue would replace np.any in it.
        """

        @functools.wraps(function)
        def old(*args: Any, **kwargs: Any) -> Any:
            cls = type(args[0])
            if hasattr(cls, "__array_function__") and not issubclass(cls, numpy.ndarray):
                return cls.__array_function__(args[0], old, (cls,), args, kwargs)
            return function(*args, **kwargs)

        return old

    def array(object: Any, dtype: Any = None, **options: Any) -> Any:
        """Numbers out of range wrap around, as in NumPy 1: -1 is 255 in uint8.

        Lists of different lengths become an array of them, as in NumPy 1.23.
        """
        try:
            return numpy.array(object, dtype, **options)
        except OverflowError:
            return numpy.array(object, **options).astype(dtype)
        except ValueError as error:
            if dtype is not None or "inhomogeneous" not in str(error):
                raise
            return numpy.array(object, builtins.object, **options)

    def asarray(a: Any, dtype: Any = None, **options: Any) -> Any:
        """Arrays of different lengths become an array of them, as in NumPy 1.23."""
        try:
            return numpy.asarray(a, dtype, **options)
        except ValueError as error:
            if dtype is not None or "inhomogeneous" not in str(error):
                raise
            return numpy.asarray(a, object, **options)

    def in1d(ar1: Any, ar2: Any, **options: Any) -> Any:
        return numpy.isin(numpy.ravel(ar1), ar2, **options)

    def msort(a: Any) -> Any:
        return numpy.sort(a, axis=0)

    # MXNet reads these names when it is imported. NumPy 1.20 to 1.24 have them, and raise when they
    # are called.
    def financial(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("removed from NumPy 1.20; numpy_financial has it")

    return _View(
        numpy,
        array=array,
        asarray=asarray,
        bool=bool,
        int=int,
        float=float,
        compat=SimpleNamespace(basestring=str),
        NINF=-numpy.inf,
        **dict.fromkeys(("Inf", "PINF"), numpy.inf),
        **dict.fromkeys(("NaN", "NAN"), numpy.nan),
        PZERO=0.0,
        NZERO=-0.0,
        alltrue=removed(numpy.all),
        sometrue=removed(numpy.any),
        product=removed(numpy.prod),
        round_=removed(numpy.around),
        in1d=removed(in1d),
        msort=removed(msort),
        trapz=removed(getattr(numpy, "trapezoid" if hasattr(numpy, "trapezoid") else "trapz")),
        **dict.fromkeys(("mirr", "npv", "pmt", "ppmt", "pv", "rate"), financial),
    )


@functools.lru_cache(maxsize=None)
def _multiprocessing() -> ModuleType:
    """multiprocessing, which forks unless the program has chosen spawn.

    Python 3.14 defaults to forkserver, with which MXNet's data loader pickles the data set for each
    worker, and hangs.
    """
    import multiprocessing

    class Multiprocessing(ModuleType):
        def __getattr__(self, name: str) -> Any:
            chosen = multiprocessing.get_start_method(allow_none=True)
            context = multiprocessing.get_context("spawn" if chosen == "spawn" else "fork")
            return getattr(context if hasattr(context, name) else multiprocessing, name)

    return Multiprocessing("multiprocessing")


@functools.lru_cache(maxsize=None)
def _distutils_version() -> ModuleType:
    """distutils.version, which was removed in Python 3.12."""
    from packaging.version import Version

    module = ModuleType("distutils.version")
    vars(module).update(LooseVersion=Version, StrictVersion=Version)
    return module


def provide_distutils() -> None:
    """Provide the common parts of distutils if neither Python nor setuptools has it."""
    if importlib.util.find_spec("distutils") is not None:
        return
    package, util = ModuleType("distutils"), ModuleType("distutils.util")
    vars(util).update(strtobool=_strtobool)
    vars(package).update(__path__=[], version=_distutils_version(), util=util)
    for module in (package, util, _distutils_version()):
        sys.modules[module.__name__] = module


def _strtobool(val: str) -> int:
    for value, words in (
        (1, ("y", "yes", "t", "true", "on", "1")),
        (0, ("n", "no", "f", "false", "off", "0")),
    ):
        if val.lower() in words:
            return value
    raise ValueError(f"invalid truth value {val.lower()!r}")


# Text that the patched modules write.

# In these modules str is replaced with AttributeText, because MXNet's library parses its result.
WRITES_ATTRIBUTES = (
    "mxnet._ctypes.ndarray",
    "mxnet._ctypes.symbol",
    "mxnet.io.io",
    "mxnet.symbol.symbol",
)


class _AnyStr(type):
    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, str)


class AttributeText(str, metaclass=_AnyStr):
    """str, but a tuple of NumPy numbers is "(3, 4)" rather than "(np.int64(3), 4)"."""

    def __new__(cls, value: Any = "") -> str:  # type: ignore[misc]
        text = str(value)
        if "np." in text and isinstance(value, (tuple, list)):
            import numpy

            old: Any = {"legacy": "1.25"}
            with numpy.printoptions(**old):
                return str(value)
        return text


# Edits of source lines: the original text and its replacement.
#
# float64: the result of a float32 number of NumPy and a Python number is float64 in NumPy 1 and
# float32 in NumPy 2. For a float32 array and a float64 number of NumPy, it is the reverse.
# item(): NumPy 2.4 does not convert an array with dimensions to a number, even one of one element.
EDITS: Dict[str, Sequence[Tuple[str, str]]] = {
    "mxnet.recordio": [(".tostring()", ".tobytes()")],  # removed in NumPy 2.3
    "mxnet.metric": [
        ("loss = 0.\n", "loss = numpy.float64(0)\n"),
        ("num -= ndarray.sum(ignore).asscalar()", "num -= float(ndarray.sum(ignore).asscalar())"),
    ],
    "mxnet.optimizer.optimizer": [
        ("norm = NDnorm(v).asnumpy()[0]", "norm = float(NDnorm(v).asnumpy()[0])"),
        ("norm = multiply(v, v).asnumpy().sum()", "norm = float(multiply(v, v).asnumpy().sum())"),
    ],
    "mxnet.contrib.quantization": [
        ("old_step = 2 * old_th", "old_step = 2 * np.float64(old_th)"),
        ("min_vals.append(v[0])", "min_vals.append(np.asarray(v[0]).item())"),
        ("max_vals.append(v[1])", "max_vals.append(np.asarray(v[1]).item())"),
    ],
    # It refuses torch 2, and imports torch 1 to print a warning.
    "gluoncv": [
        (
            "try:\n    _require_pytorch_version(",
            "try:\n    if _found_mxnet: raise ImportError\n    _require_pytorch_version(",
        )
    ],
    # SciPy warns about scipy.sparse.csr in each call of mx.nd.array, and SciPy 2 will not have it.
    "mxnet.ndarray.utils": [("spsp.csr.csr_matrix", "spsp.csr_matrix")],
    "mxnet.ndarray.sparse": [("spsp.csr.csr_matrix", "spsp.csr_matrix")],
    "gluoncv.data.transforms.experimental.image": [
        ("image1 += image2\n", "image1 += image2.astype(image1.dtype)\n"),
        ("gs_mean = gs.mean()", "gs_mean = np.float64(gs.mean())"),
    ],
    "gluoncv.data.transforms.pose": [
        ("box_width = box[2] - box[0]", "box_width = np.float64(box[2] - box[0])"),
        ("box_height = box[3] - box[1]", "box_height = np.float64(box[3] - box[1])"),
    ],
    "gluoncv.model_zoo.center_net.target_generator": [
        ("int(cid)", "int(cid.item())"),
        ("height, width = det_size", "height, width = map(np.float64, det_size)"),
    ],
    "gluoncv.model_zoo.siamrpn.siamrpn_tracker": [
        ("(self.size[0]/self.size[1])", "float(self.size[0]/self.size[1])"),
        ("(get_scale(self.size", "float(get_scale(self.size"),
        ("best_idx] / scale_z", "best_idx] / float(scale_z)"),
    ],
    "gluoncv.model_zoo.yolo.yolo_target": [
        ("gtx / orig_width", "np.float64(gtx) / orig_width"),
        ("gty / orig_height", "np.float64(gty) / orig_height"),
        ("gtw * gth / orig_width", "np.float64(gtw * gth) / orig_width"),
    ],
}


def unmatched() -> List[str]:
    """A sentence for each edit whose original text is not in the installed module.

    MXNet's and GluonCV's files are read, not imported. Empty if no edits are needed.
    """
    if not is_needed() or os.environ.get("GLUON_ROI_COMPAT") == "0":
        return []
    found = []
    for module, edits in EDITS.items():
        package, *rest = module.split(".")
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            continue
        file = os.path.join(os.path.dirname(spec.origin), *(rest or ["__init__"])) + ".py"
        try:
            with open(file, encoding="utf-8") as source:
                text = source.read()
        except OSError:
            text = ""
        found += [
            f"{module}: not patched, there is no {old!r} in it"
            for old, _ in edits
            if old not in text
        ]
    return found


# Additions to modules after their execution.


def _store_as_float64(name: str, *attributes: str) -> Callable[[ModuleType], None]:
    """Make a class store these attributes as float64 when they are set to a NumPy float.

    Sums and products with them then continue in float64, as in NumPy 1.
    """

    def add(module: ModuleType) -> None:
        import numpy

        def __setattr__(self: Any, key: str, value: Any) -> None:
            if key in attributes and isinstance(value, numpy.floating):
                value = numpy.float64(value)
            object.__setattr__(self, key, value)

        getattr(module, name).__setattr__ = __setattr__

    return add


def _add_array_conversion(ndarray: Any) -> None:
    """np.asarray(NDArray): NumPy 1 iterates over its elements, which NumPy 2 rejects."""

    def __array__(self: Any, dtype: Any = None, copy: Optional[bool] = None) -> Any:
        array = self.asnumpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    ndarray.NDArray.__array__ = __array__


def _accept_named_tuples(multiarray: Any) -> None:
    """np.linalg.svd and others return named tuples in NumPy 2, which MXNet cannot rebuild."""
    convert = multiarray._as_mx_np_array

    def _as_mx_np_array(object: Any, ctx: Any = None) -> Any:
        return convert(tuple(object) if isinstance(object, tuple) else object, ctx)

    multiarray._as_mx_np_array = _as_mx_np_array


ADDITIONS: Dict[str, Callable[[ModuleType], None]] = {
    "mxnet.metric": _store_as_float64(
        "EvalMetric", "sum_metric", "num_inst", "global_sum_metric", "global_num_inst"
    ),
    "mxnet.lr_scheduler": _store_as_float64(
        "LRScheduler", "base_lr", "base_lr_orig", "final_lr", "warmup_begin_lr", "warmup_final_lr"
    ),
    "mxnet.optimizer.optimizer": _store_as_float64("Optimizer", "lr"),
    "mxnet.ndarray.ndarray": _add_array_conversion,
    "mxnet.numpy.multiarray": _accept_named_tuples,
}
