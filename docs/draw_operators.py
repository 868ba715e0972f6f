"""Draws docs/operators.png: what each operator reads and gives, from its real output.

The cells that a bin reads, and their weights, are the gradient of that bin.
"""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import mxnet as mx
import numpy as np
from matplotlib.patches import Rectangle
from mxnet import autograd

import gluon_roi

BINS = 3
HEIGHT, WIDTH = 12, 15
ROI = (2.3, 1.6, 11.4, 10.2)  # x1 y1 x2 y2; image and map coordinates are the same here
# Without the grey of the maps.
COLOURS = plt.cm.tab10([0, 1, 2, 3, 4, 5, 6, 8, 9])[:, :3]


def bump(x: float, y: float, size: float) -> np.ndarray:
    """A smooth hill on the map, its top at cell (x, y)."""
    rows, columns = np.mgrid[:HEIGHT, :WIDTH]
    return np.exp(-((rows - y) ** 2 + (columns - x) ** 2) / (2 * size**2))


def part_maps() -> np.ndarray:
    """BINS * BINS score maps (1, C, H, W), each high where its part of an object is."""
    xs = np.linspace(ROI[0] + 1.5, ROI[2] - 1.5, BINS)
    ys = np.linspace(ROI[1] + 1.5, ROI[3] - 1.5, BINS)
    return np.stack([bump(x, y, 1.8) for y in ys for x in xs])[None]


def pooled(name: str, maps: np.ndarray, **arguments):
    """The output (BINS, BINS), and the weights (bins, H, W) with which each bin reads its map."""
    data = mx.nd.array(maps)
    rois = mx.nd.array([[0, *ROI]])
    data.attach_grad()
    weights = []
    for index in range(BINS * BINS):
        with autograd.record():
            out = getattr(gluon_roi.nd, name)(data, rois, BINS, 1.0, **arguments)
        slope = np.zeros(out.shape)
        slope.reshape(-1)[index] = 1
        out.backward(mx.nd.array(slope))
        weights.append(data.grad.asnumpy()[0].sum(axis=0))
    return out.asnumpy()[0, 0], np.stack(weights)


def show_map(axis, values: np.ndarray, weights: np.ndarray, colours) -> None:
    """The map, and over it each bin's cells: the fuller the colour, the higher the weight."""
    axis.imshow(values, cmap="Greys", vmin=0, vmax=1.6)
    for weight, colour in zip(weights, colours):
        for row, column in zip(*np.nonzero(weight)):
            share = weight[row, column] / weight.max()
            corner = (column - 0.5, row - 0.5)
            axis.add_patch(Rectangle(corner, 1, 1, fc=(*colour, 0.15 + 0.55 * share), ec="none"))
    x1, y1, x2, y2 = ROI
    axis.add_patch(Rectangle((x1, y1), x2 - x1, y2 - y1, fill=False, ec="crimson", lw=1.5))
    axis.set(xticks=[], yticks=[], xlim=(-0.5, WIDTH - 0.5), ylim=(HEIGHT - 0.5, -0.5))


def show_output(axis, values: np.ndarray) -> None:
    axis.imshow(values, cmap="Greys", vmin=0, vmax=1.6)
    for index, value in enumerate(values.ravel()):
        row, column = divmod(index, BINS)
        corner = (column - 0.5, row - 0.5)
        axis.add_patch(Rectangle(corner, 1, 1, fc=(*COLOURS[index], 0.35), ec="white", lw=2))
        axis.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=9)
    axis.set(xticks=[], yticks=[])
    axis.set_title("output", fontsize=9)


def main() -> None:
    parts = part_maps()
    hills = ((4, 3, 1.6), (9.5, 4.5, 2.2), (3.5, 9, 1.2), (10, 9.5, 1.0), (7, 7, 1.4))
    whole = sum(bump(*hill) for hill in hills)[None, None]
    rows = (
        ("ROIPool", whole, {}, "the maximum of the cells of each bin\n(the cell that won)"),
        ("ROIAlign", whole, {"sampling_ratio": 2}, "the mean of bilinear samples\n(their weights)"),
        ("PSROIPool", parts, {}, "each bin averages\na score map of its own"),
        ("PSROIAlign", parts, {"sampling_ratio": 2}, "each bin samples\na score map of its own"),
    )
    figure = plt.figure(figsize=(11, 6.4))
    cards = figure.add_gridspec(2, 2, hspace=0.25, wspace=0.12)
    for index, (name, maps, arguments, text) in enumerate(rows):
        output, weights = pooled(name, maps, **arguments)
        card = cards[index].subgridspec(1, 2, width_ratios=(1.5, 1), wspace=0.1)
        if maps.shape[1] == 1:
            axis = figure.add_subplot(card[0])
            show_map(axis, maps[0, 0], weights, COLOURS)
            axis.set_title(f"{name}: {text}", fontsize=9)
        else:
            grid = card[0].subgridspec(BINS, BINS, hspace=0.06, wspace=0.06)
            for part in range(BINS * BINS):
                axis = figure.add_subplot(grid[part])
                show_map(axis, maps[0, part], weights[part : part + 1], COLOURS[part : part + 1])
                if part == 1:
                    axis.set_title(f"{name}: {text}", fontsize=9)
        show_output(figure.add_subplot(card[1]), output)
    target = Path(__file__).parent / "operators.png"
    figure.savefig(target, dpi=110, bbox_inches="tight")
    print(target)


if __name__ == "__main__":
    main()
