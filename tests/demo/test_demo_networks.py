# SPDX-License-Identifier: Apache-2.0
"""Backbones: strides, dilated stage, pretrained weights, frozen batch norm, mixed precision."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import mxnet as mx
import numpy as np
import pytest
from gluoncv import model_zoo
from support.demo_runs import REPOSITORY, history, parameters, python, run, train, train_arguments

import gluon_roi
from demo_rfcn.model import detector
from demo_rfcn.model.config import ModelConfig
from demo_rfcn.model.network import BACKBONES, FPN_BACKBONES, backbone_stride

pytestmark = pytest.mark.slow


def config(network: str) -> ModelConfig:
    """Return a configuration of two classes."""
    return ModelConfig(("a", "b"), network, "psroi", 3, True, (2.0, 4.0), (1.0,))


@pytest.mark.parametrize("network", sorted(BACKBONES))
def test_both_maps_have_the_stride(network):
    net = BACKBONES[network]({})
    net.initialize()
    stride = backbone_stride(network, fpn=False)
    for features in net(mx.nd.zeros((1, 3, 4 * stride, 6 * stride))):
        assert features.shape[2:] == (4, 6)


@pytest.mark.parametrize("network", sorted(FPN_BACKBONES))
def test_levels_of_a_pyramid(network):
    """The levels also fit each other if one has an odd number of cells."""
    net = FPN_BACKBONES[network]({})
    net.initialize()
    first, maps = net(mx.nd.zeros((1, 3, 72, 104)))
    assert first.shape == maps[0].shape
    assert [one.shape[2:] for one in maps] == [(9, 13), (5, 7), (3, 4)]
    assert net.levels.strides == (8, 16, 32)
    assert backbone_stride(network, fpn=True) == 8


def test_pretrained_weights_and_frozen_batch_norm(eight_images, tmp_path, rejects):
    source = model_zoo.resnet18_v1b(pretrained=False, classes=7)
    source.initialize(mx.init.Normal(0.1))
    source(mx.nd.zeros((1, 3, 64, 64)))
    path = tmp_path / "resnet18.params"
    source.save_parameters(str(path))
    line = train_arguments(eight_images, tmp_path, "--steps", "1", "--short", "64", "--overwrite")
    line += ["--pretrained-base", str(path)]
    words = "holds no 'mobilenet1.0' of GluonCV: it has a parameter '"
    rejects([*line, "--network", "mobilenet1.0"], words)
    rejects(line, "not 'small'")
    rejects([*line, "--pretrained-base", tmp_path / "none"], "none is missing")
    resnet = [*line, "--network", "resnet18_v1b", "--lr", "1e-6"]
    run(*resnet, "--freeze-bn")
    run(*resnet, "--fpn", "--head", "roi_fc")

    net = detector.build(config("resnet18_v1b"), [mx.cpu()], 0, True, str(path))
    expected = source.layer4[0].conv1.weight.data().asnumpy()
    np.testing.assert_array_equal(net.backbone.last[0][0].conv1.weight.data().asnumpy(), expected)
    moved = replace(config("resnet18_v1b"), deform=True)
    same = detector.build(moved, [mx.cpu()], 0, True, str(path)).backbone.last[0][0].conv1
    np.testing.assert_array_equal(same.weight.data().asnumpy(), expected)
    frozen = net.collect_params(".*(gamma|beta)").values()
    assert frozen and all(parameter.grad_req == "null" for parameter in frozen)
    before = [p.data().asnumpy() for p in net.collect_params(".*running.*").values()]
    with mx.autograd.record():
        net.backbone(mx.nd.random.normal(shape=(1, 3, 64, 64)))
    after = [p.data().asnumpy() for p in net.collect_params(".*running.*").values()]
    assert all((first == second).all() for first, second in zip(before, after))


def test_pretrained_weights_in_the_format_before_mxnet_1_3(tmp_path):
    """Its names are those of the layers, without points."""
    source = model_zoo.get_model("mobilenet1.0", pretrained=False)
    source.initialize(mx.init.Normal(0.1))
    source(mx.nd.zeros((1, 3, 64, 64)))
    path = tmp_path / "mobilenet.params"
    source.collect_params().save(str(path), strip_prefix=source.prefix)
    net = detector.build(config("mobilenet1.0"), [mx.cpu()], 0, pretrained_base=str(path))
    ours, theirs = (
        layer.weight.data().asnumpy() for layer in (net.backbone.early[0], source.features[0])
    )
    np.testing.assert_array_equal(ours, theirs)


PYRAMIDS = ("small roi_fc", "resnet50_v1b light_head")


@pytest.mark.parametrize("model", ["small psroi", "resnet18_v1b deformable_psroi", *PYRAMIDS])
def test_a_deformable_backbone_starts_as_the_plain_one(model):
    """It has the same weights, and offsets of 0."""
    network, head = model.split()
    plain = replace(config(network), head=head, fpn=model in PYRAMIDS)
    nets = [detector.build(replace(plain, deform=on), [mx.cpu()], 0) for on in (False, True)]
    ours, theirs = (net._collect_params_with_prefix() for net in nets)
    assert {name.split(".")[-2] for name in theirs.keys() - ours.keys()} == {"offset"}
    for name, parameter in ours.items():
        np.testing.assert_array_equal(parameter.data().asnumpy(), theirs[name].data().asnumpy())
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
    moved = replace(config("small"), deform=True)
    detect = detector.Detector(detector.build(moved, [mx.cpu()], 0))
    detect.hybridize()
    detect(mx.nd.zeros((1, 3, 64, 64)))
    operators = ("PSROIPool", "BoxNMS", "DeformableSampling")
    used = {name: uses for name, uses in gluon_roi.count(detect).items() if uses}
    assert used == {f"_gluon_roi_{name}": 2 for name in operators}


def test_random_weights_follow_from_the_seed():
    weights = [
        detector.build(config("small"), [mx.cpu()], seed).head.class_maps.weight.data().asnumpy()
        for seed in (0, 0, 1)
    ]
    np.testing.assert_array_equal(weights[0], weights[1])
    assert (weights[0] != weights[2]).any()


@pytest.fixture(scope="module")
def amp_run(eight_images, tmp_path_factory):
    """A run with --amp, or its rejection where the processor has no bfloat16 convolutions.

    AMP changes MXNet for the rest of a process.
    """
    folder = tmp_path_factory.mktemp("amp")
    return folder, python("-m", "demo_rfcn", *train_arguments(eight_images, folder, "--amp"))


REJECTED = "train: --amp expects a device with bfloat16 convolutions, and cpu(0) has none: "


def test_amp_trains_as_float32_does(amp_run, short_run):
    folder, made = amp_run
    if REJECTED in made.stderr:
        pytest.skip("this processor has no bfloat16 convolutions")
    assert made.returncode == 0, made.stderr[-2000:]
    ours, full = (history(each)["losses"][-1] for each in (folder, short_run))
    for name in ("rpn_cls", "rcnn_cls"):
        assert ours[name] == pytest.approx(full[name], rel=0.05)
    changed = parameters(folder / "last.ckpt"), parameters(short_run / "last.ckpt")
    assert all(value.dtype == np.float32 for value in changed[0].values())
    assert any((changed[0][name] != changed[1][name]).any() for name in changed[0])


def test_amp_without_16_bit_convolutions_is_rejected(amp_run, eight_images, tmp_path):
    made = amp_run[1]
    if made.returncode == 0:
        line = train_arguments(eight_images, tmp_path, "--amp")
        made = python("-m", "demo_rfcn", *line, DNNL_MAX_CPU_ISA="AVX2")
    assert made.returncode == 2 and REJECTED in made.stderr


def test_layers_after_the_convolutions_are_in_float32():
    models = (
        "small psroi class_agnostic",
        "resnet18_v1b light_head",
        "small psroi class_agnostic deform",
    )
    made = python(REPOSITORY / "tests/scripts/amp_types.py", *models)
    assert made.returncode == 0, made.stderr[-2000:]
    found = json.loads(made.stdout)
    assert len(found) == len(models)
    for model, types in zip(models, found):

        def of(pattern: str, types: dict = types) -> set:
            return {dtype for name, dtype in types.items() if re.search(pattern, name)}

        assert of("(conv|dense)[0-9]+_fwd_out") == {"float16"}
        assert of("sampling") == ({"float32"} if "deform" in model else set())
        parts = ("arange", "proposals", "roitargets", "rpnloss", "roiloss")
        for part in ("psroi[a-z]+[0-9]_output", *parts):
            assert "float32" in of(part) and "float16" not in of(part), (model, part)
