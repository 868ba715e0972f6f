# SPDX-License-Identifier: Apache-2.0
"""The pass that gives the tensors of the outputs the names of the outputs."""

from __future__ import annotations

from ..graph import Graph


def name_outputs(graph: Graph, outputs: list) -> list:
    """Rename the tensors of the outputs, so that few outputs need an Identity for their name.

    Inputs and constants keep their names, and a tensor that is several outputs gets the first name.
    """
    makers = {name for node in graph.nodes for name in node.output}
    named: dict[str, str] = {}
    for (tensor, name), *_ in outputs:
        if tensor in makers:
            named.setdefault(tensor, name)
    for node in graph.nodes:
        node.input[:] = [named.get(name, name) for name in node.input]
        node.output[:] = [named.get(name, name) for name in node.output]
    return [((named.get(tensor, tensor), name), *rest) for (tensor, name), *rest in outputs]
