# SPDX-License-Identifier: Apache-2.0
"""Programs that compare exported models in onnxruntime and OpenVINO; check.py needs no MXNet."""
