# SPDX-License-Identifier: Apache-2.0
"""Runs an ONNX model in onnxruntime, in OpenVINO, or as a module of PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testing.onnx_runtimes import check

# Python 3.8 and 3.9 have no newer one than 1.19, which lacks kernels, such as Cos of float64, and
# runs some other graphs otherwise.
onnxruntime = pytest.importorskip("onnxruntime", minversion="1.20")


def run(path: Path, *inputs: np.ndarray, optimize: bool = True) -> list:
    """The outputs of a model; with optimize=False of its graph as it is written."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if not optimize:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = session_of(path, options)
    return session.run(None, dict(zip([v.name for v in session.get_inputs()], inputs)))


def run_in_openvino(path: Path, *inputs: np.ndarray) -> list:
    return check.openvino(str(path))(*inputs)


def run_in_torch(path: Path, *inputs: np.ndarray) -> list:
    return check.torch(str(path))(*inputs)


#: By the name of the runtime's package.
RUNS = {"onnxruntime": run, "openvino": run_in_openvino, "torch": run_in_torch}


def session_of(path: Path, options: Any = None) -> Any:
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
