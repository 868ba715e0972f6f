# SPDX-License-Identifier: Apache-2.0
"""MXNet equals what PyTorch computed of a module of to_torch; torch itself is not needed.

tests/golden/record_torch.py records it. tests/onnx/test_to_torch.py has the tests that need torch.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from golden.record_torch import digest
from support import small_network

import gluon_roi

pytest.importorskip("onnx")
GOLDEN = Path(__file__).parents[1] / "golden/torch.npz"


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return small_network.exported(tmp_path_factory.mktemp("small") / "model.onnx")


def test_gradients_of_the_recording(small):
    net, inputs, path = small
    with np.load(GOLDEN) as recorded:
        assert recorded["digest"] == digest(path), "the file has changed: record it again"
        expected = {name: recorded[name] for name in recorded.files if name != "digest"}
    small_network.assert_same(small_network.in_mxnet(net, inputs), expected)


def test_unfolded_weights_are_stored_as_they_are(small):
    """Not as the exporter's constants: the slope of PReLU gains axes in ONNX."""
    import onnx

    net, _, path = small
    stored = {tensor.name for tensor in onnx.load(str(path)).graph.initializer}
    assert stored >= net.collect_params().keys()


def test_constants_of_gluon_are_listed(small):
    import onnx

    (entry,) = onnx.load(str(small[2])).metadata_props
    assert (entry.key, entry.value) == ("gluon_roi.constants", '["small_anchors"]')


def test_missing_torch_is_named(small, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    for name in [name for name in sys.modules if name.startswith("gluon_roi_torch")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ImportError, match="needs the packages onnx, torch and torchvision .* run"):
        gluon_roi.onnx.to_torch(small[2])
