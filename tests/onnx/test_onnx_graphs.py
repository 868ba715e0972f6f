# SPDX-License-Identifier: Apache-2.0
"""Random graphs of MXNet's operators (tests/onnx/onnx_graphs.py) give the same results in ONNX."""

import random

import onnx_graphs
import pytest
from support.graphs import MAKERS
from support.onnx_evaluator import run_in_openvino

pytest.importorskip("onnx")

#: Rules that no graph can have by itself, or that have tests of their own.
OTHERS = {
    *("SoftmaxOutput", "LinearRegressionOutput", "LogisticRegressionOutput"),
    *("MAERegressionOutput", "SVMOutput", "MakeLoss"),
    "amp_multicast",
}


def test_every_rule_is_drawn():
    from gluon_roi.onnx.model import RULES
    from gluon_roi.switch.mapping import builtins

    mine = {name for name in RULES if not name.startswith("_gluon_roi_")}
    # What an export switches first has the rules of our operators.
    assert mine - OTHERS == set(MAKERS) - set(builtins())


@pytest.mark.parametrize("turn", [0, pytest.param(1, marks=pytest.mark.night)])
def test_random_graphs(turn, tmp_path):
    """Each operator, with others that are drawn; by night once more, with others."""
    _check(range(turn * len(MAKERS), (turn + 1) * len(MAKERS)), tmp_path)


@pytest.mark.night
def test_fresh_random_graphs(tmp_path):
    """Other graphs in every run; a failure names the seed, for tests/onnx/onnx_graphs.py.

    Without sizes of 0, because some of MXNet's operators end the process there.
    """
    first = random.SystemRandom().randrange(2**31)
    print(f"seeds from {first}")
    _check(range(first, first + 4 * len(MAKERS)), tmp_path, zero_sizes=False)


@pytest.mark.night
def test_random_graphs_in_openvino(tmp_path):
    """It refuses one in twenty: of arrays without elements, and some with NonMaxSuppression."""
    pytest.importorskip("openvino")
    path = tmp_path / "model.onnx"
    found = [onnx_graphs.check(seed, path, run_in_openvino) for seed in range(len(MAKERS))]
    refused = [one.startswith("RuntimeError: Exception from src/") for one in found]
    assert sum(refused) < len(found) / 10
    assert not [one for one, is_refused in zip(found, refused) if one and not is_refused]


def _check(seeds, folder, **options):
    for seed in seeds:
        difference = onnx_graphs.check(seed, folder / "model.onnx", **options)
        assert not difference, f"graph {seed}, {options}: {difference}"
