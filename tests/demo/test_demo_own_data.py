# SPDX-License-Identifier: Apache-2.0
"""A stranger's own data: any COCO file, VOC-like folders, odd images, and what is held back."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from demo_runs import open_dataset, parameters, photographs, train_arguments, write_voc
from odd_images import CLASSES, KINDS, annotation, picture, turned, write_coco, write_voc_like
from PIL import Image

from demo_rfcn import cli
from demo_rfcn.data import DATASETS, Files, Held, images, open_datasets
from demo_rfcn.data.dataset import DetectionSet, Entry
from demo_rfcn.data.specs import DatasetSpec
from demo_rfcn.model import detector
from demo_rfcn.model.detections import Detection
from demo_rfcn.run import checkpoint, evaluate

SMALL = ("--short", "80", "--max-size", "128", "--steps", "2")
VOC_LIKE, COCO = DATASETS["voc-like"], DATASETS["coco"]


def with_classes(spec: DatasetSpec, *classes: str) -> DatasetSpec:
    """Return a data set with these classes; with those of its annotations if there are none."""
    return dataclasses.replace(spec, classes=classes)


class NetworkBuilt(Exception):
    """The data was accepted: training is about to begin."""


@pytest.fixture
def no_training(monkeypatch) -> None:
    """Stop as soon as a command builds a network."""

    def build(*_, **__):
        raise NetworkBuilt

    monkeypatch.setattr(detector, "build", build)


@pytest.fixture(scope="module")
def voc_like(tmp_path_factory) -> Path:
    return write_voc_like(tmp_path_factory.mktemp("odd") / "my data")


@pytest.fixture(scope="module")
def coco(tmp_path_factory) -> Files:
    pytest.importorskip("pycocotools")
    return Files(*write_coco(tmp_path_factory.mktemp("export")))


def refused(line: list, capsys: Any) -> str:
    """Return the sentence of a command that is refused."""
    capsys.readouterr()
    assert cli.main([str(word) for word in line]) == 2
    (message,) = capsys.readouterr().err.strip().splitlines()
    return message


@pytest.mark.parametrize("name", KINDS)
def test_every_image_is_upright_and_of_three_channels(name, voc_like):
    path = voc_like / "JPEGImages" / name
    header = images.check_image(path)
    assert header.upright == (96, 72)
    pixels = images.read_image(path, header)
    assert (pixels.shape, pixels.dtype) == ((72, 96, 3), np.uint8)
    expected = picture().astype(float)
    if name.startswith(("grey", "16 bits")):
        luma = (0.299, 0.587, 0.114) if name.startswith("grey") else (1 / 3, 1 / 3, 1 / 3)
        expected = np.repeat((expected @ luma)[..., None], 3, axis=2)
    bright = pixels[14:46, 24:56].astype(float) - expected[14:46, 24:56]
    assert np.abs(bright).mean() < 14
    assert pixels[:8].mean() < 70 < pixels[14:46, 24:56].mean()


def test_odd_images_have_their_boxes(voc_like):
    dataset = open_dataset(VOC_LIKE, voc_like, "train")
    assert dataset.classes == CLASSES
    found = {entry.name: entry.labels for entry in dataset.entries}
    assert len(found) == len(KINDS) + 4
    for name in KINDS:
        np.testing.assert_array_equal(found[Path(name).stem][:, :4], [[20, 10, 59, 49]])
    np.testing.assert_array_equal(found["dot"], [[0, 0, 0, 0, 0, 0]])
    np.testing.assert_array_equal(found["line"][0], [5, 5, 5, 60, 1, 0])
    assert len(found["empty"]) == 0


@pytest.mark.slow
def test_odd_images_from_training_to_detection(voc_like, tmp_path, capsys):
    run, out = tmp_path / "run", tmp_path / "out"
    line = ["train", "--dataset", "voc-like", "--dataset-root", voc_like, "--save-prefix", run]
    assert cli.main([*map(str, line), *SMALL, "--batch-size", "22", "--val-share", "0.04"]) == 0
    assert "dataset: classes of the annotations: cup, spoon\n" in capsys.readouterr().out
    history = json.loads((run / "history.json").read_text())
    assert np.isfinite(list(history["losses"][-1].values())).all()
    saved = ["--pretrained", str(run / "last.ckpt"), "--save-prefix", str(out)]
    assert cli.main(["eval", *saved]) == 0
    assert "voc-like: 1 held-back images" in capsys.readouterr().out
    assert cli.main(["detect", str(voc_like / "JPEGImages"), *saved, "--batch-size", "7"]) == 0
    assert len(list(out.glob("*.json"))) == len(KINDS) + 4 + 1  # summary.json


@pytest.mark.slow
def test_a_coco_export_from_training_to_detection(coco, tmp_path, capsys):
    run, out = tmp_path / "run", tmp_path / "out"
    train = ["--train-annotations", str(coco.annotations), "--train-images", str(coco.images)]
    line = ["train", "--dataset", "coco", *train, "--save-prefix", str(run), *SMALL]
    assert cli.main([*line, "--batch-size", "3"]) == 0
    said = capsys.readouterr().out
    assert "dataset: classes of the annotations: cup, spoon\n" in said
    assert f"dataset: 1 box without area left out of {coco.annotations}\n" in said
    assert checkpoint.read(run / "last.ckpt").config.classes == CLASSES
    saved = ["--pretrained", str(run / "last.ckpt"), "--save-prefix", str(out)]
    assert cli.main(["eval", *saved]) == 0
    assert "coco: 2 held-back images" in capsys.readouterr().out
    val = ["--val-annotations", str(coco.annotations), "--val-images", str(coco.images)]
    assert cli.main(["eval", *saved, *val]) == 0
    assert f"coco: {len(KINDS) + 1} held-back images" in capsys.readouterr().out
    assert 0 <= json.loads((out / "summary.json").read_text())["test"]["coco_ap"] <= 1
    assert cli.main([*line, *val, "--batch-size", "20", "--overwrite"]) == 0
    assert "held back from" not in capsys.readouterr().out


def test_three_thousand_files(tmp_path, monkeypatch, no_training, capsys):
    folder = tmp_path / "data"
    for part in ("JPEGImages", "Annotations"):
        (folder / part).mkdir(parents=True)
    Image.fromarray(picture(8, 6)).save(tmp_path / "small.jpg")
    annotation(tmp_path / "small.xml", (8, 6), [("cup", (1, 1, 4, 4))])
    coded = [(tmp_path / f"small.{kind}").read_bytes() for kind in ("jpg", "xml")]
    for number in range(3000):
        (folder / "JPEGImages" / f"{number} x.jpg").write_bytes(coded[0])
        (folder / "Annotations" / f"{number} x.xml").write_bytes(coded[1])
    line = train_arguments(folder, tmp_path / "run", "--dataset", "voc-like")
    with pytest.raises(NetworkBuilt):
        cli.main(line)
    assert "300 of 3000 images of data are held back" in capsys.readouterr().out
    split = json.loads((tmp_path / "run" / "split.json").read_text())
    assert len(split["trained_on"]) == 2700 and len(split["held_back"]) == 300


@pytest.mark.parametrize("orientation", range(1, 9))
def test_boxes_turn_with_the_pixels(orientation):
    stored = np.zeros((7, 11, 3), np.uint8)
    stored[1:4, 2:9] = 255
    header = images.Header("JPEG", (11, 7), orientation)
    upright = images.turn(stored, orientation)
    assert upright.shape[:2] == header.upright[::-1]
    ((x1, y1, x2, y2),) = images.turn_boxes(np.array([[2, 1, 8, 3]]), header)
    assert upright[y1 : y2 + 1, x1 : x2 + 1].all()
    assert upright.sum() == 255 * 3 * (y2 - y1 + 1) * (x2 - x1 + 1)


@pytest.mark.parametrize("orientation", [6, 8])
def test_annotations_of_the_stored_size_are_turned_and_this_is_said(orientation, tmp_path, capsys):
    folder = tmp_path / "data"
    for part in ("JPEGImages", "Annotations"):
        (folder / part).mkdir(parents=True)
    stored = {6: (10, 36, 49, 75), 8: (22, 20, 61, 59)}[orientation]
    for number, (size, box) in enumerate([((96, 72), (20, 10, 59, 49)), ((72, 96), stored)]):
        turned(orientation)(picture(), folder / "JPEGImages" / f"{number}.jpg")
        annotation(folder / "Annotations" / f"{number}.xml", size, [("cup", box)])
    dataset = open_dataset(VOC_LIKE, folder, "train")
    for rows in dataset.labels:
        np.testing.assert_array_equal(rows[:, :4], [[20, 10, 59, 49]])
    assert capsys.readouterr().out.count("1 image of data stored turned") == 1
    annotation(folder / "Annotations" / "1.xml", (72, 97), [("cup", stored)])
    line = train_arguments(folder, tmp_path / "run", "--dataset", "voc-like")
    assert "1.jpg has 96 x 72 pixels, and its annotation says 72 x 97" in refused(line, capsys)


def test_names_and_lists(voc_like, tmp_path):
    """A list's second column is one only if no file has it in its name."""
    root = Path(shutil.copytree(voc_like, tmp_path / "data"))
    lists = root / "ImageSets" / "Main"
    lists.mkdir(parents=True)
    names = [
        "a b (copy) 1",
        "grey 1",
        "UPPER.JPG",
        "two.dots.in.name",
        "phone-3  -1",
        "16 bits.png",
    ]
    (lists / "trainval.txt").write_text("\n".join(names), encoding="utf-8")
    dataset = open_dataset(VOC_LIKE, root, "train")
    expected = ["a b (copy) 1", "grey", "UPPER", "two.dots.in.name", "phone-3", "16 bits"]
    assert [entry.name for entry in dataset.entries] == expected


def test_images_and_annotations_in_one_folder(voc_like, tmp_path, capsys):
    """As labelImg writes them; images that nobody has labelled yet are named."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for path in voc_like.rglob("*.*"):
        shutil.copy(path, folder)
    (folder / "grey.xml").unlink()
    (folder / "classes.txt").write_text("cup\n")
    dataset = open_dataset(VOC_LIKE, folder, "train")
    assert dataset.classes == CLASSES and len(dataset) == len(KINDS) + 3
    said = capsys.readouterr().out
    assert "dataset: 1 image without annotation left out: grey.jpg\n" in said


def test_a_phone_format_that_pillow_does_not_decode_is_named(voc_like, tmp_path, capsys):
    root = Path(shutil.copytree(voc_like, tmp_path / "data"))
    (root / "JPEGImages" / "plain.jpg").unlink()
    (root / "JPEGImages" / "plain.HEIC").write_bytes(b"\0\0\0\x18ftypheic" + bytes(99))
    line = train_arguments(root, tmp_path / "run", "--dataset", "voc-like")
    words = "plain.HEIC is of a kind that Pillow does not decode (HEIF); make it a JPEG"
    assert words in refused(line, capsys)


def test_classes_keep_their_case(voc_like, tmp_path, capsys):
    root = Path(shutil.copytree(voc_like, tmp_path / "data"))
    annotation(root / "Annotations" / "plain.xml", (96, 72), [("Cup", (20, 10, 59, 49))])
    assert open_dataset(VOC_LIKE, root, "train").classes == ("Cup", "cup", "spoon")
    assert "dataset: classes that differ only in case: Cup, cup\n" in capsys.readouterr().out


def test_two_images_of_one_name_are_refused(voc_like, tmp_path, capsys):
    root = Path(shutil.copytree(voc_like, tmp_path / "data"))
    shutil.copy(root / "JPEGImages" / "grey.jpg", root / "JPEGImages" / "plain.jpeg")
    line = train_arguments(root, tmp_path / "run", "--dataset", "voc-like")
    assert "JPEGImages/plain.jpeg has the name of plain.jpg" in refused(line, capsys)


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
def test_lists_of_a_voc_like_folder(present, train, val, test, voc_like, tmp_path):
    root = Path(shutil.copytree(voc_like, tmp_path / "data"))
    (root / "ImageSets" / "Main").mkdir(parents=True)
    every = sorted(path.stem for path in (root / "Annotations").iterdir())
    parts = {"train": every[:10], "val": every[10:15], "test": every[15:], "trainval": every[:15]}
    for name in present:
        (root / "ImageSets" / "Main" / f"{name}.txt").write_text("\n".join(parts[name]), "utf-8")
    held = Held(0.2, 0)
    sets = open_datasets(VOC_LIKE, root, ("train", "val", "test"), held=held)
    names = [{entry.name for entry in dataset.entries} for dataset in sets]
    whole = set(parts[train] if train else every)
    if val:
        assert names[:2] == [whole, set(parts[val])]
    else:
        assert names[0] | names[1] == whole and not names[0] & names[1]
        assert len(names[1]) == pytest.approx(0.2 * len(whole), abs=1)
        assert sets[1].held_back
    assert names[2] == (set(parts[test]) if test else names[1])


def test_what_is_held_back_follows_from_the_seed(voc_like, tmp_path):
    def names(root: Path, seed: int) -> set:
        (dataset,) = open_datasets(VOC_LIKE, root, ("val",), held=Held(0.3, seed))
        return {entry.name for entry in dataset.entries}

    first = names(voc_like, 0)
    assert first == names(voc_like, 0) != names(voc_like, 1)
    more = Path(shutil.copytree(voc_like, tmp_path / "data"))
    shutil.copy(more / "JPEGImages" / "plain.jpg", more / "JPEGImages" / "new.jpg")
    shutil.copy(more / "Annotations" / "plain.xml", more / "Annotations" / "new.xml")
    assert len(names(more, 0) ^ first) <= 2


@pytest.mark.parametrize("count", [1, 2])
def test_too_few_images_to_hold_one_back(count, tmp_path, no_training, capsys):
    made = write_voc(tmp_path / "made", photographs(["cup"], 3)[:count])
    shutil.rmtree(made / "VOC2007" / "ImageSets")
    line = train_arguments(made / "VOC2007", tmp_path / "run", "--dataset", "voc-like")
    line += ["--batch-size", "1"]
    if count == 1:
        assert "1 images of VOC2007 are too few to hold back" in refused(line, capsys)
    else:
        with pytest.raises(NetworkBuilt):
            cli.main(line)


def test_voc_is_not_validated_on_its_test_images(tmp_path):
    for year, seed in ((2007, 1), (2012, 2)):
        made = write_voc(tmp_path / str(year), photographs(["person", "dog"], seed))
        (made / "VOC2007").rename(tmp_path / f"VOC{year}")
    sets = open_datasets(DATASETS["voc"], tmp_path, ("train", "val", "test"), held=Held())
    train, val, test = ({entry.path for entry in dataset.entries} for dataset in sets)
    assert len(train | val) == 12 and len(val) == 1 and not train & val
    assert test == {path for path in train | val if "VOC2007" in path}  # the lists are equal here


def test_labels_outside_the_classes_leave_out_objects_alone(voc_like, tmp_path, capsys):
    (dataset,) = open_datasets(with_classes(VOC_LIKE, "cup"), voc_like, ("train",))
    assert len(dataset) == len(KINDS) + 4
    assert {int(row[4]) for rows in dataset.labels for row in rows} == {0}
    said = capsys.readouterr().out
    count = len(KINDS) // 2 + 1
    words = f"{count} objects of my data left out, of classes outside cup: 'spoon' ({count})"
    assert said == f"dataset: {words}\n"


def test_categories_of_a_coco_file(tmp_path, capsys):
    """In the order of the file, whatever their ids; a validation file may have others."""
    pytest.importorskip("pycocotools")
    names = ("zebra", "Coffee Cup", "\u732b", "never used")
    train, val = write_coco(tmp_path / "a", names[:3]), write_coco(tmp_path / "b", names[::-1])
    content = json.loads(train[0].read_text())
    content["categories"].append({"id": 1000, "name": "never used"})
    train[0].write_text(json.dumps(content))
    files = {"train": Files(*train), "val": Files(*val)}
    sets = open_datasets(with_classes(COCO), tmp_path, ("train", "val"), files=files)
    assert sets[0].classes == sets[1].classes == names
    for dataset, order in zip(sets, (names[:3], names[::-1])):
        for number, entry in enumerate(reversed(dataset.entries[1:])):
            own = entry.labels[~entry.crowd]
            assert names[int(own[0][4])] == order[number % len(order)]
    capsys.readouterr()
    (dataset,) = open_datasets(with_classes(COCO, "\u732b"), tmp_path, ("train",), files=files)
    assert "left out, of classes outside \u732b: 'zebra' (8), 'Coffee Cup' (6)" in (
        capsys.readouterr().out
    )
    assert len(dataset) == len(KINDS) + 1


@pytest.mark.parametrize(
    "written", ["photos/{}", "photos\\{}", "C:\\Users\\me\\photos\\{}", "./{}", "/elsewhere/{}"]
)
def test_names_of_images_in_a_coco_file(written, coco, tmp_path):
    content = json.loads(coco.annotations.read_text())
    for entry in content["images"]:
        entry["file_name"] = written.format(entry["file_name"])
        entry["coco_url"] = "http://images.example/train2017/1.jpg"
    path = tmp_path / "export.json"
    path.write_text(json.dumps(content))
    files = {"train": Files(path, coco.images)}
    opened = open_datasets(with_classes(COCO), tmp_path, ("train",), files=files)
    assert len(opened[0]) == len(KINDS) + 1


def test_crowds_are_ignored_regions():
    """A detection in a crowd counts neither way, unless it is on an object of its own."""
    labels = np.array([[0, 0, 99, 99, 0, 1], [10, 10, 29, 29, 0, 0]], np.float32)
    header = images.Header("PNG", (200, 100), 1)
    entry = Entry("a", "a.png", header, labels, np.array([True, False]))
    boxes = np.array(
        [[11, 11, 29, 29], [60, 60, 79, 79], [150, 10, 169, 29], [60, 60, 79, 79]], np.float32
    )
    found = Detection(np.array([0, 0, 0, 1]), np.array([0.9, 0.8, 0.7, 0.6]), boxes)
    counted, truth = evaluate.outside_crowds(found, entry, 0.5)
    np.testing.assert_allclose(counted.scores, [0.9, 0.7, 0.6])
    assert len(truth) == 1
    right = Detection(*(column[:2] for column in found))
    scores = evaluate.scores(DetectionSet("a", ["a"], [entry]), {0: right})
    assert scores["map50"] == pytest.approx(1)


WRONG = {
    "annotations alone": (("--train-annotations", "FILE"), "expected --train-annotations and --tr"),
    "images alone": (("--val-images", "DIR"), "--val-images alone, expected --val-annotations and"),
    "another data set": (
        ("--dataset", "voc", "--train-images", "DIR", "--train-annotations", "FILE"),
        "--train-annotations with --dataset voc, expected --dataset coco",
    ),
    "no such file": (
        ("--train-annotations", "none.json", "--train-images", "DIR"),
        "dataset: none.json is missing",
    ),
    "a folder of other images": (
        ("--train-annotations", "FILE", "--train-images", "OTHER"),
        f"none of the {len(KINDS) + 1} images of FILE is there, the first would be OTHER/plain.jpg",
    ),
    "no such folder": (
        ("--train-annotations", "FILE", "--train-images", "none"),
        "dataset: folder none of images is missing",
    ),
    "a folder for a file": (
        ("--train-annotations", "DIR", "--train-images", "DIR"),
        "my photos is missing",
    ),
    "validation alone": (
        ("--val-annotations", "FILE", "--val-images", "DIR"),
        "'coco' without images for 'train', expected --train-annotations",
    ),
    "unknown class": (
        ("--train-annotations", "FILE", "--train-images", "DIR", "--classes", "cup", "Spoon"),
        "class 'Spoon' of --classes has no object in the training images",
    ),
    "share": (("--val-share", "1"), "--val-share: expected a number > 0 and < 1, got 1"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_for_coco(name, coco, no_training, tmp_path, capsys):
    flags, words = WRONG[name]
    places = {"FILE": str(coco.annotations), "DIR": str(coco.images), "OTHER": str(tmp_path)}
    line = ["train", "--dataset", "coco", "--save-prefix", str(tmp_path / "run")]
    line += [places.get(word, word) for word in flags]
    for word, place in places.items():
        words = words.replace(word, place)
    if name == "share":
        with pytest.raises(SystemExit):
            cli.main(line)
        assert words in capsys.readouterr().err
    else:
        assert words in refused(line, capsys)
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def small_run(voc_like, tmp_path_factory) -> Path:
    """A run of a scale of its own."""
    run = tmp_path_factory.mktemp("small") / "run"
    line = ["train", "--dataset", "voc-like", "--dataset-root", str(voc_like)]
    assert cli.main([*line, "--save-prefix", str(run), *SMALL, "--batch-size", "2"]) == 0
    return run


@pytest.mark.slow
def test_evaluation_takes_what_the_checkpoint_was_trained_with(
    small_run, voc_like, tmp_path, monkeypatch
):
    class Evaluated(Exception):
        """The command has come to what is looked at here."""

    def note(detect, dataset, scale, *rest, **named):
        raise Evaluated(scale, dataset.classes, {entry.name for entry in dataset.entries})

    monkeypatch.setattr(evaluate, "evaluate", note)
    saved = ["--pretrained", str(small_run / "last.ckpt"), "--save-prefix", str(tmp_path)]
    held_back = set(json.loads((small_run / "split.json").read_text())["held_back"])
    every = {path.stem for path in (voc_like / "Annotations").iterdir()}
    other = Path(shutil.copytree(voc_like, tmp_path / "other"))
    for more, scale, names in (
        ([], (80, 128), held_back),
        (["--dataset-root", str(voc_like)], (80, 128), held_back),
        (["--dataset-root", str(other)], (80, 128), every),
        (["--short", "64"], (64, 128), held_back),
        (["--dataset", "voc-like", "--dataset-root", str(other)], (80, 128), every),
    ):
        with pytest.raises(Evaluated) as seen:
            cli.main(["eval", *saved, *more])
        assert seen.value.args == (scale, CLASSES, names)


def test_evaluation_of_other_classes_is_refused(small_run, tmp_path, capsys):
    made = write_voc(tmp_path / "made", photographs(["fork", "knife"], 3)) / "VOC2007"
    saved = ["--pretrained", small_run / "last.ckpt", "--save-prefix", tmp_path / "out"]
    message = refused(["eval", *saved, "--dataset-root", made], capsys)
    assert "knows classes cup, spoon; expected those of 'voc-like': fork, knife" in message


@pytest.mark.slow
def test_fine_tuning_keeps_the_layers_that_fit(small_run, coco_root, tmp_path, capsys):
    """Of a detector of other classes, on another kind of data."""
    pytest.importorskip("pycocotools")
    line = train_arguments(coco_root, tmp_path / "run", "--dataset", "coco", *SMALL, "--lr", "1e-9")
    last = small_run / "last.ckpt"
    assert cli.main([*line, "--pretrained", str(last)]) == 0
    said = capsys.readouterr().out
    assert (
        f"parameters are those of {last}; not kept, and trained from scratch: head.class_maps\n"
        in said
    )
    before, after = parameters(last), parameters(tmp_path / "run" / "last.ckpt")
    assert before["head.class_maps.weight"].shape != after["head.class_maps.weight"].shape
    for name in ("backbone.body.0.weight", "rpn.score.weight", "head.box_maps.weight"):
        np.testing.assert_allclose(after[name], before[name], atol=1e-6)
    stored = checkpoint.read(tmp_path / "run" / "last.ckpt")
    assert len(stored.config.classes) == 80 and stored.arguments["pretrained"] == str(last)


def test_what_cannot_be_fine_tuned(small_run, voc_like, tmp_path, capsys):
    line = ["train", "--dataset", "voc-like", "--dataset-root", voc_like]
    line += ["--save-prefix", tmp_path / "run", "--short", "80"]
    last = small_run / "last.ckpt"
    text = tmp_path / "text.ckpt"
    text.write_text("text")
    for more, words in (
        (["--pretrained", tmp_path / "none.ckpt"], "none.ckpt is missing"),
        (["--pretrained", text], f"{text} is not a checkpoint of demo_rfcn, or is damaged"),
        (
            ["--pretrained", last, "--network", "mobilenet1.0", "--head", "roi_fc"],
            f"no backbone in {last} that fits; it is of another configuration: network: small, not",
        ),
    ):
        assert words in refused([*line, *more], capsys)
