# SPDX-License-Identifier: Apache-2.0
"""Warns of operators without a float64 kernel in onnxruntime."""

from __future__ import annotations

import warnings

import numpy as np
import onnx

from .passes.types import tensor_types

#: Operators with float32 kernels only in onnxruntime 1.32 on the CPU.
_NO_FLOAT64 = {
    *("Acos", "Asin", "Atan", "AveragePool", "Conv", "ConvTranspose", "Elu", "Erf"),
    *("GlobalAveragePool", "GlobalMaxPool", "GridSample", "HardSigmoid", "InstanceNormalization"),
    *("LRN", "Resize", "Selu", "Softplus", "Softsign", "Tan"),
}


def warn_of_missing_float64_kernels(model: onnx.ModelProto) -> None:
    """Warn of float64 nodes for which onnxruntime has no kernel. The model has inferred shapes."""
    double = onnx.TensorProto.DOUBLE
    float64 = {
        name for name, tensor_type in tensor_types(model).items() if tensor_type.dtype == np.float64
    }
    float64.update(v.name for v in model.graph.initializer if v.data_type == double)
    float64.update(v.name for v in model.graph.output if v.type.tensor_type.elem_type == double)
    nodes = (node for node in model.graph.node if node.op_type in _NO_FLOAT64)
    found = {node.op_type for node in nodes if node.input[0] in float64}
    if found:
        warnings.warn(
            f"onnx.export: onnxruntime has no float64 kernel for {', '.join(sorted(found))}; "
            "export the model in float32 to run it there",
            stacklevel=4,
        )
