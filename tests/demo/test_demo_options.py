# SPDX-License-Identifier: Apache-2.0
"""An option acts or is refused, before any training; every default is shown."""

from __future__ import annotations

import dataclasses
import re
import shlex

import mxnet as mx
import pytest
from support.damages import change_checkpoint
from support.demo_runs import settings_of, train_arguments

from demo_rfcn import checkpoint, cli, networks
from demo_rfcn.config import Settings

pytestmark = pytest.mark.usefixtures("no_training")

REFUSED = {
    "train --short 600 --max-size 500": "--max-size 500 with --short 600, expected a limit of at",
    "train --max-size 100": "--max-size 100 with --short 160, expected a limit of at least --short",
    "train --scale-jitter 0.8 1.2": "--scale-jitter 0.8 1.2 with --short 160, expected --max-size "
    "192 or more, got 160",
    "train --rpn-num-sample 1": "argument --rpn-num-sample: expected an integer >= 2, got 1",
    "train --roi-num-sample 129": "--roi-num-sample: expected an integer from 1 to 128, got 129",
    "train --anchor-scales 2 0": "--anchor-scales: expected a number from 0.01 to 1000, got 0",
    "train --anchor-ratios 2 2": "train: --anchor-ratios 2 2, expected 1 to 100 different numbers",
    "train --momentum 0.5": "train: --momentum has no effect here, expected --optimizer sgd",
    "train --lr-decay 0.5": "train: --lr-decay has no effect here, expected --lr-mode step",
    "train --lr-decay-steps 3": "train: --lr-decay-steps has no effect here, expected --lr-mode st",
    "train --head global --k 3": "train: --head 'global' with --k 3, expected --k 1",
    "train --val-share 0.2": "train: --val-share has no effect here, expected training data ",
    "train --dataset voc-like --dataset-root LISTS --val-share 0.2": "--val-share 0.2 has no ",
    "train --data-seed 1": "train: --data-seed has no effect here, expected a data set that this ",
    "demo --dataset voc --data-seed 1": "demo: --data-seed has no effect here, expected a data set",
    "eval --pretrained RUN/last.ckpt --data-seed 1": "eval: --data-seed has no effect here, ",
    "eval --pretrained RUN/last.ckpt --val-share 0.2": "eval: --val-share has no effect here, exp",
    "train --gpus 0 --cpus 2": "train: --cpus has no effect here, expected no --gpus",
    "train --resume RUN/last.ckpt --pretrained RUN/last.ckpt": "train: --resume with --pretrained,",
    "train --resume RUN/last.ckpt --pretrained-base x": "train: --resume with --pretrained-base, e",
    "train --pretrained RUN/last.ckpt --pretrained-base x": "train: --pretrained with --pretrained-"
    "base, expected one of them: a detector has the weights of its backbone",
    "train --kv-store local": "train: --kv-store has no effect here, expected several --gpus or -",
    "train --lr-mode step --lr-decay-steps 3 6": "train: --lr-decay-steps 6 with --steps 6, expect",
    "train --resume RUN/last.ckpt --steps 4": "train: --steps 4 is below the step of RUN/last.ckpt",
    "train --kv-stor local": "unrecognized arguments: --kv-stor local",
    "train --dataset coco --train-annotations a --train-images b": "train: --dataset-root has no "
    "effect here, expected no --train-annotations or --val-annotations: they replace the folder",
    "data --short 200": "unrecognized arguments: --short 200",
    "data --dataset voc": "argument --dataset: invalid choice: 'voc'",
    "launch -- train --kv-store=local": "launch: --kv-store local, expected dist_sync or dist_dev",
    "launch -- train --kv-stor local": "unrecognized arguments: --kv-stor local",
    "launch --worker 3 -- train": "unrecognized arguments: --worker 3",
}


@pytest.mark.parametrize("line", REFUSED)
def test_an_option_without_effect_is_refused(line, eight_images, short_run, tmp_path, rejects):
    words, lists = REFUSED[line], eight_images / "VOC2007"
    for name, path in {"RUN": short_run, "LISTS": lists}.items():
        line, words = line.replace(name, str(path)), words.replace(name, str(path))
    command, *more = shlex.split(line)
    if command == "train":
        more = [*train_arguments(eight_images, tmp_path / "run")[1:], *more]
    (message,) = rejects([command, *more], words)
    assert not (tmp_path / "run").exists()


def test_options_act():
    """The same options where they have an effect."""
    jitter = settings_of(["train", "--scale-jitter", "0.8", "1.2", "--max-size", "192"])
    assert jitter.data.scale == (160, 192)
    assert settings_of(["train", "--short", "200"]).data.scale == (200, 200)
    assert settings_of(["train", "--dataset", "voc"]).data.scale == (600, 1000)
    assert settings_of(["train", "--head", "global"]).model.k == 1
    sgd = settings_of(["train", "--optimizer", "sgd", "--momentum", "0.5"])
    assert sgd.schedule.momentum == 0.5
    coco = ["train", "--dataset", "coco", "--train-annotations", "a", "--train-images", "b"]
    assert settings_of([*coco, "--val-share", "0.2"]).data.val_share == 0.2
    anchors = settings_of(["train", "--dataset", "voc", "--anchor-scales", "4", "8"])
    config = anchors.model_config(("a",))
    assert (config.anchor_scales, config.anchor_ratios) == ((4, 8), (0.5, 1, 2))
    assert config.anchors.shape == (6, 4)


def test_an_old_run_had_the_anchors_of_its_data():
    """Its checkpoint has them in its configuration, but not among its options."""
    settings = settings_of(["train", "--dataset", "voc-like"])
    stored = settings.to_dict()
    del stored["anchor_scales"], stored["anchor_ratios"]
    assert settings.differences(stored) == []


@pytest.mark.parametrize("ohem", [True, False])
def test_the_sample_of_the_heads_loss_is_an_option(ohem):
    losses = networks.roi_loss(ohem, num_sample=3)
    rois = mx.nd.random.normal(shape=(1, 9, 5)), mx.nd.random.normal(shape=(1, 9, 4))
    targets = mx.nd.zeros((1, 9)), mx.nd.zeros((1, 9, 4)), mx.nd.zeros((1, 9)), mx.nd.ones((1, 9))
    scores = rois[0].copy()
    scores.attach_grad()
    with mx.autograd.record():
        loss, _ = losses(scores, rois[1], *targets)
    loss.backward()
    assert (scores.grad.asnumpy().any(axis=-1)).sum() == 3


def test_fine_tuning_keeps_batch_normalisation_frozen(short_run, tmp_path):
    arguments = {**checkpoint.read(short_run / "last.ckpt").arguments, "freeze_bn": True}
    change_checkpoint(tmp_path / "frozen.ckpt", short_run / "last.ckpt", "arguments", arguments)
    for path, freeze_bn in ((short_run / "last.ckpt", False), (tmp_path / "frozen.ckpt", True)):
        settings = settings_of(["train", "--pretrained", str(path)])
        assert settings.model.freeze_bn == freeze_bn
        assert settings_of(["train", "--resume", str(path)]).model.freeze_bn == freeze_bn


def test_settings_are_frozen():
    for part in (Settings(), *vars(Settings()).values()):
        name = dataclasses.fields(part)[0].name
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(part, name, None)


def test_a_stored_option_is_the_option_of_a_command_line(short_run):
    """All options of a run come back from its checkpoint, with their types."""
    resumed = settings_of(["train", "--resume", str(short_run / "last.ckpt")])
    options = cli.checkpoint.read(short_run / "last.ckpt").arguments
    assert {**resumed.to_dict(), "resume": None} == options


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_help_shows_every_default(command, capsys):
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    # An option begins a line after two spaces; "-h, --help" is the first one.
    # Python before 3.10 says "optional arguments".
    text = re.split(r"\n(?:options|optional arguments):\n", capsys.readouterr().out)[1]
    _, *options = re.split(r"\n  (?=-)", "\n" + text)
    assert options
    for option in options[1:]:
        assert "(default:" in option, option
