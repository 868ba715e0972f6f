# SPDX-License-Identifier: Apache-2.0
"""Slow, readable NumPy versions of every operator, in double precision: the ground truth of the
tests.

Each operator follows its formula directly, one region of interest (RoI) and one bin at a time, and
shares no code with the library. Arrays are NumPy arrays or ``mx.nd.NDArray``; results
are float64 NumPy arrays.

Notation: ``s`` is ``spatial_scale`` (map cells per image pixel), ``(P, Q)`` is ``pooled_size``,
``(H, W)`` the size of the feature map, K the number of RoIs. Boxes are ``x1, y1, x2, y2`` in
image coordinates (pixels); everything else is in map coordinates (cells). Comments only describe
the x axis; y is analogous.

Every operator treats unusual rows of ``rois`` as follows, in this order:

- a negative batch index marks a padding row: zeros, and no gradient;
- a batch index that is NaN, fractional or not below the batch size raises ``ValueError``;
- a NaN or infinite coordinate makes a row of NaN, and no gradient;
- coordinates beyond ``1e30`` cells count as ``1e30`` cells;
- cells of weight 0 are never read, so a NaN outside the box stays outside the result.
"""

from . import align, deformable, deformable_align, overlap, pool, rotated, sampling, suppression
from .align import *
from .deformable import *
from .deformable_align import *
from .overlap import *
from .pool import *
from .rotated import *
from .sampling import *
from .suppression import *

__all__ = [
    *pool.__all__,
    *align.__all__,
    *rotated.__all__,
    *deformable.__all__,
    *deformable_align.__all__,
    *sampling.__all__,
    *suppression.__all__,
    *overlap.__all__,
]
