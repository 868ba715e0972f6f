# SPDX-License-Identifier: Apache-2.0
"""The settings of a run, as the command line, checkpoints and comparisons know them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from demo_runs import settings_of

from demo_rfcn.settings import OPTIONS


def test_defaults():
    assert settings_of(["demo"]).to_dict() == settings_of(["train"]).to_dict()
    ablation = settings_of(["ablate"])
    assert (ablation.schedule.steps, ablation.run.save_prefix) == (1000, Path("runs/ablation"))
    assert settings_of(["train", "--dataset", "digits"]).schedule.flip_p == 0
    assert settings_of(["train", "--dataset", "voc-like"]).schedule.steps is None


def test_settings_survive_json():
    settings = settings_of(["train", "--scale-jitter", "0.8", "1.2", "--lr-decay-steps", "3"])
    stored = json.loads(json.dumps(settings.to_dict()))
    assert settings.differences(stored) == []
    assert set(stored) == set(OPTIONS)


@pytest.mark.parametrize(
    ("line", "differences"),
    [
        (["--steps", "7", "--dataset-root", "d", "--max-seconds", "1", "--skip-broken"], []),
        (["--overwrite"], []),
        (["--cpus", "2", "--save-prefix", "r", "--resume", "c", "--val-interval", "5"], []),
        (["--seed", "5"], ["seed: 0, not 5"]),
        (["--no-ohem"], ["ohem: True, not False"]),
        (["--short", "96"], ["short: None, not 96"]),
        (["--flip-p", "0"], ["flip_p: 0.5, not 0.0"]),
        (["--scale-jitter", "1", "2"], ["scale_jitter: [1.0, 1.0], not [1.0, 2.0]"]),
        (["--amp", "--wd", "0"], ["wd: 0.0001, not 0.0", "amp: False, not True"]),
    ],
)
def test_what_makes_another_run(line, differences):
    stored = json.loads(json.dumps(settings_of(["train"]).to_dict()))
    settings = settings_of(["train", *line])
    assert settings.differences(stored) == differences
    assert bool(settings.differences(stored, "steps")) == ("--steps" in line or bool(differences))
