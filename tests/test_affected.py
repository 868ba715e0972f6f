# SPDX-License-Identifier: Apache-2.0
"""The lines of docs/affected.md count detections that change; of a switched network, none does."""

import re
from pathlib import Path

import mxnet as mx
import pytest

from testing.detectors import make_detector

PAGE = Path(__file__).resolve().parent.parent / "docs/affected.md"


@pytest.mark.slow
def test_counts_before_and_after(capsys):
    block = re.search(r"^```python test_affected.py\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    assert block is not None
    image = mx.nd.random.uniform(-2, 2, shape=(1, 3, 160, 192))
    net = make_detector("faster_rcnn_fpn_resnet50_v1b_coco", image, proposals=100)
    names = {"net": net, "image": image}
    exec(block[1], names)
    exec(block[1].replace("gluon_roi.optimize(net, image)", ""), names)
    first, second = capsys.readouterr().out.splitlines()
    before, wrong, after, missed = map(int, re.findall(r"\d+", first))
    assert 0 < wrong <= before and 0 < missed <= after
    again, wrong, same, missed = map(int, re.findall(r"\d+", second))
    assert again == same == after and wrong == missed == 0
