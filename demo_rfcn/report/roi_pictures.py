# SPDX-License-Identifier: Apache-2.0
"""Pictures of a RoI inside a head: score maps, votes, shifted bins."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
from matplotlib import pyplot as plt

from ..data import DatasetSpec
from ..data.dataset import BOTTOM_RIGHT, BOX, CLASS, DIFFICULT, TOP_LEFT, DetectionSet
from ..data.loader import load_image, normalise
from ..data.splits import choose_indices
from ..model import RFCN, end_at_last_pixel
from .pictures import class_label, frame, grid, show_image, write


def votes(
    net: RFCN, image: np.ndarray, rois: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the maps and votes of a position-sensitive head for boxes (K, 4) of an image.

    The image is (H, W, 3) uint8, RGB, scaled, and the boxes are in its pixels. Returns the class
    maps (C + 1, k, k, H', W'), background first; the votes (K, C + 1, k, k); and the softmax of
    their means, (K, C + 1).
    """
    head, logits = net.head, len(net.config.classes) + 1
    ctx = head.maps.weight.list_ctx()[0]
    features = net.backbone(mx.nd.array(normalise(image)[None], ctx=ctx))[1]
    maps = head.maps(features)
    rows = mx.nd.array(np.concatenate([np.zeros((len(rois), 1)), rois], axis=1), ctx=ctx)
    pooled = head.votes(mx.nd, features, maps, end_at_last_pixel(mx.nd, rows))[:, :logits]
    probability = mx.nd.softmax(pooled.mean(axis=(2, 3)))
    k = net.config.k
    maps = maps.asnumpy()[0, : logits * k * k]
    return maps.reshape(-1, k, k, *maps.shape[1:]), pooled.asnumpy(), probability.asnumpy()


def typical_objects(
    net: RFCN, dataset: DetectionSet, spec: DatasetSpec
) -> tuple[int, list[tuple[np.ndarray, np.ndarray]]]:
    """Choose a class and its objects for the pictures of RoIs: large ones, the surest first.

    The objects, each an image and a box, are larger than the median object of forty images. Their
    class is the one that the data set shows, or the most frequent one.
    """
    objects: list[tuple[np.ndarray, np.ndarray]] = []
    wanted = spec.classes.index(spec.shown_class) if spec.shown_class else None
    for index in choose_indices(dataset, 40):
        image, labels = load_image(dataset, index, spec.short, spec.max_size)
        objects += [(image, row) for row in labels if not row[DIFFICULT]]
    sides = [np.min(row[BOTTOM_RIGHT] - row[TOP_LEFT]) for _, row in objects]
    large = [entry for entry, side in zip(objects, sides) if side >= np.median(sides)]
    classes = [int(row[CLASS]) for _, row in large]
    cls = max(classes, key=lambda each: (each == wanted, classes.count(each), -each))
    chosen = [(image, row[BOX]) for image, row in reversed(large) if row[CLASS] == cls]
    chosen.sort(key=lambda each: -votes(net, each[0], each[1][None])[2][0, cls + 1])
    return cls, chosen


def shifted(box: np.ndarray, height: int, width: int) -> np.ndarray:
    """Move a box by half its size along both axes, towards the middle of the image."""
    x1, y1, x2, y2 = box
    x = (x2 - x1) / 2 * (1 if x1 + x2 < width else -1)
    y = (y2 - y1) / 2 * (1 if y1 + y2 < height else -1)
    return np.clip(box + [x, y, x, y], 0, [width, height] * 2).astype(np.float32)


def score_maps(
    path: Path, net: RFCN, image: np.ndarray, box: np.ndarray, cls: int
) -> dict[str, float]:
    """Draw how a good RoI and a shifted one collect votes, as in figures 3 and 4 of the paper.

    One row per RoI: the image; maps of one class, each with the RoI and its own bin; the votes,
    their mean and the probability of the class. Above k = 4, only the maps of corners, sides
    and centre are shown. The image is (H, W, 3) uint8, RGB, scaled, `box` the good RoI in its
    pixels, `cls` a class index without background. Returns the probability for the `good` and
    `shifted` RoI.
    """
    height, width = image.shape[:2]
    rois = np.stack([box, shifted(box, height, width)])
    maps, pooled, probability = votes(net, image, rois)
    maps, pooled, probability = maps[cls + 1], pooled[:, cls + 1], probability[:, cls + 1]
    limit = max(np.percentile(np.abs(maps), 99.8), np.abs(pooled).max(), 1e-6)
    k, (name, font) = net.config.k, class_label(net.config.classes, cls)
    shades = {"cmap": "RdBu_r", "vmin": -limit, "vmax": limit}
    pictured = list(range(k)) if k <= 4 else [0, k // 2, k - 1]

    figure = plt.figure(figsize=(12, 7.4))
    outer = figure.add_gridspec(2, 4, width_ratios=(1, 1, 1, 0.05), wspace=0.12, hspace=0.25)
    for row, (title, roi) in enumerate(zip(("good RoI", "shifted RoI"), rois)):
        x1, y1, x2, y2 = roi
        bin_width, bin_height = (x2 - x1) / k, (y2 - y1) / k
        axis = figure.add_subplot(outer[row, 0])
        show_image(axis, image)
        frame(axis, roi, "yellow", 2)
        axis.set_title(title)
        axis.set_axis_off()

        inner = outer[row, 1].subgridspec(len(pictured), len(pictured), wspace=0.05, hspace=0.05)
        for (down, i), (right, j) in product(enumerate(pictured), enumerate(pictured)):
            axis = figure.add_subplot(inner[down, right])
            axis.imshow(maps[i, j], extent=(0, width, height, 0), **shades)
            frame(axis, roi, "black", 1)
            x, y = x1 + j * bin_width, y1 + i * bin_height
            frame(axis, (x, y, x + bin_width, y + bin_height), "lime", 2)
            axis.set_axis_off()
            if down == 0 and right == len(pictured) // 2:
                count = "the" if len(pictured) == k else f"{len(pictured) ** 2} of the {k * k}"
                axis.set_title(f"{count} maps,\neach with its bin in green")

        axis = figure.add_subplot(outer[row, 2])
        mesh = axis.imshow(pooled[row], **shades)
        for i, j in product(pictured, pictured):
            frame(axis, (j - 0.47, i - 0.47, j + 0.47, i + 0.47), "lime", 2)
        style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 7}
        for (i, j), vote in np.ndenumerate(pooled[row]):
            ink = "white" if abs(vote) > 0.6 * limit else "black"
            axis.text(j, i, f"{vote:.1f}", color=ink, **style)
        votes_title = f"the {k} x {k} votes: mean {pooled[row].mean():.2f},"
        title = f"{votes_title}\nP({name}) = {probability[row]:.3f}"
        axis.set_title(title, fontproperties=font, fontsize=axis.title.get_fontsize())
        axis.set(xticks=[], yticks=[])
    bar = figure.colorbar(mesh, cax=figure.add_subplot(outer[:, 3]))
    size = bar.ax.yaxis.label.get_fontsize()
    bar.set_label(f"score of {name}", fontproperties=font, fontsize=size)
    write(figure, path)
    return {"good": float(probability[0]), "shifted": float(probability[1])}


def parts(path: Path, net: RFCN, objects: list[tuple[np.ndarray, np.ndarray]]) -> float:
    """Draw the bins of good RoIs: dotted for equal parts of the box, solid for the shifted ones.

    The head is a `deformable_psroi` one. `objects` are images (H, W, 3), uint8, RGB, scaled, each
    with a RoI (4,) in its pixels. Returns the mean distance of a bin, in sides of its RoI.
    """
    figure, axes = grid(len(objects), 3)
    k, head = net.config.k, net.head
    ctx = head.maps.weight.list_ctx()[0]
    distances = []
    for axis, (image, roi) in zip(axes, objects):
        features = net.backbone(mx.nd.array(normalise(image)[None], ctx=ctx))[1]
        row = end_at_last_pixel(mx.nd, mx.nd.array([[0, *roi]], ctx=ctx))
        shifts = head.offsets(mx.nd, features, row).asnumpy()[0] * head.TRANS_STD
        distances.append(np.hypot(*shifts).mean())
        x1, y1, x2, y2 = roi
        width, height = x2 - x1, y2 - y1
        show_image(axis, image)
        for i, j in np.ndindex(k, k):
            for shift, colour, style in (((0, 0), "white", ":"), (shifts[:, i, j], "lime", "-")):
                left, top = x1 + (j / k + shift[0]) * width, y1 + (i / k + shift[1]) * height
                bounds = (left, top, left + width / k, top + height / k)
                frame(axis, bounds, colour, linestyle=style)
    write(figure, path)
    return float(np.mean(distances))
