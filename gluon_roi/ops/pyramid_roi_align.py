# SPDX-License-Identifier: Apache-2.0
"""PyramidROIAlign: ROIAlign on the maps of a feature pyramid, the operator of FPN detectors."""

from __future__ import annotations

from typing import Any, Sequence

import mxnet as mx

from ..bridge import OperatorBlock, Tensor, call, operator_function


@operator_function("PyramidROIAlign")
def pyramid_roi_align(
    data: Sequence[Tensor],
    rois: Tensor,
    pooled_size: int | tuple[int, int],
    spatial_scale: Sequence[float],
    sampling_ratio: int = -1,
    aligned: bool = False,
    rois_grad: bool = False,
    canonical_size: float = 224.0,
    canonical_level: int = 4,
    rois_num: Tensor | None = None,
    bad_index: str = "error",
    assignment: str = "size",
    *,
    out: Tensor | None = None,
    name: str | None = None,
    attr: dict | None = None,
) -> Tensor:
    """:class:`gluon_roi.PyramidROIAlign` as a function: inputs first, then parameters.

    For arrays, `out` is available too; for symbols, `name` and `attr`.
    """
    if not isinstance(data, (list, tuple)):
        raise TypeError(
            f"PyramidROIAlign: argument data: expected a list of maps, got {type(data).__name__}"
        )
    # The library reports a spatial_scale that is not a list of numbers.
    if isinstance(spatial_scale, (list, tuple)) and len(data) != len(spatial_scale):
        raise mx.MXNetError(
            f"PyramidROIAlign: data has {len(data)} maps, expected {len(spatial_scale)}, "
            f"one for each number in spatial_scale"
        )
    return call("PyramidROIAlign", locals())


class PyramidROIAlign(OperatorBlock):
    """ROIAlign on a feature pyramid: one call pools each RoI from one of several maps.

    A box belongs to level ``floor(canonical_level + log2(sqrt(area) / canonical_size + 1e-6))``. It
    is pooled from the map of that level, or from the finest or coarsest map if there is none. A map
    of stride 2^k has level k. Each row of the output is bit for bit the result of :class:`ROIAlign`
    for its box on that map, and the rows are in the order of rois.

    Parameters
    ----------
    pooled_size
    spatial_scale : sequence of float
        Cells per image pixel of each map, finest first, such as (1 / 4, 1 / 8, 1 / 16, 1 / 32).
        Each is at most half of the one before.
    sampling_ratio, aligned, rois_grad
        As in :class:`ROIAlign`. The gradient of rois treats the choice of the map as constant.
    canonical_size : float
        Side in image pixels of a box that belongs to canonical_level.
    canonical_level : int
        That level: 4 is the map of stride 16.
    bad_index
    assignment : {'size', 'given'}
        'given': the caller assigns boxes to maps. rois holds a list of K boxes for each map, one
        list after the other, with padding rows for boxes of other maps. Row k of the output is the
        sum of what row k of each list pools. rois_num is not available, and canonical_size and
        canonical_level have no effect.

    Inputs
    ------
    data : list of (N, C, H_i, W_i), float16, float32 or float64
        Up to 8 feature maps, one for each number in spatial_scale.
    rois, rois_num

    Outputs
    -------
    out : (K, C, P, Q), dtype of the maps
        0 for a padding row, NaN for a row with a NaN or infinite coordinate.

    Raises
    ------
    mxnet.base.MXNetError

    References
    ----------
    Lin et al. 2017, Feature Pyramid Networks for Object Detection, arXiv:1612.03144, equation 1;
    torchvision's ``MultiScaleRoIAlign``.

    Examples
    --------
    >>> import mxnet as mx, gluon_roi
    >>> maps = [mx.nd.full((1, 1, 128 // n, 128 // n), n) for n in (1, 2, 4, 8)]
    >>> rois = mx.nd.array([[0, 0, 0, 60, 60], [0, 0, 0, 224, 224], [0, 0, 0, 224, 250]])
    >>> align = gluon_roi.PyramidROIAlign(1, (1 / 4, 1 / 8, 1 / 16, 1 / 32), sampling_ratio=2)
    >>> align(maps, rois).asnumpy().ravel().tolist()
    [1.0, 4.0, 4.0]
    """

    function = pyramid_roi_align

    def __init__(
        self,
        pooled_size: int | tuple[int, int],
        spatial_scale: Sequence[float],
        sampling_ratio: int = -1,
        aligned: bool = False,
        rois_grad: bool = False,
        canonical_size: float = 224.0,
        canonical_level: int = 4,
        bad_index: str = "error",
        assignment: str = "size",
        **kwargs: Any,
    ) -> None:
        super().__init__(locals())
