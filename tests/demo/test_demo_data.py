# SPDX-License-Identifier: Apache-2.0
"""What `data` writes and leaves alone, and what a result carries of its data."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from odd_images import annotation, picture
from PIL import Image
from support.demo_data import open_dataset
from support.demo_runs import run, settings_of, train_arguments

from demo_rfcn.data import DATASETS, generate, resolve_location

pytestmark = pytest.mark.usefixtures("few_signals", "blank_pictures")


def content(folder: Path) -> dict[str, bytes]:
    """Return the bytes of every file in a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


@pytest.fixture
def signals(few_signals, tmp_path) -> Path:
    """The generated data set."""
    run("data", "--dataset-root", tmp_path / "signals")
    return tmp_path / "signals"


def test_generated_objects_are_the_same_in_every_release(signals):
    """Scores in the documentation belong to these objects; pixels depend on OpenCV's release."""
    assert sum(name.endswith(".jpg") for name in content(signals)) == 13
    digest = hashlib.sha256()
    for index in range(3):
        image, objects = generate.signals.paint(np.random.default_rng([0, 0, index]))
        assert image.shape == (160, 160, 3) and objects
        digest.update(repr(objects).encode())
    assert digest.hexdigest()[:16] == "df472c290d7a5158"


def test_complete_data_is_reused(signals, capsys):
    (signals / "thesis.tex").write_text("mine")
    before = content(signals)
    capsys.readouterr()
    run("data", "--dataset-root", signals)
    assert capsys.readouterr().out == f"reused signals in {signals}\n"
    assert content(signals) == before


@pytest.mark.parametrize("lost", ["VOC2007", "VOC2007/JPEGImages/val_00001.jpg"])
def test_lost_files_are_written_again(lost, signals, capsys):
    """Nothing else in the folder is touched."""
    before = content(signals)
    path = signals / lost
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    (signals / "thesis.tex").write_text("mine")
    capsys.readouterr()
    run("data", "--dataset-root", signals)
    assert capsys.readouterr().out == f"wrote signals in {signals}\n"
    assert content(signals) == {**before, "thesis.tex": b"mine"}
    assert [path.name for path in signals.parent.iterdir()] == ["signals"]


RECIPE = {"recipe": "signals-1", "seed": 0, "splits": {"trainval": 8, "val": 2, "test": 3}}
OTHERS = {
    '{"title": "thesis"}': "holds files that this command did not write; expected an empty",
    "[]": "holds files that this command did not write; expected an empty folder",
    "{}": "holds files that this command did not write; expected an empty folder",
    json.dumps(RECIPE): "holds files without digests, perhaps of an earlier version",
    json.dumps({**RECIPE, "files": {}}): "holds files without digests, perhaps of an earlier",
    json.dumps({**RECIPE, "seed": 5}): "holds another data set, 'signals-1' of seed 5; expected",
    json.dumps(
        {**RECIPE, "recipe": "digits-1"}
    ): "another data set, 'digits-1' of seed 0; expected",
}


@pytest.mark.parametrize("place", ["folder", "."])
@pytest.mark.parametrize("command", ["data", "demo"])
@pytest.mark.parametrize("recipe", OTHERS)
def test_folders_of_others_are_not_touched(
    recipe, command, place, tmp_path, monkeypatch, no_training, rejects
):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "recipe.json").write_text(recipe)
    (folder / "thesis.tex").write_text("mine")
    before = content(tmp_path)
    monkeypatch.chdir(folder if place == "." else tmp_path)
    line = [command, "--dataset-root", place]
    rejects([*line, "--save-prefix", "run"] if command == "demo" else line, OTHERS[recipe])
    assert content(tmp_path) == before


def test_changed_files_are_not_replaced(signals, rejects):
    path = signals / "VOC2007" / "Annotations" / "test_00002.xml"
    path.write_text("corrected")
    (signals / "VOC2007" / "JPEGImages" / "test_00001.jpg").unlink()
    before = content(signals)
    words = f"data: {path} has changed since this command wrote it; expected an empty folder"
    rejects(["data", "--dataset-root", signals], words)
    assert content(signals) == before


def test_a_link_to_a_folder_stays_one(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "signals").symlink_to("disk", target_is_directory=True)
    run("data", "--dataset-root", tmp_path / "signals")
    assert (tmp_path / "signals").is_symlink()
    assert sorted(path.name for path in (tmp_path / "disk").iterdir()) == ["VOC2007", "recipe.json"]


def test_a_location_is_the_same_in_every_spelling(tmp_path, monkeypatch):
    (tmp_path / "photos").mkdir()
    (tmp_path / "link").symlink_to("photos")
    monkeypatch.chdir(tmp_path / "photos")
    line = ["train", "--dataset", "voc-like", "--dataset-root"]
    spellings = [".", "../photos", str(tmp_path / "photos"), str(tmp_path / "link"), "../link/"]
    found = [resolve_location(vars(settings_of([*line, each]).data)) for each in spellings]
    assert found == [{"dataset": "voc-like", "dataset_root": str(tmp_path / "photos")}] * 5
    other = resolve_location(vars(settings_of([*line, ".."]).data))
    assert other["dataset_root"] == str(tmp_path)
    files = {"dataset": "coco", "train_annotations": "../link/a.json", "train_images": "../link"}
    assert resolve_location(files) == {
        "dataset": "coco",
        "train_annotations": str(tmp_path / "photos" / "a.json"),
        "train_images": str(tmp_path / "photos"),
    }


def test_a_digest_covers_boxes_and_images_but_not_their_folder(tmp_path):
    def digest(root: Path) -> str:
        return open_dataset(DATASETS["voc-like"], root, "train").digest

    one = tmp_path / "one"
    one.mkdir()
    for name in ("a", "b"):
        Image.fromarray(picture()).save(one / f"{name}.png")
        annotation(one / f"{name}.xml", (96, 72), [("cup", (20, 10, 60, 50))])
    first = digest(one)
    assert first == digest(Path(shutil.copytree(one, tmp_path / "two")))
    annotation(one / "b.xml", (96, 72), [("cup", (20, 10, 60, 49))])
    boxes = digest(one)
    content = bytearray((one / "b.png").read_bytes())
    content[len(content) // 2] ^= 1  # the size and both ends of the file stay
    (one / "b.png").write_bytes(content)
    pixels = digest(one)
    annotation(one / "b.xml", (96, 72), [("mug", (20, 10, 60, 49))])
    assert len({first, boxes, pixels, digest(one)}) == 4


@pytest.mark.slow
def test_another_spelling_of_the_folder_scores_the_held_back_images(tmp_path, monkeypatch):
    """Training and evaluation run in different folders; the path that was stored is relative.

    Without the lists of the data set, a share of its images is held back.
    """
    photos = tmp_path / "photos"
    photos.mkdir()
    for number in range(12):
        Image.fromarray(picture(seed=number)).save(photos / f"{number}.png")
        annotation(photos / f"{number}.xml", (96, 72), [("cup", (20, 10, 60, 50))])
    (tmp_path / "link").symlink_to("photos")
    monkeypatch.chdir(tmp_path)
    own = ["--dataset", "voc-like", "--val-share", "0.25", "--short", "64", "--steps", "1"]
    run(*train_arguments(Path("photos"), Path("run"), *own))
    held_back = json.loads(Path("run/split.json").read_text())["held_back"]
    assert len(held_back) == 3
    for folder, root in ((photos, ["--dataset-root", "../link"]), (tmp_path, [])):
        monkeypatch.chdir(folder)
        out = tmp_path / "out"
        run("eval", *root, "--pretrained", tmp_path / "run/last.ckpt", "--save-prefix", out)
        summary = json.loads((out / "summary.json").read_text())
        assert summary["test"]["images"] == 3
        assert summary["location"] == {"dataset": "voc-like", "dataset_root": str(photos)}
    page = (out / "report.html").read_text()
    assert "<h1>R-FCN on photos</h1>" in page
    assert "overflow-wrap" not in page  # words of a table are not broken; it scrolls
