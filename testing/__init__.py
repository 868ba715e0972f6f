# SPDX-License-Identifier: Apache-2.0
"""What tests and benchmarks share; nothing of it is installed.

c_api                the C interface from Python
detectors            GluonCV's detectors with random weights
inference_operators  calls of the operators that only converted graphs have
onnx_runtimes        exported models in onnxruntime and OpenVINO
"""
