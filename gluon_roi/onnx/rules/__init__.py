# SPDX-License-Identifier: Apache-2.0
"""Rules for MXNet's own operators, as detectors use them."""

from . import (  # noqa: F401  (register their rules)
    boxes,
    deformable,
    elementwise,
    indexing,
    layers,
    multibox,
    norms,
    pooling,
    proposals,
    sampling,
    shapes,
)
