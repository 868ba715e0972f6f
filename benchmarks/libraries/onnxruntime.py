# SPDX-License-Identifier: Apache-2.0
"""onnxruntime."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from .base import Library, Unsupported, Work, writing


class Onnxruntime(Library):
    """An inference engine; memory of its output comes from an arena that is kept."""

    name, modules = "onnxruntime", ("onnxruntime", "onnx")
    operators = ("ROIPool", "ROIAlign")

    def prepare(self, item: Any) -> Work:
        ort = importlib.import_module("onnxruntime")
        onnx = importlib.import_module("onnx")
        if item.dtype != "float32":
            raise Unsupported("measured in float32 alone")
        x, r, _ = item.arrays()
        size, scale = item.pooled, 1 / item.stride
        feeds = {"data": x, "rois": r}
        if item.operator == "ROIPool":
            node = onnx.helper.make_node(
                "MaxRoiPool",
                ["data", "rois"],
                ["out"],
                pooled_shape=[size, size],
                spatial_scale=scale,
            )
        else:
            feeds = {
                "data": x,
                "rois": np.ascontiguousarray(r[:, 1:]),
                "images": np.zeros(len(r), np.int64),
            }
            node = onnx.helper.make_node(
                "RoiAlign",
                list(feeds),
                ["out"],
                coordinate_transformation_mode="output_half_pixel",
                output_height=size,
                output_width=size,
                sampling_ratio=max(item.sampling_ratio, 0),
                spatial_scale=scale,
            )
        value = onnx.helper.make_tensor_value_info
        to_onnx = onnx.helper.np_dtype_to_tensor_dtype
        graph = onnx.helper.make_graph(
            [node],
            item.operator,
            [value(name, to_onnx(a.dtype), a.shape) for name, a in feeds.items()],
            [value("out", to_onnx(np.dtype("float32")), item.out_shape)],
        )
        opset = onnx.helper.make_opsetid("", 16)
        model = onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8)
        options = ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = self.threads, 1
        session = ort.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        binding = session.io_binding()
        for name, array in feeds.items():
            binding.bind_cpu_input(name, array)
        buffer = np.zeros(item.out_shape, np.float32)
        binding.bind_output("out", "cpu", 0, np.float32, item.out_shape, buffer.ctypes.data)
        return {
            "forward": lambda: session.run(None, feeds),
            "forward, out=": lambda: session.run_with_iobinding(binding),
            "forward in a network": (writing(x), lambda: session.run(None, feeds)),
            "result": lambda: session.run(None, feeds)[0],
            # The binding knows addresses only.
            "kept": (feeds, buffer),
        }
