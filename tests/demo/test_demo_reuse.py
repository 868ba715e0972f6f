# SPDX-License-Identifier: Apache-2.0
"""A result carries what made it, and is reused only if all of it is equal."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support.damages import files_up_to
from support.demo_data import write_eight
from support.demo_runs import run, train, train_arguments

from demo_rfcn import checkpoint, cli, evaluate

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("blank_pictures")]


@pytest.fixture(scope="module")
def made(eight_images, tmp_path_factory) -> Path:
    """A folder with a copy of eight images; the first `finished_demo` adds its run to `saved`."""
    root = tmp_path_factory.mktemp("made")
    shutil.copytree(eight_images, root / "saved/data")
    return root


@pytest.fixture
def data(made) -> Path:
    """A copy of eight images, of which some may be changed; at the same path in each test."""
    shutil.rmtree(made / "work", ignore_errors=True)
    shutil.copytree(made / "saved", made / "work")
    return made / "work/data"


@pytest.fixture
def finished_demo(written_signals, made, data, capsys) -> tuple[list[str], Path]:
    """The line of a `demo` that has been run, and its folder."""
    folder = data.parent / "run"
    line = ["demo", *train_arguments(data, folder)[1:], "--steps", "2"]
    if not folder.exists():
        run(*line)
        shutil.copytree(folder, made / "saved/run")
        capsys.readouterr()
    return line, folder


def test_demo_does_not_show_the_figures_of_other_data(finished_demo, data, tmp_path, rejects):
    line, folder = finished_demo
    before = (folder / "summary.json").read_text()
    rejects([*line, "--dataset-root", tmp_path / "none"], "none of 'signals' is missing")
    other = write_eight(tmp_path / "other")
    image = other / "VOC2007/JPEGImages/000000.jpg"
    shutil.copy(other / "VOC2007/JPEGImages/000001.jpg", image)
    words = f"{folder / 'last.ckpt'} was trained on images that differ from {other} now"
    rejects([*line, "--dataset-root", other], words)
    assert (folder / "summary.json").read_text() == before


def test_demo_evaluates_again_if_the_test_images_have_changed(finished_demo, data, capsys):
    line, folder = finished_demo
    run(*line)
    assert f"reused {folder / 'summary.json'}" in capsys.readouterr().out
    (data / "VOC2007/ImageSets/Main/test.txt").write_text("000000\n000001\n000002\n")
    run(*line)
    assert "reused " + str(folder / "summary.json") not in capsys.readouterr().out
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["test"]["images"] == summary["made_of"]["data"]["images"] == 3


def test_demo_evaluates_again_if_pixels_have_changed(finished_demo, data):
    """Name, size and both ends of the file stay."""
    line, folder = finished_demo
    before = json.loads((folder / "summary.json").read_text())["made_of"]
    lists = data / "VOC2007" / "ImageSets" / "Main"
    images = data / "VOC2007" / "JPEGImages"
    shutil.copy(images / "000003.jpg", images / "other.jpg")
    shutil.copy(
        images.parent / "Annotations" / "000003.xml", images.parent / "Annotations/other.xml"
    )
    (lists / "test.txt").write_text("other\n")
    run(*line)
    middle = json.loads((folder / "summary.json").read_text())["made_of"]
    content = bytearray((images / "other.jpg").read_bytes())
    content[len(content) // 2] ^= 1
    (images / "other.jpg").write_bytes(content)
    run(*line)
    after = json.loads((folder / "summary.json").read_text())["made_of"]
    assert len({each["data"]["digest"] for each in (before, middle, after)}) == 3


def test_demo_evaluates_again_without_a_complete_report(finished_demo, capsys):
    """A full disk may have kept the report from being written."""
    line, folder = finished_demo
    (folder / "report.html").unlink()
    run(*line)
    assert (folder / "report.html").exists()


def test_a_report_that_is_not_written_leaves_no_summary(finished_demo, rejects):
    line, folder = finished_demo
    summary, page = (folder / "summary.json").read_bytes(), folder / "report.html"
    size = page.stat().st_size
    page.unlink()
    with files_up_to(size - 9):
        rejects(line, f"demo_rfcn: cannot write {page}: File too large", starts=True)
    assert not (folder / "summary.json").exists()
    run(*line)
    again = json.loads((folder / "summary.json").read_text())
    assert again["made_of"] == json.loads(summary)["made_of"] and page.exists()


@pytest.mark.parametrize("content", ["{}", '{"test": 1}'])
def test_demo_accepts_no_other_summary(content, finished_demo, rejects):
    line, folder = finished_demo
    (folder / "summary.json").write_text(content)
    rejects(line, f"eval: {folder / 'summary.json'} was not written by an evaluation")
    assert (folder / "summary.json").read_text() == content


def test_a_run_of_more_steps_does_not_stand_for_a_shorter_one(finished_demo, rejects):
    line, folder = finished_demo
    run(*line, "--steps", "3")
    words = f"--steps 2 is below the step of {folder / 'last.ckpt'}, 3"
    rejects(line, words)


def test_eval_draws_the_curves_of_its_own_run(eight_images, short_run, tmp_path):
    """last.ckpt next to a checkpoint may be of another run, or damaged."""
    best = Path(shutil.copy(short_run / "best.ckpt", tmp_path))
    stored = checkpoint.read(best)
    later = train(eight_images, tmp_path / "later", "--steps", "8", "--resume", best)
    other = train(eight_images, tmp_path / "other", "--seed", "1", "--steps", "8")
    for path, rows in ((later, 2), (other, 1)):
        shutil.copy(path, tmp_path / "last.ckpt")
        assert len(evaluate.whole_history(stored)["val"]) == rows
    (tmp_path / "last.ckpt").write_bytes(b"damaged")
    assert evaluate.whole_history(stored) == stored.history
    saved = ("--pretrained", best, "--save-prefix", tmp_path / "out")
    run("eval", "--dataset-root", eight_images, *saved)


def test_what_resume_changes_is_printed(eight_images, short_run, tmp_path, capsys):
    more = ("--resume", short_run / "last.ckpt", "--steps", "7", "--short", "96", "--no-ohem")
    train(eight_images, tmp_path, *more, "--lr-warmup", "9")
    changed = [line for line in capsys.readouterr().out.splitlines() if "changed: " in line]
    assert {
        "changed: --lr-warmup 2 -> 9",
        "changed: --lr-warmup 9 -> 6, because --steps is 7",
        "changed: --short 160 -> 96",
        "changed: --steps 6 -> 7",
        "changed: --ohem on -> off",
        f"changed: --save-prefix {short_run} -> {tmp_path}",
    } == set(changed)


def test_a_checkpoint_is_read_once(eight_images, short_run, tmp_path, monkeypatch):
    read, paths = checkpoint.read, []

    def counted(path):
        paths.append(path)
        return read(path)

    monkeypatch.setattr(checkpoint, "read", counted)
    last = short_run / "last.ckpt"
    train(eight_images, tmp_path / "run", "--resume", last, "--steps", "7")
    assert paths == [last]
    paths.clear()
    saved = ("--pretrained", last, "--save-prefix", tmp_path / "out")
    assert cli.main([str(word) for word in ("eval", "--dataset-root", eight_images, *saved)]) == 0
    assert paths == [last]
