# SPDX-License-Identifier: Apache-2.0
"""The optimizer's state as data: arrays and numbers by parameter name, without code.

MXNet's `Trainer.save_states` pickles the optimizer, and reading a pickle can run code. Older
checkpoints hold such a pickle; `read_pickle` extracts its arrays and numbers and creates nothing
else.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from typing import Any, Dict, List, Tuple

import mxnet as mx
import numpy as np

from ..errors import reason
from ..params import array_at

# By parameter: its arrays, and how often it was updated.
States = Dict[str, Tuple[List[np.ndarray], int]]


def collect(trainer: mx.gluon.Trainer, names: dict[int, str]) -> States:
    """Return the state of every parameter that was updated; names are those of the trainer's."""
    updates = trainer._optimizer._index_update_count
    return {
        names[index]: ([array.asnumpy() for array in _arrays(state)], updates[index])
        for index, state in sorted(trainer._updaters[0].states.items())
    }


def restore(trainer: mx.gluon.Trainer, names: dict[int, str], states: States) -> None:
    """Give a new trainer the states that another one had.

    Raises
    ------
    ValueError
        They are of other parameters, or of another optimizer.
    """
    if unknown := sorted(states.keys() - set(names.values())):
        raise ValueError(f"the optimizer has a state of '{unknown[0]}', which the network lacks")
    optimizer = trainer._optimizer
    for place, updater in enumerate(trainer._updaters):
        for index, name in names.items():
            if name not in states:
                continue
            arrays, updates = states[name]
            weight = trainer._params[index].list_data()[place]
            state = optimizer.create_state_multi_precision(index, weight)
            own = _arrays(state)
            if [array.shape for array in own] != [array.shape for array in arrays]:
                raise ValueError(f"the state of '{name}' is of another optimizer")
            for array, stored in zip(own, arrays):
                array[:] = stored
            updater.states[index] = state
            updater.states_synced[index] = True
            optimizer._set_current_context(weight.context.device_id)
            optimizer._index_update_count[index] = updates
            optimizer.num_update = max(optimizer.num_update, updates)


def _arrays(state: Any) -> list:
    """Return the arrays of one parameter's state, which MXNet keeps as None, one or a tuple."""
    if state is None:
        return []
    return list(state) if isinstance(state, (tuple, list)) else [state]


class _Array:
    """Stands for an NDArray of a pickle; its bytes come with `__dict__`."""

    def __init__(self, handle: None) -> None:
        self.handle: Any = handle


class _Rule:
    """Stands for the optimizer of a pickle."""


def _bytes(data: bytes | bytearray = b"") -> bytes:
    # (Of a number, it would be so many zeros. Python 3.14 pickles a bytearray as what it is, older
    # ones as a call.)
    if not isinstance(data, (bytes, bytearray)):
        raise pickle.UnpicklingError("bytes of something else")
    return bytes(data)


class _Reader(pickle.Unpickler):
    ADMITTED = {
        ("mxnet.ndarray.ndarray", "NDArray"): _Array,
        ("mxnet.optimizer.optimizer", "Adam"): _Rule,
        ("mxnet.optimizer.optimizer", "SGD"): _Rule,
        ("builtins", "bytearray"): _bytes,
    }

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self.ADMITTED[module, name]
        except KeyError:
            raise ValueError(
                f"it asks for '{module}.{name}', which no state of an optimizer does"
            ) from None


def read_pickle(data: bytes, names: dict[int, str]) -> States:
    """Read what `Trainer.save_states` wrote.

    Raises
    ------
    ValueError
        It holds anything else.
    """
    try:
        # A place beyond what the pickle could have stored would make Python allocate up to it.
        if any(
            "PUT" in code.name and int(argument or 0) > len(data)
            for code, argument, _ in pickletools.genops(data)
        ):
            raise ValueError("it stores out of range")
        states, rule = _Reader(io.BytesIO(data)).load()
        updates = vars(rule)["_index_update_count"]
        return {
            names[index]: ([_loaded(array) for array in _arrays(state)], _count(updates[index]))
            for index, state in states.items()
        }
    except Exception as error:  # a pickle made to harm raises what it likes
        raise ValueError(f"no state of an optimizer: {reason(error)}") from error


def _loaded(stored: _Array) -> np.ndarray:
    return array_at(_bytes(stored.handle), 0)[0]


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**31:
        raise ValueError(f"{value!r} as a number of updates")
    return value
