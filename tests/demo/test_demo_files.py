# SPDX-License-Identifier: Apache-2.0
"""What a command did not write it does not touch; the old goes when the new is complete."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
from PIL import Image
from support.damages import put_pickle
from support.demo_runs import assert_equal_runs, parameters, run, train, train_arguments
from support.processes import ended_by

from demo_rfcn import checkpoint, cli, export, files, networks
from demo_rfcn.data import generate
from demo_rfcn.distributed.workers import SingleWorker
from demo_rfcn.model import ModelConfig

pytestmark = pytest.mark.slow

LABELME = {"shapes": [{"label": "dog"}], "imagePath": "dog.jpg"}


def contents(folder: Path) -> dict[str, bytes]:
    """Return the bytes of every file in a folder."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def finished(short_run, tmp_path) -> Path:
    """A copy of the folder of a run of six steps."""
    return Path(shutil.copytree(short_run, tmp_path / "run"))


@pytest.mark.parametrize("name", ["history.json", "split.json"])
@pytest.mark.parametrize("run_exists", [False, True])
def test_train_replaces_no_file_of_a_user(name, run_exists, eight_images, finished, rejects):
    if not run_exists:
        shutil.rmtree(finished)
        finished.mkdir()
    (finished / name).write_text('{"title": "thesis"}')
    before = contents(finished)
    line = train_arguments(eight_images, finished, "--overwrite")
    rejects(line, f"train: {finished / name} was not written by a run of demo_rfcn; choose another")
    assert contents(finished) == before


def test_overwrite_leaves_foreign_results(eight_images, finished):
    foreign = {"summary.json": '{"title": 1}', "report.html": "mine", "detections.png": "mine"}
    for name, text in foreign.items():
        (finished / name).write_text(text)
    train(eight_images, finished, "--overwrite", "--seed", "1", "--steps", "1")
    assert checkpoint.read(finished / "last.ckpt").arguments["seed"] == 1
    for name, text in foreign.items():
        assert (finished / name).read_text() == text


def test_overwrite_removes_the_results_of_the_replaced_run(eight_images, finished, blank_pictures):
    saved = ["--pretrained", finished / "last.ckpt", "--save-prefix", finished]
    run("eval", "--dataset-root", eight_images, *saved)
    assert (finished / "report.html").exists()
    train(eight_images, finished, "--overwrite", "--seed", "1", "--steps", "1")
    names = {path.name for path in finished.iterdir()}
    assert names == {"last.ckpt", "best.ckpt", "history.json"}


def test_foreign_checkpoint_is_not_replaced(eight_images, tmp_path, rejects):
    (tmp_path / "best.ckpt").write_bytes(b"of another program")
    line = train_arguments(eight_images, tmp_path, "--overwrite")
    rejects(line, f"checkpoint: {tmp_path / 'best.ckpt'} is not a checkpoint of demo_rfcn")
    assert (tmp_path / "best.ckpt").read_bytes() == b"of another program"


@pytest.mark.parametrize("command", ["train", "demo"])
def test_resuming_another_checkpoint_replaces_no_run(
    command, written_signals, eight_images, finished, tmp_path, rejects
):
    """Neither one of another folder, nor an earlier one of the same run."""
    early = train(eight_images, tmp_path / "early", "--steps", "3")
    shutil.copy(early, finished / "early.ckpt")
    before = contents(finished)
    for path in (early, finished / "early.ckpt"):
        line = train_arguments(eight_images, finished, "--resume", path)
        words = f"{finished} has a run of 6 steps: --resume {finished / 'last.ckpt'}, or --over"
        rejects([command, *line[1:]], words)
    assert contents(finished) == before


def test_eval_replaces_no_file_of_a_user(eight_images, short_run, tmp_path, rejects):
    (tmp_path / "summary.json").write_text('{"title": "thesis"}')
    line = ["eval", "--dataset-root", eight_images, "--pretrained", short_run / "last.ckpt"]
    words = f"eval: {tmp_path / 'summary.json'} was not written by an evaluation; choose another"
    rejects([*line, "--save-prefix", tmp_path], words)
    assert (tmp_path / "summary.json").read_text() == '{"title": "thesis"}'


@pytest.mark.parametrize("name", ["dog.json", "dog.png"])
def test_detect_replaces_no_file_of_a_user(name, eight_images, short_run, tmp_path, rejects):
    image = tmp_path / "dog.jpg"
    shutil.copy(eight_images / "VOC2007/JPEGImages/000000.jpg", image)
    if name == "dog.json":
        (tmp_path / name).write_text(json.dumps(LABELME))
    else:
        Image.new("RGB", (8, 8)).save(tmp_path / name)
    before = contents(tmp_path)
    line = ["detect", image, "--pretrained", short_run / "last.ckpt", "--save-prefix", tmp_path]
    rejects(line, f"detect: {tmp_path / name} was not written by detect; expected another folder")
    assert contents(tmp_path) == before
    (tmp_path / name).unlink()
    for _ in range(2):  # its results are replaced
        run(*line)
    found = json.loads((tmp_path / "dog.json").read_text())
    assert isinstance(found["detections"], list) and "x2 - x1 is the width" in found["box"]
    (tmp_path / "dog.json").write_text("[]")  # as an earlier version wrote
    run(*line)


EXPORTED = {
    "mxnet": ("rfcn-0000.params", "rfcn-metadata.json", "rfcn-symbol.json"),
    "onnx": ("rfcn.onnx",),
}


@pytest.mark.parametrize("form", EXPORTED)
def test_export_replaces_no_file_of_a_user(form, short_run, tmp_path, rejects):
    pytest.importorskip("onnx")
    line = ["export", "--format", form, "--pretrained", short_run / "last.ckpt", "--save-prefix"]
    for name in EXPORTED[form]:
        folder = tmp_path / name
        folder.mkdir()
        (folder / name).write_text('{"title": "thesis"}')
        words = f"export: {folder / name} was not written by an export; choose another"
        rejects([*line, folder], words)
        assert contents(folder) == {name: b'{"title": "thesis"}'}
    for _ in range(2):  # its results are replaced
        run(*line, tmp_path / "out")
    assert sorted(contents(tmp_path / "out")) == sorted(EXPORTED[form])


def test_a_run_is_replaced_by_one_that_starts_from_its_weights(eight_images, finished, rejects):
    """The checkpoint is read before it is replaced, and the old run stays until then."""
    last = finished / "last.ckpt"
    before = parameters(last)
    line = ("--pretrained", last, "--overwrite", "--steps", "1", "--lr", "1e-9")
    train(eight_images, finished, *line)
    stored = checkpoint.read(last)
    assert stored.step == 1 and stored.arguments["pretrained"] == str(last)
    np.testing.assert_allclose(
        stored.model["rpn.conv.weight"], before["rpn.conv.weight"], atol=1e-6
    )


def foreign_base(path: Path) -> list[str]:
    """Write parameters of another network; return the arguments that would load them."""
    mx.nd.save(str(path / "base.params"), {"other.weight": mx.nd.zeros((1,))})
    return ["--network", "resnet18_v1b", "--pretrained-base", str(path / "base.params")]


def damaged_base(path: Path) -> list[str]:
    """Write a file that holds no parameters; return the arguments that would load it."""
    (path / "base.params").write_bytes(b"404 Not Found")
    return ["--network", "resnet18_v1b", "--pretrained-base", str(path / "base.params")]


def other_backbone(path: Path) -> list[str]:
    """Return the arguments that would fine-tune another backbone."""
    return ["--pretrained", str(path / "run/last.ckpt"), "--network", "resnet18_v1b"]


def diverging(path: Path) -> list[str]:
    """Return the arguments of a run that diverges before its first checkpoint."""
    return ["--lr", "1e30", "--optimizer", "sgd", "--lr-warmup", "0"]


@pytest.mark.parametrize("failure", [foreign_base, damaged_base, other_backbone, diverging])
def test_a_failed_run_replaces_none(failure, eight_images, finished, tmp_path, rejects):
    before = contents(finished)
    line = train_arguments(eight_images, finished, "--overwrite", "--seed", "1")
    rejects([*line, *failure(tmp_path)], "", starts=True)
    assert contents(finished) == before


def test_resume_with_overwrite_keeps_the_best_checkpoint(eight_images, tmp_path):
    last = train(eight_images, tmp_path, "--val-interval", "3")
    stored = checkpoint.read(last)
    best = (tmp_path / "best.ckpt").read_bytes()
    more = ("--resume", last, "--overwrite", "--steps", "7", "--lr", "1e-9", "--val-interval", "9")
    train(eight_images, tmp_path, *more)
    again = checkpoint.read(last)
    assert (again.step, again.history["val"][:2]) == (7, stored.history["val"])
    assert stored.best is not None and again.best is not None
    kept = (tmp_path / "best.ckpt").read_bytes() == best
    assert kept or again.best >= stored.best


def test_onnx_export_of_large_weights_keeps_both_files(tmp_path, monkeypatch):
    """The second file is named in the first one, and lies next to it."""
    onnx = pytest.importorskip("onnx")
    from gluon_roi.onnx import file as onnx_file

    monkeypatch.setattr(onnx_file, "LIMIT", 1000)
    config = ModelConfig(("a",), "small", "psroi", 3, True, (2.0,), (1.0,))
    net = networks.build(config, [mx.cpu()], 0)
    export.export_onnx(networks.detector(net), tmp_path / "a.onnx", 64)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.onnx", "a.onnx.data"]
    onnx.checker.check_model(str(tmp_path / "a.onnx"))


@pytest.mark.parametrize("step", [1, 4])
def test_no_checkpoint_has_a_parameter_that_is_not_finite(
    step, eight_images, tmp_path, monkeypatch, rejects
):
    """The losses are still finite: the update of the step made it."""
    original, calls = SingleWorker.sum_gradients, []

    def sum_gradients(self, trainer, *flags):
        result = original(self, trainer, *flags)
        calls.append(0)
        if len(calls) == step:
            for parameter in trainer._params:
                if parameter.name.endswith("psroihead0_conv0_bias"):
                    for gradient in parameter.list_grad():
                        gradient[:] = float("nan")
        return result

    monkeypatch.setattr(SingleWorker, "sum_gradients", sum_gradients)
    line = train_arguments(eight_images, tmp_path, "--steps", step)
    words = f"parameter 'head.maps.bias' is not finite after step {step}; no checkpoint is"
    rejects(line, words, starts=True)
    assert not list(tmp_path.glob("*.ckpt"))


def test_losses_are_checked_at_each_step(eight_images, tmp_path, rejects):
    """Not only at those that --log-interval writes down."""
    more = ("--lr", "1e30", "--optimizer", "sgd", "--lr-warmup", "0", "--log-interval", "1000")
    line = train_arguments(eight_images, tmp_path, *more, "--steps", "50")
    (message,) = rejects(line, "train: a loss is not finite at step ", starts=True)
    assert int(message.split("at step ")[1].split(" ")[0]) < 5
    assert not list(tmp_path.glob("*.ckpt"))


def test_damaged_checkpoint_in_the_folder_is_not_replaced(eight_images, finished, rejects):
    put_pickle(finished / "last.ckpt", finished / "best.ckpt", "whole file", finished / "mark")
    before = contents(finished)
    rejects(train_arguments(eight_images, finished, "--overwrite"), "or is damaged")
    assert contents(finished) == before


def test_interrupted_run_resumes_with_all_losses(eight_images, tmp_path, monkeypatch):
    """--log-interval is above --val-interval, and the run stops between both."""
    flags = ("--log-interval", "5", "--val-interval", "2")
    whole = train(eight_images, tmp_path / "whole", *flags)
    original, calls = SingleWorker.sum_gradients, []

    def sum_gradients(self, trainer, *flags):
        calls.append(0)
        _, late = original(self, trainer, *flags)
        return len(calls) == 3, late

    monkeypatch.setattr(SingleWorker, "sum_gradients", sum_gradients)
    line = train_arguments(eight_images, tmp_path / "parts", *flags)
    assert cli.main(line) == 130
    monkeypatch.undo()
    last = tmp_path / "parts" / "last.ckpt"
    assert checkpoint.read(last).history["losses"] == []
    saved = ("--pretrained", last, "--save-prefix", tmp_path / "eval")
    run("eval", "--dataset-root", eight_images, *saved)  # it has curves, of three steps
    run(*line, "--resume", last)
    assert_equal_runs(last, whole)
    assert checkpoint.read(last).history == checkpoint.read(whole).history


def kill() -> None:
    """End this process as `kill -9` and the kernel do when memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)


def test_the_next_command_removes_what_a_killed_one_left(few_signals, tmp_path, monkeypatch):
    """Files of a run, results, and a data set."""
    line = ["data", "--dataset-root", tmp_path / "data"]

    def file() -> None:
        with files.replacing(tmp_path / "split.json"):
            kill()

    def results() -> None:
        with files.replacing_all(tmp_path) as work:
            files.write_json(work / "summary.json", {})
            kill()

    def data() -> None:
        monkeypatch.setattr(generate, "write_splits", lambda *_: kill())
        run(*line)

    for write in (file, results, data):
        assert ended_by(write) == signal.SIGKILL
    assert len([*tmp_path.iterdir()]) > 0
    run(*line)
    files.write_json(tmp_path / "split.json", {})
    assert {path.name for path in tmp_path.iterdir()} == {"data", "split.json"}
