# SPDX-License-Identifier: Apache-2.0
"""Operators in graphs with cond, while_loop, foreach and boolean_mask: values and gradients.

The expected values come from array code without any of these. MXNet infers the shapes of such
graphs, except for foreach, while they run.
"""

from __future__ import annotations

import itertools
from typing import Callable, NamedTuple

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from support.turns import in_turn

import gluon_roi

RNG = np.random.RandomState(0)
BOXES = np.array([[0, 0, 0, 5, 4], [2, 1, 1, 3, 6], [1, 2, 2, 7, 7], [2, 0, 1, 6, 5]], "float32")
MAPS = RNG.randn(3, 8, 9, 9).astype("float32")
SCORES = RNG.rand(3, 5, 1).astype("float32")
CORNERS = np.sort(RNG.rand(3, 5, 2, 2) * 9, axis=2).reshape(3, 5, 4).astype("float32")
PROPOSAL = {"scales": (2.0,), "ratios": (1.0,), "rpn_post_nms_top_n": 2, "feature_stride": 4}
PROPOSAL["rpn_min_size"] = 1
CONVOLUTION = {"kernel": (3, 3), "num_filter": 2, "no_bias": True}
DEFORMED: dict = {"group_size": 2, "pooled_size": 2, "part_size": 2, "sample_per_part": 2}
DEFORMED.update(output_dim=2, trans_std=0.1)


class Case(NamedTuple):
    """A call of one of our operators, and of MXNet's that it replaces."""

    inputs: dict[str, np.ndarray]
    rows: tuple[str, ...]  # inputs of which boolean_mask can select rows
    ours: Callable
    theirs: Callable | None = None


CASES = {
    "ROIAlign": Case(
        {"data": MAPS, "rois": BOXES},
        ("rois",),
        lambda F, data, rois: F.gluon_roi.ROIAlign(data, rois, (2, 2), 0.5, sampling_ratio=2),
        lambda F, data, rois: F.contrib.ROIAlign(data, rois, (2, 2), 0.5, sample_ratio=2),
    ),
    "ROIAlign, rois_grad": Case(
        {"data": MAPS, "rois": BOXES},
        ("rois",),
        lambda F, data, rois: F.gluon_roi.ROIAlign(data, rois, (2, 2), 0.5, 2, rois_grad=True),
    ),
    "PSROIPool": Case(
        {"data": MAPS, "rois": BOXES},
        ("rois",),
        lambda F, data, rois: F.gluon_roi.PSROIPool(data, rois, 2, 1.0),
        lambda F, data, rois: F.contrib.PSROIPooling(data, rois, 1.0, 2, 2),
    ),
    "DeformablePSROIPool": Case(
        {"data": MAPS, "rois": BOXES, "trans": RNG.randn(4, 4, 2, 2).astype("float32")},
        ("rois", "trans"),
        lambda F, data, rois, trans: F.gluon_roi.DeformablePSROIPool(
            data, rois, trans, spatial_scale=1.0, **DEFORMED
        ),
        lambda F, data, rois, trans: F.contrib.DeformablePSROIPooling(
            data, rois, trans, spatial_scale=1.0, **DEFORMED
        ),
    ),
    "PyramidROIAlign": Case(
        {"data0": MAPS, "data1": MAPS[:, :, ::2, ::2], "rois": BOXES * (1, 16, 16, 16, 16)},
        ("rois",),
        lambda F, data0, data1, rois: F.gluon_roi.PyramidROIAlign(
            [data0, data1], rois, 2, (1 / 4, 1 / 8), 2
        ),
    ),
    "DeformableConvolution": Case(
        {
            "data": MAPS,
            "offset": RNG.randn(3, 18, 7, 7).astype("float32"),
            "weight": RNG.randn(2, 8, 3, 3).astype("float32"),
        },
        ("data", "offset"),
        lambda F, data, offset, weight: F.gluon_roi.DeformableConvolution(
            data, offset, weight, **CONVOLUTION
        ),
        lambda F, data, offset, weight: F.contrib.DeformableConvolution(
            data, offset, weight, **CONVOLUTION
        ),
    ),
    "DeformableSampling": Case(
        {
            "data": MAPS,
            "offset": RNG.randn(3, 18, 7, 7).astype("float32"),
            "mask": RNG.rand(3, 9, 7, 7).astype("float32"),
        },
        ("data", "offset", "mask"),
        lambda F, data, offset, mask: F.gluon_roi.DeformableSampling(data, offset, mask, 3),
    ),
    "BoxNMS": Case(
        {"data": np.concatenate([SCORES, CORNERS], axis=2)},
        ("data",),
        lambda F, data: F.gluon_roi.BoxNMS(data, 0.3, coord_start=1, score_index=0),
        lambda F, data: F.contrib.box_nms(data, 0.3, coord_start=1, score_index=0),
    ),
    "Proposal": Case(
        {
            "scores": RNG.rand(3, 2, 4, 4).astype("float32"),
            "moves": RNG.randn(3, 4, 4, 4).astype("float32") * 0.1,
            "info": np.array([[16, 16, 1]] * 3, "float32"),
        },
        ("scores", "moves", "info"),
        lambda F, *inputs: F.gluon_roi.Proposal(*inputs, **PROPOSAL),
        lambda F, *inputs: F.contrib.MultiProposal(*inputs, **PROPOSAL),
    ),
}


# ---- Control flow. Each function has twice the result of the call, or some of its rows. ----------
#
# MXNet leaves the gradient of the inputs of a branch that is not taken as it finds it, so they have
# none here; its gradient of what a while_loop reads besides its variables fails or is wrong; and
# its gradient of boolean_mask overwrites what it should be added to.


def cond_behind(F, call, flag, keep_in, keep_out):
    out = call()
    other = F.BlockGrad(out)
    return F.contrib.cond(flag > 0, lambda: out * 2, lambda: other * 3)


def cond_around(F, call, flag, keep_in, keep_out):
    other = F.BlockGrad(call())
    return F.contrib.cond(flag > 0, lambda: call() * 2, lambda: other * 3)


def _doubled(F, value):
    """Multiplied by the square root of 2 in each of two steps of a while_loop."""
    _, (_, result) = F.contrib.while_loop(
        lambda i, value: i < 1.5,
        lambda i, value: (value * 1, [i + 1, value * 2**0.5]),
        [F.zeros((1,)), value],
        max_iterations=3,
    )
    return result


def while_behind(F, call, flag, keep_in, keep_out):
    return _doubled(F, call())


def while_beside(F, call, flag, keep_in, keep_out):
    out = call()
    return out * 2 + _doubled(F, F.zeros_like(out))


def while_around(F, call, flag, keep_in, keep_out):
    _, (_, total) = F.contrib.while_loop(
        lambda i, total: i < 1.5,
        lambda i, total: (total, [i + 1, total + call()]),
        [F.zeros((1,)), F.zeros_like(call())],
        max_iterations=3,
    )
    return total


def foreach_behind(F, call, flag, keep_in, keep_out):
    steps, _ = F.contrib.foreach(lambda row, i: (row * 2, i), call(), F.zeros((1,)))
    return steps


def foreach_around(F, call, flag, keep_in, keep_out):
    _, total = F.contrib.foreach(
        lambda step, total: (step, total + call()), F.zeros((2, 1)), F.zeros_like(call())
    )
    return total


def mask_behind(F, call, flag, keep_in, keep_out):
    return F.contrib.boolean_mask(call() * 2, keep_out)


def mask_before(F, call, flag, keep_in, keep_out):
    return call(lambda one: F.contrib.boolean_mask(one * 1, keep_in)) * 2


FLOWS = {
    function.__name__: function
    for function in (
        cond_behind, cond_around, while_behind, while_around, while_beside, foreach_behind,
        foreach_around, mask_behind, mask_before,
    )
}  # fmt: skip


class Net(gluon.HybridBlock):
    """A call with control flow somewhere, of our operator or of MXNet's."""

    def __init__(self, case, flow, of_mxnet):
        super().__init__()
        self.case, self.flow = case, flow
        self.function = case.theirs if of_mxnet else case.ours

    def build(self, F, flag, keep_in, keep_out, *inputs):
        def call(rows=lambda one: one):
            return self.function(
                F,
                *(
                    rows(one) if name in self.case.rows else one
                    for name, one in zip(self.case.inputs, inputs)
                ),
            )

        return FLOWS[self.flow](F, call, flag, keep_in, keep_out)

    def hybrid_forward(self, F, *inputs):
        return self.build(F, *inputs)


NAMES = ["flag", "keep_in", "keep_out"]


def run_network(net, names, inputs, slope, grad_req):
    arrays = [mx.nd.array(one) for one in inputs]
    for array in arrays[len(NAMES) :]:
        array.attach_grad(grad_req)
    for _ in range(2):
        with autograd.record():
            out = net(*arrays)
        out.backward(slope)
    np.testing.assert_allclose(net(*arrays).asnumpy(), out.asnumpy(), rtol=1e-5, atol=1e-5)
    return out, [array.grad for array in arrays[len(NAMES) :]]


def run_executor(symbol, names, inputs, slope, grad_req):
    arrays = {name: mx.nd.array(one) for name, one in zip(names, inputs)}
    gradients = {name: mx.nd.zeros_like(arrays[name]) for name in names[len(NAMES) :]}
    executor = symbol.bind(mx.cpu(), arrays, gradients, grad_req)
    for _ in range(2):
        out = executor.forward(is_train=True)[0]
        executor.backward(slope)
    return out, [gradients[name] for name in names[len(NAMES) :]]


def network(flags, of_mxnet=False):
    def run(case, flow, *arguments):
        net = Net(case, flow, of_mxnet)
        if flags is not None:
            net.hybridize(**flags)
        return run_network(net, *arguments)

    return run


def optimized_network(case, flow, names, inputs, *arguments):
    net = Net(case, flow, of_mxnet=case.theirs is not None)
    gluon_roi.optimize(net, *map(mx.nd.array, inputs))
    return run_network(net, names, inputs, *arguments)


def symbol_of(case, flow, names, of_mxnet):
    return Net(case, flow, of_mxnet).build(mx.sym, *map(mx.sym.var, names))


def executor(case, flow, names, *arguments):
    return run_executor(symbol_of(case, flow, names, False), names, *arguments)


def optimized_executor(case, flow, names, *arguments):
    symbol = gluon_roi.optimize(symbol_of(case, flow, names, of_mxnet=case.theirs is not None))
    assert gluon_roi.optimize(symbol).tojson() == symbol.tojson()  # once is enough
    return run_executor(symbol, names, *arguments)


def optimized_symbol_block(case, flow, names, inputs, *arguments):
    symbol = symbol_of(case, flow, names, of_mxnet=case.theirs is not None)
    net = gluon.SymbolBlock(symbol, [mx.sym.var(name, dtype="float32") for name in names])
    gluon_roi.optimize(net, *map(mx.nd.array, inputs))
    return run_network(net, names, inputs, *arguments)


WAYS = {
    "imperative": network(None),
    "hybridized": network({}),
    "static_alloc": network({"static_alloc": True}),
    "optimized network": optimized_network,
    "executor": executor,
    "optimized executor": optimized_executor,
    "optimized SymbolBlock": optimized_symbol_block,
}


def expected_of(case, flow, keep_in, keep_out, slope):
    """Output and gradients of array code, with boolean_mask's rows selected by NumPy."""
    (chosen,) = np.nonzero(keep_in) if flow == "mask_before" else [np.arange(len(keep_in))]
    inputs = {k: v[chosen] if k in case.rows else v for k, v in case.inputs.items()}
    arrays = {name: mx.nd.array(one) for name, one in inputs.items()}
    for array in arrays.values():
        array.attach_grad()
    with autograd.record():
        out = case.ours(mx.nd, *arrays.values()) * 2
    kept = np.nonzero(keep_out)[0] if flow == "mask_behind" else np.arange(out.shape[0])
    slopes = np.zeros(out.shape, "float32")
    slopes[kept] = slope(out[: len(kept)].shape)
    out.backward(mx.nd.array(slopes))
    gradients = []
    for name, array in arrays.items():
        gradient = np.zeros(case.inputs[name].shape, "float32")
        gradient[chosen if name in case.rows else slice(None)] = array.grad.asnumpy()
        gradients.append(gradient)
    return out.asnumpy()[kept], gradients


WITHOUT_GRADIENT = (("Proposal", "cond_around"), ("Proposal", "foreach_around"))


def mxnet_runs(name, flow, way):
    """MXNet fails in the others with its own operators, too."""
    if flow == "while_beside":
        return not way.endswith("executor")
    # Its gradient of a branch or of a loop's body fails if all gradients in there are 0.
    return (name, flow) not in WITHOUT_GRADIENT or way == "imperative"


COMBINATIONS = [one for one in itertools.product(CASES, FLOWS, WAYS) if mxnet_runs(*one)]


@pytest.mark.parametrize(
    ("name", "flow", "way"),
    in_turn(list(CASES), list(FLOWS), list(WAYS), every=3, of=COMBINATIONS),
)
def test_values_and_gradients(name, flow, way):
    case = CASES[name]
    rows = len(case.inputs[case.rows[0]])
    keep_in = np.arange(rows) % 2 == 0
    outputs = case.ours(mx.nd, *map(mx.nd.array, case.inputs.values())).shape[0]
    keep_out = np.arange(outputs) % 3 != 1
    rng = np.random.RandomState(1)

    def slope(shape):
        rng.seed(1)
        return rng.randn(*shape).astype("float32")

    expected, gradients = expected_of(case, flow, keep_in, keep_out, slope)
    names = [*NAMES, *case.inputs]
    inputs = [np.ones(1, "float32"), keep_in, keep_out, *case.inputs.values()]
    for grad_req, times in (("write", 1), ("add", 2)):
        arguments = names, inputs, mx.nd.array(slope(expected.shape)), grad_req
        out, found = WAYS[way](case, flow, *arguments)
        np.testing.assert_allclose(out.asnumpy(), expected, rtol=1e-4, atol=1e-4)
        for gradient, right in zip(found, gradients if flow != "while_around" else ()):
            np.testing.assert_allclose(gradient.asnumpy(), times * right, rtol=1e-4, atol=1e-4)


def test_proposals_inside_a_loop():
    """Their gradients are 0, with which MXNet's foreach fails in graphs, so these have values."""
    case = CASES["Proposal"]
    inputs = [mx.nd.array(one) for one in ([1], [1, 1, 1], [1, 1, 1], *case.inputs.values())]
    expected = case.ours(mx.nd, *inputs[len(NAMES) :]).asnumpy() * 2
    nets = [Net(case, "foreach_around", of_mxnet) for of_mxnet in (False, False, True)]
    nets[1].hybridize()
    gluon_roi.optimize(nets[2], *inputs)
    for net in nets:
        np.testing.assert_allclose(net(*inputs).asnumpy(), expected, rtol=1e-5, atol=1e-5)
