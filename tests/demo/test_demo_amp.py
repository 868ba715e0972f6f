# SPDX-License-Identifier: Apache-2.0
"""Mixed precision. AMP changes MXNet for the rest of a process, so every test starts its own."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from demo_runs import REPOSITORY, parameters, python, train_arguments

pytestmark = pytest.mark.slow

TYPES = REPOSITORY / "tests/scripts/amp_types.py"


def test_amp_trains_as_float32_does(eight_images, short_run, tmp_path):
    made = python("-m", "demo_rfcn", *train_arguments(eight_images, tmp_path, "--amp"))
    if "--amp expects a device with bfloat16" in made.stderr:
        pytest.skip("this processor has no bfloat16 convolutions")
    assert made.returncode == 0, made.stderr[-2000:]
    ours, full = (
        json.loads((folder / "history.json").read_text())["losses"][-1]
        for folder in (tmp_path, short_run)
    )
    for name in ("rpn_cls", "rcnn_cls"):
        assert ours[name] == pytest.approx(full[name], rel=0.05)
    changed = parameters(tmp_path / "last.ckpt"), parameters(short_run / "last.ckpt")
    assert all(value.dtype == np.float32 for value in changed[0].values())
    assert any((changed[0][name] != changed[1][name]).any() for name in changed[0])


def test_amp_without_16_bit_convolutions_is_rejected(eight_images, tmp_path):
    line = train_arguments(eight_images, tmp_path, "--amp")
    refused = python("-m", "demo_rfcn", *line, DNNL_MAX_CPU_ISA="AVX2")
    assert refused.returncode == 2
    words = "train: --amp expects a device with bfloat16 convolutions, and cpu(0) has none: "
    assert words in refused.stderr


@pytest.mark.parametrize(
    "model",
    [
        ("small", "psroi", "True", "False"),
        ("resnet18_v1b", "light_head", "False", "False"),
        ("small", "psroi", "True", "True"),
    ],
)
def test_layers_after_the_convolutions_are_in_float32(model):
    made = python(str(TYPES), *model)
    assert made.returncode == 0, made.stderr[-2000:]
    types = json.loads(made.stdout)
    layers = [
        dtype for name, dtype in types.items() if re.search("(conv|dense)[0-9]+_fwd_out", name)
    ]
    assert set(layers) == {"float16"}
    samples = {dtype for name, dtype in types.items() if "sampling" in name}
    assert samples == ({"float32"} if model[-1] == "True" else set())
    for part in (
        "psroi[a-z]+[0-9]_output",
        "arange",
        "proposals",
        "roitargets",
        "rpnloss",
        "roiloss",
    ):
        inside = [dtype for name, dtype in types.items() if re.search(part, name)]
        assert "float32" in inside and "float16" not in inside, part
