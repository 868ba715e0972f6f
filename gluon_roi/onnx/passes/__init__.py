# SPDX-License-Identifier: Apache-2.0
"""Simplifies an exported graph: one file for each pass.

Equal nodes are not merged, because runtimes do this when they load a file.
"""

from __future__ import annotations

from typing import Collection

from ..graph import OnnxGraph
from .chains import shorten_chains
from .constants import evaluate_constants
from .fold_batch_norm import fold_batch_norms
from .identities import remove_identities
from .mixed_types import cast_batch_norms
from .output_names import name_outputs
from .types import TensorType


def simplify(
    graph: OnnxGraph,
    outputs: list,
    types: dict[str, TensorType],
    fold: bool = True,
    weights: Collection[str] = (),
) -> list:
    """Simplify a graph in place.

    Parameters
    ----------
    graph : OnnxGraph
    outputs : list
        The outputs, as for :meth:`OnnxGraph.model`.
    types : dict
        Types and shapes of the tensors, from :func:`.types.tensor_types`.
    fold : bool
        Whether weights may change: batch normalisation becomes part of the layer before it, and
        nodes of weights alone are evaluated.
    weights : collection of str
        The names of the weights.

    Returns
    -------
    list
        The outputs, with replaced tensors.
    """
    outputs = _renamed(outputs, evaluate_constants(graph, types, () if fold else weights))
    while True:  # removing an identity may connect two chains
        shorten_chains(graph, types)
        replaced = remove_identities(graph, types)
        if not replaced:
            break
        outputs = _renamed(outputs, replaced)
    graph.prune(tensor for (tensor, _), *_ in outputs)
    if fold:
        fold_batch_norms(graph, [tensor for (tensor, _), *_ in outputs])
    cast_batch_norms(graph, types)
    return name_outputs(graph, outputs)


def _renamed(outputs: list, replaced: dict[str, str]) -> list:
    return [((replaced.get(tensor, tensor), name), *rest) for (tensor, name), *rest in outputs]
