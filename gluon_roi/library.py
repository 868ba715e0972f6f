# SPDX-License-Identifier: Apache-2.0
"""Finds, checks and loads the operator library, and reports how it was built."""

from __future__ import annotations

import atexit
import ctypes
import functools
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, NamedTuple

import mxnet as mx
from mxnet import base

from ._version import __version__

__all__ = ["build_info", "has_cuda", "include", "load", "mxnet_lib_api", "operators"]

PATH = Path(__file__).resolve().parent / "libgluon_roi.so"
REBUILD = "run 'pip install --force-reinstall --no-deps .' in the source folder of gluon_roi"
#: A different build of the library, such as a debug build.
if os.environ.get("GLUON_ROI_LIBRARY"):
    PATH = Path(os.environ["GLUON_ROI_LIBRARY"]).resolve()
    REBUILD = f"the environment variable GLUON_ROI_LIBRARY names {PATH}"


def load() -> None:
    """Load the operator library into MXNet, unless it is already loaded.

    ``import gluon_roi`` calls this. MXNet cannot load a library twice.

    Raises
    ------
    ImportError
        The library is missing, cannot be loaded, or was built for another version of MXNet's
        library API. The message names the command to run.

    Examples
    --------
    >>> load()                                # already loaded
    """
    if not PATH.is_file():
        source = PATH.parent.parent
        named = os.environ.get("GLUON_ROI_LIBRARY")
        if not named and (source / "setup.py").is_file():
            raise ImportError(
                f"gluon_roi: the operator library of the source folder {source} is not built, and "
                "no installed package has one; run 'pip install .' or 'make build' there"
            )
        raise ImportError(f"gluon_roi: the operator library {PATH.name} is missing; {REBUILD}")
    try:
        library = ctypes.CDLL(str(PATH))
        built_for = library._opVersion()
    except (OSError, AttributeError) as error:
        raise ImportError(
            f"gluon_roi: the operator library cannot be loaded ({error}); {REBUILD}"
        ) from error
    # Checked first, because MXNet's own message about a mismatch is misleading.
    wanted = mxnet_lib_api()
    # A library for version 11 also supports version 10.
    served = (10, 11) if built_for == 11 else (built_for,)
    if wanted is not None and wanted not in served:
        raise ImportError(
            f"gluon_roi: the operator library was built for library API {built_for}, but MXNet "
            f"{mx.__version__} has {wanted}; {REBUILD}"
        )
    # After importlib.reload the operators still exist; they cannot be removed.
    if not any(hasattr(mx.nd._internal, f"_gluon_roi_{name}") for name in operators()):
        _register()
        atexit.register(_close, library)


def _close(library: ctypes.CDLL) -> None:
    """Remove the library from MXNet's list; ``library`` keeps it loaded.

    At exit, MXNet before 1.9.1 erases from that list while iterating over it, and the process may
    end with SIGABRT.
    """
    try:
        initializer = base._LIB._ZN5mxnet18LibraryInitializer3GetEv
        close = base._LIB._ZN5mxnet18LibraryInitializer9lib_closeEPv
    except AttributeError:  # MXNet 1.9.1
        return
    initializer.restype = ctypes.c_void_p
    close(ctypes.c_void_p(initializer()), ctypes.c_void_p(library._handle))


def _register() -> None:
    """Load the library into MXNet, and create the functions of its operators.

    ``mx.library.load`` creates the functions of all 1,000 operators of MXNet again, which takes
    half a second and removes wrappers of AMP and others. It also encodes the path as UTF-8, which
    fails under LC_ALL=C.
    """
    base.check_call(base._LIB.MXLoadLib(ctypes.c_char_p(os.fsencode(PATH)), base.mx_uint(0)))
    for module, make in (
        (mx.nd._internal, mx.nd.register._make_ndarray_function),
        (mx.sym._internal, mx.sym.register._make_symbol_function),
    ):
        for name in (f"_gluon_roi_{name}" for name in operators()):
            setattr(module, name, function_of(name, make))


def function_of(operator: str, make: Callable) -> Callable:
    """A new function for an operator of MXNet, without the wrappers of AMP and others.

    `make` is MXNet's factory of functions on arrays or on symbols.
    """
    handle = base.OpHandle()
    base.check_call(base._LIB.NNGetOpHandle(base.c_str(operator), ctypes.byref(handle)))
    return make(handle, operator, operator)


def mxnet_lib_api() -> int | None:
    """Version of the library API of the installed MXNet.

    Returns
    -------
    int or None
        11 for MXNet 1.9, 10 for 1.8; None if MXNet has no header with the version.

    Examples
    --------
    >>> mxnet_lib_api() in (10, 11, None)
    True
    """
    header = Path(mx.__file__).resolve().parent / "include/mxnet/lib_api.h"
    if not header.is_file():
        return None
    found = re.search(r"#define MX_LIBRARY_VERSION (\d+)", header.read_text())
    return int(found[1]) if found else None


class Input(NamedTuple):
    """The declaration of an input of an operator."""

    name: str
    role: str  # maps, rows, boxes, like, rois or counts
    rank: int  # number of dimensions; 0 if it varies
    optional: bool
    has_gradient: bool
    several: bool  # whether it is a list of arrays (variadic)


@dataclass(frozen=True, eq=False)
class Declared:
    """The library's declaration of an operator."""

    name: str  # as in Python: PSROIPool
    symbol: str  # as in C: ps_roi_pool
    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]
    coordinates: int  # number of coordinates of a box: 4, or 5 if rotated
    parameters: dict[str, str | None]  # name -> default, as text; None if it is required

    @property
    def several_maps(self) -> bool:
        """Whether data is a list of maps."""
        return self.inputs[0].several

    @functools.cached_property
    def input_names(self) -> tuple[str, ...]:
        return tuple(declared.name for declared in self.inputs)

    @functools.cached_property
    def optional_inputs(self) -> frozenset[str]:
        return frozenset(declared.name for declared in self.inputs if declared.optional)

    @functools.cached_property
    def rois_name(self) -> str | None:
        return next((declared.name for declared in self.inputs if declared.role == "rois"), None)

    def input_of(self, name: str) -> Input:
        """The input that an array belongs to; a variadic input has arrays data0, data1, ..."""
        return next(
            declared
            for declared in self.inputs
            if declared.name == (name.rstrip("0123456789") if declared.several else name)
        )


@functools.lru_cache(maxsize=None)
def operators() -> dict[str, Declared]:
    """All operators of the library, with inputs, parameters and defaults.

    Returns
    -------
    dict of str to Declared
        A declaration for each name.

    Examples
    --------
    >>> operators()['ROIAlign'].parameters['sampling_ratio']
    '-1'
    """
    library = ctypes.CDLL(str(PATH))
    library.gluon_roi_operators.restype = ctypes.c_char_p
    return {
        declared["name"]: Declared(
            declared["name"],
            declared["symbol"],
            tuple(Input(**fields) for fields in declared["inputs"]),
            tuple(declared["outputs"]),
            declared["coordinates"],
            {parameter["name"]: parameter["default"] for parameter in declared["params"]},
        )
        for declared in json.loads(_text(library, library.gluon_roi_operators()))
    }


def _text(library: ctypes.CDLL, text: bytes | None) -> bytes:
    """A string of the C interface; raises RuntimeError with the last error if it is NULL."""
    if text is None:
        library.gluon_roi_last_error.restype = ctypes.c_char_p
        error = library.gluon_roi_last_error().decode(errors="backslashreplace")
        raise RuntimeError(error.replace("gluon_roi: ", "", 1))
    return text


def build_info() -> dict[str, Any]:
    """How the package was built, and the versions and instruction set that it uses.

    Returns
    -------
    dict
        version, mxnet (version), lib_api (version of MXNet's library API), compiler, cuda (version
        of the toolkit, None without CUDA), cuda_archs (list of int), openmp (date of the standard,
        None without OpenMP) and simd (the instruction set chosen at run time: 'sse2', 'avx2' or
        'avx512', on 64-bit Arm 'neon'; the environment variable GLUON_ROI_SIMD selects a lower
        one).

    Raises
    ------
    RuntimeError
        GLUON_ROI_SIMD is not an instruction set of this processor.

    Examples
    --------
    >>> import gluon_roi
    >>> gluon_roi.build_info()['mxnet'] in ('1.9.1', '1.9.0', '1.8.0')
    True
    """
    library = ctypes.CDLL(str(PATH))
    library.gluon_roi_build_info.restype = ctypes.c_char_p
    built = json.loads(_text(library, library.gluon_roi_build_info()))
    built["cuda_archs"] = [int(arch) for arch in built["cuda_archs"].split(";") if arch]
    versions = {"version": __version__, "mxnet": mx.__version__, "lib_api": library._opVersion()}
    return {**versions, **built}


def include() -> str:
    """The folder that contains gluon_roi.h, the header of the C interface.

    Returns
    -------
    str
        For a compiler's option ``-I``. The library itself is ``gluon_roi.library.PATH``.

    Examples
    --------
    >>> import gluon_roi, os
    >>> sorted(os.listdir(gluon_roi.include()))
    ['gluon_roi', 'gluon_roi.h']
    """
    package = Path(__file__).resolve().parent
    installed = package / "include"
    return str(installed if installed.is_dir() else package.parent / "src/include")


def has_cuda() -> bool:
    """Whether the operator library contains CUDA kernels.

    Returns
    -------
    bool

    Examples
    --------
    >>> import gluon_roi
    >>> gluon_roi.has_cuda() == (gluon_roi.build_info()['cuda'] is not None)
    True
    """
    return build_info()["cuda"] is not None
