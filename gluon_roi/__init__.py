# SPDX-License-Identifier: Apache-2.0
"""Region-of-interest operators for MXNet 1.9.1 and Gluon.

Importing this package loads its operator library into MXNet. The operators are then available as
Gluon blocks (``gluon_roi.PSROIPool``), as functions (``gluon_roi.nd``, ``gluon_roi.sym``) and,
inside ``hybrid_forward``, as ``F.gluon_roi``. ``mx.npx.gluon_roi`` is the same module.
"""

import sys

if sys.version_info < (3, 8):  # noqa: UP036
    raise ImportError("gluon_roi needs Python 3.8 or newer, this is " + sys.version.split()[0])

from . import _source
from ._version import __version__ as __version__

with _source.errors_of_commands():
    _source.use_installed(__path__)

    from . import _compat

    _compat.install()
    _compat.check_mxnet()

    import mxnet as _mx

    from . import library, reference, rois
    from .library import build_info, has_cuda, include

    library.load()

from . import nd, onnx, sym  # they need the loaded library
from .ops.box_iou import BoxIoU as BoxIoU
from .ops.box_nms import BoxNMS as BoxNMS
from .ops.deformable_blocks import DeformableConvolution as DeformableConvolution
from .ops.deformable_blocks import ModulatedDeformableConvolution as ModulatedDeformableConvolution
from .ops.deformable_ps_roi_pool import DeformablePSROIPool as DeformablePSROIPool
from .ops.deformable_roi_align import DeformableROIAlign as DeformableROIAlign
from .ops.deformable_sampling import DeformableSampling as DeformableSampling
from .ops.pr_roi_pool import PrROIPool as PrROIPool
from .ops.proposal import Proposal as Proposal
from .ops.ps_roi_align import PSROIAlign as PSROIAlign
from .ops.ps_roi_pool import PSROIPool as PSROIPool
from .ops.pyramid_roi_align import PyramidROIAlign as PyramidROIAlign
from .ops.roi_align import ROIAlign as ROIAlign
from .ops.roi_pool import ROIPool as ROIPool
from .ops.rotated_roi_align import RotatedROIAlign as RotatedROIAlign
from .switch import count, optimize, replace_builtins
from .switch.functions import replace_as_parent as _replace_as_parent

# All operators of the package, in the order of the tables and pictures of the documentation.
OPERATORS = (
    ROIPool,
    ROIAlign,
    PSROIPool,
    PSROIAlign,
    RotatedROIAlign,
    PrROIPool,
    DeformablePSROIPool,
    PyramidROIAlign,
    DeformableROIAlign,
    DeformableSampling,
    BoxNMS,
    Proposal,
    BoxIoU,
)

for _namespace in (_mx.nd, _mx.nd.numpy_extension, _mx.npx):
    _namespace.gluon_roi = nd
for _namespace in (_mx.sym, _mx.sym.numpy_extension):
    _namespace.gluon_roi = sym

__all__ = [
    "OPERATORS",
    "build_info",
    "count",
    "has_cuda",
    "include",
    "library",
    "nd",
    "onnx",
    "optimize",
    "reference",
    "replace_builtins",
    "rois",
    "sym",
]
__all__ += nd.__all__

_replace_as_parent()
