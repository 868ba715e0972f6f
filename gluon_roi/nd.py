"""The operators as functions of arrays and symbols, of mx.nd, mx.sym or mx.np.

``gluon_roi.nd`` and ``gluon_roi.sym`` hold the same functions, and so does ``F.gluon_roi`` inside
``hybrid_forward``: each gives back what it is given.
"""

from .ops.pr_roi_pool import pr_roi_pool as PrROIPool
from .ops.ps_roi_align import ps_roi_align as PSROIAlign
from .ops.ps_roi_pool import ps_roi_pool as PSROIPool
from .ops.roi_align import roi_align as ROIAlign
from .ops.roi_pool import roi_pool as ROIPool
from .ops.rotated_roi_align import rotated_roi_align as RotatedROIAlign

__all__ = ["PSROIAlign", "PSROIPool", "PrROIPool", "ROIAlign", "ROIPool", "RotatedROIAlign"]
