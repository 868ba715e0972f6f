# SPDX-License-Identifier: Apache-2.0
"""Names of parameters in the files of mx.model.save_checkpoint."""

from __future__ import annotations

from typing import Any, Mapping

#: Prefixes of parameters and of auxiliary states.
PREFIXES = ("arg:", "aux:")


def by_name(argument: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters without the prefixes of a checkpoint.

    Parameters
    ----------
    argument : str
        For the error message, such as "onnx.export: params".
    """
    found: dict[str, Any] = {}
    stored: dict[str, str] = {}
    for key, value in params.items():
        name = key.split(":", 1)[1] if key.startswith(PREFIXES) else key
        if name in stored:
            raise ValueError(
                f"{argument}: expected one array for {name}, got two, {stored[name]} and {key}"
            )
        found[name], stored[name] = value, key
    return found
