# SPDX-License-Identifier: Apache-2.0
"""Numbers that other projects publish in their tests.

From mmcv 2.2.0 (tests/test_ops/test_roi_align.py, test_deform_roi_pool.py,
test_roi_align_rotated.py, test_box_iou_rotated.py and test_nms_rotated.py) and detectron2
(tests/layers/test_roi_align.py), both under Apache-2.0. mmcv's angles are radians, clockwise in
suppression and intersection.
"""

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

import gluon_roi

TWO = [[1, 2], [3, 4]]
FOUR = [[1, 2, 5, 6], [3, 4, 7, 8], [9, 10, 13, 14], [11, 12, 15, 16]]
D_TWO = [[3.0625, 0.4375], [0.4375, 0.0625]]
D_FOUR = [
    [0.47265625, 0.4296875, 0.4296875, 0.04296875],
    [0.4296875, 0.390625, 0.390625, 0.0390625],
    [0.4296875, 0.390625, 0.390625, 0.0390625],
    [0.04296875, 0.0390625, 0.0390625, 0.00390625],
]
#: Maps, side of the box at the origin, quarter turns, output, gradient of the sum.
MMCV_ALIGN = [
    ([TWO], 1, 0, [[[1.0, 1.25], [1.5, 1.75]]], [D_TWO]),
    ([TWO], 1, 1, [[[1.5, 1.0], [1.75, 1.25]]], [D_TWO]),
    (
        [TWO, [[4, 3], [2, 1]]],
        1,
        0,
        [[[1.0, 1.25], [1.5, 1.75]], [[4.0, 3.75], [3.5, 3.25]]],
        [D_TWO, D_TWO],
    ),
    ([FOUR], 3, 0, [[[1.9375, 4.75], [7.5625, 10.375]]], [D_FOUR]),
    ([FOUR], 3, 1, [[[7.5625, 1.9375], [10.375, 4.75]]], [D_FOUR]),
]


@pytest.mark.parametrize("maps, side, turns, expected, gradient", MMCV_ALIGN)
def test_roi_align_of_mmcv(maps, side, turns, expected, gradient):
    rotated = [[0, side / 2, side / 2, side, side, 90 * turns]]
    calls = [(gluon_roi.nd.RotatedROIAlign, rotated)]
    if not turns:
        calls.append((gluon_roi.nd.ROIAlign, [[0, 0, 0, side, side]]))
    for function, rois in calls:
        data = mx.nd.array([maps])
        data.attach_grad()
        with autograd.record():
            out = function(data, mx.nd.array(rois), 2, 1.0, sampling_ratio=2, aligned=True)
        out.backward()
        np.testing.assert_allclose(out.asnumpy()[0], expected, atol=1e-6)
        np.testing.assert_allclose(data.grad.asnumpy()[0], gradient, atol=1e-6)


class DeformRoIPoolPack(gluon.HybridBlock):
    """The layers of mmcv's packs, whose last ones begin at 0: offsets of 0, and a mask of 1/2."""

    def __init__(self, modulated):
        super().__init__()
        self.offset_fc, self.mask_fc = gluon.nn.HybridSequential(), None
        for _ in range(2):
            self.offset_fc.add(gluon.nn.Dense(1024, activation="relu"))
        self.offset_fc.add(gluon.nn.Dense(8, weight_initializer="zeros"))
        if modulated:
            self.mask_fc = gluon.nn.HybridSequential()
            self.mask_fc.add(gluon.nn.Dense(1024, activation="relu"))
            self.mask_fc.add(gluon.nn.Dense(4, activation="sigmoid", weight_initializer="zeros"))
        self.initialize()

    def hybrid_forward(self, F, x, rois):
        given = {"pooled_size": 2, "spatial_scale": 1.0, "sampling_ratio": 2}
        pooled = F.gluon_roi.DeformableROIAlign(x, rois, **given)
        given["offset"] = self.offset_fc(pooled).reshape((-1, 2, 2, 2))
        if self.mask_fc is not None:
            given["mask"] = self.mask_fc(pooled).reshape((-1, 1, 2, 2))
        return F.gluon_roi.DeformableROIAlign(x, rois, **given)


#: Maps, side of the box, output, gradient of the sum; of test_roi_align.py and
#: test_deform_roi_pool.py, which have the same ones.
MMCV_UPRIGHT = [(maps, side, *rest) for maps, side, turns, *rest in MMCV_ALIGN if not turns]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("factor", [None, 1, 0.5])
@pytest.mark.parametrize("maps, side, expected, gradient", MMCV_UPRIGHT)
def test_deform_roi_pool_of_mmcv(maps, side, expected, gradient, factor, dtype):
    """test_deform_roi_pool_allclose: offsets of 0, or none; the modulated form has a factor."""
    data, rois = (mx.nd.array(a, dtype=dtype) for a in ([maps], [[0, 0, 0, side, side]]))
    given = {}
    if factor is not None:
        given["offset"] = mx.nd.zeros((1, 2, 2, 2), dtype=dtype)
        given["mask"] = mx.nd.full((1, 1, 2, 2), factor, dtype=dtype)
    data.attach_grad()
    with autograd.record():
        out = gluon_roi.nd.DeformableROIAlign(
            data, rois, pooled_size=2, spatial_scale=1.0, sampling_ratio=2, **given
        )
    out.backward()
    factor, tolerance = factor or 1, 1e-3 if dtype == "float16" else 1e-6
    np.testing.assert_allclose(out.asnumpy()[0], np.multiply(expected, factor), tolerance)
    np.testing.assert_allclose(data.grad.asnumpy()[0], np.multiply(gradient, factor), tolerance)


@pytest.mark.parametrize("modulated", [False, True])
@pytest.mark.parametrize("maps, side, expected, _", MMCV_UPRIGHT)
def test_packs_of_mmcv(maps, side, expected, _, modulated):
    """test_deform_roi_pool_gradcheck and test_modulated_deform_roi_pool_gradcheck.

    With their step and tolerance, for every element of the output and of the map.
    """
    pool, rois, step = DeformRoIPoolPack(modulated), mx.nd.array([[0, 0, 0, side, side]]), 1e-2
    data = mx.nd.array([maps])
    data.attach_grad()
    ends = []
    for sign in (1, -1):
        moved = [
            data.asnumpy() + sign * step * np.eye(data.size)[n].reshape(data.shape)
            for n in range(data.size)
        ]
        ends.append(np.stack([pool(mx.nd.array(x), rois).asnumpy().ravel() for x in moved]))
    numeric = (ends[0] - ends[1]) / (2 * step)
    out = pool(data, rois).asnumpy()[0]
    np.testing.assert_allclose(out, np.multiply(expected, 0.5 if modulated else 1), 1e-6)
    for n in range(numeric.shape[1]):
        with autograd.record():
            out = pool(data, rois).reshape(-1)[n]
        out.backward()
        np.testing.assert_allclose(data.grad.asnumpy().ravel(), numeric[:, n], 1e-3, 1e-2)


@pytest.mark.parametrize("aligned, first", [(False, 7.5), (True, 4.5)])
def test_roi_align_of_detectron2(aligned, first):
    """On the ramp 0 to 24 of 5 x 5 cells, a bin is half a cell."""
    data = mx.nd.arange(25).reshape((1, 1, 5, 5))
    out = gluon_roi.nd.ROIAlign(data, mx.nd.array([[0, 1, 1, 3, 3]]), 4, 1.0, aligned=aligned)
    expected = first + 0.5 * np.arange(4) + 2.5 * np.arange(4)[:, None]
    np.testing.assert_allclose(out.asnumpy()[0, 0], expected, atol=1e-6)


def clockwise(boxes):
    """Rows of clockwise radians as rows of counter-clockwise degrees."""
    boxes = np.array(boxes)
    boxes[:, 4] = -np.degrees(boxes[:, 4])
    return mx.nd.array(boxes)


@pytest.mark.parametrize(
    "mode, expected",
    [
        ("iou", [[0.3708, 0.4351, 0.0], [0.1104, 0.4487, 0.0424], [0.0, 0.0, 0.3622]]),
        ("iof", [[0.4959, 0.5306, 0.0], [0.1823, 0.5420, 0.1832], [0.0, 0.0, 0.4404]]),
    ],
)
def test_box_iou_rotated_of_mmcv(mode, expected):
    lhs = clockwise([[1, 1, 3, 4, 0.5], [2, 2, 3, 4, 0.6], [7, 7, 8, 8, 0.4]])
    rhs = clockwise([[0, 2, 2, 5, 0.3], [2, 1, 3, 3, 0.5], [5, 5, 6, 7, 0.4]])
    out = gluon_roi.nd.BoxIoU(lhs, rhs, format="rotated", mode=mode)
    np.testing.assert_allclose(out.asnumpy(), expected, atol=5.1e-5)  # four published digits
    rows = gluon_roi.nd.BoxIoU(lhs, rhs, format="rotated", mode=mode, aligned=True)
    np.testing.assert_allclose(rows.asnumpy(), np.diag(expected), atol=5.1e-5)


def test_nms_rotated_of_mmcv():
    boxes = clockwise(
        [[6, 3, 8, 7, 0.5], [3, 6, 9, 11, 0.6], [3, 7, 10, 12, 0.3], [1, 4, 13, 7, 0.6]]
    )
    scores = mx.nd.array([[0.7], [0.8], [0.5], [0.9]])
    _, indices = gluon_roi.nd.BoxNMS(
        mx.nd.concat(boxes, scores, dim=1),
        0.5,
        coord_start=0,
        score_index=5,
        in_format="rotated",
        out_format="rotated",
        return_indices=True,
    )
    assert indices.asnumpy().ravel().tolist() == [3, 1, 0, -1]
