# SPDX-License-Identifier: Apache-2.0
"""`data`, `train`, and `demo`, which does everything from scratch to a folder of results."""

from __future__ import annotations

from pathlib import Path

from . import checkpoint, evaluate, files
from .checkpoint import Checkpoint
from .config import LAST, SUMMARY, Data, Settings
from .data import ensure_dataset
from .data.dataset import DetectionSet, summarize
from .errors import CheckpointError, InputError
from .metrics import check_annotated
from .model import SmallResNet
from .provenance import data_record, result_record
from .report.page import check_report_folder, remove_report, report_files
from .run import check_folder
from .train import train


def generate(data: Data) -> None:
    """Generate an embedded data set in VOC layout, unless it exists."""
    made = ensure_dataset(data.dataset, data.dataset_root, data.data_seed)
    print(f"{'wrote' if made else 'reused'} {data.dataset} in {data.dataset_root.resolve()}")


def train_command(
    settings: Settings, resumed: Checkpoint | None, pretrained: Checkpoint | None
) -> None:
    """Train a detector, and print the location of the run."""
    check_start(settings, resumed)
    check_folder(settings, resumed)
    first = resumed or pretrained
    before = first.images if first else None
    train_set, val_set = settings.open("train", "val", before=before)
    start(settings, train_set, val_set, resumed, pretrained)
    folder = settings.output.save_prefix
    print(f"the run is in {folder.resolve()}; its scores, pictures and report.html:")
    print(f"python -m demo_rfcn eval --pretrained {folder / LAST} --save-prefix {folder / 'eval'}")


def demo(settings: Settings, resumed: Checkpoint | None, pretrained: Checkpoint | None) -> None:
    """Make data, train, evaluate, draw; reuse the parts that are complete.

    A part is complete if data, options and step are equal.
    """
    folder = settings.output.save_prefix
    last = folder / LAST
    if last.is_file() and resumed is None:
        resumed = checkpoint.read(last)
        check_run(resumed, settings)
    check_start(settings, resumed)
    check_folder(settings, resumed)
    check_report_folder(folder)
    if settings.data.spec.recipe:
        generate(settings.data)
    # The images of the report too, so that broken ones are named now.
    first = resumed or pretrained
    before = first.images if first else None
    train_set, val_set, test_set = settings.open("train", "val", "test", before=before)
    settings = settings.with_steps(len(train_set))
    if resumed and resumed.path == last and resumed.step >= settings.schedule.steps:
        check_data(resumed, settings, train_set)
        print(f"reused {last}, trained for {resumed.step} steps")
    else:
        start(settings, train_set, val_set, resumed, pretrained)
        resumed = checkpoint.read(last)
    summary_path = folder / SUMMARY
    if is_complete(folder, result_record(resumed, settings.data, test_set)):
        print(f"reused {summary_path}")
        summary = files.read_json(summary_path, "demo")
    else:
        remove_report(folder)
        # Not the best checkpoint: which step scores best on a few images is chance.
        summary = evaluate.report(settings.data, settings.devices, resumed, folder)
    evaluate.print_summary(summary, folder)


def is_complete(folder: Path, made_of: dict) -> bool:
    """Return whether a folder has all files of an evaluation of the same data and checkpoint."""
    written = report_files(folder)
    if not written or not all(path.is_file() for path in written):
        return False
    return files.read_json(folder / SUMMARY, "demo").get("made_of") == made_of


def start(
    settings: Settings,
    train_set: DetectionSet,
    val_set: DetectionSet,
    resumed: Checkpoint | None,
    pretrained: Checkpoint | None,
) -> None:
    """Train on opened data, with the number of steps that follows from them."""
    check_annotated(val_set)
    settings = settings.with_steps(len(train_set))
    images, contexts = settings.devices.batch_size, len(settings.devices.contexts())
    if images < contexts:
        expected = f"expected at least {contexts}, one per context"
        raise InputError(f"train: --batch-size {images}, {expected}")
    share = settings.data.val_share
    if share != Data.val_share and not val_set.held_back:
        expected = "expected training data without a list of validation images"
        raise InputError(f"train: --val-share {share:g} has no effect here, {expected}")
    held_back = val_set if val_set.held_back else None
    for line in summarize(train_set, held_back, settings.data.scale):
        print(f"dataset: {line}")
    if settings.model.network == "small" and not settings.data.spec.recipe and not resumed:
        field = f"--network small sees {SmallResNet.RECEPTIVE_FIELD} pixels around a point"
        advice = "larger objects, as in photographs, need another --network with --pretrained-base"
        print(f"network: {field}; {advice}")
    train(settings, train_set, val_set, resumed, pretrained)


def check_start(settings: Settings, resumed: Checkpoint | None) -> None:
    """Refuse first weights that do not fit, before the data is read."""
    if resumed:
        # The classes of a folder are not known before it is opened.
        classes = settings.data.spec.classes or resumed.config.classes
        resumed.check_config(settings.model_config(classes))
        optimizer, stored = settings.schedule.optimizer, resumed.arguments.get("optimizer")
        if stored != optimizer:
            trained = f"was trained with --optimizer {stored}; this command asks for {optimizer}"
            raise CheckpointError(f"checkpoint: {resumed.path} {trained}")
        if 0 < settings.schedule.steps < resumed.step:
            steps = f"--steps {settings.schedule.steps} is below the step of {resumed.path}"
            raise InputError(f"train: {steps}, {resumed.step}")
    base = settings.model.pretrained_base
    if base and not resumed and not Path(base).is_file():
        raise InputError(
            f"train: --pretrained-base file {base} is missing; "
            "gluoncv.model_zoo.get_model(NAME, pretrained=True) downloads one to ~/.mxnet/models"
        )


def check_run(stored: Checkpoint, settings: Settings, *also: str) -> None:
    """Refuse the checkpoint of another run; see `Settings.differences`."""
    classes = settings.data.spec.classes or stored.config.classes
    stored.check_config(settings.model_config(classes))
    if differences := settings.differences(stored.arguments, *also):
        other = "; ".join([*differences, "choose another --save-prefix for this one"])
        raise CheckpointError(f"checkpoint: {stored.path} is of another run: {other}")


def check_data(stored: Checkpoint, settings: Settings, train_set: DetectionSet) -> None:
    """Refuse a checkpoint of other training data."""
    if stored.data["digest"] != data_record(settings.data, train_set)["digest"]:
        other = f"was trained on images that differ from {settings.data.dataset_root} now"
        raise CheckpointError(f"checkpoint: {stored.path} {other}; choose another --save-prefix")
