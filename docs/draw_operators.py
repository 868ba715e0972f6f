# SPDX-License-Identifier: Apache-2.0
"""Draws docs/operators.png: what each operator reads and gives, from its real output.

The cells that a bin reads, and their weights, are the gradient of that bin. Suppression has boxes
instead: those that it takes, and those that it keeps; BoxIoU has boxes and their overlaps.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import mxnet as mx
import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.patches import Polygon, Rectangle
from matplotlib.patheffects import withStroke
from mxnet import autograd

import gluon_roi
from benchmarks import theme

BINS = 3
HEIGHT, WIDTH = 12, 15
ROI = (2.3, 1.6, 11.4, 10.2)  # x1 y1 x2 y2; image and map coordinates are the same here
TILTED = (7.0, 6.0, 10.0, 5.5, 30.0)  # cx cy w h theta
KERNEL: dict[str, Any] = {"kernel": BINS, "dilate": (4, 5)}
PLACE = (2, 2)  # y x of an output of a kernel
#: Of the bins, which have numbers as well: neighbours differ for every kind of colour vision.
COLOURS = np.array([to_rgb(theme.COLOURS[index]) for index in (0, 1, 2, 3, 4, 5, 6, 1, 0)])
#: Of lines on white.
LINES = [theme.COLOURS[index] for index in (0, 3, 2, 5)]


@dataclass
class Card:
    """An operator and its maps (each (1, C, H, W)).

    Without a roi it has a kernel of BINS x BINS cells, of which the output at PLACE is drawn.
    """

    name: str
    maps: list[np.ndarray]
    arguments: dict[str, Any] = field(default_factory=dict)
    scale: Any = 1.0
    roi: tuple | None = ROI
    trans: np.ndarray | None = None

    def call(self, maps: list) -> Any:
        """The output, of which the first channel is drawn."""
        inputs = [maps[0] if len(maps) == 1 else maps]
        arguments = dict(self.arguments)
        if self.roi is not None:
            inputs.append(mx.nd.array([[0, *self.roi]]))
            arguments.update(pooled_size=BINS, spatial_scale=self.scale)
        if self.trans is not None:
            inputs.append(mx.nd.array(self.trans))
        out = getattr(gluon_roi.nd, self.name)(*inputs, **arguments)
        if self.roi is None:
            y, x = PLACE
            out = out[:, :, BINS * y : BINS * (y + 1), BINS * x : BINS * (x + 1)]
        return out


@dataclass
class Suppression:
    """An operator whose output are boxes, and its inputs."""

    name: str
    inputs: list[np.ndarray]
    arguments: dict[str, Any]

    def kept(self) -> tuple[np.ndarray, np.ndarray]:
        """Scores and boxes (n, 4) of the output."""
        function = getattr(gluon_roi.nd, self.name)
        out = function(*map(mx.nd.array, self.inputs), **self.arguments)
        if self.name == "Proposal":
            boxes, scores = (one.asnumpy() for one in out)
            # x2 and y2 are the last pixels of a box.
            return scores[:, 0], boxes[:, 1:] + (0, 0, 1, 1)
        rows = out.asnumpy()
        rows = rows[rows[:, 0] >= 0]
        return rows[:, 0], rows[:, 1:]


@dataclass
class Overlaps:
    """Rotated boxes (n, 5), each of lhs with each of rhs."""

    name: str
    lhs: np.ndarray
    rhs: np.ndarray

    def values(self) -> np.ndarray:
        boxes = map(mx.nd.array, (self.lhs, self.rhs))
        return gluon_roi.nd.BoxIoU(*boxes, format="rotated").asnumpy()


def bin_values() -> dict[str, str]:
    """How the table of docs/operators.md describes the bins of each operator."""
    page = Path(__file__).with_name("operators.md").read_text()
    return dict(re.findall(r"^\| \[(\w+)\]\(operators/\w+\.md\) \| (.+?) \|", page, re.M))


def bump(x: float, y: float, size: float, height: int = HEIGHT, width: int = WIDTH) -> np.ndarray:
    """A smooth hill on the map, its top at cell (x, y)."""
    rows, columns = np.mgrid[:height, :width]
    return np.exp(-((rows - y) ** 2 + (columns - x) ** 2) / (2 * size**2))


def part_maps() -> np.ndarray:
    """BINS * BINS score maps (1, C, H, W), each high where its part of an object is."""
    xs = np.linspace(ROI[0] + 1.5, ROI[2] - 1.5, BINS)
    ys = np.linspace(ROI[1] + 1.5, ROI[3] - 1.5, BINS)
    return np.stack([bump(x, y, 1.8) for y in ys for x in xs])[None]


def pooled(card: Card) -> tuple[np.ndarray, list[np.ndarray]]:
    """The output (BINS, BINS), and for each map the weights (bins, H, W) of its cells."""
    maps = [mx.nd.array(one) for one in card.maps]
    for one in maps:
        one.attach_grad()
    weights = []
    for index in range(BINS * BINS):
        with autograd.record():
            out = card.call(maps)
        slope = np.zeros(out.shape)
        slope.reshape(-1)[index] = 1
        out.backward(mx.nd.array(slope))
        weights.append([one.grad.asnumpy()[0].sum(axis=0) for one in maps])
    return out.asnumpy()[0, 0], [np.stack(of_map) for of_map in zip(*weights)]


def corners(roi: tuple) -> np.ndarray:
    """The four corners of an upright or a rotated box, (4, 2)."""
    if len(roi) == 4:
        x1, y1, x2, y2 = roi
        return np.array([[x1, y1], [x2, y1], [x2, y2], [x1, y2]])
    cx, cy, width, height, theta = roi
    cos, sin = np.cos(np.radians(theta)), np.sin(np.radians(theta))
    u, v = np.array([[-1, 1, 1, -1], [-1, -1, 1, 1]]) / 2 * [[width], [height]]
    return np.stack([u * cos + v * sin + cx, v * cos - u * sin + cy], axis=1)


def moves(card: Card) -> np.ndarray:
    """Where the cells of a kernel lie, and where offsets move them: (BINS * BINS, 2, 2) of x, y."""
    step = card.arguments["dilate"]
    grid = np.argwhere(np.ones((BINS, BINS))) * step + PLACE
    assert card.trans is not None
    offset = card.trans[0, :, 0, 0].reshape(-1, 2)
    return np.stack([grid, grid + offset], axis=1)[..., ::-1]


def number_style(size: int) -> dict[str, Any]:
    """Of the number of a bin, which has to be read on any colour."""
    outline = [withStroke(linewidth=2, foreground="white")]
    return {
        "ha": "center",
        "va": "center",
        "fontsize": size,
        "color": "black",
        "path_effects": outline,
        "clip_on": True,
    }


def show_map(
    axis, values: np.ndarray, weights: np.ndarray, colours, over: np.ndarray, first: int = 1
) -> None:
    """The map, and over it each bin's cells: the fuller the colour, the higher the weight.

    `over` are the corners of a box, or moves(); `first` is the number of the first bin.
    """
    axis.imshow(values, cmap="Greys", vmin=0, vmax=1.6)
    for number, (weight, colour) in enumerate(zip(weights, colours), first):
        for row, column in zip(*np.nonzero(weight)):
            share = min(max(weight[row, column] / weight.max(), 0), 1)
            corner = (column - 0.5, row - 0.5)
            axis.add_patch(Rectangle(corner, 1, 1, fc=(*colour, 0.15 + 0.55 * share), ec="none"))
        if weight.any():
            row, column = (np.array(np.nonzero(weight)) * weight[weight != 0]).sum(1) / weight.sum()
            axis.text(column, row, str(number), **number_style(8))
    if over.ndim == 2:
        axis.add_patch(Polygon(over, fill=False, ec="black", lw=1.5))
    else:
        for begin, end in over:
            arrow = {"arrowstyle": "-|>", "color": "black", "shrinkA": 0, "shrinkB": 0}
            axis.annotate("", end, begin, arrowprops=arrow)
        axis.plot(*over[:, 0].T, "o", color="black", markersize=3)
    height, width = values.shape
    axis.set(xticks=[], yticks=[], xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5))


def show_output(axis, values: np.ndarray) -> None:
    """The bins in their colours, the darker the higher their value."""
    axis.imshow(values, cmap="Greys", vmin=0, vmax=1.6)
    for index, value in enumerate(values.ravel()):
        row, column = divmod(index, BINS)
        corner = (column - 0.5, row - 0.5)
        axis.add_patch(Rectangle(corner, 1, 1, fc=(*COLOURS[index], 0.35), ec="white", lw=2))
        axis.text(column - 0.36, row - 0.34, str(index + 1), **number_style(8))
        grey = plt.cm.Greys(value / 1.6)[:3]
        shade = 0.65 * np.array(grey) + 0.35 * COLOURS[index]
        ink = "white" if shade @ (0.299, 0.587, 0.114) < 0.48 else "black"
        axis.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=10, color=ink)
    axis.set(xticks=[], yticks=[])
    axis.set_title("output", fontsize=10)


def show_given(axis, card: Suppression) -> None:
    """The boxes of BoxNMS; the score map of Proposal, with arrows to the centers of its boxes."""
    if card.name == "Proposal":
        scores, moves = card.inputs[0][0, 1], card.inputs[1][0]
        axis.imshow(scores, cmap="Greys", vmin=0, vmax=1.6)
        side = card.arguments["scales"][0]
        for y, x in np.argwhere((scores > 0.35) & (np.indices(scores.shape).sum(0) % 2 == 0)):
            arrow = {"arrowstyle": "->", "color": "black", "shrinkA": 0, "shrinkB": 0}
            end = (x + side * moves[0, y, x], y + side * moves[1, y, x])
            axis.annotate("", end, (x, y), arrowprops=arrow)
        axis.set(xlim=(-0.5, WIDTH - 0.5), ylim=(HEIGHT - 0.5, -0.5))
    else:
        show_boxes(axis, card.inputs[0][:, 0], card.inputs[0][:, 1:], "0.45")
    axis.set(xticks=[], yticks=[])


def show_kept(axis, card: Suppression) -> None:
    show_boxes(axis, *card.kept())
    axis.set_title("output", fontsize=10)


def show_boxes(axis, scores: np.ndarray, boxes: np.ndarray, ink: str | None = None) -> None:
    """Boxes with their scores, in colours of their own unless there is one for all."""
    for place, (score, (x1, y1, x2, y2)) in enumerate(zip(scores, boxes)):
        colour = ink or LINES[place % len(LINES)]
        axis.add_patch(Rectangle((x1, y1), x2 - x1, y2 - y1, fill=False, ec=colour, lw=1.5))
        # In corners in turn: the boxes of an object share their place.
        right, low = (0, 0) if ink is None else divmod(place % 4, 2)
        label: dict[str, Any] = {"fontsize": 9, "color": colour, "clip_on": True}
        label["bbox"] = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
        label.update(ha=("left", "right")[right], va=("top", "bottom")[low])
        x, y = (x1 + 0.15, x2 - 0.15)[right], (y1 + 0.15, y2 - 0.15)[low]
        axis.text(x, y, f"{score:.2f}", **label)
    axis.set(xlim=(0, WIDTH), ylim=(HEIGHT, 0), aspect="equal", xticks=[], yticks=[])


def show_overlaps(given, output, card: Overlaps) -> None:
    """Boxes of lhs in colours, those of rhs in grey, and a row of overlaps for each of lhs."""
    grey = ("0.25", "0.45", "0.65")
    for boxes, colours in ((card.rhs, grey), (card.lhs, LINES)):
        for box, colour in zip(boxes, colours):
            given.add_patch(Polygon(corners(tuple(box)), fill=False, ec=colour, lw=1.5))
    given.set(xlim=(0, WIDTH), ylim=(HEIGHT, 0), aspect="equal", xticks=[], yticks=[])
    values = card.values()
    output.imshow(values, cmap="Greys", vmin=0, vmax=1.6)
    for (row, column), value in np.ndenumerate(values):
        label = {"ha": "center", "va": "center", "fontsize": 10}
        output.text(column, row, f"{value:.2f}", color=LINES[row], **label)
    output.set(xticks=[], yticks=[])
    for place, colour in enumerate(grey[: values.shape[1]]):
        frame = (place - 0.47, -0.47), 0.94, values.shape[0] - 0.06
        output.add_patch(Rectangle(*frame, fill=False, ec=colour, lw=1.5))
    output.set_title("output", fontsize=10)


def suppressions() -> list[Suppression]:
    objects = ((1.5, 1.2, 7, 6.5), (8.5, 4, 13.5, 11), (2, 8, 6.5, 11))
    random = np.random.RandomState(4)
    rows = [
        (score, *np.add(box, random.uniform(-1.2, 1.2, 4) * (number > 0)))
        for box, scores in zip(objects, ((0.97, 0.81, 0.62), (0.92, 0.74, 0.55), (0.88, 0.43)))
        for number, score in enumerate(scores)
    ]
    side, hills = 4, ((4, 3, 6), (10, 4, 8), (4, 9, 3), (11, 9, 4))
    sizes = [bump(x, y, size / 3) for x, y, size in hills]
    nearest = np.argmax(sizes, axis=0)
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    to_x, to_y, size = (np.array(hills)[nearest, n] for n in range(3))
    # The farther from an object, the worse its center is hit.
    moves = [0.75 * (to_x - x) / side, 0.75 * (to_y - y) / side, *[np.log(size / side)] * 2]
    scores = np.max(sizes, axis=0) * np.array((0.97, 0.94, 0.88, 0.91))[nearest]
    return [
        Suppression(
            "BoxNMS",
            [np.array(rows)],
            {"coord_start": 1, "score_index": 0, "overlap_thresh": 0.3},
        ),
        Suppression(
            "Proposal",
            [np.stack([1 - scores, scores])[None], np.stack(moves)[None], [[HEIGHT, WIDTH, 1]]],
            {
                "scales": (side,),
                "ratios": (1,),
                "feature_stride": 1,
                "rpn_min_size": 0,
                "threshold": 0.3,
                "rpn_post_nms_top_n": len(hills),
                "output_score": True,
            },
        ),
    ]


def overlaps() -> Overlaps:
    lhs = np.array([[5, 4.5, 8, 3, 20], [10, 7.5, 6, 4, -50]])
    rhs = np.array([[5.5, 4.3, 8, 3.4, 35], [9.5, 8, 7, 3, -30], [7.5, 6, 2.5, 2.5, 0]])
    return Overlaps("BoxIoU", lhs, rhs)


def cards() -> list[Card | Suppression | Overlaps]:
    """The card of every operator, in the order of tables."""
    parts = part_maps()
    hills = ((4, 3, 1.6), (9.5, 4.5, 2.2), (3.5, 9, 1.2), (10, 9.5, 1.0), (7, 7, 1.4))
    whole = sum(bump(*hill) for hill in hills)[None, None]
    half = sum(bump(x / 2, y / 2, size / 2, HEIGHT // 2, WIDTH // 2 + 1) for x, y, size in hills)[
        None, None
    ]
    apart = np.stack(np.meshgrid([-1, 0, 1], [-1, 0, 1]))[None]
    wander = np.random.RandomState(1).uniform(-1.8, 1.8, (1, 2 * BINS * BINS, 1, 1))
    wander = np.tile(wander, (1, 1, HEIGHT - 8, WIDTH - 10))  # the same at every place
    sampled = {"sampling_ratio": 2}
    levels = {"canonical_size": 4, "canonical_level": 0}
    special: list[Card | Suppression | Overlaps] = [
        *suppressions(),
        overlaps(),
        Card("ROIAlign", [whole], sampled),
        Card("PSROIPool", [parts]),
        Card("PSROIAlign", [parts], sampled),
        Card("RotatedROIAlign", [whole], sampled, roi=TILTED),
        Card("DeformablePSROIPool", [parts], {"trans_std": 0.1}, trans=apart),
        Card("PyramidROIAlign", [whole, half], {**sampled, **levels}, scale=(1.0, 0.5)),
        Card("DeformableROIAlign", [whole], {**sampled, "gamma": 0.1}, trans=apart),
        Card("DeformableSampling", [whole], KERNEL, roi=None, trans=wander),
    ]
    by_name = {card.name: card for card in special}
    names = [block.__name__ for block in gluon_roi.OPERATORS]
    return [by_name.get(name) or Card(name, [whole]) for name in names]


def draw_pooling(figure, place, card: Card) -> None:
    output, weights = pooled(card)
    box = moves(card) if card.roi is None else corners(card.roi)
    if len(card.maps) > 1:
        levels = place[0].subgridspec(1, 2, width_ratios=(2, 1), wspace=0.08)
        for number, (maps, scale) in enumerate(zip(card.maps, card.scale)):
            axis = figure.add_subplot(levels[number])
            show_map(axis, maps[0, 0], weights[number], COLOURS, box * scale)
    elif card.maps[0].shape[1] == 1:
        axis = figure.add_subplot(place[0])
        show_map(axis, card.maps[0][0, 0], weights[0], COLOURS, box)
    else:
        parts = place[0].subgridspec(BINS, BINS, hspace=0.06, wspace=0.06)
        for part in range(BINS * BINS):
            axis = figure.add_subplot(parts[part])
            own = slice(part, part + 1)
            show_map(axis, card.maps[0][0, part], weights[0][own], COLOURS[own], box, part + 1)
    show_output(figure.add_subplot(place[1]), output)


def draw() -> Any:
    """The cards in two columns."""
    drawn, texts = cards(), bin_values()
    rows = (len(drawn) + 1) // 2
    figure = plt.figure(figsize=(theme.WIDTH * 1.24, 3.1 * rows))
    grid = figure.add_gridspec(rows, 2, hspace=0.38, wspace=0.12)
    for index, card in enumerate(drawn):
        whole = grid[index].get_position(figure)
        line = 0.056 / rows
        figure.text(whole.x0, whole.y1 + 1.6 * line, card.name, fontsize=13, weight="bold")
        figure.text(whole.x0, whole.y1 + 0.6 * line, texts[card.name], fontsize=10)
        place = grid[index].subgridspec(1, 2, width_ratios=(1.5, 1), wspace=0.1)
        if isinstance(card, Suppression):
            show_given(figure.add_subplot(place[0]), card)
            show_kept(figure.add_subplot(place[1]), card)
        elif isinstance(card, Overlaps):
            show_overlaps(figure.add_subplot(place[0]), figure.add_subplot(place[1]), card)
        else:
            draw_pooling(figure, place, card)
    for axis in figure.axes:  # maps are white on dark pages, too
        axis.set_facecolor("white")
    return figure


if __name__ == "__main__":
    with plt.rc_context({"savefig.bbox": "tight"}):
        theme.save(draw, Path(__file__).with_name("operators.png"))
