# SPDX-License-Identifier: Apache-2.0
"""The value of position sensitivity and OHEM in the demo, as a table and a bar chart.

    python -m benchmarks.demo_ablation --seeds 0 1 2 --further deformable fpn fpn_light

Every variant is trained with the same seeds and data order, and evaluated without box voting, which
would hide a part of a head's mistakes. "rotated" evaluates the trained k = 3 detectors again with
their map groups rotated by 180 degrees. The results are written after every run to --save-prefix
(runs/ablation): ablation.json, ablation.md and ablation.png; a second call goes on. Further
arguments are those of `python -m demo_rfcn train`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import mxnet as mx
import numpy as np

from demo_rfcn import checkpoint, cli, files
from demo_rfcn.config import LAST, SAME_RUN, Model, Schedule, Settings
from demo_rfcn.data.dataset import DetectionSet
from demo_rfcn.demo import check_run, generate
from demo_rfcn.errors import CheckpointError, InputError, Interrupted, OutputError, RunError
from demo_rfcn.metrics import describe_images, evaluate
from demo_rfcn.model import RFCN
from demo_rfcn.predictor import Predictor
from demo_rfcn.provenance import data_record
from demo_rfcn.run import check_folder
from demo_rfcn.train import train


class Variant(NamedTuple):
    """A variant of the detector or of its training."""

    title: str
    head: str
    k: int
    fpn: bool = False
    ohem: bool = True


class Result(NamedTuple):
    """Mean and sample standard deviation of each of `SCORES` over the runs of a variant."""

    means: np.ndarray
    deviations: np.ndarray  # 0 for a single run
    runs: int


REFERENCE = Variant("R-FCN, k = 3", "psroi", 3)
ROTATED = "R-FCN, k = 3, bins rotated at evaluation"
VARIANTS = (
    REFERENCE,
    Variant("R-FCN, k = 1 (global pooling)", "global", 1),
    Variant("R-FCN, k = 7", "psroi", 7),
    Variant("R-FCN, k = 3, bins scrambled", "scrambled", 3),
    Variant("R-FCN, k = 3, no OHEM", "psroi", 3, ohem=False),
    Variant("ROIPool 7 x 7 + 2 fc", "roi_fc", 7),
)
# On request: variants beyond the question of the study.
OPTIONAL_VARIANTS = {
    "deformable": Variant("R-FCN, k = 3, deformable bins", "deformable_psroi", 3),
    "fpn": Variant("FPN, ROIAlign 7 x 7 + 2 fc", "roi_fc", 7, fpn=True),
    "fpn_light": Variant("FPN, light head", "light_head", 7, fpn=True),
}
SCORES = {"map50": "mAP@0.5", "map75": "mAP@0.75"}
RESULTS = "ablation.json"
# Options that differ between the runs of a study.
VARIED = {"head", "k", "fpn", "ohem", "seed"}


def main(argv: Sequence[str] | None = None) -> None:
    """Compare variants of the head and of the training over seeds."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--further", choices=OPTIONAL_VARIANTS, nargs="+", default=[])
    given, rest = parser.parse_known_args(argv)
    settings = cli.train_settings(["--steps", "1000", "--save-prefix", "runs/ablation", *rest])
    options, defaults = settings.to_dict(), {**vars(Model()), **vars(Schedule())}
    for name in (*sorted(VARIED), "pretrained"):
        if options[name] != defaults[name]:
            raise InputError(f"ablation: --{name} differs between the runs, leave it out")
    folder = settings.output.save_prefix
    rows = read_results(folder)
    variants = [(f"variant{number}", variant) for number, variant in enumerate(VARIANTS)]
    variants += [(name, OPTIONAL_VARIANTS[name]) for name in given.further]
    if settings.data.spec.recipe:
        generate(settings.data)
    train_set, val_set, test_set = settings.open("train", "val", "test")
    made_of = study(settings, train_set, test_set)
    check_study(folder, rows, made_of)
    for seed, (name, variant) in product(dict.fromkeys(given.seeds), variants):
        print(f"{variant.title}, seed {seed}")
        if any((row["variant"], row["seed"]) == (variant.title, seed) for row in rows):
            continue
        run = settings_of(settings, variant, seed, folder / f"{name}-seed{seed}")
        last = run.output.save_prefix / LAST
        stored = checkpoint.read(last) if last.is_file() else None
        if stored:
            check_run(stored, run, "steps")
        check_folder(run, stored)
        train(run, train_set, val_set, stored)
        rows += score(run, variant, test_set, made_of)
        files.write_json(folder / RESULTS, rows)
    write_table(folder / "ablation.md", rows)
    bar_chart(folder / "ablation.png", rows)
    print((folder / "ablation.md").read_text(encoding="utf-8"), end="")


def settings_of(settings: Settings, variant: Variant, seed: int, folder: Path) -> Settings:
    """Return the settings of one run."""
    model = replace(settings.model, head=variant.head, k=variant.k, fpn=variant.fpn)
    schedule = replace(settings.schedule, seed=seed, ohem=variant.ohem)
    output = replace(settings.output, save_prefix=folder, val_interval=schedule.steps)
    return replace(settings, model=model, schedule=schedule, output=output)


def study(settings: Settings, train_set: DetectionSet, test_set: DetectionSet) -> dict[str, Any]:
    """Return what makes all rows of a study: options and data."""
    options = settings.to_dict()
    kept = {n: v for n, v in options.items() if n not in SAME_RUN | VARIED or n == "steps"}
    digests = {
        purpose: data_record(settings.data, dataset)["digest"]
        for purpose, dataset in (("train", train_set), ("test", test_set))
    }
    return {"options": kept, "data": digests}


def read_results(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of an earlier call."""
    path = folder / RESULTS
    rows = files.read_json(path, "ablation") if path.exists() else []
    keys = {"variant", "seed", "made_of", *SCORES}
    if not isinstance(rows, list) or not all(isinstance(r, dict) and keys <= set(r) for r in rows):
        raise InputError(f"ablation: {path} is not of a study; choose another --save-prefix")
    return rows


def check_study(folder: Path, rows: list[dict[str, Any]], made_of: dict[str, Any]) -> None:
    """Refuse rows of other options or other data."""
    for row in rows:
        if row["made_of"] == made_of:
            continue
        options, requested = row["made_of"]["options"], made_of["options"]
        differences = [
            f"{name}: {options.get(name)}, not {requested[name]}"
            for name in requested
            if options.get(name) != requested[name]
        ]
        other = "; ".join(differences) or "its data have changed"
        advice = "choose another --save-prefix for this one"
        path = folder / RESULTS
        raise CheckpointError(f"ablation: {path} is of another study: {other}; {advice}")


def score(
    settings: Settings, variant: Variant, test_set: DetectionSet, made_of: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return the result rows of a variant's run: one, or two for the reference."""
    stored = checkpoint.read(settings.output.save_prefix / LAST)
    ctx = [mx.cpu()]
    predictor = Predictor(stored.detector(ctx, voting=False), settings.data.scale, ctx)
    row = {"seed": settings.schedule.seed, "steps": settings.schedule.steps}
    rows = []
    for title in (variant.title, ROTATED) if variant == REFERENCE else (variant.title,):
        if title == ROTATED:
            rotate_bins(predictor.detector.net)
        scores = evaluate(predictor, test_set)
        figures = {key: scores[key] for key in (*SCORES, "images", "trained_on")}
        rows.append({"variant": title, **row, **figures, "made_of": made_of})
    return rows


def rotate_bins(net: RFCN) -> None:
    """Turn the k x k map groups of a `psroi` head by 180 degrees, in place."""
    k = net.config.k
    for parameter in (net.head.maps.weight, net.head.maps.bias):
        value = parameter.data().asnumpy()
        groups = value.reshape(-1, k, k, *value.shape[1:])
        parameter.set_data(mx.nd.array(groups[:, ::-1, ::-1].reshape(value.shape)))


def summarise(rows: list[dict[str, Any]]) -> dict[str, Result]:
    """Return the result of each variant by its title."""
    runs: dict[str, list] = {}
    for row in rows:
        runs.setdefault(row["variant"], []).append([row[key] for key in SCORES])
    return {
        title: Result(
            np.mean(values, axis=0), np.std(values, axis=0, ddof=len(values) > 1), len(values)
        )
        for title, values in runs.items()
    }


def write_table(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write the summary as a Markdown table."""
    lines = [f"| variant | {' | '.join(SCORES.values())} | seeds |", "|---|---|---|---|"]
    for title, result in summarise(rows).items():
        cells = [f"{mean:.3f}" for mean in result.means]
        if result.runs > 1:
            cells = [f"{cell} ± {value:.3f}" for cell, value in zip(cells, result.deviations)]
        lines.append(f"| {title} | {' | '.join(cells)} | {result.runs} |")
    if rows[0].get("trained_on"):
        lines += ["", f"On {describe_images(rows[0])}."]
    with files.replacing(path) as part:
        part.write_text("\n".join(lines) + "\n", encoding="utf-8")


def bar_chart(path: Path, rows: list[dict[str, Any]]) -> None:
    """Draw the summary as bars with their deviations."""
    from demo_rfcn.report import pictures  # the import of pyplot needs a second

    table = summarise(rows)
    figure, axis = pictures.plt.subplots(figsize=(8, 0.6 * len(table) + 1.2))
    place = np.arange(len(table))
    for column, (offset, label) in enumerate(zip((-0.2, 0.2), SCORES.values())):
        mean = np.array([result.means[column] for result in table.values()])
        spread = np.array([result.deviations[column] for result in table.values()])
        bars = axis.barh(place + offset, mean, 0.38, xerr=spread, label=label)
        axis.bar_label(bars, fmt="%.2f", padding=4)
    axis.set_yticks(place, list(table))
    axis.invert_yaxis()
    several = any(result.runs > 1 for result in table.values())
    seeds = "mean and deviation of the seeds" if several else "one seed"
    axis.set(xlim=(0, 1.1), xlabel=f"{seeds}, {rows[0]['steps']} steps each")
    axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncol=2)
    pictures.write(figure, path)


if __name__ == "__main__":
    try:
        main()
    except (InputError, OutputError, RunError, Interrupted) as error:
        raise SystemExit(f"demo_ablation: {error}") from None
