# SPDX-License-Identifier: Apache-2.0
"""Rules for MXNet's own operators, and for the operators of this package that pool no boxes."""

from . import (  # noqa: F401  (register their rules)
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
    suppression,
)
