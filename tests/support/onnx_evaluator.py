# SPDX-License-Identifier: Apache-2.0
"""Runs an ONNX model in onnxruntime."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, Iterator

import numpy as np
import onnxruntime
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as MissingKernel

#: Python 3.8 and 3.9 have 1.19 alone, which lacks float64 kernels such as Cos.
IS_OLD = tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 20)


def run(path: Path, *inputs: np.ndarray, optimize: bool = True) -> list:
    """The outputs of a model; with optimize=False of its graph as it is written."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if not optimize:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = session_of(path, options)
    return session.run(None, dict(zip([v.name for v in session.get_inputs()], inputs)))


def session_of(path: Path, options: Any = None) -> Any:
    with skipping_missing_kernels():
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


@contextlib.contextmanager
def skipping_missing_kernels() -> Iterator[None]:
    """Skip the test if an old onnxruntime lacks a kernel that a model needs."""
    try:
        yield
    except MissingKernel as error:
        if IS_OLD:
            pytest.skip(f"onnxruntime {onnxruntime.__version__}: {error}")
        raise
