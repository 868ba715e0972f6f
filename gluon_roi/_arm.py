# SPDX-License-Identifier: Apache-2.0
"""Provides libraries that MXNet's wheel for 64-bit Arm needs and no package registry has.

The wheel was linked with Arm's Performance Libraries and cannot be loaded without them. gluon_roi
ships stand-ins, ``gluon_roi/arm/*.so``. They export the functions that MXNet uses of those
libraries, and call OpenBLAS in the package scipy-openblas32. Once they are loaded, the dynamic
linker uses them for every library that needs their names. No file and no search path of MXNet
is changed.
"""

import ctypes
import importlib.util
import os

# In order of dependence: a library comes after the libraries that it needs.
NAMES = ("libastring.so", "libamath.so", "libarmpl_lp64_mp.so")
STAND_INS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "arm")
OPENBLAS = "libscipy_openblas.so"
CORE = "OPENBLAS_CORETYPE"
AT_HWCAP2, HWCAP2_SME = 26, 1 << 23


def load_libraries(mxnet: str) -> None:
    """Load what the libmxnet.so in this folder needs: Arm's libraries, or stand-ins."""
    for name in NAMES:
        # Arm's libraries, if they are next to libmxnet.so or the system finds them.
        if os.path.exists(os.path.join(mxnet, name)):
            continue
        try:
            ctypes.CDLL(name)
        except OSError:
            if name == NAMES[-1]:
                _load_openblas()
            _load(os.path.join(STAND_INS, name))


def openblas() -> str:
    """The path of OpenBLAS, found without importing its package, which would take longer."""
    spec = importlib.util.find_spec("scipy_openblas32")
    if spec is None or spec.origin is None:
        raise ImportError(
            "MXNet on 64-bit Arm needs an OpenBLAS in place of Arm's Performance Libraries; "
            "run 'pip install scipy-openblas32'"
        )
    return os.path.join(os.path.dirname(spec.origin), "lib", OPENBLAS)


def _load_openblas() -> None:
    """Load OpenBLAS without its kernels for SME (Armv9's matrix instructions), unless CORE is set.

    These kernels are new. In 0.3.34 they compute wrong products under qemu, and earlier versions
    did on Apple's M4 (issues 5414 and 5763 of OpenBLAS). A processor with SME supports all
    instructions of NEOVERSEN1.
    """
    getauxval = ctypes.CDLL(None).getauxval
    getauxval.restype = ctypes.c_ulong
    if CORE in os.environ or not getauxval(AT_HWCAP2) & HWCAP2_SME:
        return _load(openblas())
    os.environ[CORE] = "NEOVERSEN1"  # read while the library is loaded
    try:
        return _load(openblas())
    finally:
        del os.environ[CORE]


def _load(path: str) -> None:
    try:
        ctypes.CDLL(path)
    except OSError as error:
        again = "scipy-openblas32" if path.endswith(OPENBLAS) else "gluon_roi"
        raise ImportError(
            f"MXNet on 64-bit Arm needs {path}, which cannot be loaded ({error}); "
            f"run 'pip install --force-reinstall --no-deps {again}'"
        ) from None
