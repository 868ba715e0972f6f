# SPDX-License-Identifier: Apache-2.0
"""GluonCV's detectors with random weights, for tests and benchmarks."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np
from gluoncv.model_zoo import get_model
from mxnet import gluon

KEPT = 100  # detections of an image


class FanIn(mx.init.Xavier):
    """GluonCV's FPN has biases that Xavier refuses."""

    def _init_weight(self, name: str, arr: mx.nd.NDArray) -> None:
        if arr.ndim < 2:
            arr[:] = 0
        else:
            super()._init_weight(name, arr)


def make_detector(
    name: str, image: mx.nd.NDArray, proposals: int | None = None
) -> gluon.HybridBlock:
    """A detector of GluonCV, with random weights, and with its own number of proposals or fewer.

    With plain random weights one level of a pyramid would get all proposals, so maps and scores are
    spread until every level has some.
    """
    mx.random.seed(0)
    np.random.seed(0)
    net = get_model(name, pretrained=False, pretrained_base=False)
    net.set_nms(nms_thresh=0.5, nms_topk=4 * KEPT, post_nms=KEPT)
    net._rcnn_max_dets = KEPT
    if proposals:
        net.rpn._test_post_nms = net._rpn_test_post_nms = proposals
    net.initialize(FanIn(factor_type="in", magnitude=1.5))
    maps = net.features(image)
    if isinstance(maps, (list, tuple)):
        parameters = net.features.collect_params()
        for level, stretch in zip(range(2, 7), (1, 2, 8, 32, 128)):
            scale(parameters[f"P{level}_conv1_weight"], stretch / maps[level - 2].abs().mean())
            maps = net.features(image)
        scores = mx.nd.concat(*[net.rpn.rpn_head(x)[2].reshape(-1) for x in maps], dim=0)
        scale(net.rpn.rpn_head.score.weight, 1 / scores.asnumpy().std())
    return net


def scale(parameter: gluon.Parameter, factor: Any) -> None:
    parameter.set_data(parameter.data() * factor)
