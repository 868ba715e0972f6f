# SPDX-License-Identifier: Apache-2.0
"""Numbers that other projects publish in their tests.

From mmcv (tests/test_ops/test_roi_align.py, test_roi_align_rotated.py, test_box_iou_rotated.py and
test_nms_rotated.py) and detectron2 (tests/layers/test_roi_align.py), both under Apache-2.0. mmcv's
angles are radians, those of suppression and intersection clockwise.
"""

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

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
