# SPDX-License-Identifier: Apache-2.0
"""Checkpoints and weights hold data only; a damaged or foreign file gives one sentence."""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from demo_runs import REPOSITORY, assert_equal_runs, python, refused, train_arguments

from demo_rfcn import cli
from demo_rfcn.run import checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("little_memory")]

DAMAGED_CHECKPOINT = "is not a checkpoint of demo_rfcn, or is damaged: "


def arrays_of(path: Path) -> dict:
    """Return the arrays of a checkpoint, its notes parsed."""
    with np.load(path, allow_pickle=False) as stored:
        arrays = dict(stored)
    return {**arrays, "notes": json.loads(arrays["notes"].tobytes())}


def write(path: Path, arrays: dict) -> Path:
    """Write a checkpoint of other arrays; notes may also be bytes."""
    if "notes" in arrays:
        notes = arrays["notes"]
        data = notes if isinstance(notes, bytes) else json.dumps(notes).encode()
        arrays = {**arrays, "notes": np.frombuffer(data, np.uint8)}
    with path.open("wb") as file:
        np.savez(file, **arrays)
    return path


@pytest.mark.parametrize(
    "flags",
    [
        ["--optimizer", "sgd", "--head-lr-mult", "2"],
        ["--optimizer", "sgd", "--momentum", "0"],
        ["--cpus", "2", "--freeze-bn", "--kv-store", "local"],
    ],
)
def test_every_optimizer_resumes_bit_for_bit(flags, eight_images, tmp_path):
    whole, parts = (train_arguments(eight_images, tmp_path / name, *flags) for name in "ab")
    last = tmp_path / "b" / "last.ckpt"
    assert cli.main(whole) == 0
    assert cli.main([*parts, "--max-seconds", "1e-9"]) == 0
    assert [row["step"] for row in checkpoint.read(last).notes["history"]["val"]] == [1]
    assert cli.main([*parts, "--resume", str(last)]) == 0
    assert_equal_runs(last, tmp_path / "a" / "last.ckpt")


class Gadget:
    """Pickles as a call that creates a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple:
        return os.system, (f"touch {self.mark}",)


@pytest.mark.parametrize("place", ["notes", "model/rpn.conv.weight", "whole file"])
def test_pickle_is_never_loaded(place, eight_images, short_run, tmp_path, capsys):
    mark, path = tmp_path / "it_ran", tmp_path / "pickle.ckpt"
    if place == "whole file":
        path.write_bytes(pickle.dumps(Gadget(mark)))
    else:
        stored = io.BytesIO()
        np.save(stored, np.array([Gadget(mark)], dtype=object), allow_pickle=True)
        with zipfile.ZipFile(short_run / "last.ckpt") as archive:
            entries = {name: archive.read(name) for name in archive.namelist()}
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in {**entries, f"{place}.npy": stored.getvalue()}.items():
                archive.writestr(name, data)
    (message,) = refused(train_arguments(eight_images, tmp_path, "--resume", str(path)), capsys)
    assert f"checkpoint: {path} {DAMAGED_CHECKPOINT}" in message
    assert not mark.exists()


def with_notes(**changes: Any) -> Any:
    """Return a damage of a checkpoint: other values in its notes; None removes one."""

    def apply(arrays: dict) -> None:
        notes = arrays["notes"]
        for name, value in changes.items():
            target = notes["config"] if name in notes["config"] else notes
            target[name] = value
            if value is None:
                del target[name]

    return apply


def with_array(name: str, value: Any) -> Any:
    """Return a damage of a checkpoint: another array."""
    return lambda arrays: arrays.update({name: value})


WEIGHT = "rpn.conv.weight"
UNEVEN = {"losses": [{"step": 1, "rpn_cls": 1}, {"step": 2}], "val": []}
NAN = {"losses": [{"step": 1, "a": float("nan")}], "val": []}
DAMAGED = {
    "no notes": lambda arrays: arrays.pop("notes"),
    "deep notes": with_array("notes", b"[" * 100_000),
    "notes in Latin": with_array("notes", b'{"a": "\xe9"}'),
    "a list": with_array("notes", b"[]"),
    "a parameter less": lambda arrays: arrays.pop(f"model/{WEIGHT}"),
    "a parameter more": with_array("model/rpn.conv.other", np.zeros(3, np.float32)),
    "text for a parameter": with_array(f"model/{WEIGHT}", np.array("text")),
    "another shape": with_array(f"model/{WEIGHT}", np.zeros(3, np.float32)),
    "no format": with_notes(format=None),
    "no configuration": with_notes(config=None),
    "unknown key": with_notes(config={"layers": 9}),
    "classes as text": with_notes(classes="abcdef"),
    "equal classes": with_notes(classes=["a", "a"]),
    "other classes": with_notes(classes=["a", "b"]),
    "network": with_notes(network="../small"),
    "head": with_notes(head="fpn"),
    "k of text": with_notes(k="7"),
    "large k": with_notes(k=10**6),
    "other k": with_notes(k=3),
    "fpn": with_notes(fpn=True),
    "other convolutions": with_notes(deform=True),
    "one scale": with_notes(anchor_scales=[1.0]),
    "infinite scales": with_notes(anchor_scales=[float("inf")]),
    "many scales": with_notes(anchor_scales=[1] * 10**5),
    "ratios": with_notes(anchor_ratios=["1"]),
    "step": with_notes(step=-1),
    "no scale": with_notes(short=None),
    "large scale": with_notes(short=10**6, max_size=10**6),
    "best": with_notes(best="good"),
    "history of NaN": with_notes(history=NAN),
    "uneven history": with_notes(history=UNEVEN),
    "arguments": with_notes(arguments={}),
}
STATES = {
    "state missing": lambda arrays: arrays.pop(f"optimizer/0/{WEIGHT}"),
    "state of another shape": with_array(f"optimizer/0/{WEIGHT}", np.zeros(3, np.float32)),
    "state without place": with_array("optimizer/x", np.zeros(3, np.float32)),
    "updates of no parameter": with_notes(updates={"backbone": 1}),
    "no updates": with_notes(updates={}),
    "updates of a list": with_notes(updates=[]),
    "negative updates": with_notes(updates={WEIGHT: -1}),
}


@pytest.mark.parametrize("damage", [*DAMAGED, *STATES])
def test_damaged_checkpoint_is_one_sentence(damage, eight_images, short_run, tmp_path, capsys):
    arrays = arrays_of(short_run / "last.ckpt")
    {**DAMAGED, **STATES}[damage](arrays)
    path = str(write(tmp_path / "damaged.ckpt", arrays))
    out = ["--pretrained", path, "--save-prefix", str(tmp_path / "out")]
    image = str(next((eight_images / "VOC2007" / "JPEGImages").iterdir()))
    for line in (
        train_arguments(eight_images, tmp_path / "run", "--steps", "8", "--resume", path),
        ["eval", "--dataset-root", str(eight_images), *out],
        ["detect", image, *out],
        ["export", *out],
    )[: None if damage in DAMAGED else 1]:
        (message,) = refused(line, capsys)
        assert path in message and "Traceback" not in message, message
    if damage in STATES:
        assert f"checkpoint: {path} {DAMAGED_CHECKPOINT}" in message


def test_cut_or_overwritten_checkpoint_is_one_sentence(eight_images, short_run, tmp_path, capsys):
    last = tmp_path / "last.ckpt"
    whole = (short_run / "last.ckpt").read_bytes()
    line = train_arguments(eight_images, tmp_path / "run", "--resume", str(last), "--steps", "8")
    for data in (
        b"",
        whole[: len(whole) // 2],
        whole[:5000] + bytes(5000) + whole[10000:],
        whole[:4_000_000] + bytes(5000) + whole[4_005_000:],
    ):
        last.write_bytes(data)
        (message,) = refused(line, capsys)
        assert f"checkpoint: {last} {DAMAGED_CHECKPOINT}" in message


def test_compressed_checkpoint_is_rejected_before_it_grows(eight_images, tmp_path, capsys):
    path = tmp_path / "bomb.ckpt"
    np.savez_compressed(path.open("wb"), notes=np.zeros(10**8, np.uint8))
    assert path.stat().st_size < 10**6
    (message,) = refused(train_arguments(eight_images, tmp_path, "--resume", str(path)), capsys)
    assert message.endswith("or is damaged: 'notes.npy' in it is compressed")


FOREIGN = {
    "empty": b"",
    "text": b"404 Not Found",
    "zip": b"PK\x03\x04" * 99,
    "huge": struct.pack("<4Q", 0x112, 0, 2**60, 0),
}


@pytest.mark.parametrize("data", FOREIGN.values(), ids=FOREIGN)
def test_foreign_file_of_pretrained_weights_is_rejected(data, eight_images, tmp_path, capsys):
    path = tmp_path / "resnet18.params"
    path.write_bytes(data)
    line = train_arguments(eight_images, tmp_path / "run", "--network", "resnet18_v1b")
    (message,) = refused([*line, "--pretrained-base", path], capsys)
    words = "holds no 'resnet18_v1b' of GluonCV: it is not a parameter file of MXNet"
    assert f"--pretrained-base {path} {words}" in message


@pytest.mark.parametrize("kind", ["checkpoints", "symbols"])
def test_randomly_damaged_files(kind, tmp_path):
    made = python(REPOSITORY / "tests/scripts/damaged_files.py", kind, "150", tmp_path)
    assert made.returncode == 0, made.stderr[-2000:]
    found = re.search(r"read (\d+), refused (\d+)", made.stdout)
    assert found and int(found[2]) > 60
