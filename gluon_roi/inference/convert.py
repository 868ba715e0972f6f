# SPDX-License-Identifier: Apache-2.0
"""Converts a symbol and its parameters for inference."""

from __future__ import annotations

from typing import Any, Callable, Mapping, NamedTuple

import mxnet as mx

from ..bridge.arguments import NumpySymbol
from .activations import use_activations
from .computed_weights import compute_weights
from .copies import use_copies
from .deconvolution import replace_deconvolutions, replace_for_winograd
from .deformable import use_deformable_gemm
from .doubles import multiply_instead_of_doubling
from .fold_batch_norm import fold_batch_norms
from .fusion import fuse
from .gemm_layers import use_gemm
from .graph import InferenceGraph
from .max_pooling import join_local_maxima, use_max_pooling
from .memory import return_freed_memory
from .narrow import join_narrow_convolutions
from .padded_outputs import pad_outputs
from .progress import with_progress
from .shape_readers import read_shapes_of_maps
from .strided import take_strides_first
from .sums import use_elementwise_sums
from .upsample_add import join_upsampling_and_sum
from .winograd_layers import use_winograd


class Pass(NamedTuple):
    """A function that changes the graph, and returns how many places it changed."""

    change: Callable[[InferenceGraph], int]
    what: str  # what it counts, for messages


#: In their order. BatchNorm is folded first, so that later passes see final weights.
PASSES = (
    Pass(use_elementwise_sums, "sums of maps that always have one shape"),
    Pass(multiply_instead_of_doubling, "x + x as 2 * x"),
    Pass(use_activations, "sigmoid as Activation"),
    Pass(fold_batch_norms, "BatchNorm folded into weights"),
    Pass(replace_deconvolutions, "Deconvolutions as 1 x 1 convolutions"),
    Pass(replace_for_winograd, "Deconvolutions as 3 x 3 convolutions by Winograd's algorithm"),
    Pass(use_winograd, "3 x 3 convolutions by Winograd's algorithm"),
    Pass(join_narrow_convolutions, "convolutions of one map joined"),
    Pass(use_deformable_gemm, "deformable convolutions without a map of samples"),
    Pass(use_gemm, "convolutions in MXNet's layout"),
    Pass(take_strides_first, "strided 1 x 1 convolutions whose cells are picked first"),
    Pass(pad_outputs, "convolutions whose outputs are padded"),
    Pass(join_local_maxima, "local maxima of maps by one operator"),
    Pass(use_max_pooling, "max pooling in MXNet's layout"),
    Pass(join_upsampling_and_sum, "upsampling and addition as one operator"),
    Pass(compute_weights, "weights computed in advance"),
    Pass(read_shapes_of_maps, "shapes read of a map, not of a multiple"),
    Pass(use_copies, "copies by this package"),
)
#: Those that need the memory of Winograd's weights.
_OF_WINOGRAD = (replace_for_winograd, use_winograd)


class Converted(NamedTuple):
    """A symbol for inference, its parameters, and what was changed."""

    symbol: mx.sym.Symbol
    parameters: dict[str, mx.nd.NDArray]
    changes: dict[str, int]


def convert(
    symbol: mx.sym.Symbol,
    parameters: Mapping[str, mx.nd.NDArray],
    inputs: Mapping[str, Any],
    winograd: bool = True,
) -> Converted:
    """Convert a symbol for inference on a CPU.

    Parameters
    ----------
    symbol : mxnet.sym.Symbol
    parameters : dict of str to NDArray
        Values of arguments and auxiliary states, on the CPU.
    inputs : dict of str to NDArray or tuple of int
        Inputs of a call, or their shapes, as far as they are known. The converted symbol takes
        others too.
    winograd : bool
        Whether to use Winograd's algorithm, whose weights take 4 to 7 times the memory.
    """
    passes = [step for step in PASSES if winograd or step.change not in _OF_WINOGRAD]
    shapes = {name: getattr(value, "shape", value) for name, value in inputs.items()}
    types = {name: value.dtype for name, value in inputs.items() if hasattr(value, "dtype")}
    graph = InferenceGraph(symbol, parameters, shapes, types)
    changes = {}
    for step in with_progress(passes):
        changes[step.what] = step.change(graph)
        return_freed_memory()
    converted = graph.symbol()
    converted, arrays, fused = fuse(converted, graph.used_parameters(converted))
    changes.update(fused)
    if isinstance(symbol, NumpySymbol):
        converted = converted.as_np_ndarray()
    return Converted(converted, arrays, changes)
