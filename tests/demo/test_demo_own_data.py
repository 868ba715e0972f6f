# SPDX-License-Identifier: Apache-2.0
"""A user's own data: any COCO file, VOC-like folders, odd images, and held-back images."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path
from unittest import mock

import cv2
import numpy as np
import pytest
from odd_images import CLASSES, KINDS, annotation, picture, turned, write_voc_like
from PIL import Image
from support.demo_data import open_dataset, photographs, write_voc
from support.demo_runs import SMALL, history, parameters, run, train, train_arguments

from demo_rfcn import checkpoint, cli, evaluate
from demo_rfcn.data import DATASETS, ValidationSplit, images, open_datasets
from demo_rfcn.errors import BrokenFile

VOC_LIKE = DATASETS["voc-like"]
OWN = ("--dataset", "voc-like")


@pytest.fixture(scope="module")
def voc_like(tmp_path_factory) -> Path:
    return write_voc_like(tmp_path_factory.mktemp("odd") / "my data")


@pytest.fixture
def own(voc_like, tmp_path) -> Path:
    """A copy of the VOC-like folder, to be changed."""
    return Path(shutil.copytree(voc_like, tmp_path / "data"))


@pytest.mark.parametrize("name", KINDS)
def test_every_image_is_upright_and_of_three_channels(name, voc_like):
    path = voc_like / "JPEGImages" / name
    header = images.check_image(path)
    assert header.upright == (96, 72)
    pixels = images.read_image(path, header)
    assert (pixels.shape, pixels.dtype) == ((72, 96, 3), np.uint8)
    expected = picture(seed=[*KINDS].index(name)).astype(float)
    if name.startswith(("grey", "16 bits")):
        luma = (0.299, 0.587, 0.114) if name.startswith("grey") else (1 / 3, 1 / 3, 1 / 3)
        expected = np.repeat((expected @ luma)[..., None], 3, axis=2)
    bright = pixels[14:46, 24:56].astype(float) - expected[14:46, 24:56]
    assert np.abs(bright).mean() < 14
    assert pixels[:8].mean() < 70 < pixels[14:46, 24:56].mean()


def grey(dtype: str, factor: float) -> np.ndarray:
    """Return a ramp from 0 to the factor."""
    return (np.linspace(0, 1, 256).reshape(16, 16) * factor).astype(dtype)


DEPTHS = {
    "float, 0 to 1": (grey("float32", 1), 255),
    "float, 0 to 255": (grey("float32", 255), 255),
    "int32, 0 to 255": (grey("int32", 255), 255),
    "int32, 16 bits": (grey("int32", 65535), 255),
    "12 bits": (grey("uint16", 4095), 255),
    "16 bits": (grey("uint16", 65535), 255),
    "8 bits in 16": (grey("uint16", 200), 200),
    "zeros": (np.zeros((16, 16), "float32"), 0),
}


#: A PNG has integers of up to 16 bits.
FILES = [(depth, ".tiff") for depth in DEPTHS]
FILES += [(depth, ".png") for depth, (values, _) in DEPTHS.items() if values.dtype == np.uint16]


@pytest.mark.parametrize(("depth", "suffix"), FILES)
def test_grey_images_of_more_than_8_bits(depth, suffix, tmp_path):
    values, highest = DEPTHS[depth]
    path = tmp_path / f"grey{suffix}"
    Image.fromarray(values).save(path)
    pixels = images.read_image(path, images.check_image(path))
    assert pixels.dtype == np.uint8 and pixels.max() == highest
    expected = values.astype(float) * (highest / max(values.max(), 1e-9))
    assert np.abs(pixels[..., 0] - expected).max() <= 1


WRONG_DEPTHS = {
    "values from -1 to 1, expected 0 to 1 (floats), 255, 4095 or 65535": grey("float32", 2) - 1,
    "values from 0 to 100000, expected 0 to 1": grey("int32", 1e5),
    "values from nan to nan, expected 0 to 1": grey("float32", np.nan),
    "has 12 of 16 bits in three channels, expected 8 or all 16": np.repeat(
        grey("uint16", 4095)[..., None], 3, axis=2
    ),
}


@pytest.mark.parametrize("words", WRONG_DEPTHS)
def test_images_of_other_ranges_are_named(words, tmp_path):
    path = tmp_path / "grey.tiff"
    assert cv2.imwrite(str(path), WRONG_DEPTHS[words])
    with pytest.raises(BrokenFile, match=re.escape(words)):
        images.check_image(path)


def test_odd_images_have_their_boxes(voc_like):
    dataset = open_dataset(VOC_LIKE, voc_like, "train")
    assert dataset.classes == CLASSES
    found = {entry.name: entry.labels for entry in dataset.samples}
    assert len(found) == len(KINDS) + 4
    for name in KINDS:
        np.testing.assert_array_equal(found[Path(name).stem][:, :4], [[20, 10, 60, 50]])
    np.testing.assert_array_equal(found["dot"], [[0, 0, 1, 1, 0, 0]])
    np.testing.assert_array_equal(found["line"][0], [5, 5, 6, 61, 1, 0])
    assert len(found["empty"]) == 0


@pytest.mark.slow
def test_odd_images_from_training_to_detection(voc_like, tmp_path, capsys):
    more = [*OWN, *SMALL, "--batch-size", "22", "--val-share", "0.04"]
    last = train(voc_like, tmp_path / "run", *more)
    assert "dataset: classes of the annotations: cup, spoon\n" in capsys.readouterr().out
    assert np.isfinite([*history(last.parent)["losses"][-1].values()]).all()
    saved = ["--pretrained", last, "--save-prefix", tmp_path / "out"]
    run("eval", *saved)
    assert "voc-like: 1 held-back image, mAP" in capsys.readouterr().out
    run("detect", voc_like / "JPEGImages", *saved, "--batch-size", "7")
    assert len(list((tmp_path / "out").glob("*.json"))) == len(KINDS) + 4 + 1  # summary.json


@pytest.mark.parametrize("orientation", range(1, 9))
def test_boxes_turn_with_the_pixels(orientation):
    stored = np.zeros((7, 11, 3), np.uint8)
    stored[1:4, 2:9] = 255
    header = images.Header("JPEG", (11, 7), orientation)
    upright = images.orient_pixels(stored, orientation)
    assert upright.shape[:2] == header.upright[::-1]
    ((x1, y1, x2, y2),) = images.orient_boxes(np.array([[2, 1, 9, 4]]), header)
    assert upright[y1:y2, x1:x2].all()
    assert upright.sum() == 255 * 3 * (y2 - y1) * (x2 - x1)


@pytest.mark.parametrize(("orientation", "stored"), [(6, (10, 36, 50, 76)), (8, (22, 20, 62, 60))])
def test_annotations_of_the_stored_size_are_turned_and_reported(
    orientation, stored, tmp_path, rejects, capsys
):
    folder = tmp_path / "data"
    for part in ("JPEGImages", "Annotations"):
        (folder / part).mkdir(parents=True)
    for number, (size, box) in enumerate([((96, 72), (20, 10, 60, 50)), ((72, 96), stored)]):
        turned(orientation)(picture(), folder / "JPEGImages" / f"{number}.jpg")
        annotation(folder / "Annotations" / f"{number}.xml", size, [("cup", box)])
    dataset = open_dataset(VOC_LIKE, folder, "train")
    for rows in dataset.labels:
        np.testing.assert_array_equal(rows[:, :4], [[20, 10, 60, 50]])
    assert capsys.readouterr().out.count("EXIF turns 1 image of data: boxes are turned too") == 1
    annotation(folder / "Annotations" / "1.xml", (72, 97), [("cup", stored)])
    words = "1.jpg has 96 x 72 pixels, and its annotation has 72 x 97"
    rejects(train_arguments(folder, tmp_path / "run", *OWN), words)


@pytest.mark.parametrize("ends", ["\n", "\r\n", "\n\n"])
def test_names_and_lists_of_other_tools(ends, own):
    """The end of a line is a flag only if no file has it in its name."""
    lists = own / "ImageSets" / "Main"
    lists.mkdir(parents=True)
    expected = {
        "a b (copy) 1": "a b (copy) 1",
        "grey 1": "grey",
        "UPPER.JPG": "UPPER",
        "two.dots.in.name": "two.dots.in.name",
        "phone-3  -1": "phone-3",
        "tasse è 猫  1": "tasse è 猫",
        "16 bits.png": "16 bits",
    }
    (lists / "trainval.txt").write_bytes(ends.join([*expected, ""]).encode("utf-8-sig"))
    dataset = open_dataset(VOC_LIKE, own, "train")
    assert [entry.name for entry in dataset.samples] == [*expected.values()]


def test_images_and_annotations_in_one_folder(voc_like, tmp_path, capsys):
    """labelImg writes such folders; images that nobody has labelled yet are named."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for path in voc_like.rglob("*.*"):
        shutil.copy(path, folder)
    (folder / "grey.xml").unlink()
    (folder / "classes.txt").write_text("cup\n")
    dataset = open_dataset(VOC_LIKE, folder, "train")
    assert dataset.classes == CLASSES and len(dataset) == len(KINDS) + 3
    output = capsys.readouterr().out
    assert "dataset: 1 image without annotation left out: grey.jpg\n" in output


def test_images_of_phones_and_of_one_name_are_named(own, tmp_path, rejects):
    folder = own / "JPEGImages"
    (folder / "plain.jpg").unlink()
    (folder / "plain.HEIC").write_bytes(b"\0\0\0\x18ftypheic" + bytes(99))
    shutil.copy(folder / "UPPER.JPG", folder / "grey.jpeg")
    words = "plain.HEIC is in a format that Pillow does not decode (HEIF); make it a JPEG"
    line = train_arguments(own, tmp_path / "run", *OWN)
    rejects(line, "JPEGImages/grey.jpeg has the name of grey.jpg", words)


def test_classes_keep_their_case(own, tmp_path, capsys):
    annotation(own / "Annotations" / "plain.xml", (96, 72), [("Cup", (20, 10, 60, 50))])
    assert open_dataset(VOC_LIKE, own, "train").classes == ("Cup", "cup", "spoon")
    assert "dataset: classes that differ only in case: Cup, cup\n" in capsys.readouterr().out


LISTS = [
    # lists in the folder; the lists of training, of validation, of the test
    ((), None, None, None),
    (("trainval",), "trainval", None, None),
    (("train",), "train", None, None),
    (("train", "val"), "train", "val", "val"),
    (("train", "val", "trainval", "test"), "train", "val", "test"),
    (("trainval", "val", "test"), "trainval", "val", "test"),
    (("trainval", "test"), "trainval", None, "test"),
]


@pytest.mark.parametrize(("present", "train", "val", "test"), LISTS)
def test_lists_of_a_voc_like_folder(present, train, val, test, own, tmp_path):
    (own / "ImageSets" / "Main").mkdir(parents=True)
    every = sorted(path.stem for path in (own / "Annotations").iterdir())
    parts = {"train": every[:10], "val": every[10:15], "test": every[15:], "trainval": every[:15]}
    for name in present:
        (own / "ImageSets" / "Main" / f"{name}.txt").write_text("\n".join(parts[name]), "utf-8")
    held = ValidationSplit(0.2, 0)
    sets = open_datasets(VOC_LIKE, own, ("train", "val", "test"), split=held)
    names = [{entry.name for entry in dataset.samples} for dataset in sets]
    whole = set(parts[train] if train else every)
    if val:
        assert names[:2] == [whole, set(parts[val])]
    else:
        assert names[0] | names[1] == whole and not names[0] & names[1]
        assert len(names[1]) == pytest.approx(0.2 * len(whole), abs=1)
        assert sets[1].held_back
    assert names[2] == (set(parts[test]) if test else names[1])


def test_images_held_back_follow_from_the_seed(voc_like, tmp_path):
    def names(root: Path, seed: int) -> set:
        (dataset,) = open_datasets(VOC_LIKE, root, ("val",), split=ValidationSplit(0.3, seed))
        return {entry.name for entry in dataset.samples}

    first = names(voc_like, 0)
    assert first == names(voc_like, 0) != names(voc_like, 1)
    more = Path(shutil.copytree(voc_like, tmp_path / "data"))
    shutil.copy(more / "JPEGImages" / "plain.jpg", more / "JPEGImages" / "new.jpg")
    shutil.copy(more / "Annotations" / "plain.xml", more / "Annotations" / "new.xml")
    assert len(names(more, 0) ^ first) <= 2


def test_one_image_is_too_few_to_hold_one_back(tmp_path, no_training, rejects):
    lines = []
    for count in (1, 2):
        made = write_voc(tmp_path / str(count), photographs(["cup"], 3)[:count]) / "VOC2007"
        shutil.rmtree(made / "ImageSets")
        lines.append(train_arguments(made, tmp_path / "run", *OWN, "--batch-size", "1"))
    rejects(lines[0], "VOC2007 has 1 image, and validation needs at least two")
    with pytest.raises(no_training):
        cli.main(lines[1])


def test_objects_of_other_classes_are_left_out_and_counted(voc_like, tmp_path, capsys):
    cups = dataclasses.replace(VOC_LIKE, classes=("cup",))
    dataset = open_dataset(cups, voc_like, "train")
    assert len(dataset) == len(KINDS) + 4
    assert {int(row[4]) for rows in dataset.labels for row in rows} == {0}
    output = capsys.readouterr().out
    count = len(KINDS) // 2 + 1
    words = f"{count} objects of my data left out, of classes outside cup: 'spoon' ({count})"
    assert output.splitlines()[0] == f"dataset: {words}"


@pytest.fixture(scope="module")
def small_run(voc_like, tmp_path_factory) -> Path:
    """A run with another scale than the default."""
    folder = tmp_path_factory.mktemp("small") / "run"
    return train(voc_like, folder, *OWN, *SMALL).parent


@pytest.mark.slow
def test_evaluation_uses_data_scale_and_split_of_the_checkpoint(
    small_run, voc_like, tmp_path, monkeypatch
):
    evaluated = mock.Mock(side_effect=KeyboardInterrupt)
    monkeypatch.setattr(evaluate, "evaluate", evaluated)
    saved = ["--pretrained", str(small_run / "last.ckpt"), "--save-prefix", str(tmp_path)]
    held_back = set(json.loads((small_run / "split.json").read_text())["held_back"])
    other = Path(shutil.copytree(voc_like, tmp_path / "other"))
    for more, scale, names in (
        ([], (80, 128), held_back),
        (["--dataset-root", str(voc_like)], (80, 128), held_back),
        (["--dataset-root", str(other)], (80, 128), held_back),
        (["--short", "64"], (64, 128), held_back),
        (["--dataset", "voc-like", "--dataset-root", str(other)], (80, 128), held_back),
    ):
        assert cli.main(["eval", *saved, *more]) == 130
        find, dataset = evaluated.call_args.args
        found = {entry.name for entry in dataset.samples}
        assert (find.scale, dataset.classes, found) == (scale, CLASSES, names)


def test_other_classes_and_backbones_are_rejected(small_run, voc_like, tmp_path, rejects):
    made = write_voc(tmp_path / "made", photographs(["fork", "knife"], 3)) / "VOC2007"
    last, out = small_run / "last.ckpt", tmp_path / "out"
    words = "has classes cup, spoon; expected the classes of 'voc-like': fork, knife"
    rejects(["eval", "--pretrained", last, "--save-prefix", out, "--dataset-root", made], words)
    words = f"no backbone in {last} that fits; it is of another configuration: network: small, not"
    more = ("--pretrained", last, "--network", "resnet18_v1b", "--head", "roi_fc")
    rejects(train_arguments(voc_like, out, *OWN, "--short", "80", *more), words)


@pytest.mark.slow
def test_fine_tuning_keeps_the_layers_that_fit(small_run, coco_root, tmp_path, capsys):
    """The detector has other classes, and the data are of another kind."""
    pytest.importorskip("pycocotools")
    first = Path(shutil.copy(small_run / "last.ckpt", tmp_path))
    more = ("--dataset", "coco", *SMALL, "--lr", "1e-9", "--pretrained", first)
    last = train(coco_root, tmp_path / "run", *more)
    words = "; new classes: person, bicycle, car, ...\n"
    assert f"parameters from {first}{words}" in capsys.readouterr().out
    before, after = parameters(first), parameters(last)
    assert before["head.maps.weight"].shape != after["head.maps.weight"].shape
    for name in ("backbone.body.0.weight", "rpn.score.weight"):
        np.testing.assert_allclose(after[name], before[name], atol=1e-6)
    stored = checkpoint.read(last)
    assert len(stored.config.classes) == 80 and stored.arguments["pretrained"] == str(first)
    first.unlink()  # a resumed run has all weights
    run("train", "--resume", last, "--steps", "3")
