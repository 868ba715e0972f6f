# SPDX-License-Identifier: Apache-2.0
"""The pass that renames the tensors that are outputs."""

from __future__ import annotations

from ..graph import OnnxGraph


def name_outputs(graph: OnnxGraph, outputs: list) -> list:
    """Give tensors the names of the outputs, so that few outputs need an Identity node.

    Inputs and constants are not renamed; a tensor that is multiple outputs gets the first name.
    """
    produced = {name for node in graph.nodes for name in node.output}
    named: dict[str, str] = {}
    for (tensor, name), *_ in outputs:
        if tensor in produced:
            named.setdefault(tensor, name)
    for node in graph.nodes:
        node.input[:] = [named.get(name, name) for name in node.input]
        node.output[:] = [named.get(name, name) for name in node.output]
    return [((named.get(tensor, tensor), name), *rest) for (tensor, name), *rest in outputs]
