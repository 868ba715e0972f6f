# SPDX-License-Identifier: Apache-2.0
"""Checks and reads the parameters of a symbol, and calls convert.convert.

Their names may have the prefixes arg: and aux: of files.
"""

from __future__ import annotations

import os
from typing import Any, Mapping, Sequence

import mxnet as mx

from ..checkpoint import PREFIXES, by_name
from ..files import read_parameters
from .convert import Converted, convert


def checked_parameters(params: Any, shapes: Any, inference: bool) -> dict[str, mx.nd.NDArray]:
    """The parameters of a symbol, read if given as a path; raises TypeError for wrong arguments."""
    if not inference:
        for name, value in (("params", params), ("shapes", shapes)):
            if value is not None:
                raise TypeError(f"optimize: {name} is for inference=True")
        return {}
    if isinstance(params, (str, os.PathLike)):
        params = read_parameters("optimize: params", params)
    if not isinstance(params, Mapping):
        raise TypeError(
            "optimize: params: expected the symbol's parameters, a dict of names and arrays or the "
            f"path of their file, got {type(params).__name__}"
        )
    for name, value in params.items():
        if not isinstance(value, mx.nd.NDArray) or value.context.device_type != "cpu":
            found = value.context if isinstance(value, mx.nd.NDArray) else type(value).__name__
            raise TypeError(f"optimize: params: {name}: expected an array on the CPU, got {found}")
    return dict(params)


def convert_symbol(
    symbol: mx.sym.Symbol,
    params: Mapping[str, mx.nd.NDArray],
    shapes: Mapping[str, Sequence[int]],
    winograd: bool,
) -> Converted:
    """Convert a symbol. Names keep the prefixes arg: and aux: if `params` has them."""
    has_prefixes = any(name.startswith(PREFIXES) for name in params)
    values = by_name("optimize: params", params)
    inputs = [name for name in symbol.list_inputs() if name not in values]
    for name in shapes:
        if name not in inputs:
            raise ValueError(
                f"optimize: shapes: the symbol has no input {name!r}, expected one of "
                f"{', '.join(inputs)}"
            )
    converted = convert(symbol, values, shapes, winograd)
    states = set(converted.symbol.list_auxiliary_states())
    arrays = {
        (("aux:" if name in states else "arg:") if has_prefixes else "") + name: value
        for name, value in converted.parameters.items()
    }
    return converted._replace(parameters=arrays)
