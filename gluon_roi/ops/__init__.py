# SPDX-License-Identifier: Apache-2.0
"""The operators, each as a block and as a function."""

from .box_nms import BoxNMS
from .deformable_blocks import DeformableConvolution, ModulatedDeformableConvolution  # noqa: F401
from .deformable_ps_roi_pool import DeformablePSROIPool
from .deformable_sampling import DeformableSampling
from .pr_roi_pool import PrROIPool
from .proposal import Proposal
from .ps_roi_align import PSROIAlign
from .ps_roi_pool import PSROIPool
from .pyramid_roi_align import PyramidROIAlign
from .roi_align import ROIAlign
from .roi_pool import ROIPool
from .rotated_roi_align import RotatedROIAlign

# Every operator of the package, in the order of tables and pictures.
OPERATORS = (
    ROIPool,
    ROIAlign,
    PSROIPool,
    PSROIAlign,
    RotatedROIAlign,
    PrROIPool,
    DeformablePSROIPool,
    PyramidROIAlign,
    DeformableSampling,
    BoxNMS,
    Proposal,
)
