"""The operators: a block and a function each."""

from .pr_roi_pool import PrROIPool
from .ps_roi_align import PSROIAlign
from .ps_roi_pool import PSROIPool
from .roi_align import ROIAlign
from .roi_pool import ROIPool
from .rotated_roi_align import RotatedROIAlign

# Every operator of the package.
OPERATORS = (ROIPool, ROIAlign, PSROIPool, PSROIAlign, RotatedROIAlign, PrROIPool)
