# SPDX-License-Identifier: Apache-2.0
"""Computes deconvolutions that enlarge a map by a whole factor as convolutions.

Each cell of such a map has a tile of side x side cells of the output, where side is the stride.
Along an axis, cell a of tile y is the sum, over cells y + d of the map, of the map times element
a + pad - side * d of the kernel, if it has that element. So a convolution computes the tiles of all
cells, with each cell of a tile as a channel, and DepthToSpace arranges these channels.
"""

from __future__ import annotations

import numpy as np

from ..bridge.symbol_json import NodeEntry
from . import winograd
from .epilogue import only_reader
from .graph import InferenceGraph
from .layers import bias_of, has_maps, pair
from .winograd_layers import USUAL_SIZE

#: The operator's name in MXNet and in symbol files (src/ops/depth_to_space.h).
OPERATOR = "_gluon_roi_DepthToSpace"
#: Operators of single numbers, which may as well come before the channels are arranged.
_ELEMENTWISE = ("Activation", "relu", "clip")


def replace_deconvolutions(graph: InferenceGraph) -> int:
    """Replace each Deconvolution whose kernel is as large as its stride; return how many.

    No two cells of its input add to the same cell of the output, so that it becomes a 1 x 1
    convolution.
    """
    return _replace(graph, reach=0)


def replace_for_winograd(graph: InferenceGraph) -> int:
    """Replace Deconvolutions by 3 x 3 convolutions where Winograd's algorithm pays.

    Such as those of stride 2 with kernels of 4 x 4 and pad 1, of which each cell of the output
    reads 2 x 2 cells of the input. Returns how many.
    """
    return _replace(graph, reach=1)


def _replace(graph: InferenceGraph, reach: int) -> int:
    """Replace Deconvolutions whose tiles read cells up to `reach` away; return how many."""
    made: dict[tuple, tuple[NodeEntry, NodeEntry]] = {}
    count, shapes, uses = 0, graph.shapes(), graph.uses()
    for number in graph.needed():
        node = graph.nodes[number]
        if node["op"] != "Deconvolution" or _reach(graph, number) != reach:
            continue
        side = pair(graph, number, "stride", 1)[0]
        filters = graph.integer(number, "num_filter") * side * side
        pad = pair(graph, number, "pad", 0)[0]
        layer = (*node["inputs"][1:], side, pad)
        if layer not in made:
            weight, bias = graph.value(node["inputs"][1]), bias_of(graph, number)
            if weight is None or bias is None or weight.dtype != np.float32:
                continue
            shape = shapes.get(node["inputs"][0]) or (1, len(weight), *USUAL_SIZE)
            if reach and not winograd.pays(shape, filters):
                continue
            made[layer] = (
                graph.constant(f"{node['name']}_cells_weight", _tiles(weight, side, pad, reach)),
                graph.constant(f"{node['name']}_cells_bias", np.tile(bias, side * side)),
            )
        kernel = {"kernel": (2 * reach + 1,) * 2, "pad": (reach, reach)}
        cells = graph.node(
            "Convolution",
            f"{node['name']}_cells",
            [node["inputs"][0], *made[layer]],
            num_filter=filters,
            no_bias=False,
            **kernel,
        )
        last = NodeEntry(number, 0)
        use = only_reader(graph, uses, last, _ELEMENTWISE)
        if use is not None:
            last = NodeEntry(use.node, 0)
            reader = graph.nodes[use.node]
            cells = graph.node(reader["op"], reader["name"], [cells], **reader.get("attrs", {}))
        graph.replace(last, graph.node(OPERATOR, "", [cells], block_size=side), uses, shapes)
        count += 1
    return count


def _tiles(weight: np.ndarray, side: int, pad: int, reach: int) -> np.ndarray:
    """Weights (inputs, outputs, kernel, kernel) as those of tiles.

    Returns an array (side * side * outputs, inputs, 2 * reach + 1, 2 * reach + 1).
    """
    inputs, outputs, kernel, _ = weight.shape
    size = 2 * reach + 1
    tiles = np.zeros((side, side, outputs, inputs, size, size), weight.dtype)
    for i, j in np.ndindex(kernel, kernel):
        (a, y), (b, x) = _place(i, side, pad), _place(j, side, pad)
        tiles[a, b, :, :, reach + y, reach + x] = weight[:, :, i, j].T
    return tiles.reshape(-1, inputs, size, size)


def _place(element: int, side: int, pad: int) -> tuple[int, int]:
    """The cell of a tile to which an element of the kernel adds, and how far from it it reads."""
    distance, cell = divmod(element - pad, side)
    return cell, -distance


def _reach(graph: InferenceGraph, number: int) -> int | None:
    """How far the cells are that a tile of a Deconvolution reads.

    None if the output is not exactly `stride` times as large as the input, or if the two axes
    differ.
    """
    kernel, stride = graph.sizes(number, "kernel"), pair(graph, number, "stride", 1)
    pad, adj = pair(graph, number, "pad", 0), pair(graph, number, "adj", 0)
    is_square = has_maps(graph, number) and all(a == b for a, b in (kernel, stride, pad, adj))
    if not is_square or kernel[0] + adj[0] - 2 * pad[0] != stride[0]:
        return None
    is_plain = (
        pair(graph, number, "dilate", 1) == (1, 1)
        and not any(graph.sizes(number, "target_shape"))
        and graph.integer(number, "num_group", 1) == 1
    )
    distances = [abs(_place(element, stride[0], pad[0])[1]) for element in range(kernel[0])]
    return max(distances, default=0) if is_plain else None
