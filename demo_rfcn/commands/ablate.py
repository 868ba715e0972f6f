# SPDX-License-Identifier: Apache-2.0
"""`ablate`: the value of position sensitivity and OHEM, as a table and a bar chart.

Every variant is trained with the same seeds and data order. "rotated" evaluates the trained k = 3
detectors again with their map groups rotated by 180 degrees.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np

from .. import files
from ..data.dataset import DetectionSet
from ..model.detections import Finder
from ..model.detector import RFCN
from ..run import checkpoint, evaluate, train
from ..run.record import LAST
from ..settings import Settings
from .train import check_run, generate

REFERENCE = "R-FCN, k = 3"
ROTATED = "R-FCN, k = 3, bins rotated at evaluation"
VARIANTS: dict[str, dict[str, Any]] = {
    REFERENCE: {"head": "psroi", "k": 3},
    "R-FCN, k = 1 (global pooling)": {"head": "global", "k": 1},
    "R-FCN, k = 7": {"head": "psroi", "k": 7},
    "R-FCN, k = 3, bins scrambled": {"head": "scrambled", "k": 3},
    "R-FCN, k = 3, no OHEM": {"head": "psroi", "k": 3, "ohem": False},
    "ROIPool 7 x 7 + 2 fc": {"head": "roi_fc", "k": 7},
}
# On request: variants beyond the question of the study.
FURTHER: dict[str, tuple[str, dict[str, Any]]] = {
    "deformable": ("R-FCN, k = 3, deformable bins", {"head": "deformable_psroi", "k": 3}),
    "fpn": ("FPN, ROIAlign 7 x 7 + 2 fc", {"head": "roi_fc", "k": 7, "fpn": True}),
    "fpn_light": ("FPN, light head", {"head": "light_head", "k": 7, "fpn": True}),
}
SCORES = {"map50": "mAP@.5", "map75": "mAP@.75"}


def command(settings: Settings, seeds: list[int], further: list[str]) -> None:
    """Compare variants of the head and of the training over seeds.

    The results are written after every run, so that an interrupted study shows them so far, and
    finished runs are not repeated. Raises CheckpointError if the folder is of another study.
    """
    if settings.data.spec.recipe:
        generate(settings.data)
    folder = settings.run.save_prefix
    results = folder / "ablation.json"
    rows = files.read_json(results, "ablate") if results.is_file() else []
    variants = [(f"variant{i}", *variant) for i, variant in enumerate(VARIANTS.items())]
    variants += [(key, *FURTHER[key]) for key in FURTHER if key in further]
    runs = []
    for seed, (key, name, changes) in product(dict.fromkeys(seeds), variants):
        place = folder / f"{key}-seed{seed}"
        resume = place / LAST if (place / LAST).is_file() else None
        changes = {**changes, "seed": seed, "save_prefix": place, "resume": resume}
        run = settings.changed(**changes, val_interval=settings.schedule.steps)
        if resume:
            check_run(resume, run, "steps")
        if any(row["variant"] == name and row["seed"] == seed for row in rows):
            print(f"reused: {name}, seed {seed}")
        else:
            runs.append((name, run))
    if runs:
        train_set, val_set, test_set = settings.open("train", "val", "test")
    for name, run in runs:
        print(f"{name}, seed {run.schedule.seed}")
        train.train(run, train_set, val_set)
        rows += score(run, name, test_set)
        files.write_json(results, rows)
        write_table(folder / "ablation.md", rows)
        bar_chart(folder / "ablation.png", rows)
    print((folder / "ablation.md").read_text(encoding="utf-8"), end="")
    print(f"results in {folder.resolve()}")


def score(settings: Settings, name: str, test_set: DetectionSet) -> list[dict]:
    """Return the result rows of a variant's run: one, or two for the reference."""
    # Voting would hide a part of a head's mistakes.
    stored = checkpoint.read(settings.run.save_prefix / LAST)
    ctx = [mx.cpu()]
    find = Finder(stored.detector(ctx, vote_thresh=None), settings.data.scale, ctx)
    row = {"seed": settings.schedule.seed, "steps": settings.schedule.steps}
    rows = []
    for label in (name, ROTATED) if name == REFERENCE else (name,):
        if label == ROTATED:
            rotate_bins(find.detector.net)
        scores = evaluate.evaluate(find, test_set)
        rows.append({"variant": label, **row, **{key: scores[key] for key in SCORES}})
    return rows


def rotate_bins(net: RFCN) -> None:
    """Turn the k x k map groups of a `psroi` head by 180 degrees, in place."""
    k = net.config.k
    for maps in (net.head.class_maps, net.head.box_maps):
        for parameter in (maps.weight, maps.bias):
            value = parameter.data().asnumpy()
            groups = value.reshape(-1, k, k, *value.shape[1:])
            parameter.set_data(mx.nd.array(groups[:, ::-1, ::-1].reshape(value.shape)))


def summarise(rows: list[dict]) -> dict[str, tuple[np.ndarray, np.ndarray, int]]:
    """Return variant -> (means, sample standard deviations or 0, runs), those of `SCORES`."""
    runs: dict[str, list] = {}
    for row in rows:
        runs.setdefault(row["variant"], []).append([row[key] for key in SCORES])
    return {
        name: (np.mean(values, axis=0), np.std(values, axis=0, ddof=len(values) > 1), len(values))
        for name, values in runs.items()
    }


def write_table(path: Path, rows: list[dict]) -> None:
    """Write the summary as a Markdown table."""
    lines = [f"| variant | {' | '.join(SCORES.values())} | seeds |", "|---|---|---|---|"]
    for name, (means, spreads, runs) in summarise(rows).items():
        cells = [f"{mean:.3f}" for mean in means]
        if runs > 1:
            cells = [f"{cell} ± {spread:.3f}" for cell, spread in zip(cells, spreads)]
        lines.append(f"| {name} | {' | '.join(cells)} | {runs} |")
    with files.replacing(path) as part:
        part.write_text("\n".join(lines) + "\n", encoding="utf-8")


def bar_chart(path: Path, rows: list[dict]) -> None:
    """Draw the summary as bars with their spread."""
    from ..show import pictures  # pyplot takes long to import

    table = summarise(rows)
    figure, axis = pictures.plt.subplots(figsize=(8, 0.6 * len(table) + 1.2))
    place = np.arange(len(table))
    means, spreads, runs = (np.array(column) for column in zip(*table.values()))
    for column, (offset, label) in enumerate(zip((-0.2, 0.2), SCORES.values())):
        mean, spread = means[:, column], spreads[:, column]
        bars = axis.barh(place + offset, mean, 0.38, xerr=spread, label=label)
        axis.bar_label(bars, fmt="%.2f", padding=4)
    axis.set_yticks(place, list(table))
    axis.invert_yaxis()
    seeds = "mean and deviation of the seeds" if runs.max() > 1 else "one seed"
    axis.set(xlim=(0, 1.1), xlabel=f"{seeds}, {rows[0]['steps']} steps each")
    axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncol=2)
    pictures.write(figure, path)
