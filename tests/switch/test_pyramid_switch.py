# SPDX-License-Identifier: Apache-2.0
"""Sums of ROIAligns that optimize() turns into one PyramidROIAlign."""

from __future__ import annotations

import copy
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from support.pyramids import SCALES, boxes, pyramid

import gluon_roi

# ---- What optimize() makes of a sum of ROIAligns -------------------------------------------------

SUMS: dict[str, Any] = {
    "ElementWiseSum": lambda F, parts: F.ElementWiseSum(*parts),
    "add_n": lambda F, parts: F.add_n(*parts),
    "chain": lambda F, parts: ((parts[0] + parts[1]) + parts[2]) + parts[3],
    "tree": lambda F, parts: (parts[0] + parts[1]) + F.add_n(parts[2], parts[3]),
}


class Levels(gluon.HybridBlock):
    """The pyramid of GluonCV's detectors: each level pools all boxes, those of others masked."""

    def __init__(self, add="ElementWiseSum", scales=SCALES, **changes):
        super().__init__()
        self.add, self.scales, self.changes = SUMS.get(add, add), scales, changes

    def hybrid_forward(self, F, rois, level, *maps):
        parts = []
        for i, scale in enumerate(self.scales):
            own = F.where(level == i, rois, F.ones_like(rois) * -1.0)
            more = {"sample_ratio": 2, **{k: v[i] for k, v in self.changes.items()}}
            size = more.pop("size", (3, 3))
            parts.append(F.contrib.ROIAlign(maps[i % len(maps)], own, size, scale, **more))
        return self.add(F, parts)


def levels_input():
    maps = [mx.nd.array(one) for one in pyramid()]
    rois = boxes()
    rois = rois[np.isfinite(rois).all(axis=1)]
    return [mx.nd.array(rois), mx.nd.array(np.arange(len(rois)) % 5), *maps]


def run_levels(net, inputs):
    """Output and gradients of the maps, after two passes that add."""
    for one in inputs[2:]:
        one.attach_grad("add")
    for _ in range(2):
        with autograd.record():
            out = net(*inputs)
        out.backward(mx.nd.array(np.random.RandomState(1).randn(*out.shape)))
    return [out.asnumpy(), *(one.grad.asnumpy() for one in inputs[2:])]


def symbol_of(net):
    names = ["rois", "level", "a", "b", "c", "d"]
    variables = [mx.sym.var(name, dtype="float32") for name in names]
    return net(*variables), variables


def of_symbol(net, inputs):
    symbol, variables = symbol_of(net)
    return gluon.SymbolBlock(gluon_roi.optimize(symbol), variables)


def of_symbol_block(net, inputs):
    return gluon_roi.optimize(gluon.SymbolBlock(*symbol_of(net)), *inputs)


def of_network(net, inputs):
    return gluon_roi.optimize(net, *inputs, static_alloc=True)


def of_network_again(net, inputs):
    """The network is optimized twice, as after a change of flags, and copied."""
    gluon_roi.optimize(gluon_roi.optimize(net, *inputs), *inputs)
    net.hybridize(active=False)  # MXNet cannot copy a compiled network
    net = copy.deepcopy(net)
    net.hybridize(static_alloc=True, static_shape=True)
    return net


@pytest.mark.parametrize("way", [of_symbol, of_symbol_block, of_network, of_network_again])
@pytest.mark.parametrize("add", SUMS)
def test_pyramids_are_one_operator(add, way):
    """Equal bytes, gradients that add up, and the names of outputs."""
    inputs = levels_input()
    with gluon_roi.replace_builtins():
        expected = run_levels(Levels(add), inputs)
    net = way(Levels(add), inputs)
    for actual, right in zip(run_levels(net, inputs), expected):
        np.testing.assert_array_equal(actual, right)
    used = {name: n for name, n in gluon_roi.count(net).items() if n}
    assert used == {"_gluon_roi_PyramidROIAlign": 1}
    if way is not of_symbol:  # a compiled graph would fill zeros of the size of each map
        assert "_zeros_without_dtype" not in net._cached_graph[1].tojson()


def cond(out):
    other = mx.sym.BlockGrad(out)  # MXNet does not write the gradient of a branch that is not taken
    return mx.sym.contrib.cond(mx.sym.var("flag") > 0, lambda: out * 2, lambda: other * 3)


def boolean_mask(out):
    return mx.sym.contrib.boolean_mask(out, mx.sym.var("flag"))


@pytest.mark.parametrize("flow", [cond, boolean_mask])
def test_a_pyramid_in_a_graph_whose_shapes_mxnet_infers_while_it_runs(flow):
    """It has the guards that such a graph needs, and a second switch finds nothing to do."""
    inputs = levels_input()
    symbol = gluon_roi.optimize(flow(symbol_of(Levels("add_n"))[0]))
    text = symbol.tojson()
    assert gluon_roi.count(symbol)["_gluon_roi_PyramidROIAlign"] == 1
    assert "_zeros_without_dtype" not in text
    assert gluon_roi.optimize(symbol).tojson() == text
    with gluon_roi.replace_builtins():
        expected = run_levels(Levels("add_n"), inputs)
    names, flag = symbol_of(Levels())[1], np.ones(len(inputs[0]) if flow is boolean_mask else 1)
    arrays = {variable.name: array for variable, array in zip(names, inputs)}
    arrays["flag"] = mx.nd.array(flag)
    gradients = {name: mx.nd.zeros_like(arrays[name]) for name in "abcd"}
    executor = symbol.bind(mx.cpu(), arrays, gradients, "write")
    out = executor.forward(is_train=True)[0]
    executor.backward(mx.nd.array(np.random.RandomState(1).randn(*out.shape)))
    factor = 1 if flow is boolean_mask else 2
    np.testing.assert_array_equal(out.asnumpy(), factor * expected[0])
    for name, right in zip("abcd", expected[1:]):
        # run_levels adds two passes.
        np.testing.assert_allclose(gradients[name].asnumpy(), right * factor / 2, rtol=1e-5)


OTHER_SUMS: dict[str, Any] = {
    "sizes that broadcast": Levels(
        lambda F, parts: F.broadcast_add(parts[0], parts[1]), SCALES[:2], size=((3, 3), (1, 3))
    ),
    "ratios": Levels(sample_ratio=(2, 2, 2, 3)),
    "aligned": Levels(aligned=(False, True, False, False)),
    "another user": Levels(lambda F, parts: F.add_n(*parts) + F.relu(parts[1]) * parts[0]),
    "an output": Levels(lambda F, parts: (F.add_n(*parts), parts[2])),
    "another term": Levels(lambda F, parts: F.add_n(*parts, F.relu(parts[0]))),
    "a factor": Levels(lambda F, parts: parts[0] + 2 * parts[1] + 3 * parts[2] + 4 * parts[3]),
    "more than 8": Levels(scales=[1 / 4] * 9),
    "one": Levels(scales=SCALES[:1]),
}


@pytest.mark.parametrize("name", OTHER_SUMS)
def test_sums_that_are_not_pyramids_are_kept(name):
    net, inputs = OTHER_SUMS[name], levels_input()
    inputs = inputs[: 2 + min(4, len(net.scales))]
    variables = [mx.sym.var(f"x{i}", dtype="float32") for i in range(len(inputs))]
    symbol = net(*variables)
    symbol = mx.sym.Group(symbol) if isinstance(symbol, (list, tuple)) else symbol
    optimized = gluon_roi.optimize(symbol)
    used = gluon_roi.count(optimized)
    assert used["_gluon_roi_PyramidROIAlign"] == 0
    assert used["_gluon_roi_ROIAlign"] == gluon_roi.count(symbol)["_contrib_ROIAlign"]


def test_maps_or_boxes_that_are_shared_stay():
    """They would be pooled in turns, without gain."""
    x, y, rois = map(mx.sym.var, ("x", "y", "rois"))
    for maps, lists in (((x, x), (rois * 2, rois * 3)), ((x, y), (rois, rois))):
        parts = [
            mx.sym.contrib.ROIAlign(one, own, (2, 2), 0.5, sample_ratio=2)
            for one, own in zip(maps, lists)
        ]
        used = gluon_roi.count(gluon_roi.optimize(mx.sym.add_n(*parts)))
        assert used["_gluon_roi_ROIAlign"] == 2


def test_pyramids_of_context_groups_stay():
    with mx.AttrScope(ctx_group="a"):
        symbol, _ = symbol_of(Levels())
    assert gluon_roi.count(gluon_roi.optimize(symbol))["_gluon_roi_PyramidROIAlign"] == 1
    parts = []
    for name in "ab":
        with mx.AttrScope(ctx_group=name):
            parts.append(
                mx.sym.contrib.ROIAlign(
                    mx.sym.var(name), mx.sym.var("rois") * 2, (2, 2), 0.5, sample_ratio=2
                )
            )
    used = gluon_roi.count(gluon_roi.optimize(mx.sym.add_n(*parts)))
    assert used["_gluon_roi_PyramidROIAlign"] == 0


#: Boxes of two ROIAligns, of which nobody knows that they are alike in type and form.
UNLIKE: dict[str, Any] = {
    "types": lambda F, rois, more: (rois * 1, F.cast(rois, "float64")),
    "forms": lambda F, rois, more: (
        rois * 1,
        F.reshape(F.slice_axis(rois, axis=1, begin=1, end=5), (2, -1, 4)),
    ),
    "variables": lambda F, rois, more: (rois, more),
    "variables behind": lambda F, rois, more: (rois * 1, more * 1),
}


class Unlike(gluon.HybridBlock):
    def __init__(self, lists):
        super().__init__()
        self.lists = lists

    def hybrid_forward(self, F, x, y, rois, more):
        lists = self.lists(F, rois, more)
        return F.add_n(*(F.contrib.ROIAlign(a, own, (3, 3), 0.25) for a, own in zip((x, y), lists)))


@pytest.mark.parametrize("name", UNLIKE)
def test_boxes_of_unknown_type_are_not_fused(name):
    maps = [mx.nd.array(one) for one in pyramid(levels=1) * 2]
    rois = mx.nd.array([[k // 3, 4, k, 40, 40 + k] for k in range(6)])
    arrays = [*maps, rois, rois]
    net = Unlike(UNLIKE[name])
    with gluon_roi.replace_builtins():
        right = net(*arrays).asnumpy()
    names = ["x", "y", "rois", "more"]
    symbol = gluon_roi.optimize(net(*map(mx.sym.var, names)))
    used = symbol.list_arguments()
    given = {key: array for key, array in zip(names, arrays) if key in used}
    results = [symbol.bind(mx.cpu(), given).forward()[0]]
    results.append(gluon_roi.optimize(net, *arrays)(*arrays))
    for one in results:
        np.testing.assert_array_equal(one.asnumpy(), right)
    for model in (symbol, net):
        used = {key: n for key, n in gluon_roi.count(model).items() if n}
        assert used == {"_gluon_roi_ROIAlign": 2}
