# SPDX-License-Identifier: Apache-2.0
"""Made by build_tools/stubs.py from the functions themselves; see nd.py."""

from typing import Any, Sequence, overload

from .bridge import Tensor

__all__ = [
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
]

def BoxNMS(
    data: Tensor,
    overlap_thresh: float = 0.5,
    valid_thresh: float = 0.0,
    topk: int = -1,
    coord_start: int = 2,
    score_index: int = 1,
    id_index: int = -1,
    background_id: int = -1,
    force_suppress: bool = False,
    in_format: str = 'corner',
    out_format: str = 'corner',
    *,
    out: Tensor | None = None,
    name: str | None = None,
    attr: dict | None = None,
) -> Tensor:
    """Non-maximum suppression, as MXNet's ``contrib.box_nms``.

    The best `topk` valid rows of each batch are taken in turn, by descending score. A row is kept
    unless a kept one of its class overlaps it by more than `overlap_thresh`.

    :class:`gluon_roi.BoxNMS` as a function: the input first, then parameters.

    Arguments and their order are those of MXNet's ``contrib.box_nms``. For arrays, `out` is
    available too; for symbols, `name` and `attr`.

    Parameters
    ----------
    data : (..., n, w), float16, float32 or float64
        Batches of n rows of w columns.
    overlap_thresh : float
        Intersection over union above which the better of two boxes suppresses the other.
    valid_thresh : float
        Rows with scores up to it are not valid.
    topk : int
        Valid rows of a batch that are considered; all if negative. With 0 the output is data.
    coord_start : int
        First of the four columns of the box.
    score_index : int
        Column of the score.
    id_index : int
        Column of the class; if negative, all rows are of one class.
    background_id : int
        Class whose rows are not valid.
    force_suppress : bool
        Whether rows suppress those of other classes, too.
    in_format : {'corner', 'center'}
        Boxes of data: x1, y1, x2, y2, or centre x, y and width, height.
    out_format : {'corner', 'center'}
        Boxes of the output. Those with a negative first coordinate are not converted.
    out : array, optional
        For the result, which is returned; arrays only.
    name : str, optional
        Of the node; symbols only.
    attr : dict, optional
        Further attributes of the node; symbols only.

    Returns
    -------
    out : shape and dtype of data
        The kept rows of each batch, best first, then rows of -1.

    Raises
    ------
    mxnet.base.MXNetError
        An invalid argument, shape or dtype; on the CPU, also a batch index that is NaN, fractional or
        beyond the batch. The message names the operator, the argument, the expected value and the
        actual one. (On a GPU such a row is NaN.)
        An invalid argument, shape or dtype. The message names the operator, the argument, the
        expected value and the actual one.

    Notes
    -----
    Rows with equal scores keep their order. A score of NaN is not valid, and infinity is the best
    of all. A box with a NaN overlaps nothing. float16 is computed in float32. data has a gradient:
    kept rows get that of their copy, other rows 0. In a symbol, a hidden second output has the
    numbers of the kept rows, counted over all batches: (..., n, 1), int32.

    References
    ----------
    Felzenszwalb et al. 2010, Object detection with discriminatively trained part-based models,
    IEEE TPAMI 32(9), section 3; MXNet's ``contrib.box_nms``.

    Examples
    --------
    >>> import mxnet as mx, gluon_roi
    >>> boxes = mx.nd.array([[0.5, 0, 0, 4, 4], [0.75, 0, 0, 4, 5], [0.25, 9, 0, 9, 4]])
    >>> gluon_roi.BoxNMS(coord_start=1, score_index=0)(boxes).asnumpy()[:, 0].tolist()
    [0.75, 0.25, -1.0]
    """

def DeformableConvolution(
    data: Tensor,
    offset: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    kernel: int | tuple[int, int] | None = None,
    stride: int | tuple[int, int] = 1,
    dilate: int | tuple[int, int] = 1,
    pad: int | tuple[int, int] = 0,
    num_filter: int | None = None,
    num_group: int = 1,
    num_deformable_group: int = 1,
    workspace: int = 1024,
    no_bias: bool = False,
    layout: str | None = None,
    convention: str = 'mxnet',
    *,
    out: Tensor | None = None,
    name: str | None = None,
    attr: dict | None = None,
) -> Tensor:
    """Convolution at sampling positions that offsets move, as ``contrib.DeformableConvolution``.

    Arguments, their order, parameters and results are those of MXNet's operator. The samples are
    :class:`gluon_roi.DeformableSampling`, as columns; the product with the weights is MXNet's
    ``Convolution`` with a kernel of 1.

    Parameters
    ----------
    data : (N, C, H, W), float16, float32 or float64
        Array or symbol of mx.nd, mx.sym or mx.np, as all inputs. MXNet multiplies float16 on a GPU
        only.
    offset : (N, 2 * num_deformable_group * kh * kw, Ho, Wo), dtype of data
        In map cells, y and x of each kernel cell in turn. A NaN or infinite one leaves its sample
        0, without a gradient.
    weight : (num_filter, C / num_group, kh, kw), dtype of data
        Of symbols it may be left out, as may bias: MXNet makes variables.
    bias : (num_filter,), dtype of data, optional
    kernel, stride, dilate, pad : int or (int, int)
        Size kh x kw, step, spacing of its cells, and map cells beyond each edge.
    num_filter : int
        Channels of the output; those of weight if not given.
    num_group : int
        Groups of channels, each with weights of its own.
    num_deformable_group : int
        Groups of channels, each with offsets of its own.
    workspace : int
        MB for MXNet's convolution.
    no_bias : bool
        Whether there is no bias. Without one, arrays need not say so.
    layout : {None, 'NCHW'}
    convention : {'mxnet', 'torchvision'}
        What lies around the map: samples off it are 0, or fade to 0 within one cell.
    out : array, optional
        For the result, which is returned; arrays only.
    name, attr : str, dict, optional
        Of the node; symbols only.

    Returns
    -------
    out : (N, num_filter, Ho, Wo), dtype of data
        Ho = floor((H + 2 * pad - dilate * (kh - 1) - 1) / stride) + 1, and Wo alike.

    Raises
    ------
    mxnet.base.MXNetError
        Shapes or types that do not fit together.
    TypeError, ValueError
        An argument of another kind, a layout other than NCHW, groups that do not divide the
        channels.

    References
    ----------
    Dai et al. 2017, Deformable Convolutional Networks, arXiv:1703.06211, section 2.1.

    Examples
    --------
    >>> import mxnet as mx, gluon_roi
    >>> x, offset = mx.nd.ones((1, 8, 16, 16)), mx.nd.zeros((1, 18, 16, 16))
    >>> weight = mx.nd.ones((4, 8, 3, 3))
    >>> gluon_roi.nd.DeformableConvolution(x, offset, weight, kernel=3, pad=1, num_filter=4).shape
    (1, 4, 16, 16)
    """

@overload
def DeformablePSROIPool(
    data: Tensor,
    rois: Tensor,
    trans: Tensor | None,
    pooled_size: int | tuple[int, int],
    spatial_scale: float,
    output_dim: int | None = None,
    group_size: int | tuple[int, int] | None = None,
    part_size: int | tuple[int, int] | None = None,
    sample_per_part: int = 4,
    trans_std: float = 0.0,
    rois_num: Tensor | None = None,
    bad_index: str = 'error',
    *,
    out: Tensor | None = None,
    name: str | None = None,
    attr: dict | None = None,
) -> Tensor:
    """Position-sensitive pooling of bilinear samples, with each bin moved by an offset.

    Each RoI is split into P x Q bins. Bin (p, q) of output channel c is the mean of a regular grid
    of bilinear samples of input channel ``(c * G + gh) * G + gw``, where (gh, gw) is the group of
    the bin. The bin moves by ``trans * trans_std`` widths and heights of the box. Samples off the
    map are left out of sum and count; a bin without samples is 0.

    :class:`gluon_roi.DeformablePSROIPool` as a function: inputs first, then parameters.

    `trans` may be None or left out: ``DeformablePSROIPool(data, rois, pooled_size, ...)``. For
    arrays, `out` is available too; for symbols, `name` and `attr`.

    Parameters
    ----------
    data : (N, C, H, W), float16, float32 or float64
        Score maps, C = output_dim * G * G.
    rois : (K, 5), (N, R, 4) or (K, 4), float32 or float64
        Boxes in image coordinates (pixels): rows [batch_index, x1, y1, x2, y2], where a negative batch
        index marks a padding row; or R boxes per image, K = N * R; or boxes without an index, together
        with rois_num. float16 is converted.
    trans : (K, 2 * classes, T, T), dtype of data, optional
        Offsets x and y of each class; output channel c belongs to class
        ``c // (output_dim / classes)``. Without it bins do not move (MXNet's ``no_trans``).
    pooled_size : int or (int, int)
        Bins of the output, P x Q (height, width).
    spatial_scale : float
        Map cells per image pixel, such as 1 / 16.
    output_dim : int, optional
        Channels of the output; C / (G * G) if not given.
    group_size : int or (int, int), optional
        Groups G per axis; the pooled size if not given.
    part_size : int or (int, int), optional
        Parts T per axis, each with its own offset: bin p belongs to part floor(p * T / P). The
        pooled size if not given.
    sample_per_part : int
        Samples per bin and axis.
    trans_std : float
        Factor of trans; 0.1 in the paper. With the default of 0, which is MXNet's too, bins do not
        move.
    rois_num : (N,), int32 or int64, optional
        Number of boxes of each image, for rois without an index.
    bad_index : {'error', 'padding'}
        How to treat a batch index beyond the batch: 'error' raises, 'padding' takes the row for a
        padding row, as MXNet's ``ROIPooling`` does.
    out : array, optional
        For the result, which is returned; arrays only.
    name : str, optional
        Of the node; symbols only.
    attr : dict, optional
        Further attributes of the node; symbols only.

    Returns
    -------
    out : (K, output_dim, P, Q), dtype of data
        0 for a padding row; NaN for a row with a NaN or infinite coordinate, and for a bin with a
        NaN or infinite offset.

    Raises
    ------
    mxnet.base.MXNetError
        An invalid argument, shape or dtype; on the CPU, also a batch index that is NaN, fractional or
        beyond the batch. The message names the operator, the argument, the expected value and the
        actual one. (On a GPU such a row is NaN.)

    Notes
    -----
    Positions are computed in float32 for float16 and float32 data, in float64 for float64 data.
    data and trans have gradients; the gradient of rois is 0.

    References
    ----------
    Dai et al. 2017, Deformable Convolutional Networks, arXiv:1703.06211, section 2.2. The
    arithmetic is that of MXNet's ``contrib.DeformablePSROIPooling``.

    Examples
    --------
    >>> import mxnet as mx, gluon_roi
    >>> ramp = mx.nd.arange(16).reshape((1, 1, 4, 4)).tile((1, 4, 1, 1))
    >>> rois = mx.nd.array([[0, 0, 0, 3, 3]])
    >>> pool = gluon_roi.DeformablePSROIPool(2, 1.0, sample_per_part=2, trans_std=0.25)
    >>> pool(ramp, rois).asnumpy().ravel().tolist()
    [1.25, 3.0, 8.25, 10.0]
    >>> right = mx.nd.array([1, 0]).reshape((1, 2, 1, 1)).tile((1, 1, 2, 2))
    >>> pool(ramp, rois, right).asnumpy().ravel().tolist()
    [2.0, 3.75, 9.0, 10.75]
    """

@overload
def DeformablePSROIPool(
    data: Tensor,
    rois: Tensor,
    pooled_size: int | tuple[int, int],
    spatial_scale: float,
    output_dim: int | None = None,
    group_size: int | tuple[int, int] | None = None,
    part_size: int | tuple[int, int] | None = None,
    sample_per_part: int = 4,
    trans_std: float = 0.0,
    rois_num: Tensor | None = None,
    bad_index: str = 'error',
    *,
    out: Tensor | None = None,
    name: str | None = None,
    attr: dict | None = None,
    trans: Tensor | None = None,
) -> Tensor: ...

@overload
def DeformableSampling(
    data: Tensor,
    offset: Tensor,
    mask: Tensor | None,
    kernel: int | tuple[int, int],
    stride: int | tuple[int, int] = 1,
    dilate: int | tuple[int, int] = 1,
    pad: int | tuple[int, int] = 0,
    num_deformable_group: int = 1,
    convention: str = 'mxnet',
    layout: str = 'map',
    *,
    out: Tensor | None = None,
    name: str | None = None,
    attr: dict | None = None,
) -> Tensor:
    """The bilinear samples that a deformable convolution multiplies by its weights.

    The sample for output (oy, ox) and kernel cell (i, j) lies at ``oy * stride - pad + i * dilate``
    plus the offset, and is multiplied by the mask. In the layout 'map' it is cell
    ``[oy * kh + i, ox * kw + j]`` of its channel; a convolution of the result with a kernel and a
    stride of (kh, kw) is the deformable convolution. In the layout 'columns' it is cell [oy, ox] of
    channel ``(c * kh + i) * kw + j``; the convolution then has a kernel of 1 and the same weights,
    reshaped, as in :func:`gluon_roi.nd.DeformableConvolution`.

    :class:`gluon_roi.DeformableSampling` as a function: inputs first, then parameters.

    `mask` may be None or left out: ``DeformableSampling(data, offset, kernel, ...)``. For arrays,
    `out` is available too; for symbols, `name` and `attr`.

    Parameters
    ----------
    data : (N, C, H, W), float16, float32 or float64
        Feature maps.
    offset : (N, 2 * num_deformable_group * kh * kw, Ho, Wo), dtype of data
        In map cells, y and x of each kernel cell in turn. A NaN or infinite one leaves its sample
        0, without a gradient.
    mask : (N, num_deformable_group * kh * kw, Ho, Wo), dtype of data, optional
        What each sample is multiplied by.
    kernel : int or (int, int)
        Cells kh x kw of the kernel (height, width).
    stride : int or (int, int)
        Map cells from an output to the next.
    dilate : int or (int, int)
        Map cells from a kernel cell to the next.
    pad : int or (int, int)
        Map cells beyond each edge over which the kernel still goes.
    num_deformable_group : int
        Groups of channels with offsets of their own.
    convention : {'mxnet', 'torchvision'}
        What lies around the map. With 'mxnet' samples off the map are 0, as in MXNet's
        ``contrib.DeformableConvolution``. With 'torchvision' they fade to 0 within one cell, as in
        torchvision's ``deform_conv2d`` and MXNet's ``contrib.ModulatedDeformableConvolution``.
    layout : {'map', 'columns'}
        Of the result. MXNet multiplies columns faster.
    out : array, optional
        For the result, which is returned; arrays only.
    name : str, optional
        Of the node; symbols only.
    attr : dict, optional
        Further attributes of the node; symbols only.

    Returns
    -------
    out : (N, C, Ho * kh, Wo * kw) or (N, C * kh * kw, Ho, Wo), dtype of data
        As layout says; Ho = floor((H + 2 * pad - dilate * (kh - 1) - 1) / stride) + 1, Wo alike.

    Raises
    ------
    mxnet.base.MXNetError
        An invalid argument, shape or dtype; on the CPU, also a batch index that is NaN, fractional or
        beyond the batch. The message names the operator, the argument, the expected value and the
        actual one. (On a GPU such a row is NaN.)
        An invalid argument, shape or dtype. The message names the operator, the argument, the
        expected value and the actual one.

    Notes
    -----
    Positions are computed in float32 for float16 and float32 data, in float64 for float64 data. All
    inputs have gradients.

    References
    ----------
    Dai et al. 2017, Deformable Convolutional Networks, arXiv:1703.06211, section 2.1; Zhu et al.
    2018, Deformable ConvNets v2, arXiv:1811.11168.

    Examples
    --------
    >>> import mxnet as mx, gluon_roi
    >>> ramp = mx.nd.arange(16).reshape((1, 1, 4, 4))
    >>> offset = mx.nd.array([0.5, 0.25]).reshape((1, 2, 1, 1)).tile((1, 1, 4, 4))
    >>> gluon_roi.DeformableSampling(1)(ramp, offset)[0, 0, 0].asnumpy().tolist()
    [2.25, 3.25, 4.25, 5.0]
    """

@overload
def DeformableSampling(
    data: Tensor,
    offset: Tensor,
    kernel: int | tuple[int, int],
    stride: int | tuple[int, int] = 1,
    dilate: int | tuple[int, int] = 1,
    pad: int | tuple[int, int] = 0,
    num_deformable_group: int = 1,
    convention: str = 'mxnet',
    layout: str = 'map',
    *,
    out: Tensor | None = None,
    name: str | None = None,
    attr: dict | None = None,
    mask: Tensor | None = None,
) -> Tensor: ...

def ModulatedDeformableConvolution(
    data: Tensor,
    offset: Tensor,
    mask: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    kernel: int | tuple[int, int] | None = None,
    stride: int | tuple[int, int] = 1,
    dilate: int | tuple[int, int] = 1,
    pad: int | tuple[int, int] = 0,
    num_filter: int | None = None,
    num_group: int = 1,
    num_deformable_group: int = 1,
    workspace: int = 1024,
    no_bias: bool = False,
    im2col_step: int = 64,
    layout: str | None = None,
    convention: str = 'torchvision',
    *,
    out: Tensor | None = None,
    name: str | None = None,
    attr: dict | None = None,
) -> Tensor:
    """:func:`DeformableConvolution` with a factor for each sample.

    Arguments, their order, parameters and results are those of MXNet's
    ``contrib.ModulatedDeformableConvolution``, which runs on a GPU only.

    Parameters
    ----------
    mask : (N, num_deformable_group * kh * kw, Ho, Wo), dtype of data
        What each sample is multiplied by.
    im2col_step : int
        MXNet's; it changes nothing.
    convention : {'mxnet', 'torchvision'}
        What lies around the map. The default is what MXNet's modulated operator does, unlike its
        plain one: samples fade to 0 within one cell.
    data, offset, weight, bias, kernel, stride, dilate, pad, num_filter, num_group
    num_deformable_group, workspace, no_bias, layout, out, name, attr
        As of :func:`DeformableConvolution`.

    Returns
    -------
    out : (N, num_filter, Ho, Wo), dtype of data

    Raises
    ------
    mxnet.base.MXNetError, TypeError, ValueError
        As :func:`DeformableConvolution` does.

    References
    ----------
    Zhu et al. 2018, Deformable ConvNets v2, arXiv:1811.11168.

    Examples
    --------
    >>> import mxnet as mx, gluon_roi
    >>> x, offset = mx.nd.ones((1, 8, 16, 16)), mx.nd.zeros((1, 18, 16, 16))
    >>> mask, weight = mx.nd.ones((1, 9, 16, 16)), mx.nd.ones((4, 8, 3, 3))
    >>> gluon_roi.nd.ModulatedDeformableConvolution(
    ...     x, offset, mask, weight, kernel=3, pad=1, num_filter=4).shape
    (1, 4, 16, 16)
    """

def PSROIAlign(
    data: Tensor,
    rois: Tensor,
    pooled_size: int | tuple[int, int],
    spatial_scale: float,
    output_dim: int | None = None,
    sampling_ratio: int = -1,
    aligned: bool = True,
    rois_grad: bool = False,
    rois_num: Tensor | None = None,
    bad_index: str = 'error',
    *,
    out: Tensor | None = None,
    name: str | None = None,
    attr: dict | None = None,
) -> Tensor:
    """Position-sensitive RoI pooling by bilinear samples: each bin reads its own score map.

    Bin (p, q) of output channel c is that bin of :class:`gluon_roi.ROIAlign` on input channel
    ``(c * P + p) * Q + q``.

    :class:`gluon_roi.PSROIAlign` as a function: inputs first, then parameters.

    For arrays, `out` is available too; for symbols, `name` and `attr`.

    Parameters
    ----------
    data : (N, C, H, W), float16, float32 or float64
        Score maps, C = output_dim * P * Q.
    rois : (K, 5), (N, R, 4) or (K, 4), float32 or float64
        Boxes in image coordinates (pixels): rows [batch_index, x1, y1, x2, y2], where a negative batch
        index marks a padding row; or R boxes per image, K = N * R; or boxes without an index, together
        with rois_num. float16 is converted.
    pooled_size : int or (int, int)
        Bins of the output, P x Q (height, width).
    spatial_scale : float
        Map cells per image pixel, such as 1 / 16.
    output_dim : int, optional
        Channels of the output; C / (P * Q) if not given.
    sampling_ratio : int
        Samples per bin and axis; if not positive, as many as the bin has cells, rounded up.
    aligned : bool
        True (torchvision's ``ps_roi_align``): the box moves by half a cell. False (MXNet's
        ``contrib.ROIAlign`` with position_sensitive): the box does not move, and is at least one
        cell in size.
    rois_grad : bool
        Whether rois get a gradient (in units of out per image pixel) instead of zeros.
    rois_num : (N,), int32 or int64, optional
        Number of boxes of each image, for rois without an index.
    bad_index : {'error', 'padding'}
        How to treat a batch index beyond the batch: 'error' raises, 'padding' takes the row for a
        padding row, as MXNet's ``ROIPooling`` does.
    out : array, optional
        For the result, which is returned; arrays only.
    name : str, optional
        Of the node; symbols only.
    attr : dict, optional
        Further attributes of the node; symbols only.

    Returns
    -------
    out : (K, output_dim, P, Q), dtype of data
        0 for a padding row, NaN for a row with a NaN or infinite coordinate.

    Raises
    ------
    mxnet.base.MXNetError
        An invalid argument, shape or dtype; on the CPU, also a batch index that is NaN, fractional or
        beyond the batch. The message names the operator, the argument, the expected value and the
        actual one. (On a GPU such a row is NaN.)

    Notes
    -----
    Geometry is computed in float32 for float16 and float32 data, in float64 for float64 data.

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

def PSROIPool(
    data: Tensor,
    rois: Tensor,
    pooled_size: int | tuple[int, int],
    spatial_scale: float,
    output_dim: int | None = None,
    group_size: int | tuple[int, int] | None = None,
    convention: str = 'rfcn',
    rois_num: Tensor | None = None,
    bad_index: str = 'error',
    *,
    out: Tensor | None = None,
    name: str | None = None,
    attr: dict | None = None,
) -> Tensor:
    """Position-sensitive RoI pooling: each bin averages its own score map.

    Each RoI is split into P x Q bins. Bin (p, q) of output channel c is the mean of input channel
    ``(c * G + gh) * G + gw`` over the cells of the bin, where (gh, gw) is the group of the bin. A
    bin without cells is 0.

    :class:`gluon_roi.PSROIPool` as a function: inputs first, then parameters.

    For arrays, `out` is available too; for symbols, `name` and `attr`.

    Parameters
    ----------
    data : (N, C, H, W), float16, float32 or float64
        Score maps, C = output_dim * G * G.
    rois : (K, 5), (N, R, 4) or (K, 4), float32 or float64
        Boxes in image coordinates (pixels): rows [batch_index, x1, y1, x2, y2], where a negative batch
        index marks a padding row; or R boxes per image, K = N * R; or boxes without an index, together
        with rois_num. float16 is converted.
    pooled_size : int or (int, int)
        Bins of the output, P x Q (height, width).
    spatial_scale : float
        Map cells per image pixel, such as 1 / 16.
    output_dim : int, optional
        Channels of the output; C / (G * G) if not given.
    group_size : int or (int, int), optional
        Groups G per axis; the pooled size if not given.
    convention : {'rfcn', 'torchvision'}
        'rfcn' (Caffe R-FCN, MXNet's ``contrib.PSROIPooling``, Paddle's ``psroi_pool``) rounds the
        box in image pixels, before scaling, and includes its last pixel. 'torchvision'
        (``ps_roi_pool``) rounds on the map, after scaling, and never reads the last row and column
        of the map.
    rois_num : (N,), int32 or int64, optional
        Number of boxes of each image, for rois without an index.
    bad_index : {'error', 'padding'}
        How to treat a batch index beyond the batch: 'error' raises, 'padding' takes the row for a
        padding row, as MXNet's ``ROIPooling`` does.
    out : array, optional
        For the result, which is returned; arrays only.
    name : str, optional
        Of the node; symbols only.
    attr : dict, optional
        Further attributes of the node; symbols only.

    Returns
    -------
    out : (K, output_dim, P, Q), dtype of data
        0 for a padding row, NaN for a row with a NaN or infinite coordinate.

    Raises
    ------
    mxnet.base.MXNetError
        An invalid argument, shape or dtype; on the CPU, also a batch index that is NaN, fractional or
        beyond the batch. The message names the operator, the argument, the expected value and the
        actual one. (On a GPU such a row is NaN.)

    Notes
    -----
    The gradient of a bin goes to its cells in equal shares. RoIs are added in their order, so the
    result does not depend on the number of threads. The gradient of rois is 0.

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

def PrROIPool(
    data: Tensor,
    rois: Tensor,
    pooled_size: int | tuple[int, int],
    spatial_scale: float,
    rois_grad: bool = False,
    rois_num: Tensor | None = None,
    bad_index: str = 'error',
    *,
    out: Tensor | None = None,
    name: str | None = None,
    attr: dict | None = None,
) -> Tensor:
    """Precise RoI pooling: the mean of the bilinear surface over each bin, without samples.

    The box is scaled to the map, without rounding or shifting, and split into P x Q bins. The
    surface has the value of cell i at coordinate i, is bilinear in between, and falls to 0 within
    one cell beyond the map. Its integral over a bin is divided by the bin's area; a bin without
    area, as in an inverted box, is 0. The gradient of the box is continuous, so that boxes can be
    optimised by gradient steps.

    :class:`gluon_roi.PrROIPool` as a function: inputs first, then parameters.

    For arrays, `out` is available too; for symbols, `name` and `attr`.

    Parameters
    ----------
    data : (N, C, H, W), float16, float32 or float64
        Feature maps.
    rois : (K, 5), (N, R, 4) or (K, 4), float32 or float64
        Boxes in image coordinates (pixels): rows [batch_index, x1, y1, x2, y2], where a negative batch
        index marks a padding row; or R boxes per image, K = N * R; or boxes without an index, together
        with rois_num. float16 is converted.
    pooled_size : int or (int, int)
        Bins of the output, P x Q (height, width).
    spatial_scale : float
        Map cells per image pixel, such as 1 / 16.
    rois_grad : bool
        Whether rois get a gradient (in units of out per image pixel) instead of zeros.
    rois_num : (N,), int32 or int64, optional
        Number of boxes of each image, for rois without an index.
    bad_index : {'error', 'padding'}
        How to treat a batch index beyond the batch: 'error' raises, 'padding' takes the row for a
        padding row, as MXNet's ``ROIPooling`` does.
    out : array, optional
        For the result, which is returned; arrays only.
    name : str, optional
        Of the node; symbols only.
    attr : dict, optional
        Further attributes of the node; symbols only.

    Returns
    -------
    out : (K, C, P, Q), dtype of data
        0 for a padding row, NaN for a row with a NaN or infinite coordinate.

    Raises
    ------
    mxnet.base.MXNetError
        An invalid argument, shape or dtype; on the CPU, also a batch index that is NaN, fractional or
        beyond the batch. The message names the operator, the argument, the expected value and the
        actual one. (On a GPU such a row is NaN.)

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

def Proposal(
    cls_prob: Tensor,
    bbox_pred: Tensor,
    im_info: Tensor,
    rpn_pre_nms_top_n: int = 6000,
    rpn_post_nms_top_n: int = 300,
    threshold: float = 0.7,
    rpn_min_size: int = 16,
    scales: tuple[float, ...] = (4.0, 8.0, 16.0, 32.0),
    ratios: tuple[float, ...] = (0.5, 1.0, 2.0),
    feature_stride: int = 16,
    output_score: bool = False,
    iou_loss: bool = False,
    *,
    out: Tensor | None = None,
    name: str | None = None,
    attr: dict | None = None,
) -> Any:
    """Proposals of a region proposal network, as MXNet's ``contrib.Proposal`` for any batch.

    The network moves the anchors of each cell, and gives each box a score. The best boxes of each
    image are taken in turn; one is kept unless a kept one overlaps it by more than `threshold`.

    :class:`gluon_roi.Proposal` as a function: inputs first, then parameters.

    Arguments and their order are those of MXNet's ``contrib.Proposal`` and
    ``contrib.MultiProposal``. For arrays, `out` is available too; for symbols, `name` and `attr`.

    Parameters
    ----------
    cls_prob : (N, 2 * A, H, W), float16, float32 or float64
        Probabilities; the last A channels are the scores of A = len(ratios) * len(scales) anchors.
    bbox_pred : (N, 4 * A, H, W), dtype of cls_prob
        For each anchor dx, dy, in its lengths, and logarithms dw, dh of factors.
    im_info : (N, 3), dtype of cls_prob
        Rows [height, width, scale] of the images, in pixels. Cells beyond an image have the score
        -1.
    rpn_pre_nms_top_n : int
        Boxes of an image that are considered; all if not positive.
    rpn_post_nms_top_n : int
        Rows of the output for each image. If fewer boxes are kept, they repeat in turn.
    threshold : float
        Intersection over union above which the better of two boxes suppresses the other.
    rpn_min_size : int
        Smallest side of a box in pixels, times the scale of im_info. Smaller boxes grow by half of
        it on each side, and have the score -1.
    scales : tuple of float
        Sizes of the anchors, in cells; up to 8.
    ratios : tuple of float
        Heights of the anchors, in widths; up to 8.
    feature_stride : int
        Pixels per cell.
    output_score : bool
        Whether to return scores as well.
    iou_loss : bool
        Whether bbox_pred moves the corners of the anchors, in pixels.
    out : array, optional
        For the result, which is returned; arrays only.
    name : str, optional
        Of the node; symbols only.
    attr : dict, optional
        Further attributes of the node; symbols only.

    Returns
    -------
    out : (N * rpn_post_nms_top_n, 5), dtype of cls_prob
        Rows [image, x1, y1, x2, y2], as RoI operators take them; x2 is the last pixel of the box.
    score : (N * rpn_post_nms_top_n, 1), dtype of cls_prob
        With output_score only.

    Raises
    ------
    mxnet.base.MXNetError
        An invalid argument, shape or dtype; on the CPU, also a batch index that is NaN, fractional or
        beyond the batch. The message names the operator, the argument, the expected value and the
        actual one. (On a GPU such a row is NaN.)
        An invalid argument, shape or dtype; on the CPU, also a row of im_info that is not finite,
        negative or beyond the map. The message names the operator, the argument, the expected value
        and the actual one.

    Notes
    -----
    Boxes with equal scores stay in the order of cells, then anchors. A score of NaN counts as
    -infinity. A box that a NaN moves is NaN, has the score -1, and overlaps nothing. float16 is
    computed in float32. All gradients are 0.

    References
    ----------
    Ren et al. 2015, Faster R-CNN, arXiv:1506.01497, section 3.1; MXNet's ``contrib.Proposal`` and
    ``contrib.MultiProposal``.

    Examples
    --------
    >>> import mxnet as mx, gluon_roi
    >>> scores = mx.nd.array([0, 0, 0.5, 0.75]).reshape((1, 2, 1, 2))
    >>> moves = mx.nd.zeros((1, 4, 1, 2))
    >>> image = mx.nd.array([[16, 32, 1]])
    >>> propose = gluon_roi.Proposal(scales=(1.0,), ratios=(1.0,), rpn_post_nms_top_n=2)
    >>> propose(scores, moves, image).asnumpy().tolist()
    [[0.0, 16.0, 0.0, 31.0, 15.0], [0.0, 0.0, 0.0, 15.0, 15.0]]
    """

def PyramidROIAlign(
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
    bad_index: str = 'error',
    assignment: str = 'size',
    *,
    out: Tensor | None = None,
    name: str | None = None,
    attr: dict | None = None,
) -> Tensor:
    """ROIAlign on a feature pyramid: one call pools each RoI from one of several maps.

    A box belongs to level ``floor(canonical_level + log2(sqrt(area) / canonical_size + 1e-6))``. It
    is pooled from the map of that level, or from the finest or coarsest map if there is none. A map
    of stride 2^k has level k. Each row of the output is bit for bit the result of :class:`ROIAlign`
    for its box on that map, and the rows are in the order of rois.

    :class:`gluon_roi.PyramidROIAlign` as a function: inputs first, then parameters.

    For arrays, `out` is available too; for symbols, `name` and `attr`.

    Parameters
    ----------
    data : list of (N, C, H_i, W_i), float16, float32 or float64
        Up to 8 feature maps, one for each number in spatial_scale.
    rois : (K, 5), (N, R, 4) or (K, 4), float32 or float64
        Boxes in image coordinates (pixels): rows [batch_index, x1, y1, x2, y2], where a negative batch
        index marks a padding row; or R boxes per image, K = N * R; or boxes without an index, together
        with rois_num. float16 is converted.
    pooled_size : int or (int, int)
        Bins of the output, P x Q (height, width).
    spatial_scale : sequence of float
        Cells per image pixel of each map, finest first, such as (1 / 4, 1 / 8, 1 / 16, 1 / 32).
        Each is at most half of the one before.
    sampling_ratio, aligned, rois_grad
        As in :class:`ROIAlign`. The gradient of rois treats the choice of the map as constant.
    canonical_size : float
        Side in image pixels of a box that belongs to canonical_level.
    canonical_level : int
        That level: 4 is the map of stride 16.
    rois_num : (N,), int32 or int64, optional
        Number of boxes of each image, for rois without an index.
    bad_index : {'error', 'padding'}
        How to treat a batch index beyond the batch: 'error' raises, 'padding' takes the row for a
        padding row, as MXNet's ``ROIPooling`` does.
    assignment : {'size', 'given'}
        'given': the caller assigns boxes to maps. rois holds a list of K boxes for each map, one
        list after the other, with padding rows for boxes of other maps. Row k of the output is the
        sum of what row k of each list pools. rois_num is not available, and canonical_size and
        canonical_level have no effect.
    out : array, optional
        For the result, which is returned; arrays only.
    name : str, optional
        Of the node; symbols only.
    attr : dict, optional
        Further attributes of the node; symbols only.

    Returns
    -------
    out : (K, C, P, Q), dtype of the maps
        0 for a padding row, NaN for a row with a NaN or infinite coordinate.

    Raises
    ------
    mxnet.base.MXNetError
        An invalid argument, shape or dtype; on the CPU, also a batch index that is NaN, fractional or
        beyond the batch. The message names the operator, the argument, the expected value and the
        actual one. (On a GPU such a row is NaN.)

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

def ROIAlign(
    data: Tensor,
    rois: Tensor,
    pooled_size: int | tuple[int, int],
    spatial_scale: float,
    sampling_ratio: int = -1,
    aligned: bool = False,
    rois_grad: bool = False,
    rois_num: Tensor | None = None,
    bad_index: str = 'error',
    *,
    out: Tensor | None = None,
    name: str | None = None,
    attr: dict | None = None,
) -> Tensor:
    """RoI pooling by bilinear samples, without rounding the box.

    The box is scaled to the map and split into P x Q bins. A bin is the mean of a regular grid of
    bilinear samples. Samples more than one cell off the map count as 0.

    :class:`gluon_roi.ROIAlign` as a function: inputs first, then parameters.

    For arrays, `out` is available too; for symbols, `name` and `attr`.

    Parameters
    ----------
    data : (N, C, H, W), float16, float32 or float64
        Feature maps.
    rois : (K, 5), (N, R, 4) or (K, 4), float32 or float64
        Boxes in image coordinates (pixels): rows [batch_index, x1, y1, x2, y2], where a negative batch
        index marks a padding row; or R boxes per image, K = N * R; or boxes without an index, together
        with rois_num. float16 is converted.
    pooled_size : int or (int, int)
        Bins of the output, P x Q (height, width).
    spatial_scale : float
        Map cells per image pixel, such as 1 / 16.
    sampling_ratio : int
        Samples per bin and axis; if not positive, as many as the bin has cells, rounded up.
    aligned : bool
        True (detectron2): the box moves by half a cell, so that pixel centres of image and map
        agree. False (the original): the box does not move, and is at least one cell in size.
    rois_grad : bool
        Whether rois get a gradient (in units of out per image pixel) instead of zeros.
    rois_num : (N,), int32 or int64, optional
        Number of boxes of each image, for rois without an index.
    bad_index : {'error', 'padding'}
        How to treat a batch index beyond the batch: 'error' raises, 'padding' takes the row for a
        padding row, as MXNet's ``ROIPooling`` does.
    out : array, optional
        For the result, which is returned; arrays only.
    name : str, optional
        Of the node; symbols only.
    attr : dict, optional
        Further attributes of the node; symbols only.

    Returns
    -------
    out : (K, C, P, Q), dtype of data
        0 for a padding row, NaN for a row with a NaN or infinite coordinate.

    Raises
    ------
    mxnet.base.MXNetError
        An invalid argument, shape or dtype; on the CPU, also a batch index that is NaN, fractional or
        beyond the batch. The message names the operator, the argument, the expected value and the
        actual one. (On a GPU such a row is NaN.)

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

def ROIPool(
    data: Tensor,
    rois: Tensor,
    pooled_size: int | tuple[int, int],
    spatial_scale: float,
    rois_num: Tensor | None = None,
    bad_index: str = 'error',
    *,
    out: Tensor | None = None,
    name: str | None = None,
    attr: dict | None = None,
) -> Tensor:
    """RoI max pooling: each bin takes the maximum of its cells.

    The box is scaled to the map and rounded, with halves away from zero. It includes its last cell
    and is at least one cell in size. It is split into P x Q bins, which may share cells. A bin
    without cells is 0.

    :class:`gluon_roi.ROIPool` as a function: inputs first, then parameters.

    For arrays, `out` is available too; for symbols, `name` and `attr`.

    Parameters
    ----------
    data : (N, C, H, W), float16, float32 or float64
        Feature maps.
    rois : (K, 5), (N, R, 4) or (K, 4), float32 or float64
        Boxes in image coordinates (pixels): rows [batch_index, x1, y1, x2, y2], where a negative batch
        index marks a padding row; or R boxes per image, K = N * R; or boxes without an index, together
        with rois_num. float16 is converted.
    pooled_size : int or (int, int)
        Bins of the output, P x Q (height, width).
    spatial_scale : float
        Map cells per image pixel, such as 1 / 16.
    rois_num : (N,), int32 or int64, optional
        Number of boxes of each image, for rois without an index.
    bad_index : {'error', 'padding'}
        How to treat a batch index beyond the batch: 'error' raises, 'padding' takes the row for a
        padding row, as MXNet's ``ROIPooling`` does.
    out : array, optional
        For the result, which is returned; arrays only.
    name : str, optional
        Of the node; symbols only.
    attr : dict, optional
        Further attributes of the node; symbols only.

    Returns
    -------
    out : (K, C, P, Q), dtype of data
        0 for a padding row, NaN for a row with a NaN or infinite coordinate.

    Raises
    ------
    mxnet.base.MXNetError
        An invalid argument, shape or dtype; on the CPU, also a batch index that is NaN, fractional or
        beyond the batch. The message names the operator, the argument, the expected value and the
        actual one. (On a GPU such a row is NaN.)

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

def RotatedROIAlign(
    data: Tensor,
    rois: Tensor,
    pooled_size: int | tuple[int, int],
    spatial_scale: float,
    sampling_ratio: int = -1,
    aligned: bool = False,
    rois_grad: bool = False,
    rois_num: Tensor | None = None,
    bad_index: str = 'error',
    *,
    out: Tensor | None = None,
    name: str | None = None,
    attr: dict | None = None,
) -> Tensor:
    """RoI pooling by bilinear samples of a rotated box.

    The samples are those of :class:`ROIAlign` for a box of the same size around the origin, rotated
    by theta and moved to the box's centre. Samples more than one cell off the map count as 0. With
    theta = 0 the result is ROIAlign's.

    :class:`gluon_roi.RotatedROIAlign` as a function: inputs first, then parameters.

    For arrays, `out` is available too; for symbols, `name` and `attr`.

    Parameters
    ----------
    data : (N, C, H, W), float16, float32 or float64
        Feature maps.
    rois : (K, 6), (N, R, 5) or (K, 5), float32 or float64
        Boxes in image coordinates (pixels): rows [batch_index, cx, cy, w, h, theta], where a
        negative batch index marks a padding row; or R boxes per image, K = N * R; or boxes without
        an index, together with rois_num. theta is in degrees, counter-clockwise in an image whose
        y points down. float16 is converted.
    pooled_size : int or (int, int)
        Bins of the output, P x Q, along the height and the width of the box.
    spatial_scale : float
        Map cells per image pixel, such as 1 / 16.
    sampling_ratio : int
        Samples per bin and axis; if not positive, as many as the bin has cells, rounded up.
    aligned : bool
        True (detectron2, mmcv): the centre moves by half a cell, so that pixel centres of image and
        map agree. False (MXNet): the centre does not move, and both sides are at least one cell
        long.
    rois_grad : bool
        Whether rois get a gradient (in units of out per image pixel, and per degree) instead of
        zeros.
    rois_num : (N,), int32 or int64, optional
        Number of boxes of each image, for rois without an index.
    bad_index : {'error', 'padding'}
        How to treat a batch index beyond the batch: 'error' raises, 'padding' takes the row for a
        padding row, as MXNet's ``ROIPooling`` does.
    out : array, optional
        For the result, which is returned; arrays only.
    name : str, optional
        Of the node; symbols only.
    attr : dict, optional
        Further attributes of the node; symbols only.

    Returns
    -------
    out : (K, C, P, Q), dtype of data
        0 for a padding row, NaN for a row with a NaN or infinite coordinate.

    Raises
    ------
    mxnet.base.MXNetError
        An invalid argument, shape or dtype; on the CPU, also a batch index that is NaN, fractional or
        beyond the batch. The message names the operator, the argument, the expected value and the
        actual one. (On a GPU such a row is NaN.)

    Notes
    -----
    Geometry is computed in float32 for float16 and float32 data, in float64 for float64 data.

    References
    ----------
    Ma et al. 2018, Arbitrary-Oriented Scene Text Detection via Rotation Proposals,
    arXiv:1703.01086. The arithmetic is that of MXNet's ``contrib.RROIAlign``, which has no
    gradient, and with ``aligned=True`` that of detectron2's ``ROIAlignRotated``.

    Examples
    --------
    >>> import mxnet as mx, gluon_roi
    >>> ramp = mx.nd.arange(16).reshape((1, 1, 4, 4))
    >>> rois = mx.nd.array([[0, 1.5, 1.5, 2, 2, 90]])
    >>> align = gluon_roi.RotatedROIAlign(pooled_size=2, spatial_scale=1.0)
    >>> align(ramp, rois).asnumpy().ravel().round(4).tolist()
    [9.0, 5.0, 10.0, 6.0]
    """
