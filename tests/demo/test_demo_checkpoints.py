# SPDX-License-Identifier: Apache-2.0
"""A checkpoint is data: those of older versions go on, and those made to harm run nothing."""

from __future__ import annotations

import json
import os
import pickle
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from demo_runs import optimizer, parameters, train_arguments

from demo_rfcn import cli
from demo_rfcn.run import checkpoint

pytestmark = pytest.mark.slow


def entries_of(path: Path) -> dict:
    """Return the files within a checkpoint."""
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write(path: Path, entries: dict, compression: int = zipfile.ZIP_STORED) -> Path:
    """Write a checkpoint of other entries."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return path


def save_as_format_1(
    path: Path, net: Any, trainer: mx.gluon.Trainer, meta: dict, protocol: int = 4
) -> None:
    """Save what version 0.1.0 of this demo saved at first, with MXNet's pickle.

    `protocol` is that of the pickle: 5 is Python 3.14's, 4 that of older ones.
    """
    work = path.parent / "work"
    work.mkdir(parents=True, exist_ok=True)
    net.save_parameters(str(work / "model.params"))
    states = work / "trainer.states"
    trainer.save_states(str(states))
    states.write_bytes(pickle.dumps(pickle.loads(states.read_bytes()), protocol))
    content = {"format": 1, "config": net.config.to_dict(), **meta}
    content["random"] = {"python": [3, [0] * 625, None], "numpy": ["MT19937", [0] * 624, 0, 0, 0.0]}
    (work / "checkpoint.json").write_text(json.dumps(content))
    write(path, {file.name: file.read_bytes() for file in work.iterdir()})


@pytest.fixture
def old_run(eight_images, tmp_path, monkeypatch) -> Path:
    """The checkpoint of format 1 of a run that was stopped after a step."""
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", save_as_format_1)
        line = train_arguments(eight_images, tmp_path / "old", "--max-seconds", "1e-9")
        assert cli.main(line) == 0
    return tmp_path / "old" / "last.ckpt"


@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--optimizer", "sgd", "--head-lr-mult", "2"],
        ["--optimizer", "sgd", "--momentum", "0"],
        ["--cpus", "2", "--freeze-bn"],
    ],
)
@pytest.mark.parametrize("protocol", [0, 4, 5])
def test_checkpoints_of_both_formats_resume(protocol, flags, eight_images, tmp_path, monkeypatch):
    """Bit for bit, and what is written then has the new format; protocol 0 stands for that one."""
    whole, parts = (train_arguments(eight_images, tmp_path / name, *flags) for name in "ab")
    assert cli.main(whole) == 0
    with monkeypatch.context() as patch:
        if protocol:
            patch.setattr(checkpoint, "save", partial(save_as_format_1, protocol=protocol))
        assert cli.main([*parts, "--max-seconds", "1e-9"]) == 0
    last = tmp_path / "b" / "last.ckpt"
    assert ("trainer.states" in entries_of(last)) == (protocol > 0)
    assert cli.main([*parts, "--resume", str(last)]) == 0
    first = tmp_path / "a" / "last.ckpt"
    for read in (parameters, optimizer):
        resumed, expected = read(last), read(first)
        assert resumed.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_array_equal(resumed[name], value, err_msg=name)
    assert set(entries_of(last)) == {"model.params", "optimizer.params", "checkpoint.json"}


class Gadget:
    """Pickles as a call."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple:
        return self.call


def touch(path: Path) -> str:
    return f"touch {path}"


#: Every one would create the file if it ran. MARK stands for the path of that file.
PICKLES: dict[str, Any] = {
    "system": lambda mark: Gadget(os.system, touch(mark)),
    "open": lambda mark: Gadget(open, str(mark), "w"),
    "exec": lambda mark: Gadget(exec, f"open({str(mark)!r}, 'w')"),
    "in a state": lambda mark: ({0: Gadget(os.system, touch(mark))}, None),
    "in the optimizer": lambda mark: ({}, Gadget(eval, f"open({str(mark)!r}, 'w')")),
    "an optimizer that calls": lambda mark: (
        {},
        Gadget(mx.optimizer.Optimizer.create_optimizer, "adam"),
    ),
    "an array at an address": lambda mark: ({0: Gadget(mx.nd.NDArray, 4096)}, None),
    "bytes of a number": lambda mark: ({0: Gadget(bytearray, 10**15)}, None),
}


@pytest.mark.parametrize("name", PICKLES)
def test_a_pickle_that_calls_something_is_refused(name, old_run, eight_images, tmp_path, capsys):
    mark = tmp_path / "it ran"
    data = pickle.dumps(PICKLES[name](mark), 4)
    write(old_run, {**entries_of(old_run), "trainer.states": data})
    (message,) = refused(train_arguments(eight_images, tmp_path, "--resume", str(old_run)), capsys)
    assert "is not a checkpoint of demo_rfcn, or is damaged: no state of an optimizer" in message
    assert not mark.exists()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"text",
        b"cos\nsystem\n(S'true'\ntR.",
        b"\x80\x04}\x94r\xff\xff\xff\x7f.",  # stores at place 2**31 - 1
        b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
        b"\x80\x04\x8c\x08builtins\x8c\x10bytearray.append\x93.",
        b"\x80\x04\x82\x01.",  # of the registry of extensions
        b"\x80\x04" + b"]" * 100_000 + b"a" * 99_999 + b".",
        pickle.dumps({0: None}),
        pickle.dumps(({0: None}, None)),
        pickle.dumps(({"a": np.zeros(3)}, None)),
    ],
)
def test_a_foreign_pickle_is_refused(data, old_run, eight_images, tmp_path, capsys):
    write(old_run, {**entries_of(old_run), "trainer.states": data})
    (message,) = refused(train_arguments(eight_images, tmp_path, "--resume", str(old_run)), capsys)
    assert "no state of an optimizer: " in message


def test_every_cut_of_a_pickle_is_refused(old_run, eight_images, tmp_path, capsys):
    whole = entries_of(old_run)
    data = whole["trainer.states"]
    for length in (3, 100, 3000, len(data) // 2, len(data) - 1):
        write(old_run, {**whole, "trainer.states": data[:length]})
        line = train_arguments(eight_images, tmp_path, "--resume", str(old_run))
        (message,) = refused(line, capsys)
        assert "no state of an optimizer: " in message


def refused(line: list, capsys: Any) -> list:
    """Return the lines that a refused command writes."""
    capsys.readouterr()
    assert cli.main(line) == 2
    return capsys.readouterr().err.strip().splitlines()


def meta_with(**changes: Any) -> Any:
    """Return a damage of a checkpoint: other values in its notes; None removes one."""

    def apply(entries: dict) -> None:
        meta = json.loads(entries["checkpoint.json"])
        for name, value in changes.items():
            target = meta["config"] if name in meta["config"] else meta
            target[name] = value
            if value is None:
                del target[name]
        entries["checkpoint.json"] = json.dumps(meta).encode()

    return apply


def entry_with(name: str, data: bytes | None) -> Any:
    """Return a damage of a checkpoint: other bytes in a file within it, or none."""

    def apply(entries: dict) -> None:
        entries[name] = data
        if data is None:
            del entries[name]

    return apply


LOSSES = {"rpn_cls": 1, "rpn_box": 1, "rcnn_cls": 1, "rcnn_box": 1}
DAMAGED = {
    "no notes": entry_with("checkpoint.json", None),
    "deep notes": entry_with("checkpoint.json", b"[" * 100_000),
    "notes in Latin": entry_with("checkpoint.json", b'{"a": "\xe9"}'),
    "a list": entry_with("checkpoint.json", b"[]"),
    "no parameters": entry_with("model.params", None),
    "empty parameters": entry_with("model.params", b""),
    "text for parameters": entry_with("model.params", b"a" * 5000),
    "no format": meta_with(format=None),
    "no configuration": meta_with(config=None),
    "unknown key": meta_with(config={"layers": 9}),
    "no classes": meta_with(classes=[]),
    "equal classes": meta_with(classes=["a", "a"]),
    "classes of numbers": meta_with(classes=[1, 2]),
    "classes as text": meta_with(classes="abcdef"),
    "other classes": meta_with(classes=["a", "b"]),
    "network": meta_with(network="../small"),
    "network of a list": meta_with(network=[["small"]]),
    "head": meta_with(head="fpn"),
    "k of text": meta_with(k="7"),
    "large k": meta_with(k=10**6),
    "k of 0": meta_with(k=0),
    "other k": meta_with(k=3),
    "fpn": meta_with(fpn=True),
    "deform": meta_with(deform=1),
    "other convolutions": meta_with(deform=True),
    "agnostic": meta_with(class_agnostic="no"),
    "scales": meta_with(anchor_scales=[0]),
    "infinite scales": meta_with(anchor_scales=[float("inf")]),
    "many scales": meta_with(anchor_scales=[1] * 10**5),
    "one scale": meta_with(anchor_scales=[1.0]),
    "ratios": meta_with(anchor_ratios=["1"]),
    "step": meta_with(step=-1),
    "step of text": meta_with(step="9"),
    "scale": meta_with(short=0),
    "scale of nothing": meta_with(short=None),
    "long side": meta_with(max_size=1),
    "large scale": meta_with(short=10**6, max_size=10**6),
    "best": meta_with(best="good"),
    "history": meta_with(history=[]),
    "history of NaN": meta_with(history={"losses": [{"step": 1, "a": float("nan")}], "val": []}),
    "uneven history": meta_with(
        history={"losses": [{"step": 1, **LOSSES}, {"step": 2}], "val": []}
    ),
    "arguments": meta_with(arguments={}),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_checkpoint_is_one_sentence(damage, eight_images, short_run, tmp_path, capsys):
    entries = entries_of(short_run / "last.ckpt")
    DAMAGED[damage](entries)
    path = str(write(tmp_path / "damaged.ckpt", entries))
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
        entry_with("optimizer.params", None),
        entry_with("optimizer.params", b"text" * 9),
        meta_with(updates={"backbone": 1}),
        meta_with(updates={}),
        meta_with(updates=[]),
        meta_with(updates={"rpn.conv.weight": -1}),
    ],
)
def test_a_damaged_state_of_the_optimizer_is_one_sentence(
    damage, eight_images, short_run, tmp_path, capsys
):
    entries = entries_of(short_run / "last.ckpt")
    damage(entries)
    path = str(write(tmp_path / "damaged.ckpt", entries))
    line = train_arguments(eight_images, tmp_path / "run", "--steps", "8", "--resume", path)
    (message,) = refused(line, capsys)
    assert f"checkpoint: {path} is not a checkpoint of demo_rfcn, or is damaged: " in message


def test_a_checkpoint_does_not_grow_when_it_is_unpacked(eight_images, tmp_path, capsys):
    path = tmp_path / "bomb.ckpt"
    write(path, {"checkpoint.json": b" " * 10**8}, zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 10**6
    (message,) = refused(train_arguments(eight_images, tmp_path, "--resume", str(path)), capsys)
    assert message.endswith("or is damaged: 'checkpoint.json' in it is compressed")
