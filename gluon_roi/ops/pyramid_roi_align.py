"""PyramidROIAlign: ROIAlign on the maps of a feature pyramid, the operator of FPN detectors."""

from __future__ import annotations

from typing import Any, Sequence

import mxnet as mx

from ..bridge import RoiBlock, call, operator_function


@operator_function("PyramidROIAlign")
def pyramid_roi_align(
    data: Sequence[Any],
    rois: Any,
    pooled_size: int | tuple[int, int],
    spatial_scale: Sequence[float],
    sampling_ratio: int = -1,
    aligned: bool = False,
    rois_grad: bool = False,
    canonical_size: float = 224.0,
    canonical_level: int = 4,
    rois_num: Any = None,
    bad_index: str = "error",
    *,
    out: Any = None,
    name: str | None = None,
    attr: dict | None = None,
) -> Any:
    """:class:`gluon_roi.PyramidROIAlign` as a function: its inputs, then its parameters.

    Arrays also take `out`; symbols `name` and `attr`.
    """
    values = (
        pooled_size,
        spatial_scale,
        sampling_ratio,
        aligned,
        rois_grad,
        canonical_size,
        canonical_level,
        bad_index,
    )
    if not isinstance(data, (list, tuple)):
        raise TypeError(
            f"PyramidROIAlign: argument data: expected a list of maps, got {type(data).__name__}"
        )
    # What is no list of numbers at all is told by the library.
    if isinstance(spatial_scale, (list, tuple)) and len(data) != len(spatial_scale):
        raise mx.MXNetError(
            f"PyramidROIAlign: data has {len(data)} maps, expected {len(spatial_scale)}, "
            f"one for each number in spatial_scale"
        )
    return call("PyramidROIAlign", (data, rois, rois_num), values, out, name, attr)


class PyramidROIAlign(RoiBlock):
    """ROIAlign on the maps of a feature pyramid: each RoI on one map alone, in one call.

    A box belongs to level ``floor(canonical_level + log2(sqrt(area) / canonical_size + 1e-6))``,
    and is pooled from the map of that level, or from the finest or coarsest where there is none. A
    map of stride 2^k is of level k. Each row of the output is what :class:`ROIAlign` gives for its
    box on that map, bit for bit, and the rows are in the order of rois.

    Parameters
    ----------
    pooled_size : int or (int, int)
        Bins of the output, P x Q (height, width).
    spatial_scale : sequence of float
        Cells per image pixel of each map, finest first, such as (1 / 4, 1 / 8, 1 / 16, 1 / 32):
        each at most half of the one before.
    sampling_ratio, aligned, rois_grad
        As those of :class:`ROIAlign`. In the gradient of rois the choice of the map is constant.
    canonical_size : float
        Side in image pixels of a box that belongs to canonical_level.
    canonical_level : int
        Its level: 4 is the map of stride 16.
    bad_index : {'error', 'padding'}
        What a batch index beyond the batch is: an error, or the mark of a padding row, as for
        MXNet's ``ROIPooling``.

    Inputs
    ------
    data : list of (N, C, H_i, W_i), float16, float32 or float64
        Up to 8 feature maps, one for each number in spatial_scale.
    rois : (K, 5), (N, R, 4) or (K, 4), float32 or float64
        Boxes in image coordinates (pixels): rows [batch_index, x1, y1, x2, y2], where a negative
        batch index marks a padding row; or R boxes per image, K = N * R; or boxes without an
        index, together with rois_num. float16 is converted.
    rois_num : (N,), int32 or int64, optional
        Boxes per image, for (K, 4) rois.

    Outputs
    -------
    out : (K, C, P, Q), dtype of the maps
        0 for a padding row, NaN for a row with a NaN or infinite coordinate.

    Raises
    ------
    mxnet.base.MXNetError
        A bad argument, a shape or dtype that does not fit, or on the CPU a batch index that is NaN,
        fractional or beyond the batch. The message names operator, argument, expected and got. (On
        a GPU such a row is NaN.)

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
        **kwargs: Any,
    ) -> None:
        parameters = {
            "pooled_size": pooled_size,
            "spatial_scale": spatial_scale,
            "sampling_ratio": sampling_ratio,
            "aligned": aligned,
            "rois_grad": rois_grad,
            "canonical_size": canonical_size,
            "canonical_level": canonical_level,
            "bad_index": bad_index,
        }
        super().__init__(parameters, **kwargs)
