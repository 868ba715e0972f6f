# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: one NumPy archive with everything that a run needs to continue.

The archive holds the arrays `model/<parameter>` and `optimizer/<place>/<parameter>`, and a JSON
text, `notes`. Reading one cannot run code.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np

from . import files, networks
from .data import RunImages
from .data.dataset import ImageKey, first_names
from .errors import CheckpointError, InputError, reason
from .model import RFCN, Detector, ModelConfig

FORMAT = 3
MAX_ANCHORS, MIN_ANCHOR, MAX_ANCHOR = 100, 0.01, 1000  # number and range of scales and ratios
ANCHORS = "anchor_grid.base"  # a constant of the network
MAX_SIDE = 10_000  # pixels of a scaled image


@dataclass(frozen=True)
class Checkpoint:
    """The content of a checkpoint."""

    path: Path
    digest: str  # of all its entries
    config: ModelConfig
    step: int  # number of finished steps
    arguments: dict[str, Any]  # options of the run, by name
    scale: tuple[int, int]  # short side of scaled images and limit of the long one, pixels
    best: float | None  # highest mAP@0.5 on the validation images
    history: dict[str, list[dict[str, float]]]  # rows of "losses" and "val"
    pending: list[list[float]]  # losses of the steps since the last row
    images: RunImages  # what the run trained on and what it held back
    data: dict[str, Any]  # what was read, see `provenance.data_record`
    updates: dict[str, int]  # number of updates of each parameter
    model: dict[str, np.ndarray]
    optimizer: dict[str, list[np.ndarray]]  # arrays of each parameter's state

    def check_config(self, requested: ModelConfig) -> None:
        """Raise CheckpointError, with every difference, unless the configuration is the same."""
        if differences := "; ".join(self.config_differences(requested)):
            another = f"is of another configuration: {differences}"
            raise CheckpointError(f"checkpoint: {self.path} {another}")

    def config_differences(self, requested: ModelConfig) -> list[str]:
        """Return "name: stored value, not requested value" for every difference."""
        values, others = _requested(self.config), _requested(requested)
        return [f"{n}: {values[n]}, not {others[n]}" for n in values if values[n] != others[n]]

    def load_parameters(self, net: RFCN) -> None:
        """Load the parameters into a net of the same configuration."""
        named = _parameters(net)
        for name in sorted(self.model.keys() | named.keys()):
            shape, expected = (getattr(x.get(name), "shape", None) for x in (self.model, named))
            if shape != expected:
                why = f"parameter '{name}' has shape {shape}, expected {expected}"
                raise _damaged(self.path, why)
        for name, parameter in named.items():
            parameter.set_data(mx.nd.array(self.model[name]))

    def load(self, net: RFCN, trainer: mx.gluon.Trainer) -> None:
        """Load parameters and optimizer state into a network of the same configuration."""
        self.load_parameters(net)
        self._load_optimizer(net, trainer)

    def load_fitting(self, net: RFCN) -> str:
        """Load the parameters that fit another net; return a sentence about the others."""
        named, model = _parameters(net), self._arranged_for(net.config)
        fitting = [
            name
            for name, parameter in named.items()
            if name in model
            and model[name].shape == parameter.shape
            and not np.isnan(model[name]).all()
        ]
        if not any(name.startswith("backbone.") for name in fitting):
            raise CheckpointError(
                f"checkpoint: no backbone in {self.path} that fits; it is of another "
                f"configuration: {'; '.join(self.config_differences(net.config))}"
            )
        for name in fitting:
            random = named[name].list_data()[0].asnumpy()
            values = np.where(np.isnan(model[name]), random, model[name])
            named[name].set_data(mx.nd.array(values))
        missing = named.keys() - set(fitting)
        others = sorted({name.rpartition(".")[0] for name in missing})
        left = f"; trained from scratch: {', '.join(others)}" if others else ""
        new = [name for name in net.config.classes if name not in self.config.classes]
        left += f"; new classes: {first_names(new)}" if new else ""
        return f"loaded {len(fitting)} of {len(named)} parameters from {self.path}{left}"

    def _arranged_for(self, config: ModelConfig) -> dict[str, np.ndarray]:
        """Return the parameters with the rows of another configuration; new rows are NaN.

        Classes may have another order there: their rows are found by name.
        """
        model = dict(self.model)
        stored, requested = networks.row_names(self.config), networks.row_names(config)
        for name, values in self.model.items():
            layer = name.rpartition(".")[0]
            if layer in stored and len(values) == len(stored[layer]):
                places = {row: place for place, row in enumerate(stored[layer])}
                rows = [*values, np.full_like(values[0], np.nan)]
                model[name] = np.stack([rows[places.get(row, -1)] for row in requested[layer]])
        return model

    def _load_optimizer(self, net: RFCN, trainer: mx.gluon.Trainer) -> None:
        """Give a new trainer the optimizer's state; everything random follows from the step."""
        indices = {name: index for index, name in _names(net, trainer).items()}
        optimizer = trainer._optimizer
        for name in sorted(self.updates.keys() - indices.keys()):
            raise _damaged(self.path, f"it has a state of '{name}', which the network lacks")
        for place, updater in enumerate(trainer._updaters):
            for name, count in self.updates.items():
                index = indices[name]
                weight = trainer._params[index].list_data()[place]
                state = optimizer.create_state_multi_precision(index, weight)
                arrays, stored = _arrays(state), self.optimizer.get(name, [])
                if [array.shape for array in arrays] != [array.shape for array in stored]:
                    raise _damaged(self.path, f"the state of '{name}' is of another optimizer")
                for array, values in zip(arrays, stored):
                    array[:] = values
                updater.states[index] = state
                updater.states_synced[index] = True
                optimizer._set_current_context(weight.context.device_id)
                optimizer._index_update_count[index] = count
                optimizer.num_update = max(optimizer.num_update, count)

    def detector(self, ctx: Sequence[mx.Context], voting: bool = True) -> Detector:
        """Return the trained detector, hybridized."""
        net = networks.build(self.config, ctx, seed=0)
        self.load_parameters(net)
        return networks.detector(net, voting)


def _requested(config: ModelConfig) -> dict[str, str]:
    """Return what options and data determine, as text by name."""
    values = asdict(config)
    del values["dilate_strided"]  # it follows from the weights
    return {
        name: ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
        for name, value in values.items()
    }


def _damaged(path: Path, why: str) -> CheckpointError:
    words = "is not a checkpoint of demo_rfcn, or is damaged"
    return CheckpointError(f"checkpoint: {path} {words}: {why}")


def save(path: Path, net: RFCN, trainer: mx.gluon.Trainer, notes: dict[str, Any]) -> None:
    """Write a checkpoint. If that fails, the previous one is kept.

    `notes` has the fields of `Checkpoint` that are neither arrays nor made here. Raises InputError
    if a value of the model or the optimizer is not finite.
    """
    names = _names(net, trainer)
    named = _parameters(net)
    # All devices have the same values; their mean, which Gluon would save, may be rounded.
    arrays = {f"model/{name}": each.list_data()[0].asnumpy() for name, each in named.items()}
    updates = {}
    for index, state in trainer._updaters[0].states.items():
        updates[names[index]] = trainer._optimizer._index_update_count[index]
        for place, array in enumerate(_arrays(state)):
            arrays[f"optimizer/{place}/{names[index]}"] = array.asnumpy()
    for name, values in arrays.items():
        if not np.isfinite(values).all():
            where = f"'{name.split('/')[-1]}' is not finite after step {notes['step']}"
            what = "parameter" if name.startswith("model/") else "the optimizer's state of"
            raise InputError(f"train: {what} {where}; no checkpoint is written; lower --lr")
    config = asdict(net.config)
    text = json.dumps({"format": FORMAT, "config": config, "updates": updates, **notes})
    arrays["notes"] = np.frombuffer(text.encode(), np.uint8)
    with files.replacing(path) as part, part.open("wb") as file:
        np.savez(file, **arrays)


def read(path: Path) -> Checkpoint:
    """Read a checkpoint; raise CheckpointError if it is missing, foreign or damaged."""
    if not Path(path).is_file():
        raise CheckpointError(f"checkpoint: file {path} is missing")
    try:
        digest = hashlib.sha256()
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():  # stored, so that nothing grows when it is read
                if entry.compress_type or entry.compress_size != entry.file_size:
                    raise ValueError(f"'{entry.filename}' in it is compressed")
                digest.update(f"{entry.filename} {entry.CRC} ".encode())
        with np.load(path, allow_pickle=False) as stored:
            arrays = dict(stored)
        notes = json.loads(arrays.pop("notes").tobytes())
        if notes["format"] != FORMAT:
            raise ValueError(f"it has format {notes['format']}, expected {FORMAT}")
        model: dict[str, np.ndarray] = {}
        optimizer: dict[str, list[np.ndarray]] = {}
        for name in sorted(arrays):
            if not np.issubdtype(arrays[name].dtype, np.floating):
                raise ValueError(f"'{name}' in it is of type {arrays[name].dtype}")
            if name == f"model/{ANCHORS}":
                continue
            if name.startswith("model/"):
                model[name[len("model/") :]] = arrays[name]
            else:
                optimizer.setdefault(name.split("/", 2)[2], []).append(arrays[name])
        updates = {name: int(count) for name, count in notes["updates"].items()}
        _join_maps(model, optimizer, updates)
        for name in sorted(optimizer.keys() - updates.keys()):
            raise ValueError(f"it has a state of '{name}' without its number of updates")
        return Checkpoint(
            path=path,
            digest=digest.hexdigest(),
            config=_read_config(notes["config"]),
            step=_read_step(notes),
            arguments=dict(notes["arguments"]),
            scale=_read_scale(notes),
            best=None if notes["best"] is None else float(notes["best"]),
            history={name: list(notes["history"][name]) for name in ("losses", "val")},
            pending=list(notes["pending"]),
            images=_read_images(notes),
            data=dict(notes["data"]),
            updates=updates,
            model=model,
            optimizer=optimizer,
        )
    except Exception as error:  # a malicious file may raise anything
        if isinstance(error, OSError) and error.filename:
            raise
        raise _damaged(path, reason(error)) from error


def _join_maps(
    model: dict[str, np.ndarray], optimizer: dict[str, list[np.ndarray]], updates: dict[str, int]
) -> None:
    """Join the class maps and the box maps of a head, which were two layers in earlier versions."""
    for part in ("weight", "bias"):
        joined, parts = f"head.maps.{part}", [f"head.{of}_maps.{part}" for of in ("class", "box")]
        if parts[0] in model:
            model[joined] = np.concatenate([model.pop(name) for name in parts])
        if parts[0] in optimizer:
            states = zip(*(optimizer.pop(name) for name in parts))
            optimizer[joined] = [np.concatenate(pair) for pair in states]
        if parts[0] in updates:
            updates[joined], _ = (updates.pop(name) for name in parts)


def _read_images(notes: dict[str, Any]) -> RunImages:
    """Return the images of the run; earlier versions stored only the names of held-back ones."""
    held_back, trained_on = notes["held_back"] or (), notes.get("trained_on")
    return RunImages(
        location=notes["data"].get("location", {}),
        trained_on=None if trained_on is None else tuple(map(_read_key, trained_on)),
        held_back=tuple(map(_read_key, held_back)),
    )


def _read_key(value: Any) -> ImageKey:
    name, digest = (value, "") if isinstance(value, str) else map(str, value)
    return ImageKey(name, digest)


def _read_step(notes: dict[str, Any]) -> int:
    """Return the number of finished steps."""
    step = int(notes["step"])
    if not 0 <= step < 2**31:
        raise ValueError(f"it has no valid step: {step}")
    return step


def _read_scale(notes: dict[str, Any]) -> tuple[int, int]:
    """Return the short side of scaled images and the limit of the long one, pixels."""
    short, max_size = int(notes["short"]), int(notes["max_size"])
    if not 1 <= short <= max_size <= MAX_SIDE:
        raise ValueError(f"it has no valid scale: {short}, {max_size}")
    return short, max_size


def _read_config(values: dict[str, Any]) -> ModelConfig:
    """Return the configuration of a detector that this version can build."""
    known: Any = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
    known.setdefault("dilate_strided", True)  # all networks were built so before it was stored
    config = ModelConfig(**known)
    heads = networks.FPN_HEADS if config.fpn else networks.HEADS
    for name, value, choices in (
        ("network", config.network, networks.NETWORKS),
        ("head", config.head, heads),
        ("k", config.k, range(1, networks.MAX_K + 1)),
    ):
        if value not in choices:
            raise ValueError(f"it has no valid '{name}'")
    names = config.classes
    if not (names and isinstance(names, tuple) and all(isinstance(name, str) for name in names)):
        raise ValueError("it has no valid 'classes'")
    for sizes in (config.anchor_scales, config.anchor_ratios):
        if not 0 < len(sizes) <= MAX_ANCHORS or not all(
            MIN_ANCHOR <= side <= MAX_ANCHOR for side in sizes
        ):
            raise ValueError("it has no valid anchors")
    return config


def _arrays(state: Any) -> list:
    """Return the arrays of one parameter's state, which MXNet keeps as None, one or a tuple."""
    return [] if state is None else [*state] if isinstance(state, (tuple, list)) else [state]


def _parameters(net: RFCN) -> dict[str, mx.gluon.Parameter]:
    """Return the parameters by their names in the structure, without the anchors.

    Anchors follow from the configuration. Earlier versions stored them, with other centres.
    """
    named = net._collect_params_with_prefix()
    del named[ANCHORS]
    return named


def _names(net: RFCN, trainer: mx.gluon.Trainer) -> dict[int, str]:
    """Return the parameters' names by structure under the trainer's numbers."""
    named = _parameters(net)
    return {trainer._param2idx[parameter.name]: name for name, parameter in named.items()}
