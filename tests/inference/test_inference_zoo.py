# SPDX-License-Identifier: Apache-2.0
"""The smallest model of every family of GluonCV gives the same outputs after its conversion."""

from __future__ import annotations

import mxnet as mx
import pytest

import gluon_roi
from gluon_roi.inference import gemm_layers, winograd

pytest.importorskip("gluoncv")
from testing.onnx_runtimes import zoo  # noqa: E402

pytestmark = pytest.mark.night


@pytest.mark.parametrize("everywhere", [False, True], ids=["as estimated", "everywhere"])
@pytest.mark.parametrize("family", zoo.FAMILIES)
def test_family(family, everywhere, monkeypatch):
    """With each layer's fastest form, and with this package's operators wherever they can be."""
    if everywhere:
        monkeypatch.setattr(winograd, "pays", lambda *sizes: True)
        monkeypatch.setattr(gemm_layers, "mxnets_layout_pays", lambda *layers: True)
    model = zoo.FAMILIES[family]
    made = zoo.case(model, proposals=100)
    expected = made.outputs
    inputs = [mx.nd.array(value) for value in made.inputs]
    net = gluon_roi.optimize(made.net, *inputs, inference=True)
    found = zoo.flat(net(*inputs))
    if not model.detects:
        assert zoo.differences(found, expected) < 2e-5
        return
    detections = zoo.detections(expected)
    assert len(detections) >= 40
    assert zoo.compare(zoo.detections(found), detections)[0] == len(detections)
