"""PSROIPool: position-sensitive average pooling, the operator of R-FCN."""

from __future__ import annotations

from typing import Any

from ..bridge import RoiBlock, call, operator_function


@operator_function("PSROIPool")
def ps_roi_pool(
    data: Any,
    rois: Any,
    pooled_size: int | tuple[int, int],
    spatial_scale: float,
    output_dim: int | None = None,
    group_size: int | tuple[int, int] | None = None,
    convention: str = "rfcn",
    rois_num: Any = None,
    bad_index: str = "error",
    *,
    out: Any = None,
    name: str | None = None,
    attr: dict | None = None,
) -> Any:
    """:class:`gluon_roi.PSROIPool` as a function: its inputs, then its parameters.

    Arrays also take `out`; symbols `name` and `attr`.
    """
    values = (pooled_size, spatial_scale, output_dim, group_size, convention, bad_index)
    return call("PSROIPool", (data, rois, rois_num), values, out, name, attr)


class PSROIPool(RoiBlock):
    """Position-sensitive RoI pooling: bin (p, q) averages a score map of its own.

    Each RoI is split into P x Q bins; bin (p, q) of output channel c is the mean of input channel
    ``(c * G + gh) * G + gw`` over the cells of the bin, where (gh, gw) is the group that the bin
    falls into. A bin without cells gives 0.

    Parameters
    ----------
    pooled_size : int or (int, int)
        Bins of the output, P x Q (height, width).
    spatial_scale : float
        Map cells per image pixel, such as 1 / 16.
    output_dim : int, optional
        Channels of the output; C / (G * G) if not given.
    group_size : int or (int, int), optional
        Groups G per axis; the pooled size if not given.
    convention : {'rfcn', 'torchvision'}
        'rfcn' (Caffe R-FCN, MXNet's ``contrib.PSROIPooling``, Paddle's ``psroi_pool``): the box is
        rounded in image pixels, its last pixel included, before scaling. 'torchvision'
        (``ps_roi_pool``): rounded on the map after scaling, and the last row and column of the map
        are never read.

    bad_index : {'error', 'padding'}
        What a batch index beyond the batch is: an error, or the mark of a padding row, as for
        MXNet's ``ROIPooling``.

    Inputs
    ------
    data : (N, C, H, W), float16, float32 or float64
        Score maps, C = output_dim * G * G.
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

    The gradient of a bin goes in equal shares to its cells, RoIs in their order, so that the result
    does not depend on the number of threads. Gradients of rois are 0.

    Raises
    ------
    mxnet.base.MXNetError
        A bad argument, a shape or dtype that does not fit, or on the CPU a batch index that is NaN,
        fractional or beyond the batch. The message names operator, argument, expected and got. (On
        a GPU such a row is NaN.)

    References
    ----------
    Dai et al. 2016, R-FCN: Object Detection via Region-based Fully Convolutional Networks,
    arXiv:1605.06409, section 2.2.

    Examples
    --------
    >>> import mxnet as mx, gluon_roi
    >>> ramp = mx.nd.arange(16).reshape((1, 1, 4, 4)).tile((1, 4, 1, 1))
    >>> rois = mx.nd.array([[0, 0, 0, 3, 3]])
    >>> pool = gluon_roi.PSROIPool(pooled_size=2, spatial_scale=1.0)
    >>> pool(ramp, rois).asnumpy().ravel().tolist()
    [2.5, 4.5, 10.5, 12.5]
    """

    function = ps_roi_pool

    def __init__(
        self,
        pooled_size: int | tuple[int, int],
        spatial_scale: float,
        output_dim: int | None = None,
        group_size: int | tuple[int, int] | None = None,
        convention: str = "rfcn",
        bad_index: str = "error",
        **kwargs: Any,
    ) -> None:
        parameters = {
            "pooled_size": pooled_size,
            "spatial_scale": spatial_scale,
            "output_dim": output_dim,
            "group_size": group_size,
            "convention": convention,
            "bad_index": bad_index,
        }
        super().__init__(parameters, **kwargs)
