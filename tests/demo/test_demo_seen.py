# SPDX-License-Identifier: Apache-2.0
"""Output of the commands: bars on a terminal, lines in a log, helps, tables."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest

from demo_rfcn import cli, progress
from demo_rfcn.commands import ablate

COMMANDS = (
    *("data", "train", "eval", "ablate"),
    *("detect", "export", "launch", "demo"),
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def train(steps: int) -> None:
    with progress.Progress(steps, "training", "steps") as shown:
        for step in range(steps):
            shown.figures(f"loss {step}")
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
    with progress.Progress(1, "training", "steps"):
        list(progress.Progress(2, "validation", "images").over(range(2)))
    lines = capsys.readouterr().err.splitlines()
    assert lines and all(line.startswith(("training: ", "validation: ")) for line in lines)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_defaults_as_they_are_typed(command, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main([command, "--help"])
    assert ended.value.code == 0
    words = " ".join(capsys.readouterr().out.split())
    for wrong in ("(default: (", "(default: )", "default: None", "default: [", "default: False"):
        assert wrong not in words
    if command == "train":
        assert "(default: 1 1)" in words and "(default: 0.002)" in words


def test_every_command_is_tried():
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    choices: Any = cli._parser()._actions[-1].choices
    assert sorted(choices) == sorted(COMMANDS)


@pytest.mark.parametrize(
    ("seeds", "row"),
    [([0], "| a | 0.500 | 0.250 | 1 |"), ([0, 1], "| a | 0.550 ± 0.071 | 0.300 ± 0.071 | 2 |")],
)
def test_one_seed_has_no_deviation(seeds, row, tmp_path):
    rows = [
        {
            "variant": "a",
            "seed": seed,
            "steps": 1,
            "map50": 0.5 + seed / 10,
            "map75": 0.25 + seed / 10,
        }
        for seed in seeds
    ]
    ablate.write_table(tmp_path / "table.md", rows)
    assert (tmp_path / "table.md").read_text(encoding="utf-8").splitlines()[-1] == row
    ablate.bar_chart(tmp_path / "chart.png", rows)
