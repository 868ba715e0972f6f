"""Rules for MXNet's own operators, as detectors use them."""

from . import boxes, elementwise, indexing, layers, shapes

__all__ = ["boxes", "elementwise", "indexing", "layers", "shapes"]
