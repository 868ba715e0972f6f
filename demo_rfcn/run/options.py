# SPDX-License-Identifier: Apache-2.0
"""Arguments of the command line: their conversions, and their description as fields."""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

MAX_SIDE = 10_000  # pixels of a scaled image


def integer(lowest: int, highest: int | None = None) -> Callable[[str], int]:
    """Return a conversion of an argument to an integer from the lowest on, up to the highest."""
    words = f"from {lowest} on" if highest is None else f"from {lowest} to {highest}"

    def convert(text: str) -> int:
        if not text.isdecimal() or not lowest <= int(text) <= (highest or 2**31 - 1):
            raise argparse.ArgumentTypeError(f"expected an integer {words}, got {text}")
        return int(text)

    return convert


def number(words: str, accepts: Callable[[float], bool]) -> Callable[[str], float]:
    """Return a conversion of an argument to a finite number that is accepted; words say which."""

    def convert(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and accepts(value)):
            raise argparse.ArgumentTypeError(f"expected a number {words}, got {text}")
        return value

    return convert


natural, positive, pixels = integer(0), integer(1), integer(1, MAX_SIDE)
above_zero = number("above 0", lambda value: value > 0)
from_zero = number("from 0 on", lambda value: value >= 0)
probability = number("from 0 to 1", lambda value: 0 <= value <= 1)
below_one = number("from 0 on and below 1", lambda value: 0 <= value < 1)
up_to_one = number("above 0 and up to 1", lambda value: 0 < value <= 1)
share = number("above 0 and below 1", lambda value: 0 < value < 1)


def folder_or_number(text: str) -> Path | int:
    """Convert an argument that is a folder, or a number from 1 on."""
    return positive(text) if text.isdecimal() else Path(text)


def gpu_numbers(text: str) -> tuple[int, ...]:
    """Convert an argument such as 0,1."""
    numbers = tuple(natural(part) for part in text.split(",") if part)
    if len(set(numbers)) < len(numbers):
        raise argparse.ArgumentTypeError(f"expected different numbers, got {text}")
    return numbers


def option(default: Any, group: str, text: str, kind: Any = None, **how: Any) -> Any:
    """Return a field that is an argument of the command line.

    Parameters
    ----------
    default : object
        The argument of a bool is a flag that turns it over.
    group, text : str
        Where the help shows the argument, and what it says.
    kind : callable or None
        The conversion of the argument's text, if it is to be converted.
    **how
        Further arguments of `add_argument`; and `same_run`, whether a run with another value is
        still the same run. It is with another device or another folder.
    """
    same_run = how.pop("same_run", group in ("devices", "workers", "run"))
    if kind:
        how["type"] = kind
    return field(
        default=default, compare=not same_run, metadata={"group": group, "help": text, **how}
    )


def flag_of(each: dataclasses.Field) -> str:
    """Return the flag of an option."""
    flag = each.name.replace("_", "-")
    return f"--no-{flag}" if each.default is True else f"--{flag}"


def add_options(
    parser: argparse.ArgumentParser, fields: Sequence[dataclasses.Field], groups: Sequence[str]
) -> None:
    """Add the options of some groups to a parser; what is not given is not in its result."""
    for title in groups:
        group = parser.add_argument_group(title)
        for each in fields:
            if each.metadata["group"] != title:
                continue
            how = {key: value for key, value in each.metadata.items() if key != "group"}
            if isinstance(each.default, bool):
                how["action"] = "store_false" if each.default else "store_true"
            elif each.default not in (None, ()):
                how["help"] += f" (default: {shown(each.default)})"
            group.add_argument(flag_of(each), dest=each.name, default=argparse.SUPPRESS, **how)


def shown(default: Any) -> str:
    """Return a default as it is typed."""
    values = default if isinstance(default, (tuple, list)) else (default,)
    return " ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values)


def as_arguments(fields: Sequence[dataclasses.Field], values: dict) -> list[str]:
    """Return the arguments that give some stored values, where they are not the defaults.

    Whatever a file holds, the command line's own conversions then look at it.
    """
    line = []
    for each in fields:
        value = values.get(each.name, each.default)
        if value is None or value == each.default or value == _plain(each.default):
            continue
        if isinstance(each.default, bool):
            line.append(flag_of(each))
        elif "nargs" in each.metadata and isinstance(value, list):
            line += [flag_of(each), *map(str, value)]
        elif each.metadata.get("type") is gpu_numbers and isinstance(value, list):
            line.append(f"{flag_of(each)}={','.join(map(str, value))}")
        else:
            line.append(f"{flag_of(each)}={value}")
    return line


def _plain(value: Any) -> Any:
    """Return a default as JSON gives it back."""
    return (
        [*value] if isinstance(value, tuple) else str(value) if isinstance(value, Path) else value
    )
