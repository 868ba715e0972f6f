# SPDX-License-Identifier: Apache-2.0
"""Random networks give the same before and after their conversion for inference."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Iterable, Sequence

import mxnet as mx
import numpy as np
import pytest
from inference_networks import CountCalls, Network, outputs_of, random_network, static_call

from gluon_roi.bridge.symbol_json import symbol_content
from gluon_roi.inference import (
    convert,
    epilogue,
    fold_batch_norm,
    fusion,
    gemm_layers,
    graph,
    narrow,
    padded_outputs,
    sums,
    symbolic_shapes,
    winograd,
    winograd_layers,
)
from gluon_roi.inference.graph import InferenceGraph

#: The largest error of an output, relative to the largest number of any map of the network, because
#: layers may subtract large numbers from each other.
TOLERANCE = 1e-5
#: For networks with 6 x 6 tiles, which have 2 to 6 times the error of 4 x 4 tiles. Two of 5,000
#: networks exceed TOLERANCE (1.2e-5 and 2.2e-5); with 4 x 4 tiles, both stay below it.
TOLERANCE_OF_6 = 3e-5
#: For networks that round to float16 on the way.
HALF_TOLERANCE = 1e-2


def differences(seed: int, network: Network) -> list[str]:
    """Outputs of the network of a seed that differ after its conversion."""
    shapes = network.inputs if seed % 3 else {}
    made = convert.convert(network.symbol, network.params, shapes)
    if made.symbol.list_outputs() != network.symbol.list_outputs():
        return ["names of outputs"]
    expected = results(network.symbol, network.params, network.calls)
    found = results(made.symbol, made.parameters, network.calls[: len(expected)])
    if "float16" in network.symbol.tojson():
        relative = HALF_TOLERANCE
    else:
        relative = TOLERANCE_OF_6 if has_tiles_of_6(made) else TOLERANCE
    maps = outputs_of(network.symbol.get_internals(), network.params, network.inputs)
    wrong = []
    for number in range(len(expected)):
        largest = max(np.abs(one).max(initial=1) for one in (*maps, *expected[number]))
        tolerance = relative * largest
        names = network.symbol.list_outputs()
        for name, one, other in zip(names, expected[number], found[number]):
            error = np.abs(one - other).max(initial=0) if one.shape == other.shape else np.inf
            if not error <= tolerance:
                wrong.append(f"{name} of call {number} by {error}")
    return wrong


def has_tiles_of_6(made: convert.Converted) -> bool:
    """Whether a layer has weights of 8 x 8 points."""
    nodes = symbol_content(made.symbol)["nodes"]
    weights = (
        nodes[node["inputs"][1][0]]["name"] for node in nodes if node["op"] == winograd.OPERATOR
    )
    return any(made.parameters[name].shape[0] == 64 for name in weights)


def results(symbol: Any, params: dict, calls: list[dict[str, Any]]) -> list[list[np.ndarray]]:
    """The outputs of calls, one after the other in static memory.

    The last call is left out if the symbol does not work for its sizes.
    """
    CountCalls.calls.clear()
    call = static_call(symbol, params)
    found = [call(**inputs) for inputs in calls[:2]]
    with contextlib.suppress(mx.MXNetError):
        found += [call(**inputs) for inputs in calls[2:]]
    return found


def has_loop(network: Network) -> bool:
    return "_foreach" in network.symbol.tojson()


def wrong_networks(seeds: Iterable[int], loops: bool) -> dict[int, list[str]]:
    """Outputs that differ after the conversion, of networks with loops or of those without."""
    wrong = {}
    for seed in seeds:
        network = random_network(seed)
        if has_loop(network) == loops:
            wrong[seed] = differences(seed, network)
    return {seed: outputs for seed, outputs in wrong.items() if outputs}


def either_tile(data_shape: Sequence[int], num_filter: int, dilate: int = 1) -> int:
    """Tiles of both sizes, for layers of any size."""
    return 4 if (data_shape[1] + num_filter + dilate) % 2 else 6


@pytest.fixture
def any_size(monkeypatch):
    """Winograd's algorithm is used for layers of any size, and MXNet's layout by two of three."""
    monkeypatch.setattr(winograd, "pays", lambda *sizes: True)
    monkeypatch.setattr(winograd, "tile_size", either_tile)
    monkeypatch.setattr(padded_outputs, "build_info", lambda: {"simd": "avx2"})
    monkeypatch.setattr(
        gemm_layers, "mxnets_layout_pays", lambda graph, layers: len(graph.nodes) % 3 > 0
    )


@pytest.mark.parametrize("block", range(4))
def test_random_networks(any_size, block):
    assert not wrong_networks(range(50 * block, 50 * block + 50), loops=False)


@pytest.mark.night
@pytest.mark.parametrize("block", range(4, 100))
def test_more_random_networks(any_size, block):
    test_random_networks(any_size, block)


def test_uses_are_those_of_the_changed_graph(any_size, monkeypatch):
    counts: collections.Counter = collections.Counter()

    def checked(change, graph, one, other, uses, *known):
        change(graph, one, other, uses, *known)
        counts[change.__name__] += 1
        found, expected = (
            {entry: sorted(readers) for entry, readers in one.items()}
            for one in (uses, graph.uses())
        )
        assert found == expected
        assert graph.parameters.keys() <= {graph.nodes[entry.node]["name"] for entry in uses}

    for change in (InferenceGraph.replace, InferenceGraph.set_inputs):
        monkeypatch.setattr(
            InferenceGraph,
            change.__name__,
            lambda *changed, change=change: checked(change, *changed),
        )
    for seed in range(100):
        network = random_network(seed)
        convert.convert(network.symbol, network.params, network.inputs)
    assert min(counts["replace"], counts["set_inputs"]) > 100


@pytest.mark.parametrize(
    "begin, end",
    [(0, 200), *[pytest.param(n, n + 600, marks=pytest.mark.night) for n in range(200, 5000, 600)]],
)
def test_random_networks_with_loops(begin, end):
    """In a process with MXNet's NaiveEngine, which runs one node after the other.

    With other engines, loops run while nodes before them do: the same network then gives other
    results from call to call, converted or not.
    """
    script = Path(__file__).parents[1] / "scripts" / "inference_loops.py"
    environment = {**os.environ, "MXNET_ENGINE_TYPE": "NaiveEngine"}
    command = [sys.executable, str(script), str(begin), str(end)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {}


# ---- Planted faults: each is found in the networks of every push ---------------------------------


class _OneReader(list):
    """A list that has one element at most, by its length."""

    def __len__(self) -> int:
        return min(super().__len__(), 1)


def _forgotten_users(monkeypatch):
    """A pass takes the first node that reads an output for the only one."""
    uses = InferenceGraph.uses
    monkeypatch.setattr(
        InferenceGraph, "uses", lambda graph: {k: _OneReader(v) for k, v in uses(graph).items()}
    )


def _wrong_pad(monkeypatch):
    """A layer whose pad is not its dilation is taken for one that keeps the size of its map."""
    pair = winograd_layers.pair
    monkeypatch.setattr(
        winograd_layers,
        "pair",
        lambda graph, number, name, default: pair(
            graph, number, "dilate" if name == "pad" else name, 1 if name == "pad" else default
        ),
    )


def _always_one(monkeypatch, module, name):
    """Every layer has the sizes 1 x 1, whatever its attribute says."""
    pair = module.pair
    monkeypatch.setattr(
        module,
        "pair",
        lambda graph, number, asked, default: (
            (1, 1) if asked == name else pair(graph, number, asked, default)
        ),
    )


def _wrong_stride(monkeypatch):
    """A strided layer is taken for one that is not."""
    _always_one(monkeypatch, winograd_layers, "stride")


def _transposed_tile(monkeypatch):
    transform = winograd.transform_weights
    monkeypatch.setattr(
        winograd, "transform_weights", lambda weight, tile: transform(weight.swapaxes(2, 3), tile)
    )


def _forgotten_bias(monkeypatch):
    bias_of = winograd_layers.bias_of
    monkeypatch.setattr(winograd_layers, "bias_of", lambda *layer: np.zeros_like(bias_of(*layer)))


def _forgotten_gamma(monkeypatch):
    folded = fold_batch_norm.fold
    monkeypatch.setattr(
        fold_batch_norm,
        "fold",
        lambda weight, bias, gamma, *rest: folded(weight, bias, np.ones_like(gamma), *rest),
    )


def _any_activation(monkeypatch):
    """Every activation is taken for ReLU."""
    monkeypatch.setattr(epilogue, "_activation", lambda *node: {"act_type": "relu"})


def _forgotten_dilation(monkeypatch):
    """A dilated layer is taken for one that is not."""
    _always_one(monkeypatch, gemm_layers, "dilate")


def _groups_forgotten(monkeypatch):
    """A depthwise convolution is taken for one of all channels."""
    for module in (winograd_layers, narrow):
        monkeypatch.setattr(
            module,
            "is_plain_convolution",
            lambda graph, number: graph.nodes[number]["op"] == "Convolution",
        )


def _parts_exchanged(monkeypatch):
    """The parts of joined convolutions are in another order than the weights."""
    joined = narrow._joined
    monkeypatch.setattr(narrow, "_joined", lambda values: joined(values[::-1]))


def _cells_exchanged(monkeypatch):
    """Rows and columns of a transposed convolution's kernel are exchanged."""
    value = InferenceGraph.value

    def exchanged(graph, place):
        found = value(graph, place)
        return found.swapaxes(2, 3) if found is not None and found.ndim == 4 else found

    monkeypatch.setattr(InferenceGraph, "value", exchanged)


def _kept_weights(monkeypatch):
    """Layers whose weights are computed in each call are fused."""
    monkeypatch.setattr(fusion, "_restore_layers", lambda *fused: None)


def _constant_states(monkeypatch):
    """An operator with a state is computed in advance."""
    monkeypatch.setattr(graph, "is_deterministic", lambda node: True)


class _SameForms(dict):
    def get(self, *_: Any) -> symbolic_shapes.SymbolicShape:
        return symbolic_shapes.SymbolicShape((), True)


def _equal_shapes(monkeypatch):
    """Every sum that may broadcast is taken for one of equal shapes."""
    monkeypatch.setattr(sums, "symbolic_shapes", lambda graph: _SameForms())


FAULTS = (
    _kept_weights,
    _constant_states,
    _equal_shapes,
    _forgotten_users,
    _wrong_pad,
    _wrong_stride,
    _transposed_tile,
    _forgotten_bias,
    _forgotten_gamma,
    _any_activation,
    _forgotten_dilation,
    _groups_forgotten,
    _parts_exchanged,
    _cells_exchanged,
)


@pytest.mark.parametrize(
    "fault",
    [
        # This one shows in few networks.
        pytest.param(fault, marks=[pytest.mark.night] * (fault is _groups_forgotten))
        for fault in FAULTS
    ],
    ids=lambda fault: fault.__name__[1:],
)
def test_planted_faults_are_found(any_size, monkeypatch, fault):
    fault(monkeypatch)

    def is_found(seed):
        network = random_network(seed)
        if has_loop(network):
            return False
        try:
            return bool(differences(seed, network))
        except (mx.MXNetError, ValueError):  # shapes that do not fit
            return True

    assert any(is_found(seed) for seed in range(300))
