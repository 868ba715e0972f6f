# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks need to know of a row of the table. Needs only NumPy."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np


class Inputs(NamedTuple):
    """The arrays of a call; always the same."""

    fixed: list[np.ndarray]  # without a gradient, of types of their own: boxes
    variable: list[np.ndarray]  # with a gradient, of the row's type, in the order of the call
    d_out: np.ndarray


class Row:
    """An operator, with the sizes of its inputs and its arguments; each class is a dataclass."""

    name: str
    operator: str  # in gluon_roi.nd
    dtype: str  # of the data
    reuse: bool  # measured with the output reused as well

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of gluon_roi's operator, by name."""
        raise NotImplementedError

    def inputs(self) -> Inputs:
        raise NotImplementedError

    def moved(self) -> tuple[int, int]:
        """The bytes that the passes must move: inputs and output, and the gradients of both."""
        inputs = self.inputs()
        variable = sum(array.nbytes for array in inputs.variable)
        forward = sum(array.nbytes for array in inputs.fixed) + variable + inputs.d_out.nbytes
        return forward, forward + variable

    def shrunk(self) -> Row:
        """The same row at a size that takes no time: it tests the script, not the operators."""
        raise NotImplementedError

    def as_dict(self) -> dict[str, Any]:
        return {"kind": type(self).__name__, **asdict(self)}  # type: ignore[call-overload]

    @staticmethod
    def from_dict(fields: dict[str, Any]) -> Any:
        values: dict[str, Any] = {
            key: tuple(v) if isinstance(v, list) else v for key, v in fields.items()
        }
        kinds: dict[str, Any] = {kind.__name__: kind for kind in Row.__subclasses__()}
        return kinds[values.pop("kind")](**values)
