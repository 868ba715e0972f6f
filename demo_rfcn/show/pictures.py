"""Pictures of a run: detections, score maps, curves. Every function writes one PNG."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import mxnet as mx  # noqa: E402
import numpy as np  # noqa: E402
from gluoncv.utils.viz import plot_bbox  # noqa: E402
from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.patches import Rectangle  # noqa: E402

from ..data import Dataset  # noqa: E402
from ..data.loader import normalise  # noqa: E402
from ..files import replacing  # noqa: E402
from ..model.detections import Detection  # noqa: E402
from ..model.detector import RFCN  # noqa: E402

DPI = 110


def class_colours(count: int) -> dict[int, tuple]:
    """Return one RGBA colour per class index, the same in every picture."""
    return {index: plt.get_cmap("hsv")(index / count) for index in range(count)}


def draw_detections(
    axis: Axes, image: np.ndarray, detection: Detection, classes: tuple[str, ...], thresh: float
) -> None:
    """Draw the detections of one image that score at least thresh."""
    plot_bbox(
        image,
        detection.boxes,
        scores=detection.scores,
        labels=detection.ids,
        thresh=thresh,
        class_names=classes,
        colors=class_colours(len(classes)),
        ax=axis,
        linewidth=2,
        fontsize=6,
    )
    axis.set_axis_off()


def detections(
    path: Path,
    dataset: Dataset,
    found: dict[int, Detection],
    thresh: float = 0.5,
    columns: int = 4,
) -> None:
    """Draw images with their true boxes (white, dashed; dotted when difficult) and detections.

    Parameters
    ----------
    path : pathlib.Path
    dataset : VOCFolder
    found : dict of int to Detection
        By image index.
    thresh : float
        Lowest score drawn.
    columns : int
    """
    rows = -(-len(found) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(3.2 * columns, 3.2 * rows), squeeze=False)
    for axis in axes.flat[len(found) :]:
        axis.set_axis_off()
    for axis, (index, detection) in zip(axes.flat, found.items()):
        image, truth = dataset[index]
        draw_detections(axis, image.asnumpy(), detection, dataset.classes, thresh)
        for x1, y1, x2, y2, _, difficult in truth:
            style = ":" if difficult else "--"
            frame = Rectangle(
                (x1, y1), x2 - x1, y2 - y1, fill=False, edgecolor="white", linestyle=style
            )
            axis.add_patch(frame)
    figure.suptitle(f"Detections scored {thresh} or more; true boxes dashed, difficult ones dotted")
    # Not tight_layout: it would shrink the images until the labels that stick out fit between them.
    figure.subplots_adjust(left=0, right=1, bottom=0, top=0.94, wspace=0.08, hspace=0.08)
    write(figure, path)


def curves(folder: Path, history: dict) -> list[Path]:
    """Write loss.png and map.png from the history of a run and return their paths."""
    figure, axis = plt.subplots(figsize=(7, 4))
    rows = history["losses"]
    steps = [row["step"] for row in rows]
    names = [name for name in rows[0] if name != "step"]
    for name in names:
        axis.plot(steps, _smooth([row[name] for row in rows]), label=name)
    total = [sum(row[name] for name in names) for row in rows]
    axis.plot(steps, total, color="0.8", zorder=0)
    axis.plot(steps, _smooth(total), color="black", label="sum")
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


def votes(
    net: RFCN, image: np.ndarray, rois: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Look inside a position-sensitive head.

    Parameters
    ----------
    net : detector.RFCN
    image : numpy.ndarray
        (H, W, 3) uint8, RGB, scaled.
    rois : numpy.ndarray
        (K, 4) boxes in pixels.

    Returns
    -------
    maps : numpy.ndarray
        (C + 1, k, k, H', W') class maps, background first.
    pooled : numpy.ndarray
        (K, C + 1, k, k) votes.
    probability : numpy.ndarray
        (K, C + 1) softmax of the mean votes.
    """
    ctx = net.head.class_maps.weight.list_ctx()[0]
    features = net.backbone(mx.nd.array(normalise(image)[None], ctx=ctx))[1]
    maps = net.head.class_maps(features)
    rows = np.concatenate([np.zeros((len(rois), 1)), rois], axis=1)
    pooled = net.head.class_votes(features, mx.nd.array(rows, ctx=ctx))
    probability = mx.nd.softmax(pooled.mean(axis=(2, 3)))
    k = net.config.k
    maps = maps.asnumpy()[0]
    return maps.reshape(-1, k, k, *maps.shape[1:]), pooled.asnumpy(), probability.asnumpy()


def shifted(box: np.ndarray, height: int, width: int) -> np.ndarray:
    """Move a box by half its size along both axes, towards the middle of the image."""
    x1, y1, x2, y2 = box
    x = (x2 - x1) / 2 * (1 if x1 + x2 < width else -1)
    y = (y2 - y1) / 2 * (1 if y1 + y2 < height else -1)
    return np.clip(box + [x, y, x, y], 0, [width - 1, height - 1] * 2).astype(np.float32)


def score_maps(
    path: Path, net: RFCN, image: np.ndarray, box: np.ndarray, cls: int
) -> dict[str, float]:
    """Draw how a good RoI and a shifted one collect votes, as in figures 3 and 4 of the paper.

    One row per RoI: the image; the k x k maps of one class, each with the RoI and its own bin; the
    votes of the bins; their mean and the probability of the class.

    Parameters
    ----------
    path : pathlib.Path
    net : detector.RFCN
        With a `psroi` head.
    image : numpy.ndarray
        (H, W, 3) uint8, RGB, scaled.
    box : numpy.ndarray
        (4,) the good RoI in pixels of the image.
    cls : int
        Class index, background not counted.

    Returns
    -------
    dict
        Probability of the class for the `good` and the `shifted` RoI.
    """
    height, width = image.shape[:2]
    rois = np.stack([box, shifted(box, height, width)])
    maps, pooled, probability = votes(net, image, rois)
    maps, pooled, probability = maps[cls + 1], pooled[:, cls + 1], probability[:, cls + 1]
    limit = max(np.abs(maps).max(), 1e-6)
    k, name = net.config.k, net.config.classes[cls]
    shades = {"cmap": "RdBu_r", "vmin": -limit, "vmax": limit}

    figure = plt.figure(figsize=(12, 8))
    outer = figure.add_gridspec(2, 3, wspace=0.15, hspace=0.2)
    for row, (title, roi) in enumerate(zip(("good RoI", "shifted RoI"), rois)):
        x1, y1, x2, y2 = roi
        corner, extent = (x1, y1), (x2 - x1, y2 - y1)
        axis = figure.add_subplot(outer[row, 0])
        axis.imshow(image)
        axis.add_patch(Rectangle(corner, *extent, fill=False, edgecolor="yellow", linewidth=2))
        axis.set_title(title)
        axis.set_axis_off()
        inner = outer[row, 1].subgridspec(k, k, wspace=0.05, hspace=0.05)
        for i in range(k):
            for j in range(k):
                axis = figure.add_subplot(inner[i, j])
                axis.imshow(maps[i, j], extent=(0, width, height, 0), **shades)
                axis.add_patch(Rectangle(corner, *extent, fill=False, edgecolor="black"))
                part = (x1 + j * extent[0] / k, y1 + i * extent[1] / k)
                size = (extent[0] / k, extent[1] / k)
                axis.add_patch(Rectangle(part, *size, fill=False, edgecolor="lime", linewidth=2))
                axis.set_axis_off()
                if row == 0 and i == 0 and j == k // 2:
                    axis.set_title(f"{k} x {k} maps of {name},\neach with its bin")
        axis = figure.add_subplot(outer[row, 2])
        axis.imshow(pooled[row], **shades)
        if k <= 4:
            for i, j in np.ndindex(k, k):
                axis.text(j, i, f"{pooled[row, i, j]:.1f}", ha="center", va="center")
        axis.set_xticks([])
        axis.set_yticks([])
        axis.set_title(f"votes: mean {pooled[row].mean():.2f}\nP({name}) = {probability[row]:.3f}")
    write(figure, path)
    return {"good": float(probability[0]), "shifted": float(probability[1])}


def parts(path: Path, net: RFCN, objects: list[tuple[np.ndarray, np.ndarray]]) -> float:
    """Draw where the bins of good RoIs have moved to: as they were dashed, as they are solid.

    Parameters
    ----------
    path : pathlib.Path
    net : detector.RFCN
        With a `deformable_psroi` head.
    objects : list of (numpy.ndarray, numpy.ndarray)
        Images (H, W, 3), uint8, RGB, scaled, each with a RoI (4,) in its pixels.

    Returns
    -------
    float
        Mean distance that a bin has moved, in sides of its RoI.
    """
    columns = 4
    rows = -(-len(objects) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(3 * columns, 3 * rows), squeeze=False)
    k, head = net.config.k, net.head
    ctx = head.class_maps.weight.list_ctx()[0]
    distances = []
    for axis in axes.flat:
        axis.set_axis_off()
    for axis, (image, roi) in zip(axes.flat, objects):
        features = net.backbone(mx.nd.array(normalise(image)[None], ctx=ctx))[1]
        row = mx.nd.array([[0, *roi]], ctx=ctx)
        moves = head.offsets(mx.nd, features, row).asnumpy()[0] * head.TRANS_STD
        distances.append(np.hypot(*moves).mean())
        x1, y1, x2, y2 = roi
        width, height = x2 - x1, y2 - y1
        axis.imshow(image)
        for i, j in np.ndindex(k, k):
            x, y = x1 + j * width / k, y1 + i * height / k
            for right, down, colour, style in (
                (0.0, 0.0, "white", ":"),
                (*moves[:, i, j], "lime", "-"),
            ):
                bin_ = Rectangle(
                    (x + right * width, y + down * height),
                    width / k,
                    height / k,
                    fill=False,
                    edgecolor=colour,
                    linestyle=style,
                )
                axis.add_patch(bin_)
    write(figure, path)
    return float(np.mean(distances))


def write(figure: Figure, path: Path) -> None:
    """Save and close a figure."""
    with replacing(path) as part:
        figure.savefig(part, dpi=DPI, bbox_inches="tight")
    plt.close(figure)
