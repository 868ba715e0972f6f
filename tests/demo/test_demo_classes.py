# SPDX-License-Identifier: Apache-2.0
"""Classes, bins and anchors keep their meaning when weights go to another detector or run."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
from support.demo_data import photographs, write_voc
from support.demo_runs import SMALL, train, train_arguments

from demo_rfcn import checkpoint, networks
from demo_rfcn.model import RFCN, ModelConfig

pytestmark = pytest.mark.slow

OWN = ("--dataset", "voc-like", *SMALL)
FEW = ModelConfig(("cup", "spoon"), "small", "psroi", 3, False, (2.0, 4.0), (1.0, 2.0))


def stored_net(config: ModelConfig, folder: Path) -> checkpoint.Checkpoint:
    """Return a checkpoint of a network with random weights and biases."""
    net = networks.build(config, [mx.cpu()], 1)
    for number, parameter in enumerate(net.collect_params().values()):
        if parameter.name.endswith("bias"):
            parameter.set_data(mx.nd.arange(parameter.shape[0]) + 1000 * number)
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", kvstore=None)
    notes: dict = {
        **{"step": 0, "best": None, "history": {"losses": [], "val": []}, "pending": []},
        **{"arguments": {}, "short": 64, "max_size": 64, "held_back": None, "data": {}},
    }
    checkpoint.save(folder / "stored.ckpt", net, trainer, notes)
    return checkpoint.read(folder / "stored.ckpt")


def outputs(net: RFCN) -> dict[tuple, np.ndarray]:
    """Return what the layers of a network compute for each meaning of their rows."""
    rows, found = networks.row_names(net.config), {}
    for name, parameter in net._collect_params_with_prefix().items():
        for row, value in zip(rows.get(name.rpartition(".")[0], ()), parameter.data().asnumpy()):
            found[(name, *row)] = value
    return found


OTHERS = {
    "order": (replace(FEW, classes=("spoon", "cup")), ""),
    "more": (replace(FEW, classes=("spoon", "fork", "cup", "tea")), "; new classes: fork, tea"),
    "other": (replace(FEW, classes=("fork",)), "; new classes: fork"),
    # As many maps as three classes with 3 x 3 bins have: 36.
    "k": (
        replace(FEW, classes=tuple("abcdefgh"), k=2),
        "trained from scratch: head.maps; new classes: a, b, c, ...",
    ),
    "anchors": (replace(FEW, anchor_scales=(4.0, 2.0)), ""),
    "further anchors": (replace(FEW, anchor_scales=(1.0, 2.0)), ""),
}


@pytest.mark.parametrize("change", OTHERS)
@pytest.mark.parametrize("head", ["psroi", "roi_fc"])
def test_fine_tuning_finds_rows_by_name(change, head, tmp_path):
    config, words = OTHERS[change]
    stored = stored_net(replace(FEW, head=head), tmp_path)
    first, net = (
        networks.build(replace(each, head=head), [mx.cpu()], seed)
        for each, seed in ((FEW, 0), (config, 2))
    )
    stored.load_parameters(first)
    before = outputs(net)
    message = stored.load_fitting(net)
    if head == "psroi":
        assert words in message
    expected = outputs(first)
    assert expected.keys() & before.keys()
    for name, value in outputs(net).items():
        np.testing.assert_array_equal(value, expected.get(name, before[name]))


@pytest.fixture(scope="module")
def own(tmp_path_factory) -> Path:
    """A folder of images with cups and spoons, and a run on them."""
    root = tmp_path_factory.mktemp("own")
    write_voc(root / "data", photographs(["cup", "spoon"], 3))
    train(root / "data/VOC2007", root / "run", *OWN)
    return root


@pytest.mark.parametrize(("count", "classes"), [(6, "cup, tea"), (1, "cup, spoon, tea")])
def test_a_resumed_run_refuses_other_classes(count, classes, own, tmp_path, rejects):
    data = Path(shutil.copytree(own / "data", tmp_path / "data"))
    last = own / "run/last.ckpt"
    line = train_arguments(data / "VOC2007", tmp_path / "run", *OWN, "--resume", last)
    annotations = sorted((data / "VOC2007/Annotations").iterdir())
    for path in [path for path in annotations if b"spoon" in path.read_bytes()][:count]:
        path.write_bytes(path.read_bytes().replace(b"spoon", b"tea"))
    words = f"{last} is of another configuration: classes: cup, spoon, not {classes}"
    rejects([*line, "--steps", "3"], words)
    assert not (tmp_path / "run").exists()


def test_a_resumed_run_refuses_another_order_of_classes(own, tmp_path, rejects):
    line = train_arguments(own / "data/VOC2007", tmp_path / "run", *OWN)
    words = "is of another configuration: classes: cup, spoon, not spoon, cup"
    rejects([*line, "--resume", own / "run/last.ckpt", "--classes", "spoon", "cup"], words)
