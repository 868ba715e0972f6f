# SPDX-License-Identifier: Apache-2.0
"""ROIPool: max pooling in the bins of a RoI, the operator of Fast R-CNN."""

from __future__ import annotations

from typing import Any

from ..bridge import OperatorBlock, Tensor, call, operator_function


@operator_function("ROIPool")
def roi_pool(
    data: Tensor,
    rois: Tensor,
    pooled_size: int | tuple[int, int],
    spatial_scale: float,
    rois_num: Tensor | None = None,
    bad_index: str = "error",
    *,
    out: Tensor | None = None,
    name: str | None = None,
    attr: dict | None = None,
) -> Tensor:
    """:class:`gluon_roi.ROIPool` as a function: inputs first, then parameters.

    For arrays, `out` is available too; for symbols, `name` and `attr`.
    """
    return call("ROIPool", locals())


class ROIPool(OperatorBlock):
    """RoI max pooling: each bin takes the maximum of its cells.

    The box is scaled to the map and rounded, with halves away from zero. It includes its last cell
    and is at least one cell in size. It is split into P x Q bins, which may share cells. A bin
    without cells is 0.

    Parameters
    ----------
    pooled_size, spatial_scale, bad_index

    Inputs
    ------
    data : (N, C, H, W), float16, float32 or float64
        Feature maps.
    rois, rois_num

    Outputs
    -------
    out : (K, C, P, Q), dtype of data
        0 for a padding row, NaN for a row with a NaN or infinite coordinate.

    Raises
    ------
    mxnet.base.MXNetError

    Notes
    -----
    The gradient of a bin goes to its first maximum in row-major order. The backward pass searches
    for it again instead of storing an index. NaN cells are ignored. The gradient of rois is 0.

    References
    ----------
    Girshick 2015, Fast R-CNN, arXiv:1504.08083, section 2.1. The rounding is Caffe's, as in MXNet's
    ``ROIPooling``, torchvision's ``roi_pool`` and Paddle's ``roi_pool``.

    Examples
    --------
    >>> import mxnet as mx, gluon_roi
    >>> ramp = mx.nd.arange(48).reshape((1, 1, 8, 6))
    >>> rois = mx.nd.array([[0, 0, 0, 4, 4]])
    >>> pool = gluon_roi.ROIPool(pooled_size=(2, 2), spatial_scale=0.7)
    >>> pool(ramp, rois).asnumpy().ravel().tolist()
    [7.0, 9.0, 19.0, 21.0]
    """

    function = roi_pool

    def __init__(
        self,
        pooled_size: int | tuple[int, int],
        spatial_scale: float,
        bad_index: str = "error",
        **kwargs: Any,
    ) -> None:
        super().__init__(locals())
