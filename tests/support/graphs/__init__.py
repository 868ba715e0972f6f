# SPDX-License-Identifier: Apache-2.0
"""Random graphs of MXNet's operators for the export.

A graph grows call by call: an operator is drawn, then inputs among the existing tensors, then
attributes. If MXNet rejects a call, or a result is not finite or too large, it is drawn again.
"""

from . import detectors, elementwise, indexing, layers, shapes, sums  # noqa: F401  they register what they draw
from .growth import MAKERS, Graph, graph

__all__ = ["MAKERS", "Graph", "graph"]
