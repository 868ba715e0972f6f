# SPDX-License-Identifier: Apache-2.0
"""OpenVINO."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from .base import Library, Unsupported, Work, writing


class Openvino(Library):
    """An inference engine: its output is always reused."""

    name, modules = "openvino", ("openvino",)
    operators = ("ROIPool", "ROIAlign", "PSROIPool")

    def prepare(self, item: Any) -> Work:
        ov = importlib.import_module("openvino")
        ops = importlib.import_module("openvino.opset13")
        if item.dtype != "float32":
            raise Unsupported("measured in float32 alone")
        x, r, _ = item.arrays()
        size, scale = item.pooled, 1 / item.stride
        data, rois = ops.parameter(x.shape, np.float32), ops.parameter(r.shape, np.float32)
        arrays = [x, r]
        if item.operator == "ROIPool":
            node = ops.roi_pooling(data, rois, output_roi=[size, size], spatial_scale=scale)
        elif item.operator == "PSROIPool":
            node = ops.psroi_pooling(data, rois, item.channels, size, scale, 1, 1, "average")
        else:
            rois = ops.parameter((len(r), 4), np.float32)
            images = ops.constant(np.zeros(len(r), np.int32))
            ratio = max(item.sampling_ratio, 0)
            node = ops.roi_align(
                data, rois, images, size, size, ratio, scale, "avg", aligned_mode="asymmetric"
            )
            arrays = [x, np.ascontiguousarray(r[:, 1:])]
        config = {
            "INFERENCE_NUM_THREADS": self.threads,
            "INFERENCE_PRECISION_HINT": "f32",
            "PERFORMANCE_HINT": "LATENCY",
        }
        model = ov.Core().compile_model(ov.Model([node], [data, rois]), "CPU", config)
        request = model.create_infer_request()
        for i, array in enumerate(arrays):
            request.set_input_tensor(i, ov.Tensor(array, shared_memory=True))

        def result() -> np.ndarray:
            request.infer()
            return request.get_output_tensor().data

        return {
            "forward": request.infer,
            "forward, out=": request.infer,
            "forward in a network": (writing(arrays[0]), request.infer),
            "result": result,
            # Shared tensors know addresses only.
            "kept": arrays,
        }
