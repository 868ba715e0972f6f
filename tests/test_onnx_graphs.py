# SPDX-License-Identifier: Apache-2.0
"""Random graphs of MXNet's operators (tests/onnx_graphs.py) give the same results in ONNX."""

import onnx_graphs
import pytest
from support.graphs import MAKERS, graph

pytest.importorskip("onnx")

#: Rules that no graph can have by itself, or that have tests of their own.
OTHERS = {
    *("SoftmaxOutput", "LinearRegressionOutput", "LogisticRegressionOutput"),
    *("MAERegressionOutput", "SVMOutput", "MakeLoss"),
    *("_zeros_without_dtype", "amp_multicast"),
}


def test_every_rule_is_drawn():
    from gluon_roi.onnx.model import RULES
    from gluon_roi.switch.mapping import builtins

    mine = {name for name in RULES if not name.startswith("_gluon_roi_")}
    # What an export switches first has the rules of our operators.
    assert mine - OTHERS == set(MAKERS) - set(builtins())


def test_random_graphs(tmp_path):
    """Each operator twice, with others that are drawn."""
    for seed in range(2 * len(MAKERS)):
        assert not onnx_graphs.check(seed, tmp_path / "model.onnx"), (
            seed,
            graph(seed).calls,
        )
