"""PSROIAlign: position-sensitive bilinear pooling, the operator of Light-Head R-CNN."""

from __future__ import annotations

from typing import Any

from ..bridge import RoiBlock, call, operator_function


@operator_function("PSROIAlign")
def ps_roi_align(
    data: Any,
    rois: Any,
    pooled_size: int | tuple[int, int],
    spatial_scale: float,
    output_dim: int | None = None,
    sampling_ratio: int = -1,
    aligned: bool = True,
    rois_grad: bool = False,
    rois_num: Any = None,
    bad_index: str = "error",
    *,
    out: Any = None,
    name: str | None = None,
    attr: dict | None = None,
) -> Any:
    """:class:`gluon_roi.PSROIAlign` as a function: its inputs, then its parameters.

    Arrays also take `out`; symbols `name` and `attr`.
    """
    values = (pooled_size, spatial_scale, output_dim, sampling_ratio, aligned, rois_grad, bad_index)
    return call("PSROIAlign", (data, rois, rois_num), values, out, name, attr)


class PSROIAlign(RoiBlock):
    """Position-sensitive RoI pooling by bilinear samples: each bin reads a score map of its own.

    Bin (p, q) of output channel c is what :class:`gluon_roi.ROIAlign` gives for that bin on input
    channel ``(c * P + p) * Q + q``.

    Parameters
    ----------
    pooled_size : int or (int, int)
        Bins of the output, P x Q (height, width).
    spatial_scale : float
        Map cells per image pixel, such as 1 / 16.
    output_dim : int, optional
        Channels of the output; C / (P * Q) if not given.
    sampling_ratio : int
        Samples per bin and axis; as many as the bin has cells, rounded up, if not positive.
    aligned : bool
        True (torchvision's ``ps_roi_align``): the box is shifted by half a cell. False (MXNet's
        ``contrib.ROIAlign`` with position_sensitive): it is not, and is at least one cell in size.
    rois_grad : bool
        Whether rois get their gradient too (in the unit of out per image pixel); zeros if not.

    bad_index : {'error', 'padding'}
        What a batch index beyond the batch is: an error, or the mark of a padding row, as for
        MXNet's ``ROIPooling``.

    Inputs
    ------
    data : (N, C, H, W), float16, float32 or float64
        Score maps, C = output_dim * P * Q.
    rois : (K, 5), (N, R, 4) or (K, 4), float32 or float64
        Boxes in image coordinates (pixels): rows [batch_index, x1, y1, x2, y2], where a negative
        batch index marks a padding row; or R boxes per image, K = N * R; or boxes without an
        index, together with rois_num. float16 is converted.
    rois_num : (N,), int32 or int64, optional
        Boxes per image, for (K, 4) rois.

    Outputs
    -------
    out : (K, output_dim, P, Q), dtype of data
        0 for a padding row, NaN for a row with a NaN or infinite coordinate.

    Geometry is computed in float32 for float16 and float32 data, in float64 for float64 data.

    Raises
    ------
    mxnet.base.MXNetError
        A bad argument, a shape or dtype that does not fit, or on the CPU a batch index that is NaN,
        fractional or beyond the batch. The message names operator, argument, expected and got. (On
        a GPU such a row is NaN.)

    References
    ----------
    Li et al. 2017, Light-Head R-CNN, arXiv:1711.07264, section 3.2.

    Examples
    --------
    >>> import mxnet as mx, gluon_roi
    >>> ramp = mx.nd.arange(16).reshape((1, 1, 4, 4)).tile((1, 4, 1, 1))
    >>> rois = mx.nd.array([[0, 0, 0, 3, 3]])
    >>> align = gluon_roi.PSROIAlign(pooled_size=2, spatial_scale=1.0)
    >>> align(ramp, rois).asnumpy().ravel().tolist()
    [1.5625, 3.0, 7.3125, 8.75]
    """

    function = ps_roi_align

    def __init__(
        self,
        pooled_size: int | tuple[int, int],
        spatial_scale: float,
        output_dim: int | None = None,
        sampling_ratio: int = -1,
        aligned: bool = True,
        rois_grad: bool = False,
        bad_index: str = "error",
        **kwargs: Any,
    ) -> None:
        parameters = {
            "pooled_size": pooled_size,
            "spatial_scale": spatial_scale,
            "output_dim": output_dim,
            "sampling_ratio": sampling_ratio,
            "aligned": aligned,
            "rois_grad": rois_grad,
            "bad_index": bad_index,
        }
        super().__init__(parameters, **kwargs)
