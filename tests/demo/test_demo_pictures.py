# SPDX-License-Identifier: Apache-2.0
"""The pictures: labels can be read, and stay within their image."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from demo_runs import open_dataset, write_voc
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from demo_rfcn.data import DATASETS, signals
from demo_rfcn.model import detector
from demo_rfcn.model.config import ModelConfig
from demo_rfcn.model.detections import Detection
from demo_rfcn.show import inside, pictures


@pytest.fixture
def drawn(monkeypatch):
    """The figures that would be written."""
    figures: list[Figure] = []
    for module in (pictures, inside):
        monkeypatch.setattr(module, "write", lambda figure, path: figures.append(figure))
    yield figures
    plt.close("all")


def luminance(colour: tuple) -> float:
    """Return WCAG's relative luminance of an RGB colour."""
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


@pytest.mark.parametrize("count", [1, 2, 6, 20, 80])
def test_labels_contrast_with_their_colour(count):
    for colour in pictures.class_colours(count):
        text = {"black": 0.0, "white": 1.0}[pictures.text_colour(colour)]
        low, high = sorted((text, luminance(colour)))
        assert (high + 0.05) / (low + 0.05) >= 4.5


def test_labels_stay_in_their_image(eight_images, drawn, tmp_path):
    """The boxes are in every corner, and one is much narrower than its label."""
    dataset = open_dataset(DATASETS["signals"], eight_images, "test")
    boxes = [[0, 0, 20, 20], [139, 0, 159, 20], [0, 139, 20, 159], [150, 150, 159, 159]]
    found = Detection(np.array([3, 4, 5, 4]), np.full(4, 0.9), np.array(boxes, np.float32))
    pictures.detections(tmp_path / "detections.png", dataset, dict.fromkeys(range(8), found))
    (figure,) = drawn
    figure.canvas.draw()
    texts = 0
    for axis in figure.axes:
        within = axis.get_window_extent().padded(1)
        for text in axis.texts:
            covered = text.get_bbox_patch().get_window_extent()
            assert within.x0 <= covered.x0 and covered.x1 <= within.x1
            assert within.y0 <= covered.y0 and covered.y1 <= within.y1
            texts += 1
    assert texts == 8 * 4


@pytest.mark.parametrize("rows", [1, 30])
def test_every_curve_is_in_the_legend(rows, drawn, tmp_path):
    losses = [{"step": step, "a": 1.0, "b": 2.0} for step in range(rows)]
    values = [{"step": step, "map50": 0.5, "map75": 0.4} for step in range(rows)]
    pictures.curves(tmp_path, {"losses": losses, "val": values})
    for figure in drawn:
        (axis,) = figure.axes
        legend = axis.get_legend()
        assert legend is not None
        assert len(legend.get_texts()) == len(axis.lines)
        assert rows > 1 or all(line.get_marker() == "o" for line in axis.lines[-1:])


@pytest.mark.parametrize(("k", "maps"), [(3, 9), (7, 9)])
def test_score_maps_are_large_enough_to_see(k, maps, drawn, tmp_path):
    config = ModelConfig(("a", "b"), "small", "psroi", k, True, (2.0,), (1.0,))
    net = detector.build(config, [mx.cpu()], 0)
    image, box = np.zeros((96, 128, 3), np.uint8), np.array([10, 10, 50, 60], np.float32)
    inside.score_maps(tmp_path / "score_maps.png", net, image, box, cls=1)
    (figure,) = drawn
    figure.canvas.draw()
    axes = [axis for axis in figure.axes if axis.images and axis.images[0].get_array().ndim == 2]
    sizes = sorted(axis.get_window_extent().width for axis in axes)
    assert len(axes) == 2 * (maps + 1)
    assert sizes[0] >= 80
    assert any(axis.get_ylabel() == "score of b" for axis in figure.axes)


def test_data_whose_first_images_have_no_objects(tmp_path):
    """The pictures of RoIs show the first objects that there are."""
    config = ModelConfig(signals.CLASSES, "small", "psroi", 3, True, (2.0,), (1.0,))
    net = detector.build(config, [mx.cpu()], 0)
    image, objects = signals.paint(np.random.default_rng(0))
    root = write_voc(tmp_path, [(image, [])] * 41 + [(image, objects)])
    dataset = open_dataset(DATASETS["signals"], root, "test")
    cls, found = inside.typical_objects(net, dataset, DATASETS["signals"])
    assert found and signals.CLASSES[cls] in {name for name, *_ in objects}
