# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: one NumPy archive with everything that a run needs to continue.

The archive holds the arrays `model/<parameter>` and `optimizer/<place>/<parameter>`, and a JSON
text, `notes`. Reading one cannot run code.
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np

from .. import files
from ..errors import CheckpointError, reason
from ..model import detector
from ..model.config import ModelConfig
from ..model.detector import RFCN
from ..settings import MAX_SIDE

FORMAT = 3


@dataclass
class Checkpoint:
    """The content of a checkpoint.

    `notes` also have the best score, the history, the scale (short, max_size), held_back (names of
    images, or None), location (of the data set) and updates (the number for each parameter).
    """

    path: Path
    config: ModelConfig
    step: int  # number of finished steps
    arguments: dict[str, Any]  # options of the run
    notes: dict[str, Any]
    model: dict[str, np.ndarray]
    optimizer: dict[str, list[np.ndarray]]  # arrays of each parameter's state

    def check_config(self, wanted: ModelConfig) -> None:
        """Raise CheckpointError, with every difference, unless the configuration is the same."""
        if differences := "; ".join(self.config.differences(wanted)):
            another = f"is of another configuration: {differences}"
            raise CheckpointError(f"checkpoint: {self.path} {another}")

    def load_parameters(self, net: RFCN) -> None:
        """Load the parameters into a net of the same configuration."""
        named = net._collect_params_with_prefix()
        for name in sorted(self.model.keys() | named.keys()):
            shape, expected = (getattr(x.get(name), "shape", None) for x in (self.model, named))
            if shape != expected:
                why = f"parameter '{name}' has shape {shape}, expected {expected}"
                raise _damaged(self.path, why)
        for name, parameter in named.items():
            parameter.set_data(mx.nd.array(self.model[name]))

    def load_fitting(self, net: RFCN) -> str:
        """Load the parameters that fit another net, and return a sentence about the others."""
        named, model = net._collect_params_with_prefix(), self.model
        fitting = [n for n in named if n in model and model[n].shape == named[n].shape]
        if not any(name.startswith("backbone.") for name in fitting):
            raise CheckpointError(
                f"checkpoint: no backbone in {self.path} that fits; it is of another "
                f"configuration: {'; '.join(self.config.differences(net.config))}"
            )
        for name in fitting:
            named[name].set_data(mx.nd.array(model[name]))
        missing = named.keys() - set(fitting) - {"anchor_grid.base"}
        others = sorted({name.rpartition(".")[0] for name in missing})
        left = f"; not kept, and trained from scratch: {', '.join(others)}" if others else ""
        return f"{len(fitting)} of {len(named)} parameters are those of {self.path}{left}"

    def load_optimizer(self, net: RFCN, trainer: mx.gluon.Trainer) -> None:
        """Give a new trainer the optimizer's state; everything random follows from the step."""
        indices = {name: index for index, name in _names(net, trainer).items()}
        updates, optimizer = self.notes["updates"], trainer._optimizer
        for name in sorted(updates.keys() - indices.keys()):
            raise _damaged(self.path, f"it has a state of '{name}', which the network lacks")
        for place, updater in enumerate(trainer._updaters):
            for name, count in updates.items():
                index = indices[name]
                weight = trainer._params[index].list_data()[place]
                state = optimizer.create_state_multi_precision(index, weight)
                own, stored = _arrays(state), self.optimizer.get(name, [])
                if [array.shape for array in own] != [array.shape for array in stored]:
                    raise _damaged(self.path, f"the state of '{name}' is of another optimizer")
                for array, values in zip(own, stored):
                    array[:] = values
                updater.states[index] = state
                updater.states_synced[index] = True
                optimizer._set_current_context(weight.context.device_id)
                optimizer._index_update_count[index] = count
                optimizer.num_update = max(optimizer.num_update, count)

    def detector(self, ctx: Sequence[mx.Context], **arguments: Any) -> detector.Detector:
        """Return the trained detector, hybridized; the arguments are those of `Detector`."""
        net = detector.build(self.config, ctx, seed=0)
        self.load_parameters(net)
        detect = detector.Detector(net, **arguments)
        detect.hybridize(static_alloc=True)
        return detect


def _damaged(path: Path, why: str) -> CheckpointError:
    words = "is not a checkpoint of demo_rfcn, or is damaged"
    return CheckpointError(f"checkpoint: {path} {words}: {why}")


def save(path: Path, net: RFCN, trainer: mx.gluon.Trainer, notes: dict) -> None:
    """Write a checkpoint. If that fails, the previous one is kept."""
    names = _names(net, trainer)
    named = net._collect_params_with_prefix()
    arrays = {f"model/{name}": each._reduce().asnumpy() for name, each in named.items()}
    updates = {}
    for index, state in trainer._updaters[0].states.items():
        updates[names[index]] = trainer._optimizer._index_update_count[index]
        for place, array in enumerate(_arrays(state)):
            arrays[f"optimizer/{place}/{names[index]}"] = array.asnumpy()
    config = net.config.to_dict()
    text = json.dumps({"format": FORMAT, "config": config, "updates": updates, **notes})
    arrays["notes"] = np.frombuffer(text.encode(), np.uint8)
    with files.replacing(path) as part, part.open("wb") as file:
        np.savez(file, **arrays)


def read(path: Path) -> Checkpoint:
    """Read a checkpoint; raise CheckpointError if it is missing, foreign or damaged."""
    if not Path(path).is_file():
        raise CheckpointError(f"checkpoint: file {path} is missing")
    try:
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():  # stored, so that nothing grows when it is read
                if entry.compress_type or entry.compress_size != entry.file_size:
                    raise ValueError(f"'{entry.filename}' in it is compressed")
        with np.load(path, allow_pickle=False) as stored:
            arrays = dict(stored)
        notes = json.loads(arrays.pop("notes").tobytes())
        if notes["format"] != FORMAT:
            raise ValueError(f"it has format {notes['format']}, expected {FORMAT}")
        config = ModelConfig.from_dict(notes["config"])
        _check(notes)
        model: dict[str, np.ndarray] = {}
        optimizer: dict[str, list[np.ndarray]] = {}
        for name in sorted(arrays):
            if not np.issubdtype(arrays[name].dtype, np.floating):
                raise ValueError(f"'{name}' in it is of type {arrays[name].dtype}")
            if name.startswith("model/"):
                model[name[len("model/") :]] = arrays[name]
            else:
                optimizer.setdefault(name.split("/", 2)[2], []).append(arrays[name])
        for name in sorted(optimizer.keys() - notes["updates"].keys()):
            raise ValueError(f"it has a state of '{name}' without its number of updates")
    except Exception as error:  # a malicious file may raise anything
        if isinstance(error, OSError) and error.filename:
            raise
        raise _damaged(path, reason(error)) from error
    return Checkpoint(path, config, notes["step"], notes["arguments"], notes, model, optimizer)


def _check(notes: dict) -> None:
    """Raise an error for values that the commands could not use."""
    arguments, losses, val = notes["arguments"], notes["history"]["losses"], notes["history"]["val"]
    counts = [notes[name] for name in ("step", "short", "max_size")]
    counts += [arguments["steps"], *notes["updates"].values()]
    if not all(type(count) is int and 0 <= count < 2**31 for count in counts):
        raise ValueError(f"one of its counts {counts[:4]} is not a natural number")
    if not 1 <= notes["short"] <= notes["max_size"] <= MAX_SIDE:
        raise ValueError(f"it has no valid scale: {notes['short']}, {notes['max_size']}")
    numbers = [notes["best"] or 0.0, *(value for row in losses + val for value in row.values())]
    even = all(row.keys() == rows[0].keys() for rows in (losses, val) for row in rows)
    if not even or not all(map(math.isfinite, numbers)):
        raise ValueError("it has no valid history")


def _arrays(state: Any) -> list:
    """Return the arrays of one parameter's state, which MXNet keeps as None, one or a tuple."""
    return [] if state is None else [*state] if isinstance(state, (tuple, list)) else [state]


def _names(net: RFCN, trainer: mx.gluon.Trainer) -> dict[int, str]:
    """Return the parameters' names by structure under the trainer's numbers."""
    named = net._collect_params_with_prefix()
    return {trainer._param2idx[parameter.name]: name for name, parameter in named.items()}
