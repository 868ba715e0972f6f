# SPDX-License-Identifier: Apache-2.0
"""Records a symbol of the operators that only converted graphs have, as files hold them.

    python tests/golden/record_inference.py

writes inference.json, which later versions have to load, and inference.npz: values of the symbol's
arguments, and its outputs (out0, out1).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np

from gluon_roi.inference import winograd
from testing.inference_operators import upsample_add, winograd_convolution

STEM = Path(__file__).parent / "inference"


def symbol() -> mx.sym.Symbol:
    """Both operators with all of their parameters: two layers, and a level of a pyramid."""
    data, low = mx.sym.var("data"), mx.sym.var("low")
    weights = {name: mx.sym.var(name) for name in ("w0", "b0", "w1", "b1")}
    first = winograd_convolution(
        data, weights["w0"], weights["b0"], num_filter=20, act_type="relu", name="first"
    )
    second = winograd_convolution(
        first, weights["w1"], weights["b1"], first, num_filter=20, dilate=2, name="second"
    )
    return mx.sym.Group([second, upsample_add(low, second, name="level")])


def arguments() -> dict[str, np.ndarray]:
    random = np.random.RandomState(0)
    weights = {"w0": random.randn(20, 5, 3, 3), "w1": random.randn(20, 20, 3, 3)}
    arrays = {
        "data": random.randn(2, 5, 11, 17),
        "low": random.randn(2, 20, 6, 9),
        "b0": random.randn(20),
        "b1": random.randn(20),
    }
    return {
        **{name: array.astype("float32") for name, array in arrays.items()},
        **{name: winograd.transform_weights(weight) for name, weight in weights.items()},
    }


def outputs(symbol: mx.sym.Symbol, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    given = {name: mx.nd.array(arrays[name], mx.cpu()) for name in symbol.list_arguments()}
    found = symbol.bind(mx.cpu(), given).forward()
    return {f"out{i}": out.asnumpy() for i, out in enumerate(found)}


if __name__ == "__main__":
    saved, arrays = symbol(), arguments()
    saved.save(f"{STEM}.json")
    recorded: dict[str, Any] = {**arrays, **outputs(saved, arrays)}
    np.savez_compressed(f"{STEM}.npz", **recorded)
