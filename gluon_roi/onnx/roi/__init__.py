"""Rules for the RoI operators of this package.

What a node needs of its boxes is computed in the graph by the formulas of the operators, in the
same order of operations: which rows are padding, and for all but ROIAlign the box of every bin. The
pooling itself is MaxRoiPool or RoiAlign over *bins*: each bin is a RoI of its own with one bin, on
whole cells (ROIPool, PSROIPool) or bilinear samples (PSROIAlign); of position-sensitive operators
the groups of score maps become images. ROIAlign is RoiAlign, but for boxes whose number of samples
that operator counts in another way; PyramidROIAlign is that for the boxes of each map. Where the
samples of a bin are no upright grid (RotatedROIAlign), or some do not count (DeformablePSROIPool),
each sample is a RoI. PrROIPool is a product of matrices.

MXNet's own RoI operators need no rules: the graph pass has made these of them.
"""

from . import align, cells, precise, samples

__all__ = ["align", "cells", "precise", "samples"]
