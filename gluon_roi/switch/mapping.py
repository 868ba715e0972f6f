# SPDX-License-Identifier: Apache-2.0
"""The table of MXNet's operators that ours replace, from the library (src/bindings/switches.cc)."""

from __future__ import annotations

import ctypes
import functools
import json
from typing import Any, NamedTuple

import mxnet as mx

from .. import library
from ..bridge.arguments import is_true


class Argument(NamedTuple):
    """How one of MXNet's arguments is translated; see Becomes in src/bindings/switches.h."""

    theirs: str  # "" if there is none
    ours: str  # "" if there is none
    becomes: str
    value: str


class Switch(NamedTuple):
    """One of MXNet's operators, and our equivalent."""

    theirs: str  # in graphs
    functions: tuple[str, ...]  # in mx.nd, mx.sym, their contrib, and mx.npx
    ours: str  # a function of gluon_roi.nd
    inputs: tuple[str, ...]
    arguments: tuple[Argument, ...]

    @property
    def pools_boxes(self) -> bool:
        return "rois" in self.inputs

    def translate(self, given: dict[str, Any], **options: str) -> tuple[str, dict[str, Any]]:
        """Translate arguments of MXNet's function to our function and its arguments.

        Unknown arguments stay. The library translates attributes of nodes in the same way
        (apply_switch).
        """
        ours, result = self.ours, {k: v for k, v in given.items() if v is not mx.base._Null}
        for theirs, name, becomes, value in self.arguments:
            got = result.pop(theirs, None)
            if becomes == "operator":
                ours = value if is_true(got) else ours
            elif becomes == "no input":
                if is_true(got):
                    result.pop(value, None)
            elif becomes == "option":
                result[name] = options[name]
            elif becomes == "constant" or (becomes == "always" and got is None):
                result[name] = value
            elif got is not None and not (becomes == "not zero" and str(got) == "0"):
                result[name] = got
        return ours, result


@functools.lru_cache(maxsize=None)
def switches() -> tuple[Switch, ...]:
    """Every switch that the library knows."""
    c = ctypes.CDLL(str(library.PATH))
    c.gluon_roi_switches.restype = ctypes.c_char_p
    return tuple(
        Switch(
            one["theirs"],
            tuple(one["functions"]),
            one["ours"],
            tuple(one["inputs"]),
            tuple(Argument(**argument) for argument in one["arguments"]),
        )
        for one in json.loads(c.gluon_roi_switches())
    )


class Options(NamedTuple):
    """Options of a switch."""

    bad_index: str
    rois_only: bool = False

    def includes(self, switch: Switch) -> bool:
        return switch.pools_boxes or not self.rois_only


@functools.lru_cache(maxsize=None)
def by_function() -> dict[str, Switch]:
    """The switches by the names of MXNet's functions, in any module."""
    return {name: switch for switch in switches() for name in switch.functions}


def builtins(options: Options | None = None) -> tuple[str, ...]:
    """The names of MXNet's operators in graphs (npx.roi_pooling is ROIPooling there)."""
    return tuple(one.theirs for one in switches() if options is None or options.includes(one))
