# SPDX-License-Identifier: Apache-2.0
"""The operators as functions of arrays and symbols of mx.nd, mx.sym or mx.np.

``gluon_roi.nd``, ``gluon_roi.sym`` and ``F.gluon_roi`` inside ``hybrid_forward`` have the same
functions. A function returns the same type of array or symbol as its inputs.
"""

from .ops.box_iou import box_iou as BoxIoU
from .ops.box_nms import box_nms as BoxNMS
from .ops.deformable_convolution import deformable_convolution as DeformableConvolution
from .ops.deformable_convolution import (
    modulated_deformable_convolution as ModulatedDeformableConvolution,
)
from .ops.deformable_ps_roi_pool import deformable_ps_roi_pool as DeformablePSROIPool
from .ops.deformable_roi_align import deformable_roi_align as DeformableROIAlign
from .ops.deformable_sampling import deformable_sampling as DeformableSampling
from .ops.pr_roi_pool import pr_roi_pool as PrROIPool
from .ops.proposal import proposal as Proposal
from .ops.ps_roi_align import ps_roi_align as PSROIAlign
from .ops.ps_roi_pool import ps_roi_pool as PSROIPool
from .ops.pyramid_roi_align import pyramid_roi_align as PyramidROIAlign
from .ops.roi_align import roi_align as ROIAlign
from .ops.roi_pool import roi_pool as ROIPool
from .ops.rotated_roi_align import rotated_roi_align as RotatedROIAlign

__all__ = [
    "BoxIoU",
    "BoxNMS",
    "DeformableConvolution",
    "DeformablePSROIPool",
    "DeformableROIAlign",
    "DeformableSampling",
    "ModulatedDeformableConvolution",
    "PSROIAlign",
    "PSROIPool",
    "PrROIPool",
    "Proposal",
    "PyramidROIAlign",
    "ROIAlign",
    "ROIPool",
    "RotatedROIAlign",
]
