"""The same work in each library: ``prepare(item)`` gives a function for each way of measuring.

Every function takes no argument, computes, and returns when the result is in memory: "forward"
makes a new output, "forward, out=" reuses one, "forward+backward" is both passes, with respect to
data. Libraries are imported when they are prepared for, in a process of their own.

The same "in a network" is a pair of functions, of which the second is timed. The first one does
what goes on between two calls there: another operator of the library writes 64 MB, and then the
map, into memory that is not that of the call before. The timed call ends with the gradient of that
map, in memory that is new as well. torch and Paddle are asked for it. MXNet gives gradients of
leaves alone, and a leaf costs gluon_roi a copy that the result of an operator does not: there the
map is what an operator has made that puts one cell, the leaf, into zeros, and is then overwritten.
The backward pass of that operator reads this one cell.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any, Callable

import numpy as np

from .work import ALIGN, Item

#: What can be measured, in the order of the table.
WAYS = (
    "forward",
    "forward, out=",
    "forward+backward",
    "forward in a network",
    "forward+backward in a network",
)
#: Operators that several libraries have.
COMMON = ("ROIPool", "ROIAlign", "PSROIPool", "PSROIAlign")
#: float32 elements that another operator writes between two calls in a network.
BETWEEN = 1 << 24

#: way -> function without arguments, or a pair of them; "result" -> () -> the output as a NumPy
#: array; "kept" -> whatever must outlive the calls; "bytes" -> way -> what a call must move.
Work = dict


class Unsupported(Exception):
    """The library has no such operator, or not for this type."""


class Library:
    """One library: how to call its operators, where it must be told the number of threads."""

    name = ""
    modules: tuple[str, ...] = ()  # what it needs; the first names its version
    operators: tuple[str, ...] | None = COMMON  # None: every one

    def __init__(self, threads: int) -> None:
        self.threads = threads

    @classmethod
    def has(cls, operator: str) -> bool:
        return cls.operators is None or operator in cls.operators

    def version(self) -> str:
        return str(importlib.import_module(self.modules[0]).__version__)

    def prepare(self, item: Item) -> Work:
        raise NotImplementedError


def writing(array: np.ndarray) -> Callable[[], None]:
    """What other operators do between two calls, where the library leaves its inputs to NumPy."""
    between, values = np.zeros(BETWEEN, np.float32), array.copy()

    def others() -> None:
        np.add(between, 1, out=between)
        np.copyto(array, values)

    return others


class _Ndarray(Library):
    """Libraries on MXNet's NDArray."""

    def _call(self, item: Item) -> Callable:
        """Function of rois and what has a gradient: the maps, then offsets; and `out`."""
        raise NotImplementedError

    def prepare(self, item: Item) -> Work:
        mx = importlib.import_module("mxnet")
        call = self._call(item)
        x, r, d = item.arrays()
        trans = item.trans()
        arrays = [x, *item.coarser_maps(), *([] if trans is None else [trans])]
        given = [mx.nd.array(array, dtype=item.dtype) for array in arrays]
        d_out, rois = (
            mx.nd.array(d, dtype=item.dtype),
            mx.nd.array(r, dtype=self.rois_dtype(item)),
        )
        recorded = [array.copy() for array in given]
        for array in recorded:
            array.attach_grad()
        buffer = mx.nd.zeros(item.out_shape, dtype=item.dtype)

        def forward(inputs: list[Any]) -> Any:
            out = call(rois, *inputs)
            out.wait_to_read()
            return out

        def reused() -> None:
            call(rois, *given, out=buffer)
            buffer.wait_to_read()

        def both(inputs: list[Any], leaves: list[Any]) -> Any:
            with mx.autograd.record():
                out = call(rois, *inputs)
            out.backward(d_out)
            for array in leaves:
                array.grad.wait_to_read()
            return out

        between = mx.nd.zeros(BETWEEN)
        cells = [array.reshape(-1)[:1].copy() for array in given]
        for array in cells:
            array.attach_grad()
        origin = mx.nd.zeros((4, 1))
        made: list[Any] = []

        def others() -> None:
            mx.nd.broadcast_add(between, mx.nd.ones(1), out=between)
            with mx.autograd.record():
                made[:] = [
                    mx.nd.scatter_nd(cell, origin, values.shape)
                    for cell, values in zip(cells, given)
                ]
            for values, array in zip(given, made):
                values.copyto(array)
            mx.nd.waitall()

        return {
            "forward": lambda: forward(given),
            "forward, out=": reused,
            "forward+backward": lambda: both(recorded, recorded),
            "forward in a network": (others, lambda: forward(made)),
            "forward+backward in a network": (others, lambda: both(made, cells)),
            "result": lambda: forward(given).asnumpy(),
        }

    def rois_dtype(self, item: Item) -> str:
        return item.dtype


class GluonRoi(_Ndarray):
    name, modules = "gluon_roi", ("gluon_roi", "mxnet")
    operators: tuple[str, ...] | None = None

    def version(self) -> str:
        info = importlib.import_module("gluon_roi").build_info()
        return f"{info['version']} ({info['simd']})"

    def rois_dtype(self, item: Item) -> str:
        return "float32"

    def _call(self, item: Item) -> Callable:
        function = getattr(importlib.import_module("gluon_roi").nd, item.operator)
        size, scale, arguments = (item.pooled,) * 2, item.scale, item.arguments
        if item.levels > 1:
            return lambda rois, *maps, out=None: function(
                maps, rois, size, scale, out=out, **arguments
            )
        if item.trans_shape is not None:
            return lambda rois, data, trans, out=None: function(
                data, rois, trans, size, scale, out=out, **arguments
            )
        return lambda rois, data, out=None: function(data, rois, size, scale, out=out, **arguments)


class EveryLevel(GluonRoi):
    """PyramidROIAlign without it: every RoI on every level, masked, as GluonCV's FPN does.

    With our own ROIAlign.
    """

    name = "every level"
    operators = ("PyramidROIAlign",)

    def _call(self, item: Item) -> Callable:
        nd = importlib.import_module("mxnet").nd
        function = importlib.import_module("gluon_roi").nd.ROIAlign
        first = item.stride.bit_length() - 1

        def call(rois: Any, *maps: Any, out: Any = None) -> Any:
            sides = nd.slice_axis(rois, 1, 3, 5) - nd.slice_axis(rois, 1, 1, 3)
            area = nd.prod(sides, axis=1)
            level = nd.clip(
                nd.floor(4 + nd.log2(nd.sqrt(area) / 224 + 1e-6)), first, first + len(maps) - 1
            )
            pooled = []
            for i, (one, stride) in enumerate(zip(maps, item.strides)):
                all_rows = function(one, rois, item.pooled, 1 / stride, item.sampling_ratio)
                pooled.append(nd.where(level == first + i, all_rows, nd.zeros_like(all_rows)))
            return nd.add_n(*pooled, out=out)

        return call


class Mxnet(_Ndarray):
    name, modules = "mxnet", ("mxnet",)
    operators = (*COMMON, "DeformablePSROIPool", "RotatedROIAlign")

    def _call(self, item: Item, namespace: Any = None) -> Callable:
        """Of mx.nd, or in a block of the namespace that it is given."""
        nd = namespace or importlib.import_module("mxnet").nd
        size, scale = (item.pooled,) * 2, 1 / item.stride
        if item.operator == "ROIPool":
            return lambda r, x, out=None: nd.ROIPooling(x, r, size, scale, out=out)
        if item.operator == "PSROIPool":
            return lambda r, x, out=None: nd.contrib.PSROIPooling(
                x, r, scale, item.channels, item.pooled, item.pooled, out=out
            )
        if item.operator == "RotatedROIAlign":
            return lambda r, x, out=None: nd.contrib.RROIAlign(
                x, r, size, scale, item.sampling_ratio, out=out
            )
        if item.operator == "DeformablePSROIPool":
            return lambda r, x, trans, out=None: nd.contrib.DeformablePSROIPooling(
                x,
                r,
                trans,
                spatial_scale=scale,
                output_dim=item.channels,
                group_size=item.pooled,
                pooled_size=item.pooled,
                part_size=item.pooled,
                sample_per_part=4,
                trans_std=0.1,
                out=out,
            )
        arguments = {"aligned": item.aligned, "position_sensitive": item.position_sensitive}
        return lambda r, x, out=None: nd.contrib.ROIAlign(
            x, r, size, scale, item.sampling_ratio, out=out, **arguments
        )

    def prepare(self, item: Item) -> Work:
        work = super().prepare(item)
        if item.operator == "RotatedROIAlign":  # it has no gradient
            return {way: function for way, function in work.items() if "backward" not in way}
        return work


class Torchvision(Library):
    """Its ps_roi_pool has another convention: nearly the same work, other bins."""

    name, modules = "torchvision", ("torchvision", "torch")

    def prepare(self, item: Item) -> Work:
        torch = importlib.import_module("torch")
        ops = importlib.import_module("torchvision.ops")
        if item.dtype == "float16":
            raise Unsupported("no float16 on the CPU")
        torch.set_num_threads(self.threads)
        x, r, d_out = (torch.from_numpy(a.astype(item.dtype)) for a in item.arrays())
        arguments: dict[str, Any] = {}
        if item.operator in ALIGN:
            arguments["sampling_ratio"] = item.sampling_ratio
        if item.operator == "ROIAlign":
            arguments["aligned"] = item.aligned
        names = {
            "ROIPool": ops.roi_pool,
            "ROIAlign": ops.roi_align,
            "PSROIPool": ops.ps_roi_pool,
            "PSROIAlign": ops.ps_roi_align,
        }
        function, scale = names[item.operator], 1 / item.stride
        recorded = x.clone().requires_grad_()

        def forward(data: Any) -> Any:
            with torch.no_grad():
                return function(data, r, (item.pooled,) * 2, scale, **arguments)

        def both(data: Any) -> Any:
            data.grad = None
            out = function(data, r, (item.pooled,) * 2, scale, **arguments)
            out.backward(d_out)
            return out

        between = torch.zeros(BETWEEN)
        made: list[Any] = []

        def others() -> None:
            between.add_(1)
            made[:] = [(x * 1).requires_grad_()]

        return {
            "forward": lambda: forward(x),
            "forward+backward": lambda: both(recorded),
            "forward in a network": (others, lambda: forward(made[0])),
            "forward+backward in a network": (others, lambda: both(made[0])),
            "result": lambda: forward(x).numpy(),
        }


class Paddle(Library):
    name, modules = "paddle", ("paddle",)
    operators = ("ROIPool", "ROIAlign", "PSROIPool")

    def prepare(self, item: Item) -> Work:
        paddle = importlib.import_module("paddle")
        ops = importlib.import_module("paddle.vision.ops")
        if item.dtype == "float16":
            raise Unsupported("no float16 on the CPU")
        if item.operator == "PSROIPool" and item.channels < 2:
            raise Unsupported("psroi_pool needs 2 output channels")
        paddle.set_device("cpu")
        x, r, d = (a.astype(item.dtype) for a in item.arrays())
        plain, recorded = paddle.to_tensor(x), paddle.to_tensor(x, stop_gradient=False)
        boxes, d_out = paddle.to_tensor(r[:, 1:]), paddle.to_tensor(d)
        counts = paddle.to_tensor(np.array([len(r)], np.int32))
        align = {"sampling_ratio": item.sampling_ratio, "aligned": item.aligned}
        arguments = align if item.operator == "ROIAlign" else {}
        names = {"ROIPool": ops.roi_pool, "ROIAlign": ops.roi_align, "PSROIPool": ops.psroi_pool}
        function, scale = names[item.operator], 1 / item.stride

        def forward(data: Any) -> Any:
            with paddle.no_grad():
                return function(data, boxes, counts, item.pooled, scale, **arguments)

        def both(data: Any) -> Any:
            data.clear_gradient()
            out = function(data, boxes, counts, item.pooled, scale, **arguments)
            paddle.autograd.backward([out], [d_out])
            return out

        between = paddle.zeros([BETWEEN])
        made: list[Any] = []

        def others() -> None:
            between.add_(paddle.ones([1]))
            made[:] = [plain * 1]
            made[0].stop_gradient = False

        return {
            "forward": lambda: forward(plain),
            "forward+backward": lambda: both(recorded),
            "forward in a network": (others, lambda: forward(made[0])),
            "forward+backward in a network": (others, lambda: both(made[0])),
            "result": lambda: forward(plain).numpy(),
        }


class Openvino(Library):
    """An inference engine: its output is always reused."""

    name, modules = "openvino", ("openvino",)
    operators = ("ROIPool", "ROIAlign", "PSROIPool")

    def prepare(self, item: Item) -> Work:
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


class Onnxruntime(Library):
    """An inference engine; memory of its output comes from an arena that is kept."""

    name, modules = "onnxruntime", ("onnxruntime", "onnx")
    operators = ("ROIPool", "ROIAlign")

    def prepare(self, item: Item) -> Work:
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


class Limit(Library):
    """Moves the bytes that a call must move: copies half as many, each read and written."""

    name, modules = "limit", ("numpy",)
    operators = None

    def prepare(self, item: Item) -> Work:
        moved = importlib.import_module("benchmarks.kernels").moved_bytes(item)
        source, target = (np.ones(max(moved.values()) // 2, np.int8) for _ in range(2))
        work: Work = {"bytes": moved}
        for way, count in moved.items():
            arrays = target[: count // 2], source[: count // 2]
            copy = functools.partial(np.copyto, *arrays)
            work[way] = (writing(arrays[1]), copy) if "network" in way else copy
        return work


LIBRARIES: dict[str, type[Library]] = {
    library.name: library
    for library in (GluonRoi, Mxnet, EveryLevel, Torchvision, Paddle, Openvino, Onnxruntime, Limit)
}
