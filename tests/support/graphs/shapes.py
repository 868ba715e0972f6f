# SPDX-License-Identifier: Apache-2.0
"""Operators that change shapes, and take parts."""

from __future__ import annotations

from .growth import Call, Graph, Tensor, maker


@maker("Reshape")
def _reshape(g: Graph, x: Tensor) -> Call | None:
    if g.coin(0.2):
        shape = g.among([(-1, 0), (0, -1), (-1,), (-1, 1), (-2, 0), (-1, -3), (0, -3, 0)])
        return [x], {"shape": shape, "reverse": g.coin()}
    codes: list[int] = []
    axis, inferred = 0, False
    # With -4 and a size or -1 in one shape MXNet may write beyond its memory.
    others = ["split"] if g.coin() else ["size", "infer"]
    while axis < x.rank:
        kind = g.among(["keep", "keep", "merge", "rest", *others])
        if kind == "infer" and not inferred:
            inferred = True
            codes.append(-1)
        elif kind == "merge" and axis + 1 < x.rank:
            codes.append(-3)
            axis += 1
        elif kind == "split":
            first = g.among(d for d in range(1, x.shape[axis] + 1) if x.shape[axis] % d == 0)
            parts = [first, x.shape[axis] // first]
            if g.coin(0.3) and not inferred:
                inferred = True
                parts[g.size(0, 1)] = -1
            codes += [-4, *parts]
        elif kind == "rest":
            codes.append(-2)
            axis = x.rank
        elif kind == "size":
            codes.append(x.shape[axis])
        else:
            codes.append(0)
        axis += 1
    ones = (1,) * g.size(0, 2) if "size" in others else ()
    return [x], {"shape": (*codes, *ones)}


@maker("reshape_like")
def _reshape_like(g: Graph, x: Tensor) -> Call | None:
    if g.coin():
        return [x, g.input(*g.random.permutation(x.shape))], {}
    begin = g.size(0, x.rank - 1)
    end = g.size(begin + 1, x.rank)
    middle = x.shape[begin:end][::-1]
    other = (3, *middle, 2)
    signs = [g.coin(0.3) for _ in range(4)]
    return [x, g.input(*other)], {
        "lhs_begin": begin - x.rank * signs[0],
        "lhs_end": None if end == x.rank and signs[1] else end,
        "rhs_begin": 1 - len(other) * signs[2],
        "rhs_end": len(other) - 1 - len(other) * signs[3],
    }


@maker("expand_dims")
def _expand_dims(g: Graph, x: Tensor) -> Call | None:
    return ([x], {"axis": g.axis(x.rank + 1)}) if x.rank < 5 else None


@maker("squeeze")
def _squeeze(g: Graph, x: Tensor) -> Call | None:
    ones = [axis for axis, size in enumerate(x.shape) if size == 1]
    if g.coin(0.3):
        return [x], {"axis": None}
    if not ones:
        return None
    return [x], {"axis": g.among([ones[0], ones[-1] - x.rank, tuple(ones)])}


@maker("transpose")
def _transpose(g: Graph, x: Tensor) -> Call | None:
    axes = tuple(int(axis) for axis in g.random.permutation(x.rank))
    return [x], {"axes": () if g.coin(0.3) else axes}


@maker("SwapAxis")
def _swap(g: Graph, x: Tensor) -> Call | None:
    return [x], {"dim1": g.axis(x.rank), "dim2": g.axis(x.rank)}


@maker("Concat")
def _concat(g: Graph, x: Tensor) -> Call | None:
    axis = g.axis(x.rank)
    others = []
    for _ in range(g.size(0, 2)):
        shape = list(x.shape)
        shape[axis] = g.size()
        others.append(g.input(*shape, dtype=x.dtype))
    return [x, *others], {"dim": axis}


@maker("stack")
def _stack(g: Graph, x: Tensor) -> Call | None:
    return [x, *(g.partner(x) for _ in range(g.size(0, 2)))], {"axis": g.axis(x.rank + 1)}


@maker("SliceChannel")
def _split(g: Graph, x: Tensor) -> Call | None:
    axis = g.axis(x.rank)
    number = g.among(d for d in range(1, x.shape[axis] + 1) if x.shape[axis] % d == 0)
    squeeze = number == x.shape[axis] and x.rank > 1 and g.coin()
    return [x], {"num_outputs": number, "axis": axis, "squeeze_axis": squeeze}


@maker("slice_axis")
def _slice_axis(g: Graph, x: Tensor) -> Call | None:
    axis = g.axis(x.rank)
    size = x.shape[axis]
    begin = g.size(0, size - 1)
    end = g.size(begin + 1, size)
    return [x], {
        "axis": axis,
        "begin": begin - size * g.coin(0.3),
        "end": None if end == size and g.coin() else end - size * (end < size and g.coin(0.3)),
    }


@maker("slice")
def _slice(g: Graph, x: Tensor) -> Call | None:
    begins, ends, steps = [], [], []
    for size in x.shape[: g.size(1, x.rank)]:
        begin = g.size(0, size - 1)
        end = g.size(begin + 1, size)
        step = g.among([None, 1, 2, -1])
        if step == -1:
            begin, end = end - 1, begin - 1
        begins.append(None if g.coin(0.2) else begin - size * g.coin(0.2))
        ends.append(None if end < 0 or g.coin(0.2) else end - size * (end < size and g.coin(0.2)))
        steps.append(step)
    step = {} if all(one in (None, 1) for one in steps) else {"step": tuple(steps)}
    return [x], {"begin": tuple(begins), "end": tuple(ends), **step}


@maker("slice_like")
def _slice_like(g: Graph, x: Tensor) -> Call | None:
    like = [g.size(1, size) for size in x.shape]
    if g.coin(0.3):
        return [x, g.input(*like)], {}
    return [x, g.input(*like)], {"axes": g.axes(x.rank)}


@maker("Crop")
def _crop(g: Graph, x: Tensor) -> Call | None:
    if x.rank != 4:
        return None
    size = tuple(g.size(1, n) for n in x.shape[2:])
    room = [n - m for n, m in zip(x.shape[2:], size)]
    place: dict = {"center_crop": True}
    if g.coin():
        place = {"offset": tuple(g.size(0, n) for n in room)}
    if g.coin():
        return [x], {"h_w": size, "num_args": 1, **place}
    return [x, g.input(1, 2, *size, dtype=x.dtype)], {"num_args": 2, **place}


@maker("depth_to_space", "space_to_depth")
def _blocks(g: Graph, x: Tensor) -> Call | None:
    block, sizes = g.size(1, 3), [g.size(1, 2) for _ in range(3)]
    channels = [sizes[0] * block * block, *sizes[1:]]
    x = g.among(
        [
            x,
            g.input(g.size(1, 2), *channels, dtype=x.dtype),
            g.input(g.size(1, 2), sizes[0], *(size * block for size in sizes[1:])),
        ]
    )
    return [x], {"block_size": block}


@maker("Pad")
def _pad(g: Graph, x: Tensor) -> Call | None:
    if x.rank not in (4, 5) or not x.is_float:
        return None
    mode = g.among(["constant", "edge", "reflect"])
    most = [n - 1 if mode == "reflect" else 2 for n in x.shape[2:] for _ in range(2)]
    return [x], {"mode": mode, "pad_width": (0, 0, 0, 0, *(min(g.size(0, 2), n) for n in most))}


@maker("reverse")
def _reverse(g: Graph, x: Tensor) -> Call | None:
    return [x], {"axis": g.among([g.axis(x.rank), g.axes(x.rank)])}


@maker("tile")
def _tile(g: Graph, x: Tensor) -> Call | None:
    return [x], {"reps": tuple(g.size(1, 2) for _ in range(g.size(1, x.rank + 1)))}


@maker("repeat")
def _repeat(g: Graph, x: Tensor) -> Call | None:
    return [x], {"repeats": g.size(1, 3), "axis": None if g.coin(0.3) else g.axis(x.rank)}


@maker("broadcast_like")
def _broadcast_like(g: Graph, x: Tensor) -> Call | None:
    shape = [g.size() if size == 1 else size for size in x.shape]
    if g.coin():
        return [x, g.input(*shape)], {}
    axis = g.axis(x.rank)
    other = (2, shape[axis], 3)
    return [x, g.input(*other)], {"lhs_axes": (axis,), "rhs_axes": (g.among([1, -2]),)}


@maker("broadcast_axis")
def _broadcast_axis(g: Graph, x: Tensor) -> Call | None:
    ones = [axis for axis, size in enumerate(x.shape) if size == 1]
    if not ones:
        return None
    if g.coin():
        return [x], {"axis": ones[0], "size": g.size()}
    return [x], {"axis": tuple(ones), "size": tuple(g.size() for _ in ones)}


@maker("broadcast_to")
def _broadcast_to(g: Graph, x: Tensor) -> Call | None:
    shape = (g.size() if size == 1 else g.among([0, size]) for size in x.shape)
    return [x], {"shape": tuple(shape)}
