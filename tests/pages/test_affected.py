# SPDX-License-Identifier: Apache-2.0
"""The lines of docs/affected.md count detections that change; of a switched network, none does."""

import re

import mxnet as mx
import pytest
from support.pages import blocks_of

from testing.detectors import make_detector


@pytest.mark.slow
def test_counts_before_and_after(capsys):
    (block,) = blocks_of("docs/affected.md", "test_affected.py")
    image = mx.nd.random.uniform(-2, 2, shape=(1, 3, 96, 128))
    net = make_detector("faster_rcnn_fpn_resnet50_v1b_coco", image, proposals=50)
    names = {"net": net, "image": image}
    exec(block.code, names)
    exec(block.code.replace("gluon_roi.optimize(net, image)", ""), names)
    first, second = capsys.readouterr().out.splitlines()
    before, wrong, after, missed = map(int, re.findall(r"\d+", first))
    assert 0 < wrong <= before and 0 < missed <= after
    again, wrong, same, missed = map(int, re.findall(r"\d+", second))
    assert again == same == after and wrong == missed == 0
