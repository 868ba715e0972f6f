# SPDX-License-Identifier: Apache-2.0
"""A checkpoint is only data; a damaged or foreign one is reported in one sentence."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from demo_runs import assert_equal_runs, train_arguments

from demo_rfcn import cli

pytestmark = pytest.mark.slow


def arrays_of(path: Path) -> dict:
    """Return the arrays of a checkpoint, its notes parsed."""
    with np.load(path, allow_pickle=False) as stored:
        arrays = dict(stored)
    return {**arrays, "notes": json.loads(arrays["notes"].tobytes())}


def write(path: Path, arrays: dict) -> Path:
    """Write a checkpoint of other arrays; notes may also be bytes."""
    arrays = dict(arrays)
    if "notes" in arrays:
        notes = arrays["notes"]
        data = notes if isinstance(notes, bytes) else json.dumps(notes).encode()
        arrays["notes"] = np.frombuffer(data, np.uint8)
    with path.open("wb") as file:
        np.savez(file, **arrays)
    return path


@pytest.mark.parametrize(
    "flags",
    [
        ["--optimizer", "sgd", "--head-lr-mult", "2"],
        ["--optimizer", "sgd", "--momentum", "0"],
        ["--cpus", "2", "--freeze-bn"],
    ],
)
def test_every_optimizer_resumes_bit_for_bit(flags, eight_images, tmp_path):
    whole, parts = (train_arguments(eight_images, tmp_path / name, *flags) for name in "ab")
    last = tmp_path / "b" / "last.ckpt"
    assert cli.main(whole) == 0
    assert cli.main([*parts, "--max-seconds", "1e-9"]) == 0
    assert cli.main([*parts, "--resume", str(last)]) == 0
    assert_equal_runs(last, tmp_path / "a" / "last.ckpt")


class Gadget:
    """Pickles as a call that creates a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple:
        return os.system, (f"touch {self.mark}",)


@pytest.mark.parametrize("place", ["notes", "model/rpn.conv.weight", "whole file"])
def test_a_pickle_is_never_loaded(place, eight_images, short_run, tmp_path, capsys):
    mark, path = tmp_path / "it_ran", tmp_path / "pickle.ckpt"
    if place == "whole file":
        path.write_bytes(pickle.dumps(Gadget(mark)))
    else:
        write(path, arrays_of(short_run / "last.ckpt"))
        stored = io.BytesIO()
        np.save(stored, np.array([Gadget(mark)], dtype=object), allow_pickle=True)
        with zipfile.ZipFile(path) as archive:
            entries = {name: archive.read(name) for name in archive.namelist()}
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in {**entries, f"{place}.npy": stored.getvalue()}.items():
                archive.writestr(name, data)
    (message,) = refused(train_arguments(eight_images, tmp_path, "--resume", str(path)), capsys)
    assert f"checkpoint: {path} is not a checkpoint of demo_rfcn, or is damaged: " in message
    assert not mark.exists()


def refused(line: list, capsys: Any) -> list:
    """Return the lines that a refused command writes."""
    capsys.readouterr()
    assert cli.main(line) == 2
    return capsys.readouterr().err.strip().splitlines()


def notes_with(**changes: Any) -> Any:
    """Return a damage of a checkpoint: other values in its notes; None removes one."""

    def apply(arrays: dict) -> None:
        notes = arrays["notes"]
        for name, value in changes.items():
            target = notes["config"] if name in notes["config"] else notes
            target[name] = value
            if value is None:
                del target[name]

    return apply


def array_with(name: str, value: Any) -> Any:
    """Return a damage of a checkpoint: another array, or none."""

    def apply(arrays: dict) -> None:
        arrays[name] = value
        if value is None:
            del arrays[name]

    return apply


LOSSES = {"rpn_cls": 1, "rpn_box": 1, "rcnn_cls": 1, "rcnn_box": 1}
DAMAGED = {
    "no notes": array_with("notes", None),
    "deep notes": array_with("notes", b"[" * 100_000),
    "notes in Latin": array_with("notes", b'{"a": "\xe9"}'),
    "a list": array_with("notes", b"[]"),
    "a parameter less": array_with("model/rpn.conv.weight", None),
    "a parameter more": array_with("model/rpn.conv.other", np.zeros(3, np.float32)),
    "text for a parameter": array_with("model/rpn.conv.weight", np.array("text")),
    "another shape": array_with("model/rpn.conv.weight", np.zeros(3, np.float32)),
    "no format": notes_with(format=None),
    "no configuration": notes_with(config=None),
    "unknown key": notes_with(config={"layers": 9}),
    "no classes": notes_with(classes=[]),
    "equal classes": notes_with(classes=["a", "a"]),
    "classes of numbers": notes_with(classes=[1, 2]),
    "classes as text": notes_with(classes="abcdef"),
    "other classes": notes_with(classes=["a", "b"]),
    "network": notes_with(network="../small"),
    "network of a list": notes_with(network=[["small"]]),
    "head": notes_with(head="fpn"),
    "k of text": notes_with(k="7"),
    "large k": notes_with(k=10**6),
    "k of 0": notes_with(k=0),
    "other k": notes_with(k=3),
    "fpn": notes_with(fpn=True),
    "deform": notes_with(deform=1),
    "other convolutions": notes_with(deform=True),
    "agnostic": notes_with(class_agnostic="no"),
    "scales": notes_with(anchor_scales=[0]),
    "infinite scales": notes_with(anchor_scales=[float("inf")]),
    "many scales": notes_with(anchor_scales=[1] * 10**5),
    "one scale": notes_with(anchor_scales=[1.0]),
    "ratios": notes_with(anchor_ratios=["1"]),
    "step": notes_with(step=-1),
    "step of text": notes_with(step="9"),
    "scale": notes_with(short=0),
    "scale of nothing": notes_with(short=None),
    "long side": notes_with(max_size=1),
    "large scale": notes_with(short=10**6, max_size=10**6),
    "best": notes_with(best="good"),
    "history": notes_with(history=[]),
    "history of NaN": notes_with(history={"losses": [{"step": 1, "a": float("nan")}], "val": []}),
    "uneven history": notes_with(
        history={"losses": [{"step": 1, **LOSSES}, {"step": 2}], "val": []}
    ),
    "arguments": notes_with(arguments={}),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_checkpoint_is_one_sentence(damage, eight_images, short_run, tmp_path, capsys):
    arrays = arrays_of(short_run / "last.ckpt")
    DAMAGED[damage](arrays)
    path = str(write(tmp_path / "damaged.ckpt", arrays))
    out = ["--pretrained", path, "--save-prefix", str(tmp_path / "out")]
    image = str(next((eight_images / "VOC2007" / "JPEGImages").iterdir()))
    for line in (
        train_arguments(eight_images, tmp_path / "run", "--steps", "8", "--resume", path),
        ["eval", "--dataset-root", str(eight_images), *out],
        ["detect", image, *out],
        ["export", *out],
    ):
        (message,) = refused(line, capsys)
        assert path in message and "Traceback" not in message, message


@pytest.mark.parametrize(
    "damage",
    [
        array_with("optimizer/0/rpn.conv.weight", None),
        array_with("optimizer/0/rpn.conv.weight", np.zeros(3, np.float32)),
        array_with("optimizer/x", np.zeros(3, np.float32)),
        notes_with(updates={"backbone": 1}),
        notes_with(updates={}),
        notes_with(updates=[]),
        notes_with(updates={"rpn.conv.weight": -1}),
    ],
)
def test_a_damaged_state_of_the_optimizer_is_one_sentence(
    damage, eight_images, short_run, tmp_path, capsys
):
    arrays = arrays_of(short_run / "last.ckpt")
    damage(arrays)
    path = str(write(tmp_path / "damaged.ckpt", arrays))
    line = train_arguments(eight_images, tmp_path / "run", "--steps", "8", "--resume", path)
    (message,) = refused(line, capsys)
    assert f"checkpoint: {path} is not a checkpoint of demo_rfcn, or is damaged: " in message


def test_a_checkpoint_does_not_grow_when_it_is_unpacked(eight_images, tmp_path, capsys):
    path = tmp_path / "bomb.ckpt"
    np.savez_compressed(path.open("wb"), notes=np.zeros(10**8, np.uint8))
    assert path.stat().st_size < 10**6
    (message,) = refused(train_arguments(eight_images, tmp_path, "--resume", str(path)), capsys)
    assert message.endswith("or is damaged: 'notes.npy' in it is compressed")
