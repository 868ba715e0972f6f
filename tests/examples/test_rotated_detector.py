# SPDX-License-Identifier: Apache-2.0
"""examples/rotated_detector.py: DOTA's text to boxes, offsets, training, and rotated mAP."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
from PIL import Image

pytest.importorskip("cv2")
EXAMPLE = Path(__file__).parents[2] / "examples/rotated_detector.py"


@pytest.fixture(scope="module")
def example():
    return runpy.run_path(str(EXAMPLE))


def random_boxes(count=40, seed=0):
    random = np.random.RandomState(seed)
    boxes = random.uniform([20, 20, 12, 4, -90], [100, 100, 50, 12, 90], (count, 5))
    return boxes.astype("float32")


def test_labels_are_read_as_dota_writes_them(example, tmp_path):
    file = tmp_path / "P0001.txt"
    file.write_text(
        "imagesource:GoogleEarth\ngsd:0.146\n"
        "10.0 20.0 50.0 20.0 50.0 30.0 10.0 30.0 small-vehicle 1\n"
        "20 50 20 10 30 10 30 50 ship 0\n0 10 10 0 20 10 10 20 plane\n\n"
    )
    polygons, names, difficult = example["read_dota"](file)
    assert names == ["small-vehicle", "ship", "plane"]
    assert difficult.tolist() == [True, False, False]
    boxes = np.array([example["box_of"](polygon) for polygon in polygons])
    assert np.allclose(boxes[0], [30, 25, 40, 10, 0])
    assert np.allclose(boxes[1], [25, 30, 40, 10, -90])
    assert np.allclose(boxes[2, :4], [10, 10, 200**0.5, 200**0.5]) and boxes[2, 4] % 90 == 45
    file.write_text("imagesource:GoogleEarth\ngsd:null\n")
    assert example["read_dota"](file)[0].shape == (0, 4, 2)


@pytest.mark.parametrize("first", range(4))
@pytest.mark.parametrize("direction", [1, -1])
def test_a_polygon_is_its_box_from_any_corner(example, first, direction):
    for box in random_boxes():
        polygon = np.roll(example["polygon_of"](box), first, axis=0)[::direction]
        np.testing.assert_allclose(example["box_of"](polygon), box, atol=2e-3)


def test_offsets_lead_from_a_box_to_the_other(example):
    boxes, objects = (mx.nd.array(random_boxes(seed=seed)) for seed in (0, 1))
    found = example["decode"](boxes, example["encode"](boxes, objects)).asnumpy()
    found[:, 4] = (found[:, 4] - objects[:, 4].asnumpy() + 90) % 180 - 90
    np.testing.assert_allclose(found[:, :4], objects[:, :4].asnumpy(), rtol=1e-4)
    np.testing.assert_allclose(found[:, 4], 0, atol=1e-3)
    # A shift along a box that points up is a shift along its first axis.
    up, moved = mx.nd.array([[50, 50, 20, 10, 90]]), mx.nd.array([[50, 46, 20, 10, -90]])
    offsets = example["encode"](up, moved).asnumpy().ravel()
    np.testing.assert_allclose(offsets, [4 / 20 / 0.1, 0, 0, 0, 0], atol=1e-5)


def test_precision_by_hand(example):
    """Four objects, of which one is difficult; a duplicate, a miss, and a find of the difficult."""
    boxes = np.array(
        [[20, 20, 20, 8, 30], [60, 20, 20, 8, 0], [20, 60, 20, 8, 45], [60, 60, 9, 8, 0]],
        "float32",
    )
    labels = [(boxes, np.zeros(4, int), np.array([False, False, False, True]))]
    rows = [(0.9, boxes[0]), (0.8, boxes[0] + [1, 0, 0, 0, 2]), (0.7, boxes[3]), (0.6, boxes[1])]
    detections = [np.array([[0, score, *box.tolist()] for score, box in rows])]
    # Hits at 0.9 and 0.6, a false one at 0.8: precision 1 up to recall 1 / 3, then 2 / 3.
    found = example["average_precision"](detections, labels, 0, 0.5)
    assert found == pytest.approx(1 / 3 + 2 / 3 / 3)
    assert np.isnan(example["average_precision"](detections, labels, 1, 0.5))
    nothing = [np.zeros((0, 7))]
    assert example["average_precision"](nothing, labels, 0, 0.5) == 0


@pytest.fixture(scope="module")
def trained(example, tmp_path_factory):
    """A folder of drawn images, and a network after some steps."""
    folder = tmp_path_factory.mktemp("aerial")
    random = np.random.RandomState(0)
    mx.random.seed(0)
    example["draw_folder"](folder, 6, random)
    images, labels = example["load"](folder)
    classes = ["plane", "ship", "truck"]
    net = example["RotatedRCNN"](classes)
    net.initialize(mx.init.Xavier(magnitude=2))
    sums = example["train"](net, images, example["as_class_ids"](labels, classes), 20, random)
    return net, images, sums


def test_losses_fall(trained):
    sums = trained[2]
    assert np.isfinite(sums).all() and np.mean(sums[-4:]) < 0.8 * np.mean(sums[:2])


def test_a_batch_has_the_detections_of_its_images(trained, example):
    net, images, _ = trained
    images = example["prepare"](images)
    together = net(images, 0.01).asnumpy()
    alone = np.concatenate([net(images[n : n + 1], 0.01).asnumpy() for n in range(len(images))])
    assert together.shape == (6, 100, 7) and (together[:, 0, 0] >= 0).any()
    np.testing.assert_allclose(together[:, :, :2], alone[:, :, :2], atol=1e-4)


@pytest.fixture
def data(example, tmp_path):
    example["draw_folder"](tmp_path / "data", 2, np.random.RandomState(0))
    return tmp_path / "data"


def test_images_of_two_sizes_are_refused(example, data):
    file = data / "images/0000.png"
    Image.open(file).crop((0, 0, 100, 90)).save(file)
    with pytest.raises(SystemExit, match="data/images: expected PNG images of one size, got 100 x"):
        example["load"](data)


@pytest.mark.parametrize("line", ["1 2 3 4 5 6 7 ship 0", "1 2 3 4 5 6 7 8", "hello"])
def test_a_line_of_another_form_is_refused(example, data, line):
    (data / "labelTxt/0001.txt").write_text(f"gsd:1\n0 0 9 0 9 4 0 4 ship 0\n{line}\n")
    with pytest.raises(SystemExit, match=f"0001.txt, line 3: expected x1 y1 .*, got '{line}'"):
        example["load"](data)


def test_an_image_without_labels_and_a_class_without_images_are_refused(example, data):
    labels = example["load"](data)[1]
    with pytest.raises(SystemExit, match="^[a-z]+: not a class of the training images"):
        example["as_class_ids"](labels, ["car"])
    (data / "labelTxt/0000.txt").unlink()
    with pytest.raises(SystemExit, match="0000.txt: expected the labels of .*0000.png, got no"):
        example["load"](data)


@pytest.mark.night
def test_from_images_to_map(example, tmp_path, capsys):
    example["main"](tmp_path / "data", tmp_path / "found.png", 600, 0)
    scores = re.findall(r"mAP@0.\d+ (0\.\d+)", capsys.readouterr().out)
    assert float(scores[0]) > 0.9 and float(scores[1]) > 0.6
    assert Image.open(tmp_path / "found.png").size == (1024, 512)
