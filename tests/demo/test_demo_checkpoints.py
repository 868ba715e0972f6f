# SPDX-License-Identifier: Apache-2.0
"""Checkpoints and weights hold data only; a damaged or foreign file gives one sentence."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import numpy as np
import pytest
from support.damages import change_checkpoint, put_pickle
from support.demo_runs import REPOSITORY, python, train_arguments
from support.turns import in_turn

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("little_memory")]

NOT_WHOLE = "is not a checkpoint of demo_rfcn, or is damaged: "


@pytest.fixture
def resume(eight_images, tmp_path) -> tuple[Path, list[str]]:
    """The path of a damaged checkpoint, and a line that would continue its run."""
    path = tmp_path / "damaged.ckpt"
    return path, train_arguments(eight_images, tmp_path / "run", "--steps", 8, "--resume", path)


@pytest.mark.parametrize("place", ["notes", "model/rpn.conv.weight", "whole file"])
def test_pickle_is_never_loaded(place, resume, short_run, tmp_path, rejects):
    mark, (path, line) = tmp_path / "it_ran", resume
    put_pickle(path, short_run / "last.ckpt", place, mark)
    rejects(line, f"checkpoint: {path} {NOT_WHOLE}")
    assert not mark.exists()


WEIGHT = "rpn.conv.weight"
SHORTER = np.zeros(3, np.float32)
#: Other values of an array, an entry of the notes or of their configuration; None removes it.
DAMAGED: dict[str, list] = {
    "notes": [None, b"[" * 100_000, b'{"a": "\xe9"}', b"[]"],
    f"model/{WEIGHT}": [None, np.array("text"), SHORTER],
    "model/rpn.conv.other": [SHORTER],
    "format": [None],
    "config": [None, {"layers": 9}],
    "classes": ["abcdef", ["a", "a"], ["a", "b"]],
    "network": ["../small"],
    "head": ["fpn"],
    "k": ["7", 10**6, 3],
    "fpn": [True],
    "deform": [True],
    "anchor_scales": [[1.0], [float("inf")], [1] * 10**5],
    "anchor_ratios": [["1"]],
    "step": [-1],
    "short": [None],
    "max_size": [10**6],
    "best": ["good"],
}
#: Only a resumed run uses these.
STATES: dict[str, list] = {
    f"optimizer/0/{WEIGHT}": [None, SHORTER],
    "optimizer/x": [SHORTER],
    "updates": [{"backbone": 1}, {}, [], {WEIGHT: -1}],
}


def cases(table: dict[str, list]) -> dict[str, tuple]:
    """Names and values of a table, by the id of the test."""
    return {f"{name}={value!r:.20}": (name, value) for name in table for value in table[name]}


DAMAGES = cases(DAMAGED)


@pytest.mark.parametrize(
    ("damage", "command"), in_turn(list(DAMAGES), ["eval", "detect", "export"], every=3)
)
def test_damaged_checkpoint_is_one_sentence(
    damage, command, resume, eight_images, short_run, tmp_path, rejects
):
    """`train --resume` and the other commands that read a checkpoint reject it."""
    path, line = resume
    change_checkpoint(path, short_run / "last.ckpt", *DAMAGES[damage])
    rejects(line, str(path))
    inputs = {
        "eval": ["--dataset-root", eight_images],
        "detect": [eight_images / "VOC2007/JPEGImages/000000.jpg"],
        "export": [],
    }
    out = ["--pretrained", path, "--save-prefix", tmp_path / "out"]
    rejects([command, *inputs[command], *out], str(path))


DAMAGED_STATES = cases(STATES)


@pytest.mark.parametrize("damage", DAMAGED_STATES)
def test_damaged_optimizer_state_is_one_sentence(damage, resume, short_run, rejects):
    path, line = resume
    change_checkpoint(path, short_run / "last.ckpt", *DAMAGED_STATES[damage])
    rejects(line, f"checkpoint: {path} {NOT_WHOLE}")


def test_cut_or_overwritten_checkpoint_is_one_sentence(resume, short_run, rejects):
    path, line = resume
    whole = (short_run / "last.ckpt").read_bytes()
    for data in (
        b"",
        whole[: len(whole) // 2],
        whole[:5000] + bytes(5000) + whole[10000:],
        whole[:4_000_000] + bytes(5000) + whole[4_005_000:],
    ):
        assert data != whole
        path.write_bytes(data)
        rejects(line, f"checkpoint: {path} {NOT_WHOLE}")


def test_compressed_checkpoint_is_rejected_before_it_grows(resume, rejects):
    path, line = resume
    np.savez_compressed(path.open("wb"), notes=np.zeros(10**8, np.uint8))
    assert path.stat().st_size < 10**6
    (message,) = rejects(line, str(path))
    assert message.endswith("or is damaged: 'notes.npy' in it is compressed")


FOREIGN = {"empty": b"", "text": b"404 Not Found", "zip": b"PK\x03\x04" * 99}
FOREIGN["huge"] = struct.pack("<4Q", 0x112, 0, 2**60, 0)


@pytest.mark.parametrize("data", FOREIGN.values(), ids=FOREIGN)
def test_foreign_file_of_pretrained_weights_is_rejected(data, eight_images, tmp_path, rejects):
    path = tmp_path / "resnet18.params"
    path.write_bytes(data)
    line = train_arguments(eight_images, tmp_path / "run", "--network", "resnet18_v1b")
    words = "holds no 'resnet18_v1b' of GluonCV: it is not a parameter file of MXNet"
    rejects([*line, "--pretrained-base", path], f"--pretrained-base {path} {words}")


@pytest.mark.night
def test_randomly_damaged_files_are_refused(tmp_path):
    made = python(REPOSITORY / "tests/scripts/damaged_files.py", 150, tmp_path)
    assert made.returncode == 0, made.stderr[-2000:]
    found = re.findall(r"(\w+): read \d+, refused (\d+)", made.stdout)
    assert [kind for kind, _ in found] == ["checkpoints", "symbols"]
    assert all(int(count) > 60 for _, count in found)
