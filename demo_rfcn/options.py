# SPDX-License-Identifier: Apache-2.0
"""Options of the command line as fields of dataclasses, and the conversions of their texts."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

MAX_SIDE = 10_000  # pixels of a scaled image


def number(kind: type, words: str, accepts: Callable[[Any], bool]) -> Callable[[str], Any]:
    """Return a conversion of text to an accepted finite number; words describe the range."""

    def convert(text: str) -> Any:
        try:
            value = kind(text)
            fits = abs(value) < float("inf") and accepts(value)
        except ValueError:
            fits = False
        if not fits:
            raise argparse.ArgumentTypeError(f"expected {words}, got {text}")
        return value

    return convert


def integer(lowest: int, highest: int = 2**31 - 1) -> Callable[[str], int]:
    """Return a conversion of text to an integer within a range."""
    words = f">= {lowest}" if highest == 2**31 - 1 else f"from {lowest} to {highest}"
    return number(int, f"an integer {words}", lambda value: lowest <= value <= highest)


natural, positive, pixels = integer(0), integer(1), integer(1, MAX_SIDE)
above_zero = number(float, "a number > 0", lambda value: value > 0)
from_zero = number(float, "a number >= 0", lambda value: value >= 0)
probability = number(float, "a number from 0 to 1", lambda value: 0 <= value <= 1)
below_one = number(float, "a number >= 0 and < 1", lambda value: 0 <= value < 1)
up_to_one = number(float, "a number > 0 and <= 1", lambda value: 0 < value <= 1)
share = number(float, "a number > 0 and < 1", lambda value: 0 < value < 1)


def gpu_numbers(text: str) -> tuple[int, ...]:
    """Convert a list such as 0,1."""
    numbers = tuple(natural(part) for part in text.split(",") if part)
    if len(set(numbers)) < len(numbers):
        raise argparse.ArgumentTypeError(f"expected different numbers, got {text}")
    return numbers


def option(default: Any, text: str, kind: Any = None, same_run: bool = False, **how: Any) -> Any:
    """Return a field that is an option; a flag inverts a bool.

    `kind` converts the option's text. With `same_run`, another value still describes the same run.
    `only` in `how` is the one command that has the option, `names` replace the field's name; the
    rest are arguments of `add_argument`.
    """
    if kind:
        how["type"] = kind
    metadata = {"same_run": same_run, "how": {"help": text, **how}}
    return dataclasses.field(default=default, metadata=metadata)


def place(text: str, metavar: str) -> Any:
    """Return a field that is an option: a file or folder, which may move within one run."""
    return option(None, text, Path, True, metavar=metavar)


def add_options(parser: argparse.ArgumentParser, parts: dict[str, Any], command: str) -> None:
    """Add the options of some parts; the result of parsing lacks those that are not given."""
    for title, part in parts.items():
        group = parser.add_argument_group(title, part.__doc__)
        for each in fields(part):
            how, flag = dict(each.metadata["how"]), each.name.replace("_", "-")
            if how.pop("only", command) != command:
                continue
            if isinstance(each.default, bool):
                flag = f"no-{flag}" if each.default else flag
                how["action"] = "store_false" if each.default else "store_true"
            elif each.default not in (None, (), ""):
                values = each.default if isinstance(each.default, tuple) else (each.default,)
                shown = (f"{v:g}" if isinstance(v, float) else str(v) for v in values)
                how["help"] += f" (default: {' '.join(shown)})"
            names = how.pop("names", [f"--{flag}"])
            if names[0].startswith("-"):
                how.update(dest=each.name, default=argparse.SUPPRESS)
            group.add_argument(*names, **how)
