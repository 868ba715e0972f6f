# SPDX-License-Identifier: Apache-2.0
"""Draws docs/rois.png: an image, three rows of rois, and what ROIAlign returns for each."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import mxnet as mx
import numpy as np
from matplotlib.patches import Rectangle

import gluon_roi
from demo_rfcn.data import signals

SEED, STRIDE, BINS = 15, 4, 7
COLOURS = ("tab:blue", "tab:orange", "black")


def main() -> None:
    image, objects = signals.paint(np.random.default_rng(SEED))
    boxes = [box for _, box, _ in objects[:2]]
    rois = np.array([*([0, *box] for box in boxes), [-1, 0, 0, 0, 0]], np.float32)
    # A map whose three channels are the colours, so that its bins can be looked at.
    cells = image.reshape(len(image) // STRIDE, STRIDE, -1, STRIDE, 3).mean(axis=(1, 3)) / 255
    data = mx.nd.array(cells.transpose(2, 0, 1)[None])
    out = gluon_roi.nd.ROIAlign(data, mx.nd.array(rois), BINS, 1 / STRIDE, sampling_ratio=2)

    figure, axes = plt.subplots(1, 5, figsize=(11, 2.9), dpi=110, layout="constrained")
    axes[0].imshow(image)
    axes[0].set_title("an image, and two boxes")
    axes[1].imshow(cells)
    axes[1].set_title(f"data: its map, stride {STRIDE}")
    for axis, scale in ((axes[0], 1), (axes[1], STRIDE)):
        for (x1, y1, x2, y2), colour in zip(boxes, COLOURS):
            place = (x1 / scale - 0.5, y1 / scale - 0.5)
            size = ((x2 - x1) / scale, (y2 - y1) / scale)
            axis.add_patch(Rectangle(place, *size, fill=False, color=colour, linewidth=2))
    for row, (axis, colour) in enumerate(zip(axes[2:], COLOURS)):
        axis.imshow(out[row].asnumpy().transpose(1, 2, 0))
        numbers = ", ".join(f"{number:.0f}" for number in rois[row])
        name = f"out[{row}]" + (": zeros, for padding" if rois[row, 0] < 0 else "")
        axis.set_title(f"rois[{row}] = {numbers}\n{name}", color=colour, fontsize=9)
    for axis in axes:
        axis.set_xticks([])
        axis.set_yticks([])
    figure.savefig(Path(__file__).with_name("rois.png"))


if __name__ == "__main__":
    main()
