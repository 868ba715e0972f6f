# SPDX-License-Identifier: Apache-2.0
"""Pictures of a run: detections and curves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import numpy as np  # noqa: E402
from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.patches import Rectangle  # noqa: E402

from ..data.dataset import DetectionSet  # noqa: E402
from ..files import replacing  # noqa: E402
from ..model.detections import Detection  # noqa: E402

plt.rcParams["figure.dpi"] = 110


def class_colours(count: int) -> list[tuple[float, ...]]:
    """Return one RGB colour per class index, the same in every picture."""
    return [plt.get_cmap("hsv")(index / count)[:3] for index in range(count)]


def frame(
    axis: Axes, box: Sequence[float], colour: Any, width: float = 1, linestyle: str = "-"
) -> None:
    """Draw a box, x1, y1, x2, y2."""
    x1, y1, x2, y2 = box
    rectangle = Rectangle((x1, y1), x2 - x1, y2 - y1, fill=False, edgecolor=colour)
    rectangle.set(linewidth=width, linestyle=linestyle)
    axis.add_patch(rectangle)


def text_colour(background: tuple[float, ...]) -> str:
    """Return black or white, whichever is read more easily on an RGB colour."""
    red, green, blue = (side**2.2 for side in background)
    return "black" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.18 else "white"


def draw_detections(
    axis: Axes,
    image: np.ndarray,
    detection: Detection,
    classes: tuple[str, ...],
    thresh: float,
    fontsize: float,
) -> None:
    """Draw the detections of one image that score at least thresh, the best one on top."""
    axis.imshow(image)
    axis.set_axis_off()
    axis.apply_aspect()  # the axis has its final size, which labels are kept within
    colours = class_colours(len(classes))
    kept = [row for row in zip(*detection) if row[1] >= thresh]
    for cls, _, box in reversed(kept):
        frame(axis, box, colours[cls], 2)
    for cls, score, box in reversed(kept):
        label(axis, box, f"{classes[cls]} {score:.2f}", colours[cls], fontsize)


def size_of(image: np.ndarray) -> tuple[float, float]:
    """Return the size of a picture of one image in inches: the longer side is 9, none below 2."""
    height, width = image.shape[:2]
    return max(9 * width / max(image.shape), 2), max(9 * height / max(image.shape), 2)


def label(
    axis: Axes, box: np.ndarray, text: str, colour: tuple[float, ...], fontsize: float
) -> None:
    """Write a text on a box, above its first corner if there is room, and always in the image."""
    written = axis.text(
        box[0],
        box[1],
        text,
        fontsize=fontsize,
        color=text_colour(colour),
        verticalalignment="top",
        bbox={"facecolor": colour, "edgecolor": "none", "pad": 1.5},
    )
    figure = axis.get_figure()
    assert isinstance(figure, Figure)
    renderer = FigureCanvasAgg(figure).get_renderer()
    covered = written.get_window_extent(renderer).padded(1.5 * figure.dpi / 72)
    within = axis.get_window_extent(renderer)
    x = min(covered.x0, within.x1 - covered.width)
    y = min(covered.y1 + covered.height, within.y1)
    shift = np.array([max(x, within.x0) - covered.x0, max(y, within.y0) - covered.y1])
    x, y = axis.transData.transform((box[0], box[1])) + shift
    written.set_position(tuple(axis.transData.inverted().transform((x, y))))


def detections(
    path: Path,
    dataset: DetectionSet,
    found: dict[int, Detection],
    thresh: float = 0.5,
    columns: int = 4,
) -> None:
    """Draw images with their true boxes (white, dashed; dotted when difficult) and detections.

    Parameters
    ----------
    path : pathlib.Path
    dataset : dataset.DetectionSet
    found : dict of int to Detection
        By image index.
    thresh : float
        Lowest score drawn.
    columns : int
    """
    rows = -(-len(found) // columns)
    size = 3.2 * columns, 3.2 * rows + 0.5
    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False)
    figure.suptitle(f"Detections scored {thresh} or more; true boxes dashed, difficult ones dotted")
    figure.subplots_adjust(0, 0, 1, 1 - 0.5 / size[1], wspace=0.03, hspace=0.03)
    for axis in axes.flat[len(found) :]:
        axis.set_axis_off()
    for axis, (index, detection) in zip(axes.flat, found.items()):
        image, truth = dataset[index]
        draw_detections(axis, image.asnumpy(), detection, dataset.classes, thresh, 7)
        for *box, _, difficult in truth:
            frame(axis, box, "white", 1.2, ":" if difficult else "--")
    write(figure, path)


def curves(folder: Path, history: dict) -> list[Path]:
    """Write loss.png and map.png from the history of a run and return their paths."""
    figure, axis = plt.subplots(figsize=(7, 4))
    rows = history["losses"]
    steps = [row["step"] for row in rows]
    names = [name for name in rows[0] if name != "step"]
    marker = "o" if len(rows) < 10 else None
    for name in names:
        values = _smooth([row[name] for row in rows])
        axis.plot(steps, values, marker=marker, markersize=3, label=name)
    total = [sum(row[name] for name in names) for row in rows]
    axis.plot(steps, total, color="0.75", zorder=0, label="sum, not smoothed")
    axis.plot(steps, _smooth(total), marker=marker, markersize=3, color="black", label="sum")
    axis.set(xlabel="step", ylabel="loss per image", title="Training loss", ylim=(0, None))
    axis.legend()
    axis.grid(alpha=0.3)
    loss_path = folder / "loss.png"
    write(figure, loss_path)

    figure, axis = plt.subplots(figsize=(7, 4))
    rows = history["val"]
    for key, label in (("map50", "mAP@.5"), ("map75", "mAP@.75")):
        axis.plot([row["step"] for row in rows], [row[key] for row in rows], "o-", label=label)
    axis.set(xlabel="step", ylabel="mAP", title="Validation images during training")
    axis.set_ylim(0, 1.02)
    axis.legend(loc="lower right")
    axis.grid(alpha=0.3)
    map_path = folder / "map.png"
    write(figure, map_path)
    return [loss_path, map_path]


def _smooth(values: list[float], width: int = 5) -> np.ndarray:
    """Return the running mean of a curve, shorter windows at its ends."""
    kernel = np.ones(min(width, len(values)))
    return np.convolve(values, kernel, "same") / np.convolve(np.ones(len(values)), kernel, "same")


def write(figure: Figure, path: Path) -> None:
    """Save and close a figure."""
    with replacing(path) as part:
        figure.savefig(part, bbox_inches="tight")
    plt.close(figure)
