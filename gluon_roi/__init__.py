"""Region-of-interest operators for MXNet 1.9.1 and Gluon.

Importing this package loads its operator library into MXNet, and makes the operators available
as Gluon blocks (``gluon_roi.PSROIPool``), as functions (``gluon_roi.nd``, ``gluon_roi.sym``) and,
inside ``hybrid_forward``, as ``F.gluon_roi``.
"""

__version__ = "0.1.0"

import sys

if sys.version_info < (3, 8):  # noqa: UP036
    raise ImportError("gluon_roi needs Python 3.8 or newer, this is " + sys.version.split()[0])

from . import _compat  # noqa: E402

_compat.install()
_compat.check_mxnet()

from . import library, reference, rois  # noqa: E402
from .library import build_info, has_cuda  # noqa: E402

library.load()

from . import namespaces  # noqa: E402  (needs the loaded library)
from .ps_roi_align import PSROIAlign  # noqa: E402
from .ps_roi_pool import PSROIPool  # noqa: E402
from .roi_align import ROIAlign  # noqa: E402
from .roi_pool import ROIPool  # noqa: E402

# Every operator of the package: its nd and sym functions and its self-check come from this list.
OPERATORS = (ROIPool, ROIAlign, PSROIPool, PSROIAlign)

nd, sym = namespaces.install(OPERATORS)

__all__ = [
    "OPERATORS",
    "PSROIAlign",
    "PSROIPool",
    "ROIAlign",
    "ROIPool",
    "build_info",
    "has_cuda",
    "library",
    "nd",
    "reference",
    "rois",
    "sym",
]
