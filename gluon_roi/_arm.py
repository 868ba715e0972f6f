"""What MXNet's wheel for 64-bit Arm needs and no package registry has.

It was linked with Arm's Performance Libraries and cannot be loaded without them. gluon_roi brings
stand-ins, ``gluon_roi/arm/*.so``, which have the functions that MXNet looks for there and call
those of OpenBLAS in the package scipy-openblas32. A library that is in the process satisfies every
later one that needs its name: no file of MXNet's is changed, nor its search path.
"""

import ctypes
import importlib.util
import os

# The order matters: each is loaded with what it needs.
NAMES = ("libastring.so", "libamath.so", "libarmpl_lp64_mp.so")
STAND_INS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "arm")
OPENBLAS = "libscipy_openblas.so"


def load_libraries(mxnet: str) -> None:
    """Have the process ready for the libmxnet.so of this folder: Arm's libraries, or stand-ins."""
    for name in NAMES:
        # Arm's own, where they are installed: beside libmxnet.so, or where the system finds them.
        if os.path.exists(os.path.join(mxnet, name)):
            continue
        try:
            ctypes.CDLL(name)
        except OSError:
            if name == NAMES[-1]:
                _load(openblas())
            _load(os.path.join(STAND_INS, name))


def openblas() -> str:
    """The path of OpenBLAS, which is not imported: that would take longer."""
    spec = importlib.util.find_spec("scipy_openblas32")
    if spec is None or spec.origin is None:
        raise ImportError(
            "MXNet on 64-bit Arm needs an OpenBLAS in place of Arm's Performance Libraries; "
            "run 'pip install scipy-openblas32'"
        )
    return os.path.join(os.path.dirname(spec.origin), "lib", OPENBLAS)


def _load(path: str) -> None:
    try:
        ctypes.CDLL(path)
    except OSError as error:
        again = "scipy-openblas32" if path.endswith(OPENBLAS) else "gluon_roi"
        raise ImportError(
            f"MXNet on 64-bit Arm needs {path}, which cannot be loaded ({error}); "
            f"run 'pip install --force-reinstall --no-deps {again}'"
        ) from None
