# SPDX-License-Identifier: Apache-2.0
"""The parts by themselves: anchors, targets, sampling, reading."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from demo_runs import open_dataset

from demo_rfcn.data import DATASETS, loader, signals
from demo_rfcn.model import detector, losses, rpn, targets

BASE = rpn.base_anchors(8, (2.0, 4.0), (0.5, 1.0, 2.0))


def test_base_anchors_have_their_area_and_ratio():
    width, height = BASE[:, 2] - BASE[:, 0], BASE[:, 3] - BASE[:, 1]
    np.testing.assert_allclose(np.sqrt(width * height), [32, 64] * 3, rtol=1e-6)
    np.testing.assert_allclose(height / width, np.repeat([0.5, 1, 2], 2), rtol=1e-6)
    np.testing.assert_allclose((BASE[:, :2] + BASE[:, 2:]) / 2, 3.5, atol=1e-5)


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (20, 20)])
def test_both_anchor_grids_agree(shape):
    grid = rpn.AnchorGrid(BASE, 8)
    grid.initialize()
    inside = grid(mx.nd.zeros((2, 4, *shape))).asnumpy()
    np.testing.assert_array_equal(inside[0], rpn.anchor_grid(BASE, 8, *shape))


def test_proposals_drop_small_and_overlapping_boxes():
    anchors = mx.nd.array([[[0, 0, 20, 20], [1, 1, 21, 21], [40, 40, 44, 60], [50, 10, 90, 30]]])
    score = mx.nd.array([[1, 2, 9, -1]])
    propose = rpn.Proposals(pre_nms=4, post_nms=4, nms_thresh=0.7, min_size=8)
    boxes, scores = propose(score, mx.nd.zeros((1, 4, 4)), anchors, mx.nd.zeros((1, 3, 64, 64)))
    expected = [[1, 1, 21, 21], [50, 10, 64, 30], [-1] * 4, [-1] * 4]
    np.testing.assert_allclose(boxes[0].asnumpy(), expected, atol=1e-4)
    np.testing.assert_allclose(scores[0, :2].asnumpy(), 1 / (1 + np.exp([-2.0, 1.0])), rtol=1e-5)
    np.testing.assert_array_equal(scores[0, 2:].asnumpy(), -1)


def rpn_targets(labels: list, size: tuple = (160, 160)) -> tuple:
    """Return the RPN targets of a 160 x 160 batch and its anchors."""
    make = targets.RPNTargets(BASE, 8, 64)
    rows = np.array(labels, np.float32).reshape(-1, 6)
    cls, box = make(rows, size, (160, 160), np.random.default_rng(0))
    return cls, box, rpn.anchor_grid(BASE, 8, 20, 20)


def test_rpn_targets_encode_the_box_and_keep_to_the_sample():
    cls, box, anchors = rpn_targets([[40, 40, 75, 72, 1, 0]])
    assert (cls == 1).sum() >= 1
    assert (cls >= 0).sum() == 64
    decode = rpn.NormalizedBoxCenterDecoder(rpn.STDS, convert_anchor=True)
    decoded = decode(mx.nd.array(box[None]), mx.nd.array(anchors[None]))[0].asnumpy()
    np.testing.assert_allclose(decoded[cls == 1], [[40, 40, 75, 72]] * (cls == 1).sum(), atol=1e-3)
    assert not box[cls != 1].any()


def test_rpn_targets_ignore_the_border_difficult_boxes_and_padding():
    cls, _, anchors = rpn_targets([[40, 40, 75, 72, 1, 1]], size=(160, 100))
    assert (cls == 1).sum() == 0
    counted = anchors[cls >= 0]
    assert (counted >= 0).all() and (counted[:, 2] < 100).all()


def test_rpn_targets_without_boxes():
    cls, box, _ = rpn_targets([])
    assert (cls == 0).sum() == 64 and (cls == 1).sum() == 0
    assert not box.any()


def test_rpn_targets_of_an_image_that_holds_no_anchor():
    cls, box, _ = rpn_targets([[1, 1, 9, 9, 1, 0]], size=(16, 16))
    assert (cls == -1).all() and not box.any()


def test_roi_targets():
    rois = mx.nd.array([[[10, 10, 50, 50], [12, 10, 52, 50], [90, 90, 99, 99], [60, 60, 80, 80]]])
    labels = mx.nd.array([[[10, 10, 50, 50, 2, 0], [60, 60, 80, 80, 3, 1], [-1] * 6]])
    match = targets.RoITargets()
    cls, box, positive, counted = match(rois, mx.nd.array([[1, 1, 1, 1]]), labels)
    np.testing.assert_array_equal(cls.asnumpy(), [[3, 3, 0, 0]])
    np.testing.assert_array_equal(positive.asnumpy(), [[1, 1, 0, 0]])
    np.testing.assert_array_equal(counted.asnumpy(), [[1, 1, 1, 0]])
    np.testing.assert_allclose(
        box[0].asnumpy(), [[0.0] * 4, [-0.5, 0, 0, 0], [0.0] * 4, [0.0] * 4], atol=1e-5
    )
    *_, counted = match(rois, mx.nd.array([[1, 0, 1, 1]]), labels)
    np.testing.assert_array_equal(counted.asnumpy(), [[1, 0, 1, 0]])


def roi_loss(ohem: bool, counted: list) -> tuple:
    """Return the class loss and the gradient of four RoIs, of which the third is the hardest."""
    cls_pred = mx.nd.array([[[3.0, 0], [1, 0], [-5, 0], [2, 0]]])
    cls_pred.attach_grad()
    zeros = mx.nd.zeros((1, 4))
    loss = losses.RoILoss(num_sample=2, ohem=ohem)
    with mx.autograd.record():
        zero_boxes = mx.nd.zeros((1, 4, 4))
        cls, box = loss(cls_pred, zero_boxes, zeros, zero_boxes, zeros, mx.nd.array([counted]))
        total = cls + box
    total.backward()
    return cls.asscalar(), np.abs(cls_pred.grad[0].asnumpy()).sum(axis=1)


def test_boxes_vote_within_their_class():
    """The weights are the scores of the boxes whose IoU reaches the threshold."""
    candidates = mx.nd.array(
        [
            [0, 0.6, 0, 0, 10, 10],
            [0, 0.3, 0, 0, 10, 7],
            [0, 0.3, 0, 0, 10, 4],  # overlaps too little
            [1, 0.9, 0, 0, 10, 9],  # another class
        ]
    )
    detections = mx.nd.array([[0, 0.6, 0, 0, 10, 10], [1, 0.9, 0, 0, 10, 9], [-1] * 6])
    voting = detector.BoxVoting(0.5)
    voted = voting(detections.expand_dims(0), candidates.expand_dims(0))[0].asnumpy()
    expected = np.array([[0, 0.6, 0, 0, 10, 9], [1, 0.9, 0, 0, 10, 9], [-1] * 6])
    np.testing.assert_allclose(voted, expected, rtol=1e-6)


def test_ohem_sends_gradients_to_the_hardest_rois_only():
    loss, gradient = roi_loss(True, [1, 1, 1, 1])
    np.testing.assert_allclose(loss, (np.log1p(np.exp(5)) + np.log1p(np.exp(-1))) / 2, rtol=1e-5)
    np.testing.assert_array_equal(gradient > 0, [False, True, True, False])


def test_ohem_passes_over_uncounted_rois():
    _, gradient = roi_loss(True, [1, 1, 0, 0])
    np.testing.assert_array_equal(gradient > 0, [True, True, False, False])
    assert roi_loss(True, [0, 0, 0, 0])[0] == 0


def test_random_sample_has_its_size_and_quota():
    loss = losses.RoILoss(num_sample=8, ohem=False)
    positive = mx.nd.concat(mx.nd.ones((3, 10)), mx.nd.zeros((3, 22)), dim=1)
    counted = mx.nd.ones((3, 32))
    counted[:, 20:] = 0
    chosen = loss._random(mx.nd, positive, counted)
    np.testing.assert_array_equal(chosen.sum(axis=1).asnumpy(), 8)
    np.testing.assert_array_equal((chosen * positive).sum(axis=1).asnumpy(), 2)
    np.testing.assert_array_equal((chosen * (1 - counted)).asnumpy(), 0)


def test_resize_keeps_within_both_limits():
    image = np.zeros((300, 1200, 3), np.uint8)
    scaled, scale = loader.resize(image, short=600, max_size=1000)
    assert scaled.shape == (250, 1000, 3)
    np.testing.assert_allclose(scale, (1000 / 1200, 250 / 300))


def test_reading_gives_back_the_painted_boxes(eight_images):
    dataset = open_dataset(DATASETS["signals"], eight_images, "test")
    for index in range(len(dataset)):
        image, objects = signals.paint(np.random.default_rng([7, index]))
        pixels, labels = dataset[index]
        assert np.abs(pixels.asnumpy().astype(float) - image).mean() < 20
        expected = [[*box, signals.CLASSES.index(n), hidden] for n, box, hidden in objects]
        np.testing.assert_array_equal(labels, expected)
