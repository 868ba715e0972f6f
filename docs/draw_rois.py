# SPDX-License-Identifier: Apache-2.0
"""Draws docs/rois.png: an image, three rows of rois, and what ROIAlign returns for each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np

import gluon_roi
from benchmarks import theme
from demo_rfcn.data import signals

SEED, STRIDE, BINS = 15, 4, 7
COLOURS = theme.COLOURS[:3]


def draw() -> Any:
    """A row for the image and its map, and a row for what is returned."""
    from matplotlib import pyplot
    from matplotlib.patches import Rectangle

    image, objects = signals.paint(np.random.default_rng(SEED))
    boxes = [box for _, box, _ in objects[:2]]
    rois = np.array([*([0, *box] for box in boxes), [-1, 0, 0, 0, 0]], np.float32)
    # A map whose three channels are the colours, so that its bins can be looked at.
    cells = image.reshape(len(image) // STRIDE, STRIDE, -1, STRIDE, 3).mean(axis=(1, 3)) / 255
    data = mx.nd.array(cells.transpose(2, 0, 1)[None])
    out = gluon_roi.nd.ROIAlign(data, mx.nd.array(rois), BINS, 1 / STRIDE, sampling_ratio=2)

    figure = pyplot.figure(figsize=(theme.WIDTH, 6.4), layout="constrained")
    upper, lower = figure.subfigures(2, height_ratios=(1.05, 1))
    axes = [*upper.subplots(1, 2), *lower.subplots(1, 3)]
    axes[0].imshow(image)
    axes[0].set_title("an image, and two boxes")
    axes[1].imshow(cells)
    axes[1].set_title(f"data: its map, {STRIDE} pixels a cell")
    for axis, scale in ((axes[0], 1), (axes[1], STRIDE)):
        for (x1, y1, x2, y2), colour in zip(boxes, COLOURS):
            place = (x1 / scale - 0.5, y1 / scale - 0.5)
            size = ((x2 - x1) / scale, (y2 - y1) / scale)
            for line, width in (("white", 5), (colour, 3)):
                axis.add_patch(Rectangle(place, *size, fill=False, color=line, linewidth=width))
    for row, (axis, colour) in enumerate(zip(axes[2:], COLOURS)):
        axis.imshow(out[row].asnumpy().transpose(1, 2, 0))
        numbers = ", ".join(f"{number:.0f}" for number in rois[row])
        name = f"out[{row}]" + (": zeros, for padding" if rois[row, 0] < 0 else "")
        axis.set_title(f"rois[{row}] = {numbers}\n{name}")
        if rois[row, 0] < 0:
            for y, x in np.ndindex(BINS, BINS):
                axis.text(x, y, "0", color="white", ha="center", va="center")
        for spine in axis.spines.values():
            spine.set(color=colour, linewidth=3)
    for axis in axes:
        axis.set_xticks([])
        axis.set_yticks([])
    return figure


if __name__ == "__main__":
    theme.save(draw, Path(__file__).with_name("rois.png"))
