# SPDX-License-Identifier: Apache-2.0
"""Pictures of a run: detections and curves."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from matplotlib import font_manager
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.font_manager import FontProperties
from matplotlib.ft2font import FT2Font
from matplotlib.patches import Rectangle

from ..data.dataset import DetectionSet
from ..files import replacing
from ..predictor import Detection

plt.switch_backend("agg")
plt.rcParams["figure.dpi"] = 110
MAX_PIXELS = 1000  # longest side of a drawn image; 9 inches at 110 dots per inch


def class_colours(count: int) -> list[tuple[float, ...]]:
    """Return one RGB colour per class index, the same in every picture."""
    return [plt.get_cmap("hsv")(index / count)[:3] for index in range(count)]


def show_image(axis: Axes, image: np.ndarray) -> None:
    """Draw an image (H, W, 3); coordinates are edges of its pixels, as in boxes.

    A photograph is scaled before Matplotlib colours each of its pixels.
    """
    height, width = image.shape[:2]
    scale = MAX_PIXELS / max(height, width)
    if scale < 1:
        size = max(round(scale * width), 1), max(round(scale * height), 1)
        image = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
    axis.imshow(image, extent=(0, width, height, 0))


def class_label(classes: Sequence[str], cls: int) -> tuple[str, FontProperties]:
    """Return the name of a class as the pictures write it, and a font that has its characters.

    The name is "class <index>" if no font that is installed has them.
    """
    font = find_font(frozenset(classes[cls]))
    # Matplotlib takes text between two dollars for a formula.
    return (classes[cls].replace("$", r"\$"), font) if font else (f"class {cls}", FontProperties())


@lru_cache(maxsize=None)
def find_font(characters: frozenset[str]) -> FontProperties | None:
    """Return a font with these characters and the digits of scores, if possible the default."""
    needed = characters.union("0123456789. ")
    default = font_manager.findfont(FontProperties())
    fonts = font_manager.fontManager.ttflist
    # "Last Resort", which Matplotlib brings along, has the same box for each character.
    others = [f for f in fonts if f.style == "normal" and not f.name.startswith("Last Resort")]
    # Plain and sans-serif ones come first.
    others.sort(key=lambda entry: (entry.weight != 400, "Sans" not in entry.name, entry.fname))
    for path in dict.fromkeys([default, *(entry.fname for entry in others)]):
        try:
            has_all = all(FT2Font(path).get_char_index(ord(each)) for each in needed)
        except (OSError, RuntimeError):  # removed since Matplotlib made its list, or damaged
            continue
        if has_all:
            return FontProperties(fname=path)
    return None


def frame(
    axis: Axes, box: Sequence[float], colour: Any, width: float = 1, linestyle: str = "-"
) -> None:
    """Draw a box, x1, y1, x2, y2."""
    x1, y1, x2, y2 = box
    how = {"edgecolor": colour, "linewidth": width, "linestyle": linestyle}
    axis.add_patch(Rectangle((x1, y1), x2 - x1, y2 - y1, fill=False, **how))


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
    """Draw the detections of one image that score at least thresh, the best one on top.

    A label is above its box, or in it at the top of the image, towards the side with more room.
    """
    show_image(axis, image)
    colours = class_colours(len(classes))
    kept = [row for row in zip(*detection) if row[1] >= thresh]
    for cls, _, box in reversed(kept):
        frame(axis, box, colours[cls], 2)
    height, width = image.shape[:2]
    for cls, score, (x1, y1, x2, _) in reversed(kept):
        left = x1 + x2 < width
        name, font = class_label(classes, cls)
        axis.text(
            np.clip(x1 if left else x2, 0, width),
            max(y1, 0),
            f"{name} {score:.2f}",
            fontproperties=font,
            fontsize=fontsize,
            color=text_colour(colours[cls]),
            horizontalalignment="left" if left else "right",
            verticalalignment="bottom" if y1 > 0.1 * height else "top",
            clip_on=True,
            bbox={"facecolor": colours[cls], "edgecolor": "none", "pad": 0},
        )


def grid(count: int, side: float, above: float = 0) -> tuple[Any, list[Axes]]:
    """Return a figure and its axes without frames, four in a row; sizes are in inches."""
    rows = -(-count // 4)
    size = 4 * side, rows * side + above
    figure, axes = plt.subplots(rows, 4, figsize=size, squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    return figure, list(axes.flat)


def detections(path: Path, dataset: DetectionSet, found: dict[int, Detection]) -> None:
    """Draw images with their true boxes and their detections, by image index."""
    thresh = 0.5
    figure, axes = grid(len(found), 3.2, 0.5)
    figure.suptitle(f"Detections scored {thresh} or more; true boxes dashed, difficult ones dotted")
    figure.subplots_adjust(0, 0, 1, 1 - 0.5 / figure.get_figheight(), wspace=0.03, hspace=0.03)
    for axis, (index, detection) in zip(axes, found.items()):
        draw_detections(axis, dataset.read(index), detection, dataset.classes, thresh, 7)
        for *box, _, difficult in dataset.labels[index]:
            frame(axis, box, "white", 1.2, ":" if difficult else "--")
    write(figure, path)


def curves(folder: Path, history: dict[str, list[dict[str, float]]]) -> None:
    """Write loss.png and map.png from the history of a run, which has a row of losses at least."""
    rows = history["losses"]
    lines = {name: [row[name] for row in rows] for name in rows[0]}
    steps = lines.pop("step")
    total = np.sum([*lines.values()], axis=0).tolist()
    figure, axis = plt.subplots(figsize=(7, 4))
    axis.plot(steps, total, color="0.75", label="sum, not smoothed")
    for name, values in {**lines, "sum": total}.items():
        colour = "black" if name == "sum" else None
        axis.plot(steps, _smooth(values), "o-" if len(rows) < 10 else "-", label=name, color=colour)
    axis.set(xlabel="step", ylabel="loss per image", title="Training loss", ylim=(0, None))
    _finish(axis, folder / "loss.png")

    figure, axis = plt.subplots(figsize=(7, 4))
    rows = history["val"]
    for key, name in (("map50", "mAP@0.5"), ("map75", "mAP@0.75")):
        axis.plot([row["step"] for row in rows], [row[key] for row in rows], "o-", label=name)
    title = "Validation images during training"
    if trained_on := max((row.get("trained_on", 0) for row in rows), default=0):
        title += f", {trained_on:.0f} of which are trained on"
    axis.set(xlabel="step", ylabel="mAP", title=title, ylim=(0, 1.02))
    _finish(axis, folder / "map.png")


def _finish(axis: Axes, path: Path) -> None:
    axis.legend()
    axis.grid(alpha=0.3)
    write(axis.figure, path)


def _smooth(values: list[float]) -> np.ndarray:
    """Return the running mean of five values, of fewer at the ends."""
    kernel = np.ones(min(5, len(values)))
    return np.convolve(values, kernel, "same") / np.convolve(np.ones(len(values)), kernel, "same")


def write(figure: Any, path: Path) -> None:
    """Save and close a figure."""
    with replacing(path) as part:
        figure.savefig(part, bbox_inches="tight")
    plt.close(figure)
