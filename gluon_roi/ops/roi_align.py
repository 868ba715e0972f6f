# SPDX-License-Identifier: Apache-2.0
"""ROIAlign: bilinear samples in the bins of a RoI, the operator of Mask R-CNN."""

from __future__ import annotations

from typing import Any

from ..bridge import OperatorBlock, Tensor, call, operator_function


@operator_function("ROIAlign")
def roi_align(
    data: Tensor,
    rois: Tensor,
    pooled_size: int | tuple[int, int],
    spatial_scale: float,
    sampling_ratio: int = -1,
    aligned: bool = False,
    rois_grad: bool = False,
    rois_num: Tensor | None = None,
    bad_index: str = "error",
    *,
    out: Tensor | None = None,
    name: str | None = None,
    attr: dict | None = None,
) -> Tensor:
    """:class:`gluon_roi.ROIAlign` as a function: inputs first, then parameters.

    For arrays, `out` is available too; for symbols, `name` and `attr`.
    """
    return call("ROIAlign", locals())


class ROIAlign(OperatorBlock):
    """RoI pooling by bilinear samples, without rounding the box.

    The box is scaled to the map and split into P x Q bins. A bin is the mean of a regular grid of
    bilinear samples. Samples more than one cell off the map count as 0.

    Parameters
    ----------
    pooled_size, spatial_scale, sampling_ratio
    aligned : bool
        True (detectron2): the box moves by half a cell, so that pixel centres of image and map
        agree. False (the original): the box does not move, and is at least one cell in size.
    rois_grad, bad_index

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
    Geometry is computed in float32 for float16 and float32 data, in float64 for float64 data.

    References
    ----------
    He et al. 2017, Mask R-CNN, arXiv:1703.06870, section 3. The arithmetic is that of MXNet's
    ``contrib.ROIAlign``, torchvision's and Paddle's ``roi_align``.

    Examples
    --------
    >>> import mxnet as mx, gluon_roi
    >>> ramp = mx.nd.arange(16).reshape((1, 1, 4, 4))
    >>> rois = mx.nd.array([[0, 0, 0, 3, 3]])
    >>> align = gluon_roi.ROIAlign(pooled_size=2, spatial_scale=1.0)
    >>> align(ramp, rois).asnumpy().ravel().tolist()
    [3.75, 5.25, 9.75, 11.25]
    """

    function = roi_align

    def __init__(
        self,
        pooled_size: int | tuple[int, int],
        spatial_scale: float,
        sampling_ratio: int = -1,
        aligned: bool = False,
        rois_grad: bool = False,
        bad_index: str = "error",
        **kwargs: Any,
    ) -> None:
        super().__init__(locals())
