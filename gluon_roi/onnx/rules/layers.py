# SPDX-License-Identifier: Apache-2.0
"""MXNet's layers."""

from __future__ import annotations

import math

import numpy as np

from ..graph import Node, OnnxGraph, Tensor
from ..registry import rule

#: Layers whose second input is a label, which they read only in training.
LOSSES = {
    "SoftmaxOutput",
    "LinearRegressionOutput",
    "LogisticRegressionOutput",
    "MAERegressionOutput",
    "SVMOutput",
}


@rule("SoftmaxOutput")
def _softmax_output(g: OnnxGraph, node: Node) -> Tensor:
    node.ignore("grad_scale", "ignore_label", "use_ignore", "normalization", "out_grad")
    node.ignore("smooth_alpha")
    data = node.inputs[0]
    if node.get("multi_output", False):
        node.ignore("preserve_shape")
        return g("Softmax", data, axis=1)
    # For float32, MXNet on the CPU calls oneDNN, which supports these ranks and only the last axis.
    is_onednn = node.dtype == np.float32 and node.rank in (1, 2, 4)
    if node.get("preserve_shape", False) or is_onednn:
        return g("Softmax", data, axis=-1)
    return g("Softmax", g("Flatten", data), axis=1).reshape_exactly(data.shape())


@rule("LinearRegressionOutput", "MAERegressionOutput", "SVMOutput")
def _identity(g: OnnxGraph, node: Node) -> Tensor:
    node.ignore("grad_scale", "margin", "regularization_coefficient", "use_linear")
    return node.inputs[0]


@rule("LogisticRegressionOutput")
def _logistic(g: OnnxGraph, node: Node) -> Tensor:
    node.ignore("grad_scale")
    return g("Sigmoid", node.inputs[0])


@rule("FullyConnected")
def _fully_connected(g: OnnxGraph, node: Node) -> Tensor:
    node.ignore("num_hidden", "no_bias")  # determined by the inputs
    data, weight, *bias = node.inputs
    if node.get("flatten", True) or node.rank == 2:
        flat = g("Flatten", data) if node.rank != 2 else data
        return g("Gemm", flat, weight, *bias, transB=1)
    out = data @ weight.transpose(1, 0)
    return out + bias[0] if bias else out


def _convolution_attributes(node: Node) -> dict:
    kernel = node.sizes("kernel")
    layout = {1: "NCW", 2: "NCHW", 3: "NCDHW"}[len(kernel)]
    node.expect("layout", None, "None", layout)
    node.ignore("num_filter", "no_bias")  # determined by the inputs
    padding = node.sizes("pad") or (0,) * len(kernel)
    return {
        "kernel_shape": kernel,
        "strides": node.sizes("stride") or (1,) * len(kernel),
        "dilations": node.sizes("dilate") or (1,) * len(kernel),
        "pads": padding + padding,
        "group": node.get("num_group", 1),
    }


@rule("Convolution")
def _convolution(g: OnnxGraph, node: Node) -> Tensor:
    return g("Conv", *node.inputs, **_convolution_attributes(node))


@rule("Deconvolution")
def _deconvolution(g: OnnxGraph, node: Node) -> Tensor:
    attributes = _convolution_attributes(node)
    node.expect("target_shape", (), None)
    adjust = node.sizes("adj") or (0,) * len(attributes["kernel_shape"])
    return g("ConvTranspose", *node.inputs, output_padding=adjust, **attributes)


@rule("Activation")
def _activation(g: OnnxGraph, node: Node) -> Tensor:
    operators = {
        "relu": "Relu",
        "sigmoid": "Sigmoid",
        "tanh": "Tanh",
        "softrelu": "Softplus",
        "softsign": "Softsign",
    }
    act_type = node.get("act_type")
    if act_type not in operators:
        raise node.refusal(f"act_type={act_type} has no translation")
    return g(operators[act_type], node.inputs[0])


@rule("LeakyReLU")
def _leaky_relu(g: OnnxGraph, node: Node) -> Tensor:
    act_type, slope = node.get("act_type", "leaky"), float(node.get("slope", 0.25))
    node.ignore("lower_bound", "upper_bound")  # of rrelu
    if act_type == "leaky":
        return g("LeakyRelu", node.inputs[0], alpha=slope)
    if act_type == "elu":
        return g("Elu", node.inputs[0], alpha=slope)
    if act_type == "selu":
        return g("Selu", node.inputs[0], alpha=1.6732632423543772, gamma=1.0507009873554805)
    if act_type == "gelu":
        half = node.inputs[0] * 0.5
        return half * (g("Erf", node.inputs[0] / math.sqrt(2)) + 1)
    if act_type == "prelu":
        gamma = node.inputs[1]
        if node.shapes[1] != (1,):
            node.expect_equal_sizes(min(1, node.rank - 1), 1)
        if len(node.shapes[1]) == 1 and node.rank > 2:
            gamma = g("Unsqueeze", gamma, np.arange(1, node.rank - 1))
        return g("PRelu", node.inputs[0], gamma)
    raise node.refusal(f"act_type={act_type} has no translation")
