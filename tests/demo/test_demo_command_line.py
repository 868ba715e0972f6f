# SPDX-License-Identifier: Apache-2.0
"""The command line: settings, helps, progress on a terminal and in a log, tables."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from demo_runs import python, settings_of

from demo_rfcn import cli, progress
from demo_rfcn.commands import ablate


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def train(steps: int) -> None:
    with progress.Progress("training", "steps", total=steps) as shown:
        for step in range(steps):
            shown.set_postfix_str(f"loss {step}", refresh=False)
            shown.reach(step + 1)
        shown.results("step 3: mAP@.5 0.500")


def test_a_terminal_has_a_bar(monkeypatch, capsys):
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    train(3)
    assert "training: 100%" in terminal.getvalue() and "\r" in terminal.getvalue()
    assert "of 3 steps" not in terminal.getvalue()
    assert capsys.readouterr().out == "step 3: mAP@.5 0.500\n"


def test_a_log_has_lines_with_percent_and_time(monkeypatch, capsys):
    monkeypatch.setattr(progress, "INTERVAL", 0)
    train(3)
    shown = capsys.readouterr()
    times = r"in 00:00, (00:00|\?) left"
    for line, words in zip(
        shown.err.splitlines(),
        (
            f"training: 33 %, 1 of 3 steps {times}, loss 0",
            f"training: 67 %, 2 of 3 steps {times}, loss 1",
            f"training: 100 %, 3 of 3 steps {times}, loss 2",
        ),
    ):
        assert re.fullmatch(words, line), line
    assert len(shown.err.splitlines()) == 3
    assert shown.out == "step 3: mAP@.5 0.500\n"


def test_a_log_has_no_codes_of_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(progress, "INTERVAL", 0)
    with progress.Progress("training", "steps", total=1):
        list(progress.Progress("validation", "images", range(2)))
    lines = capsys.readouterr().err.splitlines()
    assert lines and all(line.startswith(("training: ", "validation: ")) for line in lines)


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_help_shows_defaults_as_they_are_typed(command, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main([command, "--help"])
    assert ended.value.code == 0
    words = " ".join(capsys.readouterr().out.split())
    for wrong in ("(default: (", "(default: )", "default: None", "default: [", "default: False"):
        assert wrong not in words
    if command == "train":
        assert "(default: 1 1)" in words and "(default: 0.002)" in words


@pytest.mark.parametrize(
    ("seeds", "row"),
    [([0], "| a | 0.500 | 0.250 | 1 |"), ([0, 1], "| a | 0.550 ± 0.071 | 0.300 ± 0.071 | 2 |")],
)
def test_one_seed_has_no_deviation(seeds, row, tmp_path):
    common = {"variant": "a", "steps": 1}
    rows = [{**common, "seed": s, "map50": 0.5 + s / 10, "map75": 0.25 + s / 10} for s in seeds]
    ablate.write_table(tmp_path / "table.md", rows)
    assert (tmp_path / "table.md").read_text(encoding="utf-8").splitlines()[-1] == row
    ablate.bar_chart(tmp_path / "chart.png", rows)


def test_pyplot_is_imported_only_to_draw():
    """It takes a second, which every command and every process of `launch` would pay."""
    made = python("-c", "import sys, demo_rfcn.cli; sys.exit('matplotlib' in sys.modules)")
    assert made.returncode == 0, made.stderr


def test_defaults():
    assert settings_of(["demo"]).to_dict() == settings_of(["train"]).to_dict()
    ablation = settings_of(["ablate"])
    assert (ablation.schedule.steps, ablation.run.save_prefix) == (1000, Path("runs/ablation"))
    assert settings_of(["train", "--dataset", "digits"]).schedule.flip_p == 0
    assert settings_of(["train", "--dataset", "voc-like"]).schedule.steps is None


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
        (["--lr-decay-steps", "3", "4"], ["lr_decay_steps: None, not [3, 4]"]),
        (["--amp", "--wd", "0"], ["wd: 0.0001, not 0.0", "amp: False, not True"]),
    ],
)
def test_differences_of_another_run(line, differences):
    stored = settings_of(["train"]).to_dict()
    settings = settings_of(["train", *line])
    assert json.loads(json.dumps(settings.to_dict())) == settings.to_dict()
    assert settings.differences(stored) == differences
    assert bool(settings.differences(stored, "steps")) == ("--steps" in line or bool(differences))
