# SPDX-License-Identifier: Apache-2.0
"""Rules for the RoI operators of this package.

The graph decodes the boxes by the operators' own formulas, in the same order of operations: which
rows are padding and, for all but ROIAlign, the box of every bin. The pooling itself is done by an
operator of ONNX:

- ROIPool, PSROIPool and PSROIAlign make each bin a RoI with a single bin, over whole cells or
  bilinear samples. For position-sensitive operators, groups of score maps become images.
- DeformableROIAlign makes each bin a RoI as well, shifted by its offset.
- ROIAlign is RoiAlign, except for boxes in which RoiAlign would take no samples, or very many
  (align.py).
  PyramidROIAlign does the same for the boxes of each map.
- PrROIPool is two products of matrices (precise.py).
- RotatedROIAlign, whose samples form no upright grid, and DeformablePSROIPool, where some samples
  do not count, sample with GridSample, or with GatherND if there may be several images.

MXNet's own RoI operators need no rules, because gluon_roi.optimize has replaced them by these.
"""

from . import align, cells, deformable_align, precise, samples

__all__ = ["align", "cells", "deformable_align", "precise", "samples"]
