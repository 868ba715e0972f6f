# SPDX-License-Identifier: Apache-2.0
"""Warns on GPUs that have not passed ``python -m gluon_roi check``, and records those that have.

The CUDA kernels are tested on simulated threads. The first call on a GPU therefore warns, until
that command has compared every operator on the GPU with the CPU. A file in the user's cache then
records the GPU, the library and MXNet's version.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import warnings
from pathlib import Path

import mxnet as mx

from . import library
from .replacement import replacing

#: Whether MXNet supports GPUs; without, calls skip all checks.
HAS_GPUS = mx.runtime.Features().is_enabled("CUDA")
#: GPUs without a (further) warning in this process: they passed the check, or a warning was given.
_quiet: set[mx.Context] = set()


def warn_unless_checked(context: mx.Context) -> None:
    """Warn once in a process if a GPU has not passed the check with this library."""
    if context.device_type != "gpu" or context in _quiet:
        return
    _quiet.add(context)
    if not is_checked(context):
        warnings.warn(
            f"gluon_roi: the operators have not been checked on {context} "
            f"({device_name(context.device_id)}); 'python -m gluon_roi check' compares them with "
            "the CPU, and ends this warning if they agree",
            stacklevel=2,
        )


def check_begins(context: mx.Context) -> None:
    """Disable the warning for a GPU that is being checked."""
    _quiet.add(context)


def is_checked(context: mx.Context) -> bool:
    """Whether this GPU has passed the check with this library and this MXNet."""
    try:
        return _record_file(context).read_text(encoding="utf-8") == _identity(context)
    except (OSError, UnicodeDecodeError):
        return False


def record_check(context: mx.Context) -> Path:
    """Record that a GPU has passed. Returns the file; raises OSError if it cannot be written."""
    file = _record_file(context)
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(f"check: the record of a checked GPU cannot be written to {file}", file) as part:
        part.write_text(_identity(context), encoding="utf-8")
    return file


def _identity(context: mx.Context) -> str:
    """Identifies the GPU, the library and MXNet's version that a check is valid for."""
    return (
        f"GPU: {device_name(context.device_id)}\n"
        f"libgluon_roi.so: SHA-256 {_library_digest()}\n"
        f"MXNet: {mx.__version__}\n"
    )


def _record_file(context: mx.Context) -> Path:
    """The file of this GPU and library in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    name = hashlib.sha256(_identity(context).encode()).hexdigest()[:16]
    return Path(cache) / "gluon_roi" / f"checked-gpu-{name}.txt"


@functools.lru_cache(maxsize=None)
def _library_digest() -> str:
    return hashlib.sha256(library.PATH.read_bytes()).hexdigest()


@functools.lru_cache(maxsize=None)
def device_name(index: int) -> str:
    """Name and compute capability of a GPU, such as 'NVIDIA H200, 9.0', from NVIDIA's driver."""
    name, device = ctypes.create_string_buffer(256), ctypes.c_int()
    major, minor = ctypes.c_int(), ctypes.c_int()
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        failed = (
            driver.cuInit(0)
            or driver.cuDeviceGet(ctypes.byref(device), index)
            or driver.cuDeviceGetName(name, len(name), device)
            # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
            or driver.cuDeviceGetAttribute(ctypes.byref(major), 75, device)
            or driver.cuDeviceGetAttribute(ctypes.byref(minor), 76, device)
        )
    except (OSError, AttributeError):
        failed = True
    if failed:
        return "of unknown name"
    return f"{name.value.decode(errors='replace')}, {major.value}.{minor.value}"
