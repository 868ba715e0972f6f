# SPDX-License-Identifier: Apache-2.0
"""Common code of libraries on torch's CPU tensors."""

from __future__ import annotations

import importlib
from typing import Any, Callable

from ..work import Inputs
from .base import BETWEEN, Work


def work_of(call: Callable, inputs: Inputs, dtype: str, backward: bool = True) -> Work:
    """The ways of measuring `call`, a function of the fixed inputs and the variable ones."""
    torch = importlib.import_module("torch")
    fixed = [torch.from_numpy(a.astype(dtype)) for a in inputs.fixed]
    given = [torch.from_numpy(a) for a in inputs.variable]
    d_out = torch.from_numpy(inputs.d_out)
    recorded = [x.clone().requires_grad_() for x in given]

    def forward(variable: list[Any]) -> Any:
        with torch.no_grad():
            return call(*fixed, *variable)

    def both(variable: list[Any]) -> Any:
        for x in variable:
            x.grad = None
        out = call(*fixed, *variable)
        out.backward(d_out)
        return out

    between = torch.zeros(BETWEEN)
    made: list[Any] = []

    def others() -> None:
        between.add_(1)
        made[:] = [(x * 1).requires_grad_() for x in given]

    work: Work = {
        "forward": lambda: forward(given),
        "forward in a network": (others, lambda: forward(made)),
        "result": lambda: forward(given).numpy(),
    }
    if backward:
        work["forward+backward"] = lambda: both(recorded)
        work["forward+backward in a network"] = (others, lambda: both(made))
    return work
