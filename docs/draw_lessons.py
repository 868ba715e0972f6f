# SPDX-License-Identifier: Apache-2.0
"""Draws docs/lessons.png: what three operators read of the same box, for docs/learn.md.

The cells of a bin, and their weights, are the gradient of that bin.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np

import gluon_roi
from benchmarks import theme

SIZE, BINS = 8, 2
BOX = (1.4, 1.8, 5.9, 6.3)  # x1, y1, x2, y2; a pixel of the image is a cell of the map
TITLES = {
    "ROIPool": "RoI pooling:\nrounded to whole cells",
    "ROIAlign": "RoI align:\nsamples at exact places",
    "PSROIPool": "PS-RoI pooling:\na score map for each bin",
}


def weights(name: str) -> np.ndarray:
    """The weights of the cells in each bin: (bins, maps, SIZE, SIZE)."""
    maps = BINS**2 if name.startswith("PS") else 1
    data = mx.nd.ones((1, maps, SIZE, SIZE))
    data.attach_grad()
    rois = mx.nd.array([[0, *BOX]])
    found = []
    for index in range(BINS**2):
        with mx.autograd.record():
            arguments = {"sampling_ratio": 2, "aligned": True} if name == "ROIAlign" else {}
            out = getattr(gluon_roi.nd, name)(data, rois, BINS, 1, **arguments)
            one = out.reshape(-1)[index]
        one.backward()
        found.append(data.grad.asnumpy()[0].copy())
    return np.stack(found)


def cells_of_roi_pool() -> np.ndarray:
    """Whether a bin of ROIPool reads a cell: with 1 in that cell alone, its maximum is 1."""
    alone = mx.nd.array(np.eye(SIZE**2).reshape(1, SIZE**2, SIZE, SIZE))
    out = gluon_roi.nd.ROIPool(alone, mx.nd.array([[0, *BOX]]), BINS, 1).asnumpy()[0]
    return out.reshape(SIZE, SIZE, BINS**2).transpose(2, 0, 1)[:, None]


def draw() -> Any:
    """A panel for each operator."""
    from matplotlib import pyplot
    from matplotlib.colors import to_rgb
    from matplotlib.patches import Rectangle

    figure = pyplot.figure(figsize=(theme.WIDTH, 3.4), layout="constrained")
    parts = figure.subfigures(1, len(TITLES))
    for part, (name, title) in zip(parts, TITLES.items()):
        part.suptitle(title)
        found = cells_of_roi_pool() if name == "ROIPool" else weights(name)
        side = BINS if found.shape[1] > 1 else 1
        for number, axis in enumerate(np.ravel(part.subplots(side, side))):
            for index, weight in enumerate(found[:, number]):
                for y, x in np.argwhere(weight > 0):
                    share = 0.25 + 0.6 * weight[y, x] / weight.max()
                    colour = (*to_rgb(theme.COLOURS[index]), share)
                    axis.add_patch(Rectangle((x, y), 1, 1, fc=colour, ec="none"))
            x1, y1, x2, y2 = BOX
            axis.add_patch(Rectangle((x1, y1), x2 - x1, y2 - y1, fill=False, ec="black", lw=2.5))
            if name == "ROIAlign":
                at = (np.arange(2 * BINS) + 0.5) / (2 * BINS)
                for y in y1 + at * (y2 - y1):
                    axis.plot(x1 + at * (x2 - x1), [y] * len(at), "o", color="black", ms=4)
            axis.set(xlim=(0, SIZE), ylim=(SIZE, 0), aspect="equal", facecolor="white")
            axis.set(xticks=range(SIZE + 1), yticks=range(SIZE + 1))
            axis.set(xticklabels=[], yticklabels=[])
            axis.grid(color="0.8", lw=0.8)
            axis.set_axisbelow(True)
            axis.tick_params(length=0)
    return figure


if __name__ == "__main__":
    theme.save(draw, Path(__file__).with_name("lessons.png"))
