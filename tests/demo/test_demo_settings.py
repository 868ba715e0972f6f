# SPDX-License-Identifier: Apache-2.0
"""The settings of a run, as the command line, checkpoints and comparisons know them."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path

import pytest
from demo_runs import settings_of, train_arguments

from demo_rfcn.errors import CheckpointError
from demo_rfcn.run import checkpoint
from demo_rfcn.run.settings import Settings, options


def test_defaults_are_those_of_the_command_line():
    assert settings_of(["train"]).to_dict() == Settings().to_dict()
    assert settings_of(["demo"]) == Settings()
    ablation = settings_of(["ablate"])
    assert (ablation.steps, ablation.save_prefix) == (1000, Path("runs/ablation"))
    assert settings_of(["train", "--dataset", "digits"]).flip_p == 0


def test_settings_survive_json():
    settings = settings_of(["train", "--scale-jitter", "0.8", "1.2", "--lr-decay-steps", "3"])
    stored = json.loads(json.dumps(settings.to_dict()))
    assert settings.differences(stored) == []
    assert set(stored) == {each.name for each in options()}


@pytest.mark.parametrize(
    ("line", "differences"),
    [
        (["--steps", "7", "--dataset-root", "d", "--max-seconds", "1", "--skip-broken"], []),
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
    stored = json.loads(json.dumps(Settings().to_dict()))
    settings = settings_of(["train", *line])
    assert settings.differences(stored) == differences
    assert (settings == Settings()) == (not differences)
    assert bool(settings.differences(stored, "steps")) == ("--steps" in line or bool(differences))


def test_a_checkpoint_of_before_a_setting_has_its_default(eight_images, short_run, tmp_path):
    """As `skip_broken` is missing from those of version 0.1.0 before it was there."""
    last = Path(shutil.copytree(short_run, tmp_path / "run")) / "last.ckpt"
    with zipfile.ZipFile(last) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    meta = json.loads(entries["checkpoint.json"])
    assert meta["format"] == 2
    for name in ("skip_broken", "color_jitter", "amp"):
        del meta["arguments"][name]
    entries["checkpoint.json"] = json.dumps(meta).encode()
    with zipfile.ZipFile(last, "w") as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    line = train_arguments(eight_images, last.parent)
    assert checkpoint.check_run(last, settings_of(line))["step"] == 6
    assert checkpoint.read_meta(last)["step"] == 6
    with pytest.raises(CheckpointError, match="color_jitter: 0.0, not 0.5"):
        checkpoint.check_run(last, settings_of([*line, "--color-jitter", "0.5"]))
