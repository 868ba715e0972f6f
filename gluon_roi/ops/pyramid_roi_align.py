# SPDX-License-Identifier: Apache-2.0
"""PyramidROIAlign: ROIAlign on the maps of a feature pyramid, the operator of FPN detectors."""

from __future__ import annotations

from typing import Any, Sequence

import mxnet as mx

from ..bridge import OperatorBlock, Tensor, call_operator, public_name


@public_name("PyramidROIAlign")
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
    """ROIAlign on a feature pyramid: one call pools each RoI from the map of its level.

    A map of stride 2^k has level k. A box belongs to level ``floor(canonical_level +
    log2(sqrt(area) / canonical_size + 1e-6))`` and is pooled from the map of that level, or from
    the finest or coarsest map if its level is out of range. Each row of the output is bit for bit
    the result of :func:`gluon_roi.nd.ROIAlign` for its box on that map, and the rows are in the
    order of rois.

    Parameters
    ----------
    data : list of (N, C, H_i, W_i), float16, float32 or float64
        Up to 8 feature maps, one for each number in spatial_scale.
    rois : (K, 5), (N, R, 4) or (K, 4), float32 or float64
        Rows [batch_index, x1, y1, x2, y2] in pixels; or as in :func:`gluon_roi.nd.ROIPool`.
    pooled_size : int or (int, int)
        Bins of the output, P x Q (height, width).
    spatial_scale : sequence of float
        Cells per image pixel of each map, finest first, such as (1 / 4, 1 / 8, 1 / 16, 1 / 32).
        Each is at most half of the previous one.
    sampling_ratio, aligned, rois_grad
        As in :func:`gluon_roi.nd.ROIAlign`. The gradient of rois treats the choice of the map as
        constant.
    canonical_size : float
        Side in image pixels of a square box that belongs to `canonical_level`.
    canonical_level : int
        Level 4 has stride 16.
    rois_num, bad_index
        As in :func:`gluon_roi.nd.ROIPool`.
    assignment : {'size', 'given'}
        'size' assigns each box by its area, as above. 'given': rois is a concatenation of one list
        of K boxes for each map, with padding rows in place of boxes of other maps. Row k of the
        output is the sum of the pooled rows k of all lists. rois_num is not available, and the
        canonical size and level have no effect.
    out, name, attr
        As in :func:`gluon_roi.nd.ROIPool`.

    Returns
    -------
    out : (K, C, P, Q), dtype of the maps
        0 for a padding row, NaN for a row with a NaN or infinite coordinate.

    Raises
    ------
    mxnet.base.MXNetError, TypeError
        As :func:`gluon_roi.nd.ROIPool` does.

    References
    ----------
    Lin et al. 2017, Feature Pyramid Networks for Object Detection, arXiv:1612.03144, equation 1;
    torchvision's ``MultiScaleRoIAlign``.

    Examples
    --------
    >>> import mxnet as mx, gluon_roi
    >>> maps = [mx.nd.full((1, 1, 128 // n, 128 // n), n) for n in (1, 2, 4, 8)]
    >>> rois = mx.nd.array([[0, 0, 0, 60, 60], [0, 0, 0, 224, 224], [0, 0, 0, 224, 250]])
    >>> pooled = gluon_roi.nd.PyramidROIAlign(maps, rois, 1, (1 / 4, 1 / 8, 1 / 16, 1 / 32), 2)
    >>> pooled.asnumpy().ravel().tolist()
    [1.0, 4.0, 4.0]
    """
    if not isinstance(data, (list, tuple)):
        raise TypeError(
            f"PyramidROIAlign: argument data: expected a list of maps, got {type(data).__name__}"
        )
    # The library reports a spatial_scale that is not a list of numbers.
    if isinstance(spatial_scale, (list, tuple)) and len(data) != len(spatial_scale):
        raise mx.MXNetError(
            f"PyramidROIAlign: data has {len(data)} maps, expected {len(spatial_scale)}, one for "
            "each number in spatial_scale"
        )
    return call_operator(
        "PyramidROIAlign",
        inputs={"data": data, "rois": rois, "rois_num": rois_num},
        parameters={
            "pooled_size": pooled_size,
            "spatial_scale": spatial_scale,
            "sampling_ratio": sampling_ratio,
            "aligned": aligned,
            "rois_grad": rois_grad,
            "canonical_size": canonical_size,
            "canonical_level": canonical_level,
            "bad_index": bad_index,
            "assignment": assignment,
        },
        out=out,
        name=name,
        attr=attr,
    )


class PyramidROIAlign(OperatorBlock):
    """See :func:`gluon_roi.nd.PyramidROIAlign`, which this block calls with its parameters.

    The inputs are the list of maps, rois and, for rois without an index, rois_num.

    Examples
    --------
    >>> import mxnet as mx, gluon_roi
    >>> align = gluon_roi.PyramidROIAlign(pooled_size=7, spatial_scale=(1 / 4, 1 / 8))
    >>> align([mx.nd.ones((1, 8, n, n)) for n in (8, 4)], mx.nd.array([[0, 0, 0, 3, 3]])).shape
    (1, 8, 7, 7)
    """

    operator_name = "PyramidROIAlign"

    @public_name("PyramidROIAlign")
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
        *,
        prefix: str | None = None,
        params: Any = None,
    ) -> None:
        super().__init__(
            prefix,
            params,
            pooled_size=pooled_size,
            spatial_scale=spatial_scale,
            sampling_ratio=sampling_ratio,
            aligned=aligned,
            rois_grad=rois_grad,
            canonical_size=canonical_size,
            canonical_level=canonical_level,
            bad_index=bad_index,
            assignment=assignment,
        )

    def hybrid_forward(self, F: Any, data: Any, rois: Any, rois_num: Any = None) -> Any:
        return pyramid_roi_align(
            data=data,
            rois=rois,
            rois_num=rois_num,
            **self._parameters,
        )
