# SPDX-License-Identifier: Apache-2.0
"""Mixed precision. AMP changes MXNet for the rest of a process, so these have their own."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from demo_runs import REPOSITORY, history, parameters, python, train_arguments

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def amp_run(eight_images, tmp_path_factory):
    """A run with --amp, or its rejection where the processor has no bfloat16 convolutions."""
    folder = tmp_path_factory.mktemp("amp")
    return folder, python("-m", "demo_rfcn", *train_arguments(eight_images, folder, "--amp"))


REJECTED = "train: --amp expects a device with bfloat16 convolutions, and cpu(0) has none: "


def test_amp_trains_as_float32_does(amp_run, short_run):
    folder, made = amp_run
    if REJECTED in made.stderr:
        pytest.skip("this processor has no bfloat16 convolutions")
    assert made.returncode == 0, made.stderr[-2000:]
    ours, full = (history(each)["losses"][-1] for each in (folder, short_run))
    for name in ("rpn_cls", "rcnn_cls"):
        assert ours[name] == pytest.approx(full[name], rel=0.05)
    changed = parameters(folder / "last.ckpt"), parameters(short_run / "last.ckpt")
    assert all(value.dtype == np.float32 for value in changed[0].values())
    assert any((changed[0][name] != changed[1][name]).any() for name in changed[0])


def test_amp_without_16_bit_convolutions_is_rejected(amp_run, eight_images, tmp_path):
    made = amp_run[1]
    if made.returncode == 0:
        line = train_arguments(eight_images, tmp_path, "--amp")
        made = python("-m", "demo_rfcn", *line, DNNL_MAX_CPU_ISA="AVX2")
    assert made.returncode == 2 and REJECTED in made.stderr


def test_layers_after_the_convolutions_are_in_float32():
    models = (
        "small psroi class_agnostic",
        "resnet18_v1b light_head",
        "small psroi class_agnostic deform",
    )
    made = python(REPOSITORY / "tests/scripts/amp_types.py", *models)
    assert made.returncode == 0, made.stderr[-2000:]
    found = json.loads(made.stdout)
    assert len(found) == len(models)
    for model, types in zip(models, found):

        def of(pattern: str, types: dict = types) -> set:
            return {dtype for name, dtype in types.items() if re.search(pattern, name)}

        assert of("(conv|dense)[0-9]+_fwd_out") == {"float16"}
        assert of("sampling") == ({"float32"} if "deform" in model else set())
        parts = ("arange", "proposals", "roitargets", "rpnloss", "roiloss")
        for part in ("psroi[a-z]+[0-9]_output", *parts):
            assert "float32" in of(part) and "float16" not in of(part), (model, part)
