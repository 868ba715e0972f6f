# SPDX-License-Identifier: Apache-2.0
"""Options of the command line as fields of dataclasses, and the conversions of their texts."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable
from dataclasses import fields
from typing import Any

MAX_SIDE = 10_000  # pixels of a scaled image


def integer(lowest: int, highest: int = 2**31 - 1) -> Callable[[str], int]:
    """Return a conversion of text to an integer within a range."""
    words = f">= {lowest}" if highest == 2**31 - 1 else f"from {lowest} to {highest}"

    def convert(text: str) -> int:
        if not text.isdecimal() or not lowest <= int(text) <= highest:
            raise argparse.ArgumentTypeError(f"expected an integer {words}, got {text}")
        return int(text)

    return convert


def number(words: str, accepts: Callable[[float], bool]) -> Callable[[str], float]:
    """Return a conversion of text to an accepted finite number; words describe the range."""

    def convert(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not (abs(value) < float("inf") and accepts(value)):
            raise argparse.ArgumentTypeError(f"expected a number {words}, got {text}")
        return value

    return convert


natural, positive, pixels = integer(0), integer(1), integer(1, MAX_SIDE)
above_zero = number("> 0", lambda value: value > 0)
from_zero = number(">= 0", lambda value: value >= 0)
probability = number("from 0 to 1", lambda value: 0 <= value <= 1)
below_one = number(">= 0 and < 1", lambda value: 0 <= value < 1)
up_to_one = number("> 0 and <= 1", lambda value: 0 < value <= 1)
share = number("> 0 and < 1", lambda value: 0 < value < 1)


def gpu_numbers(text: str) -> tuple[int, ...]:
    """Convert a list such as 0,1."""
    numbers = tuple(natural(part) for part in text.split(",") if part)
    if len(set(numbers)) < len(numbers):
        raise argparse.ArgumentTypeError(f"expected different numbers, got {text}")
    return numbers


def option(default: Any, text: str, kind: Any = None, same_run: bool = False, **how: Any) -> Any:
    """Return a field that is an option; a flag turns a bool over.

    `kind` converts the option's text. With `same_run`, another value still describes the same run.
    `only` in `how` names the one command that has the option; the rest goes to `add_argument`.
    """
    if kind:
        how["type"] = kind
    metadata = {"same_run": same_run, "how": {"help": text, **how}}
    return dataclasses.field(default=default, metadata=metadata)


def add_options(parser: argparse.ArgumentParser, parts: dict[str, Any], command: str) -> None:
    """Add the options of some parts; the result of parsing lacks those that are not given."""
    for title, part in parts.items():
        group = parser.add_argument_group(title)
        for each in fields(part):
            how, flag = dict(each.metadata["how"]), each.name.replace("_", "-")
            if how.pop("only", command) != command:
                continue
            if isinstance(each.default, bool):
                flag = f"no-{flag}" if each.default else flag
                how["action"] = "store_false" if each.default else "store_true"
            elif each.default not in (None, ()):
                how["help"] += f" (default: {shown(each.default)})"
            group.add_argument(f"--{flag}", dest=each.name, default=argparse.SUPPRESS, **how)


def shown(default: Any) -> str:
    """Return a default as it is typed."""
    values = default if isinstance(default, (tuple, list)) else (default,)
    return " ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values)
