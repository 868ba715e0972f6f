"""The RoI operators, this package's and MXNet's own, in ONNX.

What a node needs of its boxes is computed in the graph by the formulas of the operators, in the
same order of operations: which rows are padding, and for all but ROIAlign the box of every bin. The
pooling itself is MaxRoiPool or RoiAlign over *bins*: each bin is a RoI of its own with one bin, on
whole cells (ROIPool, PSROIPool) or bilinear samples (PSROIAlign); of position-sensitive operators
the groups of score maps become images. ROIAlign is RoiAlign, but for boxes whose number of samples
that operator counts in another way; PyramidROIAlign is that for the boxes of each map. Where the
samples of a bin are no upright grid (RotatedROIAlign), or some do not count (DeformablePSROIPool),
each sample is a RoI. PrROIPool is a product of matrices.

An operator is a function in TRANSLATIONS: (graph, node) -> name of its output.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .graph import Graph, Node

#: Map coordinates beyond it are brought back to it, as in the kernels.
_FARTHEST = 1e30


# ---- Rows ----------------------------------------------------------------------------------------


class _Rows(NamedTuple):
    """Decoded RoIs; rows without a result have image 0 and a box of zeros."""

    image: str  # (K,) int64
    box: str  # (K, 4), the type of the geometry
    valid: str  # (K,) bool
    fill: str  # (K,), what rows without a result are filled with: 0, or NaN
    rows: str  # (1,), K


def _rows(g: Graph, node: Node, geometry: Any, coordinates: int = 4) -> _Rows:
    data, rois, *counts = node.inputs
    beyond_is_padding = node.get("bad_index", "error") == "padding"
    node.get("rois_num")
    given = np.promote_types(node.dtypes[1], np.float32)
    rois = g.cast(rois, given) if given != node.dtypes[1] else rois
    images = g.shape(data, 0, 1)
    if len(node.shapes[1]) == 3:
        per_image = g.shape(rois, 1, 2)
        box = g.reshape(rois, g("Mul", images, per_image), coordinates)
        count = g.shape(box, 0, 1)
        column = g.reshape(_range(g, images), -1, 1)
        index = g.reshape(g("Expand", column, g.joined(images, per_image)), -1)
    elif counts:
        box, count = rois, g.shape(rois, 0, 1)
        ends = g("CumSum", g.cast(counts[0], np.int64), np.array(0))
        row = g.reshape(_range(g, count), -1, 1)
        passed = g.cast(g("GreaterOrEqual", row, g("Unsqueeze", ends, np.array([0]))), np.int64)
        index = g("ReduceSum", passed, np.array([1]), keepdims=0)
    else:
        box, count = g.columns(rois, 1, 1 + coordinates), g.shape(rois, 0, 1)
        index = g("Squeeze", g.columns(rois, 0, 1), np.array([1]))
    number = np.int64 if len(node.shapes[1]) == 3 or counts else given
    zero, size = np.array(0, number), g.cast(images, number)
    padding = g("Less", index, zero)
    inside = g("Less", index, size)
    if number != np.int64:
        whole = g("Equal", g("Floor", index), index)
        if beyond_is_padding:
            padding = g("Or", padding, g("And", whole, g("GreaterOrEqual", index, size)))
        inside = g("And", inside, whole)
    elif beyond_is_padding:
        padding = g("Or", padding, g("GreaterOrEqual", index, size))
    finite = _is_finite(g, box, given)
    finite = g("ReduceMin", g.cast(finite, np.int32), axes=[1], keepdims=0)
    valid = g("And", g("And", inside, g("Not", padding)), g.cast(finite, np.bool_))
    box = g("Where", g("Unsqueeze", valid, np.array([1])), box, np.array(0, given))
    box = g.cast(box, geometry) if given != geometry else box
    image = g.cast(g("Where", valid, index, zero), np.int64)
    fill = g("Where", padding, np.array(0, geometry), np.array(np.nan, geometry))
    return _Rows(image, box, valid, fill, count)


def _is_finite(g: Graph, value: str, dtype: Any) -> str:
    return g("Less", g("Abs", value), np.array(np.inf, dtype))


def _range(g: Graph, end: str) -> str:
    """0, 1, ... below a vector of one element."""
    return g("Range", np.array(0), g.scalar(end), np.array(1))


def _axes(g: Graph, box: str) -> list[tuple[str, str]]:
    """(low, high) edges of the boxes, (K, 1) each, along y and x."""
    x1, y1, x2, y2 = g("Split", box, np.array([1, 1, 1, 1]), axis=1, outputs=4)
    return [(y1, y2), (x1, x2)]


def _finish(g: Graph, node: Node, rows: _Rows, out: str, computed: Any) -> str:
    """Fill the rows without a result; give the type of the data."""
    four = np.array([1, 2, 3])
    fill = rows.fill
    if node.dtype == np.float64 and computed == np.float64:
        fill = g.cast(fill, np.float64)
    out = g("Where", g("Unsqueeze", rows.valid, four), out, g("Unsqueeze", fill, four))
    return out if computed == node.dtype else g.cast(out, node.dtype)


def _data(g: Graph, node: Node, number: int = 0) -> tuple[str, Any]:
    """A map, in the type that it is pooled in, and that type."""
    computed = np.float64 if node.dtype == np.float64 else np.float32
    data = node.inputs[number]
    return (data if node.dtype == computed else g.cast(data, computed)), computed


# ---- Bins as RoIs --------------------------------------------------------------------------------


def _bin_boxes(g: Graph, low: list[str], high: list[str], pooled: tuple, count: str) -> str:
    """Boxes (K * P * Q, 4) of the bins, from edges (K, P) along y and (K, Q) along x."""
    shape = g.joined(count, pooled[0], pooled[1], 1)
    edges = []
    for edge in (low, high):
        y, x = g("Unsqueeze", edge[0], np.array([2, 3])), g("Unsqueeze", edge[1], np.array([1, 3]))
        edges += [g("Expand", x, shape), g("Expand", y, shape)]
    return g.reshape(
        g("Concat", *edges, axis=3), g("Mul", count, np.array(pooled[:1]) * pooled[1]), 4
    )


def _parts_of_bins(pooled: tuple, grid: tuple) -> tuple[np.ndarray, np.ndarray]:
    """Of a grid over the box, the row that each row of bins is in, and the column."""
    p, q = (np.arange(bins) * parts // bins for bins, parts in zip(pooled, grid))
    return p, q


def _bin_images(g: Graph, image: str, pooled: tuple, group: tuple, count: str) -> str:
    """Index of the image of every bin, (K * P * Q,): an image is group[0] * group[1] images."""
    p, q = _parts_of_bins(pooled, group)
    index = g("Mul", g("Unsqueeze", image, np.array([1, 2])), np.array(group[0] * group[1]))
    index = g("Add", index, (p[:, None] * group[1] + q)[None])
    return g.reshape(index, g("Mul", count, np.array([pooled[0] * pooled[1]])))


def _group_images(g: Graph, data: str, dim: int, groups: int) -> str:
    """Score maps (N, dim * groups, H, W) as images (N * groups, dim, H, W)."""
    if groups == 1:
        return data
    size = g.shape(data, 2, 4)
    apart = g.reshape(data, g.shape(data, 0, 1), dim, groups, size)
    number = g("Mul", g.shape(data, 0, 1), np.array([groups]))
    return g.reshape(g("Transpose", apart, perm=[0, 2, 1, 3, 4]), number, dim, size)


def _join_bins(g: Graph, bins: str, count: str, pooled: tuple, dim: int) -> str:
    """(K * P * Q, dim, 1, 1) to (K, dim, P, Q)."""
    return g("Transpose", g.reshape(bins, count, pooled[0], pooled[1], dim), perm=[0, 3, 1, 2])


def _pooled(node: Node) -> tuple[int, int]:
    size = node.sizes("pooled_size")
    return (size[0], size[0]) if len(size) == 1 else (size[0], size[1])


def _grid(node: Node, name: str, pooled: tuple[int, int]) -> tuple[int, int]:
    """An attribute that is the pooled size if it is not given."""
    size = node.sizes(name, pooled)
    return size[0], size[-1]


# ---- ROIPool, PSROIPool --------------------------------------------------------------------------


def _round(g: Graph, value: str, dtype: Any = np.float32) -> str:
    """Half away from zero; Round rounds to even."""
    size = g("Abs", value)
    down = g("Floor", size)
    up = g("GreaterOrEqual", g("Sub", size, down), np.array(0.5, dtype))
    return g("Mul", g("Add", down, g.cast(up, dtype)), g("Sign", value))


def _rounded(g: Graph, value: str, dtype: Any = np.float32) -> str:
    """The value, rounded to its type whatever follows.

    OpenVINO fuses a product with the sum that it is a term of, and multiplies sums out; a limit in
    between, beyond all that occurs, prevents both.
    """
    return g("Clip", value, np.array(-3e38, dtype), np.array(3e38, dtype))


def _product(g: Graph, a: Any, b: Any, dtype: Any = np.float32) -> str:
    return _rounded(g, g("Mul", a, b), dtype)


def _quotient(g: Graph, value: str, divisor: Any, dtype: Any = np.float32) -> str:
    """value / divisor rounded as IEEE has it, for a divisor that is a whole number up to 4096.

    OpenVINO multiplies by the reciprocal, which may be the neighbouring number. So the remainder is
    computed, without an error since the quotient is split in two halves (Dekker 1971), and divided
    in turn.
    """
    first = g("Div", value, divisor)
    scaled = _product(
        g, first, np.array(2 ** (12 if dtype == np.float32 else 27) + 1, dtype), dtype
    )
    high = g("Sub", scaled, g("Sub", scaled, first))
    low = g("Sub", first, high)
    rest = g("Sub", g("Sub", value, g("Mul", divisor, high)), g("Mul", divisor, low))
    return g("Add", first, g("Div", rest, divisor))


def _saturate(g: Graph, value: str, dtype: Any = np.float32) -> str:
    return g("Clip", value, np.array(-_FARTHEST, dtype), np.array(_FARTHEST, dtype))


def _cells(
    g: Graph, rule: str, low: str, high: str, scale: float, bins: int, size: str
) -> tuple[str, str]:
    """First cell and end of every bin along one axis, (K, bins) each: core/geometry/bins.h."""
    s, one = np.float32(scale), np.float32(1)
    if rule == "rfcn":
        start = _saturate(g, g("Mul", _round(g, low), s))
        end = _saturate(g, g("Mul", _rounded(g, g("Add", _round(g, high), one)), s))
        length = g("Max", g("Sub", end, start), np.float32(0.1))
    else:
        start = _saturate(g, _round(g, g("Mul", low, s)))
        length = g("Sub", _saturate(g, _round(g, g("Mul", high, s))), start)
        length = g("Add", length, one) if rule == "roi_pool" else length
        length = g("Max", length, one)
    each = _quotient(g, length, np.float32(bins))
    last = g.cast(size, np.float32)
    last = g("Sub", last, one) if rule == "torchvision" else last
    edges = []
    for first, rounding in ((0, "Floor"), (1, "Ceil")):
        offset = _product(g, each, np.arange(first, bins + first, dtype=np.float32)[None])
        if rule == "rfcn":
            edge = g(rounding, g("Add", offset, start))
        else:
            edge = g("Add", g(rounding, offset), start)
        edges.append(g("Min", g("Max", edge, np.float32(0)), last))
    return edges[0], edges[1]


def _pool_cells(g: Graph, node: Node, rule: str, dim: int, group: tuple[int, int]) -> str:
    pooled, scale = _pooled(node), float(node.get("spatial_scale"))
    rows = _rows(g, node, np.float32)
    data, computed = _data(g, node)
    axes = [
        _cells(g, rule, low, high, scale, bins, g.shape(data, 2 + axis, 3 + axis))
        for axis, ((low, high), bins) in enumerate(zip(_axes(g, rows.box), pooled))
    ]
    low, high = [axis[0] for axis in axes], [axis[1] for axis in axes]
    images = _bin_images(g, rows.image, pooled, group, rows.rows)
    if rule == "roi_pool":
        # The end of a box of MaxRoiPool is its last cell.
        high = [g("Sub", edge, np.float32(1)) for edge in high]
        boxes = _bin_boxes(g, low, high, pooled, rows.rows)
        rois = g("Concat", g("Unsqueeze", g.cast(images, np.float32), np.array([1])), boxes, axis=1)
        bins = g("MaxRoiPool", data, rois, pooled_shape=[1, 1], spatial_scale=1.0)
        # The search of the kernels starts at the lowest number of the type.
        bins = g("Max", bins, np.float32(np.finfo(node.dtype).min))
        empty = [g("Less", upper, lower) for lower, upper in zip(low, high)]
    else:
        boxes = _bin_boxes(g, low, high, pooled, rows.rows)
        boxes = boxes if computed == np.float32 else g.cast(boxes, computed)
        # One sample a cell, in its centre.
        bins = _align(
            g, _group_images(g, data, dim, group[0] * group[1]), boxes, images, computed, 1, True
        )
        empty = [g("LessOrEqual", upper, lower) for lower, upper in zip(low, high)]
    none = g(
        "Or", g("Unsqueeze", empty[0], np.array([1, 3])), g("Unsqueeze", empty[1], np.array([1, 2]))
    )
    out = g("Where", none, np.array(0, computed), _join_bins(g, bins, rows.rows, pooled, dim))
    return _finish(g, node, rows, out, computed)


def roi_pool(g: Graph, node: Node) -> str:
    if node.dtype == np.float64:
        raise node.refusal(
            "float64 data have no translation: MaxRoiPool of the runtimes is float32"
        )
    return _pool_cells(g, node, "roi_pool", node.shapes[0][1], (1, 1))


def ps_roi_pool(g: Graph, node: Node) -> str:
    node.get("output_dim")
    pooled = _pooled(node)
    group = _grid(node, "group_size", pooled)
    rule = node.get("convention", "rfcn")
    return _pool_cells(g, node, rule, node.out_shapes[0][1], group)


# ---- ROIAlign, PSROIAlign ------------------------------------------------------------------------


def _align(
    g: Graph,
    data: str,
    boxes: str,
    images: str,
    computed: Any,
    scale: float,
    aligned: bool,
    pooled: tuple[int, int] = (1, 1),
    sampling_ratio: int = -1,
) -> str:
    """RoiAlign; the scale is applied beforehand where its float32 would not do."""
    if computed == np.float64 and scale != 1:
        boxes, scale = g("Mul", boxes, np.float64(scale)), 1
    return g(
        "RoiAlign",
        data,
        boxes,
        images,
        coordinate_transformation_mode="half_pixel" if aligned else "output_half_pixel",
        mode="avg",
        output_height=pooled[0],
        output_width=pooled[1],
        sampling_ratio=max(sampling_ratio, 0),
        spatial_scale=float(scale),
    )


class _SampleAxis(NamedTuple):
    """One axis of the boxes split into bins, (K, 1) each: core/geometry/samples.h."""

    start: str
    length: str
    bin: str


def _on_map(g: Graph, value: str, scale: float, aligned: bool, dtype: Any) -> str:
    """The map coordinate of an image coordinate."""
    value = _product(g, value, np.array(scale, dtype), dtype)
    return _saturate(g, g("Sub", value, np.array(0.5, dtype)) if aligned else value, dtype)


def _sample_axis(
    g: Graph, low: str, high: str, scale: float, aligned: bool, bins: int, dtype: Any
) -> _SampleAxis:
    start, end = (_on_map(g, edge, scale, aligned, dtype) for edge in (low, high))
    length = g("Sub", end, start)
    if not aligned:
        length = g("Max", length, np.array(1, dtype))
    return _SampleAxis(start, length, _quotient(g, length, np.array(bins, dtype), dtype))


def _bases(g: Graph, start: str, bin_size: str, bins: int, dtype: Any) -> str:
    """Where the bins along an axis begin, (K, bins)."""
    offset = _product(g, np.arange(bins, dtype=dtype)[None], bin_size, dtype)
    return g("Add", start, offset)


def _positions(g: Graph, base: str, bin_size: str, samples: int, dtype: Any) -> str:
    """Where the samples of bins that begin at `base` lie, (K, bins, samples)."""
    inside = (np.arange(samples, dtype=dtype) + dtype(0.5))[None]
    offset = _product(g, inside, bin_size, dtype)
    offset = _quotient(g, offset, np.array(samples, dtype), dtype)
    return g("Add", g("Unsqueeze", base, np.array([2])), g("Unsqueeze", offset, np.array([1])))


def _away_from_limits(
    g: Graph, base: str, axis: _SampleAxis, samples: int, cells: str, margin: str, dtype: Any
) -> str:
    """How far to move bins of which a sample lies so near to a limit of the map, -1 or its size,
    that rounding decides on which side, (K, bins)."""
    position = _positions(g, base, axis.bin, samples, dtype)
    moves = []
    for limit, comparison in ((np.array(-1, dtype), "GreaterOrEqual"), (cells, "LessOrEqual")):
        near = g("Less", g("Abs", g("Sub", position, limit)), margin)
        inward = margin if comparison == "GreaterOrEqual" else g("Neg", margin)
        move = g("Where", g(comparison, position, limit), inward, g("Neg", inward))
        moves.append(g("Where", near, move, np.array(0, dtype)))
    total = g("ReduceSum", g("Add", *moves), np.array([2]), keepdims=0)
    return g("Max", g("Min", total, margin), g("Neg", margin))


def _bins_along(
    g: Graph, axis: _SampleAxis, bins: int, sampling_ratio: int, size: str, dtype: Any
) -> tuple[str, str, str | None]:
    """Boxes of the bins along an axis for RoiAlign, low and high edge, (K, bins) each.

    With an adaptive number of samples they cover those samples that may lie on the map, so that
    the work is bounded however large the box; what remains to be multiplied is the third result.
    """

    def number(value: float) -> np.ndarray:
        return np.array(value, dtype)

    half = number(0.5)
    base = _bases(g, axis.start, axis.bin, bins, dtype)
    cells = g.cast(size, dtype)
    # More than the edges of a bin differ from its place in the box, by rounding.
    margin = g("Mul", g("Add", cells, number(8)), number(4 * float(np.finfo(dtype).eps)))
    if sampling_ratio > 0:
        low = g(
            "Add",
            g("Add", base, _away_from_limits(g, base, axis, sampling_ratio, cells, margin, dtype)),
            half,
        )
        return low, g("Add", low, axis.bin), None
    samples = g("Max", g("Ceil", axis.bin), number(1))
    last = g("Sub", samples, number(1))
    step = g("Div", axis.bin, samples)
    several = g("Greater", samples, number(1))
    positive = g("Where", several, step, number(1))

    def position(index: str) -> str:
        offset = _product(g, g("Add", index, half), axis.bin, dtype)
        return g("Add", base, _quotient(g, offset, samples, dtype))

    # The first and the last sample on the map: a guess, and its neighbours where rounding misled.
    def limit(edge: Any, rounding: str, inside: str, inward: float) -> str:
        guess = g(rounding, g("Sub", g("Div", g("Sub", edge, base), positive), half))
        beyond = g("Sub", guess, number(inward))
        guess = g("Where", g(inside, position(beyond), edge), beyond, guess)
        return g("Where", g(inside, position(guess), edge), guess, g("Add", guess, number(inward)))

    begin = g("Max", limit(number(-1), "Ceil", "GreaterOrEqual", 1), number(0))
    end = g("Min", limit(cells, "Floor", "LessOrEqual", -1), last)
    begin = g("Where", several, begin, number(0))
    end = g("Where", several, end, number(0))
    # Where no sample is on the map, one is pooled all the same, and its share is 0.
    count = g("Max", g("Add", g("Sub", end, begin), number(1)), number(0))
    only = position(g("Mul", begin, number(0)))
    on = g("And", g("GreaterOrEqual", only, number(-1)), g("LessOrEqual", only, cells))
    share = g("Where", several, g("Div", count, samples), g.cast(on, dtype))
    count = g("Max", count, number(1))
    middle = g("Add", g("Mul", g("Add", begin, end), half), half)
    centre = g("Add", base, g("Mul", middle, step))
    # RoiAlign takes as many samples as the bin has cells, rounded up: where that is near to
    # a whole number, the rounding of the edges must not decide.
    extent = g("Mul", count, step)
    extent = g(
        "Min",
        g("Max", extent, g("Add", g("Sub", count, number(1)), margin)),
        g("Sub", count, margin),
    )
    single = g("LessOrEqual", count, number(1))
    reach = g("Mul", g("Where", single, half, extent), half)
    # The outermost samples stay on the map.
    reach_of_samples = g("Sub", reach, g("Div", reach, count))
    inner = g("Add", reach_of_samples, margin)
    centre = g("Max", centre, g("Sub", inner, number(1)))
    centre = g("Min", centre, g("Sub", cells, inner))
    centre = g("Add", centre, half)
    return g("Sub", centre, reach), g("Add", centre, reach), share


def _align_bins(
    g: Graph,
    data: str,
    image: str,
    axes: list[_SampleAxis],
    count: str,
    pooled: tuple[int, int],
    sampling_ratio: int,
    group: tuple[int, int],
    dim: int,
    dtype: Any,
) -> str:
    """Bilinear pooling by a RoI for each bin: (K, dim, P, Q)."""
    (y0, y1, fy), (x0, x1, fx) = (
        _bins_along(g, axis, bins, sampling_ratio, g.shape(data, 2 + n, 3 + n), dtype)
        for n, (axis, bins) in enumerate(zip(axes, pooled))
    )
    boxes = _bin_boxes(g, [y0, x0], [y1, x1], pooled, count)
    images = _bin_images(g, image, pooled, group, count)
    maps = _group_images(g, data, dim, group[0] * group[1])
    bins = _align(g, maps, boxes, images, dtype, 1, True, (1, 1), sampling_ratio)
    out = _join_bins(g, bins, count, pooled, dim)
    if fy is None or fx is None:
        return out
    share = g("Mul", g("Unsqueeze", fy, np.array([1, 3])), g("Unsqueeze", fx, np.array([1, 2])))
    return g("Mul", out, share)


def _all_axes(
    g: Graph, box: str, scale: float, aligned: bool, pooled: tuple, dtype: Any
) -> list[_SampleAxis]:
    return [
        _sample_axis(g, low, high, scale, aligned, bins, dtype)
        for (low, high), bins in zip(_axes(g, box), pooled)
    ]


def _align_boxes(
    g: Graph, node: Node, data: str, image: str, box: str, scale: float, dtype: Any
) -> str:
    """ROIAlign of boxes that are all finite, on one map: (K, C, P, Q)."""
    pooled, aligned = _pooled(node), node.get("aligned", False)
    sampling_ratio = node.get("sampling_ratio", -1)
    far = np.array(_FARTHEST / max(scale, 1), dtype)
    held = g("Clip", box, -far, far)
    if sampling_ratio > 0:
        return _align(g, data, held, image, dtype, scale, aligned, pooled, sampling_ratio)
    # Boxes that RoiAlign gives no samples, or more than a map can need, are pooled bin by bin.
    axes = _all_axes(g, box, scale, aligned, pooled, dtype)
    odd = None
    for n, axis in enumerate(axes):
        cells = g.cast(g.shape(data, 2 + n, 3 + n), dtype)
        conditions = [g("Greater", axis.length, g("Mul", cells, np.array(4, dtype)))]
        if aligned:
            conditions.append(g("LessOrEqual", axis.length, np.array(0, dtype)))
        for condition in conditions:
            odd = condition if odd is None else g("Or", odd, condition)
    plain = g("Where", odd, np.array([[0, 0, 1 / scale, 1 / scale]], dtype), held)
    out = _align(g, data, plain, image, dtype, scale, aligned, pooled)
    which = g.reshape(g("NonZero", g("Squeeze", odd, np.array([1]))), -1)
    axes = [_SampleAxis(*(g("Gather", part, which) for part in axis)) for axis in axes]
    apart = _align_bins(
        g,
        data,
        g("Gather", image, which),
        axes,
        g.shape(which),
        pooled,
        -1,
        (1, 1),
        node.shapes[0][1],
        dtype,
    )
    return g("ScatterND", out, g("Unsqueeze", which, np.array([1])), apart)


def roi_align(g: Graph, node: Node) -> str:
    data, dtype = _data(g, node)
    rows = _rows(g, node, dtype)
    scale = float(node.get("spatial_scale"))
    out = _align_boxes(g, node, data, rows.image, rows.box, scale, dtype)
    return _finish(g, node, rows, out, dtype)


def _map_numbers(g: Graph, node: Node, box: str, scales: tuple) -> str:
    """Which map of a pyramid each box is pooled from, (K,) int64: core/geometry/pyramid.h."""
    size, level = node.get("canonical_size", 224.0), node.get("canonical_level", 4)
    far = np.array(_FARTHEST, np.float64)
    edges = _axes(g, g("Clip", g.cast(box, np.float64), -far, far))
    sides = [g("Max", g("Sub", high, low), np.float64(0)) for low, high in edges]
    relative = g("Div", g("Sqrt", g("Mul", *sides)), np.float64(size))
    relative = g("Add", relative, np.float64(1e-6))
    # The finest map takes what is smaller, too.
    powers = [1 - int(np.frexp(scale)[1]) - level for scale in scales[1:]]
    least = np.ldexp(1.0, np.clip([-5000, *powers], -5000, 5000))[None]
    passed = g.cast(g("GreaterOrEqual", relative, least), np.int64)
    return g("Sub", g("ReduceSum", passed, np.array([1]), keepdims=0), np.array(1))


def pyramid_roi_align(g: Graph, node: Node) -> str:
    scales = node.sizes("spatial_scale")
    rows_of = node.with_inputs(0, *range(len(scales), len(node.inputs)))
    rows = _rows(g, rows_of, np.float64 if node.dtype == np.float64 else np.float32)
    numbers = _map_numbers(g, node, rows.box, scales)
    rows_by_map, parts = [], []
    for number, scale in enumerate(scales):
        data, dtype = _data(g, node, number)
        own = g.reshape(g("NonZero", g("Equal", numbers, np.array(number))), -1)
        image, box = g("Gather", rows.image, own), g("Gather", rows.box, own)
        rows_by_map.append(own)
        parts.append(_align_boxes(g, node, data, image, box, float(scale), dtype))
    out = g("Concat", *parts, axis=0)
    order = g("Unsqueeze", g("Concat", *rows_by_map, axis=0), np.array([1]))
    return _finish(g, node, rows, g("ScatterND", out, order, out), dtype)


def ps_roi_align(g: Graph, node: Node) -> str:
    node.get("output_dim")
    pooled, scale = _pooled(node), float(node.get("spatial_scale"))
    aligned, sampling_ratio = node.get("aligned", True), node.get("sampling_ratio", -1)
    data, dtype = _data(g, node)
    rows = _rows(g, node, dtype)
    axes = _all_axes(g, rows.box, scale, aligned, pooled, dtype)
    out = _align_bins(
        g,
        data,
        rows.image,
        axes,
        rows.rows,
        pooled,
        sampling_ratio,
        pooled,
        node.out_shapes[0][1],
        dtype,
    )
    return _finish(g, node, rows, out, dtype)


# ---- PrROIPool -----------------------------------------------------------------------------------


def _hat_means(g: Graph, low: str, high: str, scale: float, bins: int, size: str) -> str:
    """What each cell weighs in each bin along an axis, (K, bins, cells): core/geometry/precise.h.

    Between neighbouring cells a hat is straight, so the weight is the share of the bin that lies
    there times the height in its middle. Float64, as in the kernels; the shares are taken along the
    bin, where they add up to 1 even if a runtime rounds to float32.
    """
    one, real = np.float64(1), np.float64
    start, end = (
        _saturate(g, g("Mul", g.cast(edge, real), real(scale)), real) for edge in (low, high)
    )
    length = g("Div", g("Sub", end, start), real(bins))
    numbers = np.arange(bins, dtype=real)[None]
    edges = [
        g("Unsqueeze", g("Add", start, g("Mul", number, length)), np.array([2]))
        for number in (numbers, numbers + 1)
    ]
    filled = g("Greater", edges[1], edges[0])
    length = g("Unsqueeze", length, np.array([2]))
    # The intervals from each cell, the one before the map included, to the next.
    cell = g.cast(g("Range", np.array(-1), g.scalar(size), np.array(1)), real)
    begin, stop = (g("Clip", g("Sub", edge, cell), real(0), one) for edge in edges)
    middle = g("Mul", g("Add", begin, stop), real(0.5))
    divisor = g("Where", filled, length, one)
    first, last = (
        g("Clip", g("Div", g("Sub", limit, edges[0]), divisor), real(0), one)
        for limit in (cell, g("Add", cell, one))
    )
    share = g("Where", filled, g("Sub", last, first), real(0))
    rising = g("Mul", share, middle)
    falling = g("Sub", share, rising)
    return g("Add", g.columns(rising, 0, -1), g.columns(falling, 1, np.iinfo(np.int64).max))


def pr_roi_pool(g: Graph, node: Node) -> str:
    """Ay . X . Ax^T: all maps in one product with Ay, in which the maps of others weigh 0."""
    (height, width), scale = _pooled(node), float(node.get("spatial_scale"))
    data, dtype = _data(g, node)
    rows = _rows(g, node, dtype)
    images, channels = g.shape(data, 0, 1), node.shapes[0][1]
    wy, wx = (
        g.cast(_hat_means(g, low, high, scale, bins, g.shape(data, 2 + n, 3 + n)), dtype)
        for n, ((low, high), bins) in enumerate(zip(_axes(g, rows.box), (height, width)))
    )
    own = g("Equal", g.reshape(rows.image, -1, 1), g.reshape(_range(g, images), 1, -1))
    own = g("Unsqueeze", g.cast(own, dtype), np.array([1, 3]))
    wy = g("Mul", g("Unsqueeze", wy, np.array([2])), own)
    lines = g("Mul", images, g.shape(data, 2, 3))
    wy = g.reshape(wy, g("Mul", rows.rows, np.array([height])), lines)
    across = g("Mul", g.shape(data, 3, 4), np.array([channels]))
    maps = g.reshape(g("Transpose", data, perm=[0, 2, 1, 3]), lines, across)
    part = g.reshape(g("MatMul", wy, maps), rows.rows, height * channels, g.shape(data, 3, 4))
    out = g("MatMul", part, g("Transpose", wx, perm=[0, 2, 1]))
    out = g("Transpose", g.reshape(out, rows.rows, height, channels, width), perm=[0, 2, 1, 3])
    return _finish(g, node, rows, out, dtype)


# ---- RotatedROIAlign, DeformablePSROIPool --------------------------------------------------------


class _Samples(NamedTuple):
    """Samples along one axis of the map, in a shape that broadcasts to (K, P, Q, S, S)."""

    position: str
    inside: str  # whether it counts


def _limited(g: Graph, position: str, size: str, beyond: float, dtype: Any) -> _Samples:
    """Samples that count up to so far beyond the first and the last cell, and read these there."""
    last = g("Sub", g.cast(size, dtype), np.array(1, dtype))
    inside = g(
        "And",
        g("GreaterOrEqual", position, np.array(-beyond, dtype)),
        g("LessOrEqual", position, g("Add", last, np.array(beyond, dtype))),
    )
    return _Samples(g("Max", g("Min", position, last), np.array(0, dtype)), inside)


def _sample_sums(
    g: Graph,
    maps: str,
    images: str,
    y: _Samples,
    x: _Samples,
    count: str,
    pooled: tuple[int, int],
    samples: int,
    dim: int,
    dtype: Any,
) -> str:
    """Sums over the S x S samples of every bin, a RoI for each sample: (K, dim, P, Q)."""
    number = samples * samples
    shape = g.joined(count, pooled[0], pooled[1], samples, samples)
    corner = [
        g.reshape(g("Expand", g("Add", axis.position, np.array(0.5, dtype)), shape), -1, 1)
        for axis in (x, y)
    ]
    boxes = g("Concat", *corner, *corner, axis=1)
    images = g("Expand", g("Unsqueeze", images, np.array([1])), np.array([1, number]))
    values = _align(g, maps, boxes, g.reshape(images, -1), dtype, 1, True, (1, 1), 1)
    inside = g("Expand", g("And", y.inside, x.inside), shape)
    values = g("Where", g.reshape(inside, -1, 1, 1, 1), values, np.array(0, dtype))
    values = g.reshape(values, count, pooled[0], pooled[1], number, dim)
    values = g("Transpose", values, perm=[0, 4, 1, 2, 3])
    return g("ReduceSum", values, np.array([4]), keepdims=0)


def _angle(g: Graph, degrees: str, dtype: Any) -> tuple[str, str]:
    """Cosine and sine, (K, 1) each, of an angle that is rounded to the type of the geometry."""
    real = np.float64
    whole = g("Mod", degrees, np.array(360, dtype), fmod=1)
    radians = g("Div", g("Mul", g.cast(whole, real), real(np.pi)), real(180))
    radians = g.cast(g.cast(radians, dtype), real)
    return g.cast(g("Cos", radians), dtype), g.cast(g("Sin", radians), dtype)


def rotated_roi_align(g: Graph, node: Node) -> str:
    pooled, scale = _pooled(node), float(node.get("spatial_scale"))
    aligned, samples = node.get("aligned", False), node.get("sampling_ratio", -1)
    if samples <= 0:
        raise node.refusal(
            f"argument sampling_ratio: expected a number above 0, got {samples}: a number of "
            "samples that depends on the box has no translation"
        )
    data, dtype = _data(g, node)
    rows = _rows(g, node, dtype, coordinates=5)
    cx, cy, *sides, theta = g("Split", rows.box, np.array([1] * 5), axis=1, outputs=5)
    cosine, sine = (g("Unsqueeze", part, np.array([2])) for part in _angle(g, theta, dtype))

    def along(side: str, bins: int) -> str:
        """Positions of samples from the centre of the box, (K, bins, samples)."""
        length = _on_map(g, side, scale, False, dtype)
        length = length if aligned else g("Max", length, np.array(1, dtype))
        bin_size = _quotient(g, length, np.array(bins, dtype), dtype)
        start = g("Neg", g("Div", length, np.array(2, dtype)))
        base = _bases(g, start, bin_size, bins, dtype)
        return _positions(g, base, bin_size, samples, dtype)

    def around(centre: str, sign: str, first: str, second: str, size: str) -> _Samples:
        centre = g("Unsqueeze", _on_map(g, centre, scale, aligned, dtype), np.array([2, 3, 4]))
        return _limited(g, g("Add", g(sign, first, second), centre), size, 1, dtype)

    u, v = along(sides[0], pooled[1]), along(sides[1], pooled[0])
    u_cosine, u_sine, v_cosine, v_sine = (
        g("Unsqueeze", _product(g, side, part, dtype), np.array(places))
        for side, places in ((u, [1, 3]), (v, [2, 4]))
        for part in (cosine, sine)
    )
    x = around(cx, "Add", u_cosine, v_sine, g.shape(data, 3, 4))
    y = around(cy, "Sub", v_cosine, u_sine, g.shape(data, 2, 3))
    images = _bin_images(g, rows.image, pooled, (1, 1), rows.rows)
    out = _sample_sums(g, data, images, y, x, rows.rows, pooled, samples, node.shapes[0][1], dtype)
    out = g("Div", out, np.array(samples * samples, dtype))
    return _finish(g, node, rows, out, dtype)


class _PartAxis(NamedTuple):
    """One axis of the boxes, (K, 1) each: core/geometry/parts.h."""

    start: str
    length: str


def _part_axis(g: Graph, low: str, high: str, scale: float, dtype: Any) -> _PartAxis:
    end = _rounded(g, g("Add", _round(g, high, dtype), np.array(1, dtype)), dtype)
    start, end = (_on_map(g, edge, scale, True, dtype) for edge in (_round(g, low, dtype), end))
    return _PartAxis(start, g("Max", g("Sub", end, start), np.array(0.1, dtype)))


def _part_moves(g: Graph, node: Node, pooled: tuple[int, int], count: str) -> tuple[str, str, str]:
    """What moves each bin along y and along x, in lengths of the box, (K, P, Q), and which of the
    offsets are finite, (K, 1, P, Q); the others move nothing."""
    trans, dtype = _data(g, node, 2)
    for axis, part in zip((2, 3), _parts_of_bins(pooled, _grid(node, "part_size", pooled))):
        trans = g("Gather", trans, part, axis=axis)
    trans = g.reshape(trans, count, 2, *pooled)
    finite = g("ReduceMin", g.cast(_is_finite(g, trans, dtype), np.int32), axes=[1], keepdims=1)
    finite = g.cast(finite, np.bool_)
    trans = g("Where", finite, trans, np.array(0, dtype))
    trans = _product(g, trans, np.array(node.get("trans_std", 0.0), dtype), dtype)
    x, y = (
        g("Squeeze", one, np.array([1]))
        for one in g("Split", trans, np.array([1, 1]), axis=1, outputs=2)
    )
    return y, x, finite


def _part_samples(
    g: Graph,
    axis: _PartAxis,
    move: str | None,
    pooled: tuple[int, int],
    n: int,
    samples: int,
    size: str,
    dtype: Any,
) -> _Samples:
    """The samples of every bin along axis n of the map, the first on the edge of the bin."""
    bin_size = _quotient(g, axis.length, np.array(pooled[n], dtype), dtype)
    step = _quotient(g, bin_size, np.array(samples, dtype), dtype)
    first = g("Unsqueeze", _bases(g, axis.start, bin_size, pooled[n], dtype), np.array([2 - n]))
    if move is not None:
        length = g("Unsqueeze", axis.length, np.array([2]))
        first = g("Add", first, _product(g, move, length, dtype))
    behind = _product(g, np.arange(samples, dtype=dtype)[None], step, dtype)
    behind = g("Unsqueeze", behind, np.array([1, 2, 4 - n]))
    position = g("Add", g("Unsqueeze", first, np.array([3, 4])), behind)
    return _limited(g, position, size, 0.5, dtype)


def deformable_ps_roi_pool(g: Graph, node: Node) -> str:
    """Each pair of a RoI and a class is taken for a RoI, as in the kernels."""
    for known in ("output_dim", "part_size", "trans_std"):
        node.get(known)  # the shape has the first; the others are of no effect without trans
    pooled, scale = _pooled(node), float(node.get("spatial_scale"))
    group, samples = _grid(node, "group_size", pooled), node.get("sample_per_part", 4)
    moved = node.get("trans", False)
    classes = node.shapes[2][1] // 2 if moved else 1
    dim = node.out_shapes[0][1] // classes
    data, dtype = _data(g, node)
    places = [place for place in range(len(node.inputs)) if place != 2 or not moved]
    rows = _rows(g, node.with_inputs(*places), dtype)
    count = g("Mul", rows.rows, np.array([classes]))

    def of_classes(each: str) -> str:
        """(K, 1) to (K * classes, 1)."""
        return g.reshape(g("Expand", each, np.array([1, classes])), -1, 1)

    axes = [
        _PartAxis(*map(of_classes, _part_axis(g, low, high, scale, dtype)))
        for low, high in _axes(g, rows.box)
    ]
    image = g("Mul", g("Unsqueeze", rows.image, np.array([1])), np.array(classes))
    image = g.reshape(g("Add", image, np.arange(classes)[None]), -1)
    apart = g("Mul", g.shape(data, 0, 1), np.array([classes]))
    maps = g.reshape(data, apart, node.shapes[0][1] // classes, g.shape(data, 2, 4))
    moves: list[str | None] = [None, None]
    if moved:
        *moves, finite = _part_moves(g, node, pooled, count)
    y, x = (
        _part_samples(g, axis, move, pooled, n, samples, g.shape(data, 2 + n, 3 + n), dtype)
        for n, (axis, move) in enumerate(zip(axes, moves))
    )
    images = _bin_images(g, image, pooled, group, count)
    maps = _group_images(g, maps, dim, group[0] * group[1])
    out = _sample_sums(g, maps, images, y, x, count, pooled, samples, dim, dtype)
    inside = [
        g("ReduceSum", g.cast(axis.inside, dtype), np.array([3, 4]), keepdims=0) for axis in (y, x)
    ]
    divisor = g("Max", g("Mul", *inside), np.array(1, dtype))
    out = g("Div", out, g("Unsqueeze", divisor, np.array([1])))
    if moved:
        out = g("Where", finite, out, np.array(np.nan, dtype))
    return _finish(g, node, rows, g.reshape(out, rows.rows, classes * dim, *pooled), dtype)


# ---- MXNet's own ---------------------------------------------------------------------------------


def _mxnet_roi_pooling(g: Graph, node: Node) -> str:
    return roi_pool(
        g,
        node.with_attributes(
            pooled_size=node.get("pooled_size"),
            spatial_scale=node.get("spatial_scale"),
            bad_index="padding",
        ),
    )


def _mxnet_roi_align(g: Graph, node: Node) -> str:
    translation = ps_roi_align if node.get("position_sensitive", False) else roi_align
    return translation(
        g,
        node.with_attributes(
            pooled_size=node.get("pooled_size"),
            spatial_scale=node.get("spatial_scale"),
            sampling_ratio=node.get("sample_ratio", -1),
            aligned=node.get("aligned", False),
        ),
    )


def _mxnet_ps_roi_pooling(g: Graph, node: Node) -> str:
    node.get("output_dim")
    pooled = node.get("pooled_size")
    return ps_roi_pool(
        g,
        node.with_attributes(
            pooled_size=pooled,
            spatial_scale=node.get("spatial_scale"),
            group_size=node.get("group_size", 0) or pooled,
        ),
    )


def _mxnet_rotated_roi_align(g: Graph, node: Node) -> str:
    return rotated_roi_align(
        g,
        node.with_attributes(
            pooled_size=node.get("pooled_size"),
            spatial_scale=node.get("spatial_scale"),
            sampling_ratio=node.get("sampling_ratio", -1),
        ),
    )


def _mxnet_deformable_ps_roi_pooling(g: Graph, node: Node) -> str:
    node.get("output_dim")
    pooled, moved = node.get("pooled_size"), not node.get("no_trans", False)
    ours = node.with_attributes(
        pooled_size=pooled,
        spatial_scale=node.get("spatial_scale"),
        group_size=node.get("group_size"),
        part_size=node.get("part_size", 0) or pooled,
        sample_per_part=node.get("sample_per_part", 1),
        trans_std=node.get("trans_std", 0.0),
        trans=moved,
    )
    return deformable_ps_roi_pool(g, ours if moved else ours.with_inputs(0, 1))


#: MXNet operator -> its translation.
TRANSLATIONS = {
    "_gluon_roi_ROIPool": roi_pool,
    "_gluon_roi_ROIAlign": roi_align,
    "_gluon_roi_PSROIPool": ps_roi_pool,
    "_gluon_roi_PSROIAlign": ps_roi_align,
    "_gluon_roi_PyramidROIAlign": pyramid_roi_align,
    "_gluon_roi_PrROIPool": pr_roi_pool,
    "_gluon_roi_RotatedROIAlign": rotated_roi_align,
    "_gluon_roi_DeformablePSROIPool": deformable_ps_roi_pool,
    "ROIPooling": _mxnet_roi_pooling,
    "_contrib_ROIAlign": _mxnet_roi_align,
    "_contrib_PSROIPooling": _mxnet_ps_roi_pooling,
    "_contrib_RROIAlign": _mxnet_rotated_roi_align,
    "_contrib_DeformablePSROIPooling": _mxnet_deformable_ps_roi_pooling,
}
