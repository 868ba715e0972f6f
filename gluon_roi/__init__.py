# SPDX-License-Identifier: Apache-2.0
"""Region-of-interest operators for MXNet 1.9.1 and Gluon.

Importing this package loads its operator library into MXNet. The operators are then available as
Gluon blocks (``gluon_roi.PSROIPool``), as functions (``gluon_roi.nd``, ``gluon_roi.sym``) and,
inside ``hybrid_forward``, as ``F.gluon_roi``. ``mx.npx.gluon_roi`` is the same module.
"""

__version__ = "1.0.0"

import sys

if sys.version_info < (3, 8):  # noqa: UP036
    raise ImportError("gluon_roi needs Python 3.8 or newer, this is " + sys.version.split()[0])

from . import _source  # noqa: E402

_source.use_installed(__path__)

from . import _compat  # noqa: E402

_compat.install()
_compat.check_mxnet()

import mxnet as _mx  # noqa: E402

from . import library, reference, rois  # noqa: E402
from .library import build_info, has_cuda, include  # noqa: E402

library.load()

from . import nd, onnx, sym  # noqa: E402  (they need the loaded library)
from .ops import (  # noqa: E402
    OPERATORS,
    BoxNMS,
    DeformableConvolution,
    DeformablePSROIPool,
    DeformableSampling,
    ModulatedDeformableConvolution,
    Proposal,
    PrROIPool,
    PSROIAlign,
    PSROIPool,
    PyramidROIAlign,
    ROIAlign,
    ROIPool,
    RotatedROIAlign,
)
from .switch import count, optimize, replace_builtins  # noqa: E402

for _namespace in (_mx.nd, _mx.nd.numpy_extension, _mx.npx):
    _namespace.gluon_roi = nd
for _namespace in (_mx.sym, _mx.sym.numpy_extension):
    _namespace.gluon_roi = sym

__all__ = [
    "OPERATORS",
    "BoxNMS",
    "DeformableConvolution",
    "DeformablePSROIPool",
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
