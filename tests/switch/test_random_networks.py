# SPDX-License-Identifier: Apache-2.0
"""Random networks with MXNet's RoI operators give the same results after each kind of switch.

They have no loops: MXNet 1.9.1 sometimes reads the input of a loop before it is computed, and
computes all loops in static memory wrongly. (tests/switch/test_switch.py has a loop that works.)
"""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

import gluon_roi

IMAGES, CHANNELS, HEIGHT, WIDTH = 2, 4, 24, 32
STRIDE = 4
SIZES = ((1, 1), (2, 3), (3, 3), (7, 7))


class Draw:
    """Choices that follow from a seed."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.RandomState(seed)

    def one(self, *choices: Any) -> Any:
        return choices[self.rng.randint(len(choices))]

    def maybe(self) -> bool:
        return bool(self.rng.randint(2))

    def some(self, **arguments: Any) -> dict:
        """Each argument or its default."""
        return {name: value for name, value in arguments.items() if self.maybe()}


def roi_pooling(draw, scale):
    size = draw.one(*SIZES)
    return draw.one(2, 5), lambda F, x, rois: F.ROIPooling(x, rois, size, scale)


def roi_align(draw, scale):
    size = draw.one(*SIZES)
    given = draw.some(sample_ratio=draw.one(1, 2, 3), aligned=draw.maybe())
    return draw.one(2, 5), lambda F, x, rois: F.contrib.ROIAlign(x, rois, size, scale, **given)


def ps_roi_align(draw, scale):
    size = draw.one(*SIZES)
    given = draw.some(sample_ratio=draw.one(1, 2), aligned=draw.maybe())
    return 2 * size[0] * size[1], lambda F, x, rois: F.contrib.ROIAlign(
        x, rois=rois, pooled_size=size, spatial_scale=scale, position_sensitive=True, **given
    )


def ps_roi_pooling(draw, scale):
    size = draw.one(1, 3, 4)
    group = draw.one(size, 2)
    given = {"group_size": group} if group != size else draw.some(group_size=draw.one(0, size))
    return 2 * group**2, lambda F, x, rois: F.contrib.PSROIPooling(x, rois, scale, 2, size, **given)


def deformable_ps_roi_pooling(draw, scale):
    size = draw.one(2, 3)
    given = draw.some(part_size=draw.one(0, size), sample_per_part=draw.one(1, 2))
    offset = draw.one(None, 0.25, -1.0)

    def call(F, x, rois):
        arguments = {"spatial_scale": scale, "output_dim": 2, "group_size": size, **given}
        if offset is None:
            return F.contrib.DeformablePSROIPooling(
                x, rois, pooled_size=size, no_trans=True, **arguments
            )
        trans = F.ones_like(F.slice_axis(rois, axis=1, begin=0, end=2)) * offset
        trans = F.broadcast_like(
            F.reshape(trans, (-1, 2, 1, 1)), F.zeros((1, 1, size, size)), (2, 3), (2, 3)
        )
        return F.contrib.DeformablePSROIPooling(
            x, rois, trans, pooled_size=size, trans_std=0.2, **arguments
        )

    return 2 * size**2, call


OPERATORS = (roi_pooling, roi_align, ps_roi_align, ps_roi_pooling, deformable_ps_roi_pooling)
#: How rows come to an operator. All give as many.
ROWS: tuple = (
    lambda F, rois: rois,
    lambda F, rois: rois * 1,
    lambda F, rois: F.concat(*F.split(rois, num_outputs=2, axis=0), dim=0),
    lambda F, rois: F.reverse(rois, axis=0),
)


class Head(gluon.HybridBlock):
    """Maps of its own, and an operator on them, several times."""

    def __init__(self, draw: Draw, scale: float) -> None:
        super().__init__()
        channels, call = draw.one(*OPERATORS)(draw, scale)
        self.call, self.calls = call, draw.one(1, 2, 9)
        self.rows = draw.one(*ROWS)
        self.shared = draw.maybe()
        with self.name_scope():
            self.maps = gluon.nn.Conv2D(channels, draw.one(1, 3), padding=0, use_bias=draw.maybe())

    def hybrid_forward(self, F, x, rois):
        # The names are what tells that this block is to be switched.
        assert F.ROIPooling and F.contrib
        maps = self.maps(x)
        pooled = [
            self.call(F, maps if self.shared else F.relu(maps), self.rows(F, rois))
            for _ in range(self.calls)
        ]
        return F.flatten(F.add_n(*pooled))


class Network(gluon.HybridBlock):
    """Layers, and heads on what comes out of them; some heads are called twice."""

    def __init__(self, seed: int) -> None:
        super().__init__(prefix="net_")
        draw = Draw(seed)
        with self.name_scope():
            self.body = gluon.nn.HybridSequential()
            for _ in range(draw.one(1, 2)):
                self.body.add(gluon.nn.Conv2D(draw.one(3, 6), 3, padding=1))
                self.body.add(gluon.nn.Activation(draw.one("relu", "tanh")))
            self.heads = gluon.nn.HybridSequential()
            for _ in range(draw.one(1, 2, 3)):
                self.heads.add(Head(draw, 1 / STRIDE))
            self.top = gluon.nn.Dense(3)
        self.twice = draw.maybe()

    def hybrid_forward(self, F, x, rois):
        maps = self.body(x)
        found = [head(maps, rois) for head in self.heads]
        if self.twice:
            found.append(self.heads[0](F.tanh(maps), rois))
        return self.top(F.concat(*found, dim=1))


def boxes(rng):
    """Rows that MXNet's operators handle, four of two images."""
    low = rng.uniform(0, STRIDE * WIDTH / 2, (4, 2))
    sides = np.exp(rng.uniform(0, 4, (4, 2)))
    return np.hstack([[[0], [1], [1], [0]], low, low + sides]).astype("float32")


def inputs(seed):
    rng = np.random.RandomState(1000 + seed)
    data = rng.randn(IMAGES, CHANNELS, HEIGHT, WIDTH).astype("float32")
    return mx.nd.array(data), mx.nd.array(boxes(rng))


def network(seed, x, rois):
    """The same parameters each time."""
    net = Network(seed)
    net.initialize()
    net(x, rois)
    rng = np.random.RandomState(seed)
    for parameter in net.collect_params().values():
        parameter.set_data(mx.nd.array(0.3 * rng.randn(*parameter.shape)))
    return net


def passes(net, x, rois):
    """Output, and the gradients of the map and of all parameters."""
    x = x.copy()
    x.attach_grad()
    with autograd.record():
        out = net(x, rois)
    out.backward()
    gradients = sorted((name, p.grad().asnumpy()) for name, p in net.collect_params().items())
    return [("out", out.asnumpy()), ("x", x.grad.asnumpy()), *gradients]


def by_network(net, x, rois, draw):
    flags = draw.one({}, {"static_alloc": True}, {"static_alloc": True, "static_shape": True})
    return passes(gluon_roi.optimize(net, x, rois, **flags), x, rois)


def by_functions(net, x, rois, draw):
    with gluon_roi.replace_builtins():
        net.hybridize(draw.maybe())
        return passes(net, x, rois)


def by_symbol(net, x, rois, draw):
    symbol = net(mx.sym.var("x"), mx.sym.var("rois"))
    names = symbol.list_arguments(), symbol.list_outputs()
    switched = gluon_roi.optimize(symbol)
    if draw.maybe():
        switched = mx.sym.load_json(gluon_roi.optimize(switched).tojson())
    assert (switched.list_arguments(), switched.list_outputs()) == names
    variables = [mx.sym.var("x"), mx.sym.var("rois")]
    return passes(gluon.SymbolBlock(switched, variables, net.collect_params()), x, rois)


@pytest.mark.parametrize("way", [by_network, by_functions, by_symbol])
@pytest.mark.parametrize("seed", range(10))
def test_random_network(seed, way):
    x, rois = inputs(seed)
    expected = passes(network(seed, x, rois), x, rois)
    actual = way(network(seed, x, rois), x, rois, Draw(seed))
    assert dict(actual).keys() == dict(expected).keys()
    for (name, ours), (_, theirs) in zip(actual, expected):
        tolerance = 1e-5 * np.abs(theirs).max()
        np.testing.assert_allclose(ours, theirs, 1e-4, tolerance, err_msg=name)


def test_the_seeds_reach_every_operator():
    used: dict[str, int] = {}
    for seed in range(10):
        symbol = gluon_roi.optimize(Network(seed)(mx.sym.var("x"), mx.sym.var("rois")))
        for name, uses in gluon_roi.count(symbol).items():
            used[name] = used.get(name, 0) + uses
    names = ("ROIPool", "ROIAlign", "PSROIAlign", "PSROIPool", "DeformablePSROIPool")
    assert all(used[f"_gluon_roi_{name}"] for name in names), used
