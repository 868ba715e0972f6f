# SPDX-License-Identifier: Apache-2.0
"""PrROIPool: the integral of the bilinear surface over each bin, the operator of IoU-Net."""

from __future__ import annotations

from typing import Any

from ..bridge import OperatorBlock, Tensor, call, operator_function


@operator_function("PrROIPool")
def pr_roi_pool(
    data: Tensor,
    rois: Tensor,
    pooled_size: int | tuple[int, int],
    spatial_scale: float,
    rois_grad: bool = False,
    rois_num: Tensor | None = None,
    bad_index: str = "error",
    *,
    out: Tensor | None = None,
    name: str | None = None,
    attr: dict | None = None,
) -> Tensor:
    """:class:`gluon_roi.PrROIPool` as a function: inputs first, then parameters.

    For arrays, `out` is available too; for symbols, `name` and `attr`.
    """
    return call("PrROIPool", locals())


class PrROIPool(OperatorBlock):
    """Precise RoI pooling: the mean of the bilinear surface over each bin, without samples.

    The box is scaled to the map, without rounding or shifting, and split into P x Q bins. The
    surface has the value of cell i at coordinate i, is bilinear in between, and falls to 0 within
    one cell beyond the map. Its integral over a bin is divided by the bin's area; a bin without
    area, as in an inverted box, is 0. The gradient of the box is continuous, so that boxes can be
    optimised by gradient steps.

    Parameters
    ----------
    pooled_size, spatial_scale, rois_grad, bad_index

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
    Weights are computed in float64 for every type of data.

    References
    ----------
    Jiang et al. 2018, Acquisition of Localization Confidence for Accurate Object Detection
    (IoU-Net), arXiv:1807.11590, section 3.3.

    Examples
    --------
    >>> import mxnet as mx, gluon_roi
    >>> ramp = mx.nd.arange(16).reshape((1, 1, 4, 4))
    >>> rois = mx.nd.array([[0, 0, 0, 2, 2]])
    >>> pool = gluon_roi.PrROIPool(pooled_size=2, spatial_scale=1.0)
    >>> pool(ramp, rois).asnumpy().ravel().tolist()
    [2.5, 3.5, 6.5, 7.5]
    """

    function = pr_roi_pool

    def __init__(
        self,
        pooled_size: int | tuple[int, int],
        spatial_scale: float,
        rois_grad: bool = False,
        bad_index: str = "error",
        **kwargs: Any,
    ) -> None:
        super().__init__(locals())
