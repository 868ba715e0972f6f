# SPDX-License-Identifier: Apache-2.0
"""ONNX's operators of opset 16 as functions of PyTorch.

A function takes an operator's inputs by position, and its attributes by keyword. An attribute that
it does not name is rejected when a file is converted; so is a value that the decorator does not
list. An input whose annotation is `Numbers` is a number or a list of Python, and `Bound` is one if
it is a constant of the file; `like`, where a function has it, is the first input of the model,
whose device new tensors are on.
"""

from __future__ import annotations

from typing import Any, Callable

import torch
import torchvision
from torch import Tensor
from torch.nn import functional as F

Numbers = Any
Bound = Any

#: Functions by the name of the operator.
OPERATORS: dict[str, Callable] = {
    "Abs": torch.abs,
    "Acos": torch.acos,
    "Add": torch.add,
    "And": torch.logical_and,
    "Asin": torch.asin,
    "Atan": torch.atan,
    "Ceil": torch.ceil,
    "Cos": torch.cos,
    "Equal": torch.eq,
    "Erf": torch.erf,
    "Exp": torch.exp,
    "Floor": torch.floor,
    "Less": torch.lt,
    "LessOrEqual": torch.le,
    "Log": torch.log,
    "MatMul": torch.matmul,
    "Mul": torch.mul,
    "Neg": torch.neg,
    "Not": torch.logical_not,
    "Or": torch.logical_or,
    "Pow": torch.pow,
    "Reciprocal": torch.reciprocal,
    "Relu": torch.relu,
    "Sigmoid": torch.sigmoid,
    "Sign": torch.sign,
    "Sin": torch.sin,
    "Softsign": F.softsign,
    "Sqrt": torch.sqrt,
    "Sub": torch.sub,
    "Tan": torch.tan,
    "Tanh": torch.tanh,
    "Where": torch.where,
    "Xor": torch.logical_xor,
}
#: For each function, the values of its attributes that it supports.
VALUES: dict[Callable, dict[str, tuple]] = {}


def operator(name: str, **values: tuple) -> Callable[[Callable], Callable]:
    """Decorator: the function of an operator, and the values of attributes that it supports."""

    def register(function: Callable) -> Callable:
        OPERATORS[name] = function
        VALUES[function] = values
        return function

    return register


# ---- Layers --------------------------------------------------------------------------------------


@operator("Conv", auto_pad=("NOTSET",))
def conv(
    data: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    kernel_shape: tuple,
    strides: tuple,
    pads: tuple,
    dilations: tuple,
    group: int,
) -> Tensor:
    convolve = (F.conv1d, F.conv2d, F.conv3d)[len(kernel_shape) - 1]
    data, padding = _padded(data, pads)
    return convolve(data, weight, bias, strides, padding, dilations, group)


@operator("ConvTranspose")
def conv_transpose(
    data: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    kernel_shape: tuple,
    strides: tuple,
    pads: tuple,
    dilations: tuple,
    output_padding: tuple,
    group: int,
) -> Tensor:
    functions = F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d
    convolve = functions[len(kernel_shape) - 1]
    padding = pads[: len(kernel_shape)]  # the exporter writes the same ones at both ends
    return convolve(data, weight, bias, strides, padding, output_padding, group, dilations)


def _padded(data: Tensor, pads: tuple) -> tuple[Tensor, tuple]:
    """The data, and the padding left for the layer: none where both ends differ."""
    begin, end = pads[: len(pads) // 2], pads[len(pads) // 2 :]
    if begin == end:
        return data, begin
    return F.pad(data, _ends(pads)), (0,) * len(begin)


def _ends(pads: tuple) -> list:
    """The pads of a layer in the order of F.pad."""
    half = len(pads) // 2
    return _from_last(pads[:half], pads[half:])


def _from_last(begin: Any, end: Any) -> list:
    """Padding in the order of F.pad: both ends of the last axis, of the one before it, ..."""
    return [n for pair in zip(reversed(begin), reversed(end)) for n in pair]


@operator("MaxPool")
def max_pool(
    data: Tensor, *, kernel_shape: tuple, strides: tuple, pads: tuple, ceil_mode: int = 0
) -> Tensor:
    pool = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[len(kernel_shape) - 1]
    half = len(pads) // 2
    padding: Any = pads[:half]
    # PyTorch pads both ends alike, by at most half a kernel.
    is_large = any(2 * pad > kernel for pad, kernel in zip(padding, kernel_shape))
    if padding != pads[half:] or is_large:
        data, padding = F.pad(data, _ends(pads), value=torch.finfo(data.dtype).min), 0
    return pool(data, kernel_shape, strides, padding, ceil_mode=bool(ceil_mode))


@operator("AveragePool")
def average_pool(
    data: Tensor, *, kernel_shape: tuple, strides: tuple, pads: tuple, count_include_pad: int = 0
) -> Tensor:
    pool = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[len(kernel_shape) - 1]
    if not any(pads):
        return pool(data, kernel_shape, strides)
    ends = _ends(pads)
    means = pool(F.pad(data, ends), kernel_shape, strides)
    if count_include_pad:
        return means
    inside = F.pad(torch.ones_like(data[:1, :1]), ends)
    return means / pool(inside, kernel_shape, strides)


@operator("GlobalAveragePool")
def global_average_pool(data: Tensor) -> Tensor:
    return data.mean(tuple(range(2, data.dim())), keepdim=True)


@operator("GlobalMaxPool")
def global_max_pool(data: Tensor) -> Tensor:
    return data.amax(tuple(range(2, data.dim())), keepdim=True)


@operator("BatchNormalization")
class BatchNormalization(torch.nn.Module):
    """Batch normalization; with ``train()`` it uses and updates the statistics of the batch.

    The numbers belong to the model, under their Gluon names.
    """

    def __init__(self, *, epsilon: float = 1e-5, momentum: float = 0.9) -> None:
        super().__init__()
        self.epsilon, self.momentum = epsilon, momentum

    def forward(
        self, data: Tensor, gamma: Tensor, beta: Tensor, mean: Tensor, variance: Tensor
    ) -> Tensor:
        share = 1 - self.momentum  # PyTorch's momentum is that of the batch
        return F.batch_norm(data, mean, variance, gamma, beta, self.training, share, self.epsilon)


@operator("InstanceNormalization")
def instance_normalization(
    data: Tensor, gamma: Tensor, beta: Tensor, *, epsilon: float = 1e-5
) -> Tensor:
    # F.instance_norm rejects maps of one cell.
    return torch.instance_norm(data, gamma, beta, None, None, True, 0.0, epsilon, False)


@operator("LRN")
def lrn(data: Tensor, *, size: int, alpha: float, beta: float, bias: float) -> Tensor:
    return F.local_response_norm(data, size, alpha, beta, bias)


@operator("Gemm")
def gemm(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Tensor:
    if (alpha, beta, transA, transB) == (1, 1, 0, 1) and (c is None or c.dim() == 1):
        return F.linear(a, b, c)
    product = alpha * ((a.t() if transA else a) @ (b.t() if transB else b))
    return product if c is None else product + beta * c


# ---- Activations ---------------------------------------------------------------------------------


@operator("Elu")
def elu(data: Tensor, *, alpha: float = 1.0) -> Tensor:
    return F.elu(data, alpha)


@operator("LeakyRelu")
def leaky_relu(data: Tensor, *, alpha: float = 0.01) -> Tensor:
    return F.leaky_relu(data, alpha)


@operator("PRelu")
def prelu(data: Tensor, slope: Tensor) -> Tensor:
    return torch.where(data < 0, slope * data, data)


@operator("Selu")
def selu(data: Tensor, *, alpha: float = 1.67326, gamma: float = 1.0507) -> Tensor:
    return gamma * F.elu(data, alpha)


@operator("HardSigmoid")
def hard_sigmoid(data: Tensor, *, alpha: float = 0.2, beta: float = 0.5) -> Tensor:
    return (alpha * data + beta).clamp(0, 1)


@operator("Softplus")
def softplus(data: Tensor) -> Tensor:
    return torch.logaddexp(data, torch.zeros_like(data))


@operator("Softmax")
def softmax(data: Tensor, *, axis: int = -1) -> Tensor:
    return data.softmax(axis)


@operator("LogSoftmax")
def log_softmax(data: Tensor, *, axis: int = -1) -> Tensor:
    return data.log_softmax(axis)


# ---- Elementwise ---------------------------------------------------------------------------------

#: TensorProto.DataType -> dtype
_DTYPES = {
    1: torch.float32,
    2: torch.uint8,
    3: torch.int8,
    6: torch.int32,
    7: torch.int64,
    9: torch.bool,
    10: torch.float16,
    11: torch.float64,
}


@operator("Cast", to=tuple(_DTYPES))
def cast(data: Tensor, *, to: int) -> Tensor:
    return data.to(_DTYPES[to])


@operator("Clip")
def clip(data: Tensor, low: Bound = None, high: Bound = None) -> Tensor:
    # At a bound, the gradient is 1 for numbers, as in MXNet, but 0.5 for tensors.
    if low is not None:
        data = data.clamp(min=low)
    return data if high is None else data.clamp(max=high)


@operator("Div")
def div(a: Tensor, b: Tensor) -> Tensor:
    return a / b if a.is_floating_point() else torch.div(a, b, rounding_mode="trunc")


@operator("Mod")
def mod(a: Tensor, b: Tensor, *, fmod: int = 0) -> Tensor:
    return torch.fmod(a, b) if fmod else torch.remainder(a, b)


@operator("Max")
def maximum(first: Tensor, *others: Tensor) -> Tensor:
    for other in others:
        first = torch.maximum(first, other)
    return first


@operator("Min")
def minimum(first: Tensor, *others: Tensor) -> Tensor:
    for other in others:
        first = torch.minimum(first, other)
    return first


@operator("Sum")
def add_all(first: Tensor, *others: Tensor) -> Tensor:
    for other in others:
        first = first + other
    return first


@operator("CumSum", exclusive=(0,), reverse=(0,))
def cumsum(data: Tensor, axis: Numbers, *, exclusive: int = 0, reverse: int = 0) -> Tensor:
    return data.cumsum(axis, dtype=data.dtype)


# ---- Reductions ----------------------------------------------------------------------------------


def _axes(data: Tensor, axes: Any) -> tuple:
    return tuple(range(data.dim())) if axes is None else tuple(axes)


@operator("ReduceMax")
def reduce_max(data: Tensor, *, axes: tuple | None = None, keepdims: int = 1) -> Tensor:
    return data.amax(_axes(data, axes), bool(keepdims))


@operator("ReduceMin")
def reduce_min(data: Tensor, *, axes: tuple | None = None, keepdims: int = 1) -> Tensor:
    return data.amin(_axes(data, axes), bool(keepdims))


@operator("ReduceMean")
def reduce_mean(data: Tensor, *, axes: tuple | None = None, keepdims: int = 1) -> Tensor:
    return data.mean(_axes(data, axes), bool(keepdims))


@operator("ReduceL2")
def reduce_l2(data: Tensor, *, axes: tuple | None = None, keepdims: int = 1) -> Tensor:
    return torch.linalg.vector_norm(data, dim=_axes(data, axes), keepdim=bool(keepdims))


@operator("ReduceProd")
def reduce_prod(data: Tensor, *, axes: tuple | None = None, keepdims: int = 1) -> Tensor:
    # From the last axis, so that removing it does not renumber the others.
    for axis in sorted((axis % data.dim() for axis in _axes(data, axes)), reverse=True):
        data = data.prod(axis, bool(keepdims), dtype=data.dtype)
    return data


@operator("ReduceSum", noop_with_empty_axes=(0,))
def reduce_sum(
    data: Tensor, axes: Numbers = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
) -> Tensor:
    return data.sum(_axes(data, axes or None), bool(keepdims), dtype=data.dtype)


@operator("ArgMax", select_last_index=(0,))
def arg_max(
    data: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0
) -> Tensor:
    return _arg(torch.argmax, data, axis, bool(keepdims))


@operator("ArgMin", select_last_index=(0,))
def arg_min(
    data: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0
) -> Tensor:
    return _arg(torch.argmin, data, axis, bool(keepdims))


def _arg(function: Callable, data: Tensor, axis: int, keepdim: bool) -> Tensor:
    if data.shape[axis] == 0:  # PyTorch rejects the axis, even if the result is empty
        return data.sum(axis, keepdim).long()
    return function(data, axis, keepdim)


@operator("TopK")
def top_k(
    data: Tensor, k: Numbers, *, axis: int = -1, largest: int = 1, sorted: int = 1
) -> tuple[Tensor, Tensor]:
    # Of equal values the first comes first; torch.topk does not say which.
    values, indices = data.sort(dim=axis, descending=bool(largest), stable=True)
    (size,) = k
    return values.narrow(axis, 0, size), indices.narrow(axis, 0, size)


# ---- Shapes --------------------------------------------------------------------------------------


@operator("Identity")
def identity(data: Tensor) -> Tensor:
    return data


@operator("Reshape")
def reshape(data: Tensor, shape: Numbers, *, allowzero: int = 0) -> Tensor:
    if not allowzero:
        shape = [
            data.shape[axis] if isinstance(size, int) and size == 0 else size
            for axis, size in enumerate(shape)
        ]
    return data.reshape(shape)


@operator("Flatten")
def flatten(data: Tensor, *, axis: int = 1) -> Tensor:
    rows, columns = 1, 1
    for size in data.shape[:axis]:
        rows = rows * size
    for size in data.shape[axis:]:
        columns = columns * size
    return data.reshape(rows, columns)


@operator("Transpose")
def transpose(data: Tensor, *, perm: tuple) -> Tensor:
    return data.permute(perm)


@operator("Squeeze")
def squeeze(data: Tensor, axes: Numbers = None) -> Tensor:
    return data.squeeze() if axes is None else data.squeeze(tuple(axes))


@operator("Unsqueeze")
def unsqueeze(data: Tensor, axes: Numbers) -> Tensor:
    rank = data.dim() + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        data = data.unsqueeze(axis)
    return data


@operator("Expand")
def expand(data: Tensor, shape: Numbers) -> Tensor:
    return torch.broadcast_tensors(data, data.new_empty(1).expand(shape))[0]


@operator("Tile")
def tile(data: Tensor, repeats: Numbers) -> Tensor:
    return data.repeat(repeats)


@operator("Concat")
def concat(*parts: Tensor, axis: int) -> Tensor:
    return torch.cat(parts, axis)


@operator("Split")
def split(data: Tensor, sizes: Numbers, *, axis: int = 0) -> tuple[Tensor, ...]:
    return torch.split(data, sizes, axis)


@operator("Slice")
def slice_axes(
    data: Tensor, starts: Numbers, ends: Numbers, axes: Numbers = None, steps: Numbers = None
) -> Tensor:
    axes = range(len(starts)) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    for start, end, axis, step in zip(starts, ends, axes, steps):
        if step > 0:
            index = [slice(None)] * data.dim()
            index[axis] = slice(start, end, step)
            data = data[tuple(index)]
        else:
            cells = range(*slice(start, end, step).indices(data.shape[axis]))
            data = data.index_select(axis, torch.tensor(list(cells), device=data.device).long())
    return data


@operator("Pad", mode=("constant", "reflect", "edge"))
def pad(data: Tensor, pads: Numbers, value: Numbers = 0.0, *, mode: str = "constant") -> Tensor:
    rank = data.dim()
    begin, end = pads[:rank], pads[rank:]
    if mode == "constant":
        return F.pad(data, _from_last(begin, end), value=value)
    # PyTorch's other modes take the spatial axes only.
    ends = _from_last(begin[2:], end[2:])
    return F.pad(data, ends, mode={"reflect": "reflect", "edge": "replicate"}[mode])


@operator("Range")
def arange(start: Numbers, limit: Numbers, delta: Numbers, *, like: Any = None) -> Tensor:
    return torch.arange(start, limit, delta, device=None if like is None else like.device)


@operator("DepthToSpace", mode=("DCR", "CRD"))
def depth_to_space(data: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    if mode == "DCR":  # the rows and columns of a block come before the channels
        data = data.unflatten(1, (blocksize**2, -1)).transpose(1, 2).flatten(1, 2)
    return F.pixel_shuffle(data, blocksize)


@operator("SpaceToDepth")
def space_to_depth(data: Tensor, *, blocksize: int) -> Tensor:
    channels = data.shape[1]
    found = F.pixel_unshuffle(data, blocksize)
    return found.unflatten(1, (channels, blocksize**2)).transpose(1, 2).flatten(1, 2)


# ---- Indexing ------------------------------------------------------------------------------------


def _from_start(indices: Tensor, size: Any) -> Tensor:
    """Indices that count from the start; ONNX's may be negative."""
    return torch.where(indices < 0, indices + size, indices).long()


@operator("Gather")
def gather(data: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    axis %= data.dim()
    flat = _from_start(indices.reshape(-1), data.shape[axis])
    shape = [*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :]]
    return data.index_select(axis, flat).reshape(shape)


@operator("GatherElements")
def gather_elements(data: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    return data.gather(axis, _from_start(indices, data.shape[axis]))


@operator("GatherND", batch_dims=(0,))
def gather_nd(data: Tensor, indices: Tensor, *, batch_dims: int = 0) -> Tensor:
    return data[indices.unbind(-1)]


@operator("ScatterND", reduction=("none", "add"))
def scatter_nd(
    data: Tensor, indices: Tensor, updates: Tensor, *, reduction: str = "none"
) -> Tensor:
    return data.index_put(indices.unbind(-1), updates, accumulate=reduction == "add")


@operator("NonZero")
def non_zero(data: Tensor) -> Tensor:
    return data.nonzero().t()


@operator("Unique", sorted=(1,))
def unique(data: Tensor, *, sorted: int = 1) -> Tensor:
    return torch.unique(data, sorted=True)


# ---- Boxes and sampling --------------------------------------------------------------------------


@operator("NonMaxSuppression", center_point_box=(0,))
def non_max_suppression(
    boxes: Tensor,
    scores: Tensor,
    max_output: Numbers = 0,
    iou_threshold: Numbers = 0.0,
    score_threshold: Numbers = None,
    *,
    center_point_box: int = 0,
) -> Tensor:
    """Rows (image, class, box) of the boxes that are kept, int64."""
    (limit,), (overlap,) = _vector(max_output), _vector(iou_threshold)
    low = torch.minimum(boxes[..., :2], boxes[..., 2:])
    high = torch.maximum(boxes[..., :2], boxes[..., 2:])
    corners = torch.cat([low, high], -1)
    lowest = -torch.inf if score_threshold is None else _vector(score_threshold)[0]
    # The number of classes may be known only at run time, and torch.export cannot follow a loop
    # over it.
    is_known = isinstance(scores.shape[0] * scores.shape[1], int)
    suppress = _suppress_each if is_known else _suppress_together
    return suppress(corners, scores, limit, overlap, lowest)


def _suppress_each(
    corners: Tensor, scores: Tensor, limit: int, overlap: float, lowest: float
) -> Tensor:
    """Suppression of one class after the other."""
    found = [scores.new_empty((0, 3), dtype=torch.int64)]
    for image in range(scores.shape[0]):
        for class_id in range(scores.shape[1]):
            score = scores[image, class_id]
            rows = (score > lowest).nonzero()[:, 0]
            kept = torchvision.ops.nms(corners[image][rows], score[rows], overlap)
            rows = rows[kept[:limit]]
            place = torch.full_like(rows, image), torch.full_like(rows, class_id)
            found.append(torch.stack([*place, rows], 1))
    return torch.cat(found)


def _suppress_together(
    corners: Tensor, scores: Tensor, limit: int, overlap: float, lowest: float
) -> Tensor:
    """Suppression of all classes in one call, with their boxes shifted apart.

    In float64, so that shifted boxes overlap as before; an overlap is rounded otherwise than in
    float32, which decides if it is within 1e-7 of the threshold.
    """
    rows = (scores > lowest).nonzero()
    image, class_id, box = rows.unbind(1)
    group = image * scores.shape[1] + class_id
    span = corners.amax().double() - corners.amin() + 1
    shifted = corners[image, box].double() + (group * span)[:, None]
    kept = torchvision.ops.nms(shifted, scores[image, class_id, box].double(), overlap)
    kept = kept[group[kept].sort(stable=True)[1]]
    first = torch.searchsorted(group[kept], group[kept])
    rank = torch.arange(kept.shape[0], device=kept.device) - first
    return rows[kept[rank < limit]]


def _vector(value: Any) -> list:
    return value if isinstance(value, list) else [value]


@operator(
    "RoiAlign",
    mode=("avg",),
    coordinate_transformation_mode=("half_pixel", "output_half_pixel"),
)
def roi_align(
    data: Tensor,
    rois: Tensor,
    images: Tensor,
    *,
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
    mode: str = "avg",
    coordinate_transformation_mode: str = "half_pixel",
) -> Tensor:
    rows = torch.cat([images[:, None].to(rois.dtype), rois], 1)
    size = output_height, output_width
    aligned = coordinate_transformation_mode == "half_pixel"
    return torchvision.ops.roi_align(data, rows, size, spatial_scale, sampling_ratio, aligned)


@operator("MaxRoiPool")
def max_roi_pool(
    data: Tensor, rois: Tensor, *, pooled_shape: tuple, spatial_scale: float = 1.0
) -> Tensor:
    return torchvision.ops.roi_pool(data, rois, pooled_shape, spatial_scale)


@operator("GridSample")
def grid_sample(
    data: Tensor,
    grid: Tensor,
    *,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: int = 0,
) -> Tensor:
    return F.grid_sample(data, grid, mode, padding_mode, bool(align_corners))


@operator(
    "Resize",
    mode=("nearest", "linear"),
    coordinate_transformation_mode=("asymmetric", "align_corners", "pytorch_half_pixel"),
    nearest_mode=("floor",),
)
def resize(
    data: Tensor,
    roi: Tensor | None,
    scales: Numbers = None,
    sizes: Numbers = None,
    *,
    mode: str,
    coordinate_transformation_mode: str,
    nearest_mode: str = "floor",
) -> Tensor:
    factors = {} if scales is None else {"scale_factor": tuple(scales[2:])}
    size = None if sizes is None else tuple(sizes[2:])
    if mode == "nearest":
        return F.interpolate(data, size, **factors, mode="nearest")
    linear = {3: "linear", 4: "bilinear", 5: "trilinear"}[data.dim()]
    corners = coordinate_transformation_mode == "align_corners"
    return F.interpolate(data, size, **factors, mode=linear, align_corners=corners)
