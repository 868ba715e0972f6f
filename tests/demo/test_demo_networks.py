# SPDX-License-Identifier: Apache-2.0
"""Backbones: strides, dilated stage, pretrained weights, frozen batch norm."""

from __future__ import annotations

import lzma
from dataclasses import replace
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
from gluoncv import model_zoo
from support.demo_runs import parameters, run, train, train_arguments

import gluon_roi
from demo_rfcn import checkpoint, networks
from demo_rfcn.model import HoleNet, ModelConfig
from demo_rfcn.networks import NETWORKS

pytestmark = pytest.mark.slow
GOLDEN = Path(__file__).parents[1] / "golden"


def config(network: str) -> ModelConfig:
    """Return a configuration of two classes."""
    return ModelConfig(("a", "b"), network, "psroi", 3, True, (2.0, 4.0), (1.0,))


#: The deepest one has the parts of resnet50_v1b.
EVERY_NETWORK = [
    pytest.param(name, marks=[pytest.mark.night] * (name == "resnet101_v1b")) for name in NETWORKS
]


@pytest.mark.parametrize("network", EVERY_NETWORK)
def test_both_maps_have_the_stride(network):
    net = networks.make_backbone(config(network), {})
    net.initialize()
    stride = config(network).stride
    for features in net(mx.nd.zeros((1, 3, 4 * stride, 6 * stride))):
        assert features.shape[2:] == (4, 6)


def last_stages(network: str, dilate_strided: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the last stage's output of a classification network, and of a backbone made of it."""
    made = [model_zoo.get_model(network, pretrained=False) for _ in range(2)]
    data = mx.nd.random.normal(shape=(1, 3, 96, 160))
    for model in made:
        model.initialize(mx.init.Xavier())
        model(data)
    for parameter, other in zip(*(model.collect_params().values() for model in made)):
        other.set_data(parameter.data())
    classifier, model = made
    backbone = HoleNet(model, dilate_strided)
    expected = data
    for name in ("conv1", "bn1", "relu", "maxpool", "layer1", "layer2", "layer3", "layer4"):
        expected = getattr(classifier, name)(expected)
    return expected.asnumpy(), backbone.last(backbone.early(data)).asnumpy()


@pytest.mark.parametrize("network", ["resnet18_v1b", "resnet50_v1b"])
def test_every_second_cell_equals_the_classifiers(network):
    """Also at the border: both pad with zeros there."""
    expected, dilated = last_stages(network, dilate_strided=False)
    assert dilated.shape[2:] == (6, 10) and expected.shape[2:] == (3, 5)
    limit = 1e-5 * np.abs(expected).max()
    np.testing.assert_allclose(dilated[:, :, ::2, ::2], expected, rtol=0, atol=limit)
    _, of_old_checkpoints = last_stages(network, dilate_strided=True)
    assert np.abs(of_old_checkpoints[:, :, ::2, ::2] - expected).max() > 1e3 * limit


@pytest.fixture
def old_checkpoint(tmp_path) -> Path:
    """A checkpoint that version 1.0.0 wrote after six steps on `eight_images` with k = 3.

    Each of its arrays repeats 61 values, so that the file can be packed.
    """
    path = tmp_path / "old.ckpt"
    path.write_bytes(lzma.decompress((GOLDEN / "rfcn-1.0.0.ckpt.xz").read_bytes()))
    return path


def test_an_old_checkpoint_gives_the_same_outputs(old_checkpoint):
    """Its head had class and box maps apart, and RoIs that ended at their last pixel."""
    stored = checkpoint.read(old_checkpoint)
    net = networks.build(stored.config, [mx.cpu()], seed=1)
    stored.load_parameters(net)
    expected = np.load(GOLDEN / "rfcn-1.0.0.npz")
    data = np.sin(np.arange(3 * 64 * 64)).reshape(1, 3, 64, 64)
    score, offsets, _, features = net(mx.nd.array(data))
    rois = expected["rois"] + np.array([0, 0, 0, 1, 1], np.float32)
    found = (score, offsets, *net.head(features, mx.nd.array(rois)))
    for name, array in zip(("rpn_score", "rpn_offsets", "cls", "box"), found):
        limit = 1e-5 * np.abs(expected[name]).max()
        np.testing.assert_allclose(array.asnumpy(), expected[name], rtol=0, atol=limit)


def test_an_old_checkpoint_goes_on(old_checkpoint, eight_images, tmp_path):
    """It does not store whether the kernel that had the stride is dilated: all were."""
    read = checkpoint.read(old_checkpoint)
    with np.load(old_checkpoint) as stored:
        for part in ("weight", "bias"):
            names = [f"head.{kind}_maps.{part}" for kind in ("class", "box")]
            for place, state in enumerate(read.optimizer[f"head.maps.{part}"]):
                apart = [stored[f"optimizer/{place}/{name}"] for name in names]
                np.testing.assert_array_equal(state, np.concatenate(apart))
    assert read.config.dilate_strided and set(read.updates.values()) == {6}
    for name, steps in (("resume", 7), ("pretrained", 1)):
        more = f"--{name}", old_checkpoint, "--steps", steps, "--k", 3
        last = train(eight_images, tmp_path / name, *more)
        assert checkpoint.read(last).config.dilate_strided
    net = networks.make_backbone(replace(config("resnet18_v1b"), dilate_strided=True), {})
    assert net.last[0][0].conv1._kwargs["dilate"] == (2, 2)


@pytest.mark.parametrize("network", EVERY_NETWORK)
def test_levels_of_a_pyramid(network):
    """The levels also fit each other if one has an odd number of cells."""
    pyramid = replace(config(network), fpn=True)
    net = networks.make_backbone(pyramid, {})
    net.initialize()
    first, maps = net(mx.nd.zeros((1, 3, 72, 104)))
    assert first.shape == maps[0].shape
    assert [one.shape[2:] for one in maps] == [(9, 13), (5, 7), (3, 4)]
    assert net.levels.strides == (8, 16, 32)
    assert pyramid.stride == 8


def test_pretrained_weights_and_frozen_batch_norm(eight_images, tmp_path, rejects):
    source = model_zoo.resnet18_v1b(pretrained=False, classes=7)
    source.initialize(mx.init.Normal(0.1))
    source(mx.nd.zeros((1, 3, 64, 64)))
    path = tmp_path / "resnet18.params"
    source.save_parameters(str(path))
    line = train_arguments(eight_images, tmp_path, "--steps", "1", "--short", "64", "--overwrite")
    line += ["--pretrained-base", str(path)]
    words = "holds no 'resnet50_v1b' of GluonCV: "
    rejects([*line, "--network", "resnet50_v1b"], words)
    rejects(line, "not 'small'")
    rejects([*line, "--pretrained-base", tmp_path / "none"], "none is missing")
    run(*line, "--network", "resnet18_v1b", "--lr", "1e-6", "--freeze-bn")

    net = networks.build(config("resnet18_v1b"), [mx.cpu()], 0, True, str(path))
    expected = source.layer4[0].conv1.weight.data().asnumpy()
    np.testing.assert_array_equal(net.backbone.last[0][0].conv1.weight.data().asnumpy(), expected)
    deformable, pyramid = (
        networks.build(replace(config("resnet18_v1b"), **more), [mx.cpu()], 0, True, str(path))
        for more in ({"deform": True}, {"fpn": True, "head": "roi_fc"})
    )
    for layer in (deformable.backbone.last[0][0], pyramid.backbone.stages[-1][0]):
        np.testing.assert_array_equal(layer.conv1.weight.data().asnumpy(), expected)
    frozen = net.collect_params(".*(gamma|beta)").values()
    assert frozen and all(parameter.grad_req == "null" for parameter in frozen)
    before = [p.data().asnumpy() for p in net.collect_params(".*running.*").values()]
    with mx.autograd.record():
        net.backbone(mx.nd.random.normal(shape=(1, 3, 64, 64)))
    after = [p.data().asnumpy() for p in net.collect_params(".*running.*").values()]
    assert all((first == second).all() for first, second in zip(before, after))


def test_pretrained_weights_in_the_format_before_mxnet_1_3(tmp_path):
    """Its names are those of the layers, without points."""
    source = model_zoo.get_model("resnet18_v1b", pretrained=False)
    source.initialize(mx.init.Normal(0.1))
    source(mx.nd.zeros((1, 3, 64, 64)))
    path = tmp_path / "resnet18.params"
    source.collect_params().save(str(path), strip_prefix=source.prefix)
    net = networks.build(config("resnet18_v1b"), [mx.cpu()], 0, pretrained_base=str(path))
    loaded, expected = (
        layer.weight.data().asnumpy() for layer in (net.backbone.early[0], source.conv1)
    )
    np.testing.assert_array_equal(loaded, expected)


PYRAMIDS = ("small roi_fc", "resnet50_v1b light_head")
MODELS = ["small psroi", "resnet18_v1b deformable_psroi", PYRAMIDS[0]]


@pytest.mark.parametrize("model", [*MODELS, pytest.param(PYRAMIDS[1], marks=pytest.mark.night)])
def test_a_deformable_backbone_starts_as_the_plain_one(model):
    """It has the same weights, and offsets of 0."""
    network, head = model.split()
    plain = replace(config(network), head=head, fpn=model in PYRAMIDS)
    nets = [networks.build(replace(plain, deform=on), [mx.cpu()], 0) for on in (False, True)]
    named, with_offsets = (net._collect_params_with_prefix() for net in nets)
    assert {name.split(".")[-2] for name in with_offsets.keys() - named.keys()} == {"offset"}
    for name, parameter in named.items():
        np.testing.assert_array_equal(
            parameter.data().asnumpy(), with_offsets[name].data().asnumpy()
        )
    data = mx.nd.random.normal(shape=(1, 3, 64, 96))
    for expected, got in zip(*(net(data) for net in nets)):
        maps = (expected, got) if isinstance(got, list) else ([expected], [got])
        for one, other in zip(*maps):
            scale = one.abs().max().asscalar()
            np.testing.assert_allclose(other.asnumpy(), one.asnumpy(), rtol=0, atol=1e-4 * scale)


def test_a_deformable_run_learns_offsets_and_continues(
    eight_images, short_run, deformable_run, tmp_path, capsys
):
    last = deformable_run / "last.ckpt"
    assert np.abs(parameters(last)["backbone.body.4.conv2.offset.weight"]).max() > 0
    train(eight_images, tmp_path / "a", "--steps", "8", "--resume", last)
    assert "8 steps = 2 passes, from step 6;" in capsys.readouterr().out
    # Weights of the plain network fit.
    plain = ("--pretrained", short_run / "last.ckpt")
    train(eight_images, tmp_path / "c", *plain, "--deform", "--steps", "1")
    convolutions = [f"backbone.body.4.conv{number}.offset" for number in (1, 2)]
    assert f"from scratch: {', '.join(convolutions)}\n" in capsys.readouterr().out


def test_operators_of_a_detector():
    deformable = replace(config("small"), deform=True)
    detect = networks.detector(networks.build(deformable, [mx.cpu()], 0))
    detect(mx.nd.zeros((1, 3, 64, 64)))
    used = {name: uses for name, uses in gluon_roi.count(detect).items() if uses}
    operators = {"PSROIPool": 1, "BoxNMS": 2, "DeformableSampling": 2}
    assert used == {f"_gluon_roi_{name}": uses for name, uses in operators.items()}


def test_random_weights_follow_from_the_seed():
    weights = [
        networks.build(config("small"), [mx.cpu()], seed).head.maps.weight.data().asnumpy()
        for seed in (0, 0, 1)
    ]
    np.testing.assert_array_equal(weights[0], weights[1])
    assert (weights[0] != weights[2]).any()
