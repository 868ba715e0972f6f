# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: one file with everything that a run needs to continue, written atomically.

A checkpoint is a zip archive of `model.params` (MXNet parameters by structure), `optimizer.params`
(the optimizer's arrays by parameter and place) and `checkpoint.json` (model configuration,
arguments, step, best score, history, how often each parameter was updated). It is only data:
reading one runs no code. Format 1 had a pickle, `trainer.states`, for the optimizer; see
`states.read_pickle`.
"""

from __future__ import annotations

import json
import math
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mxnet as mx

from .. import files, params
from ..errors import CheckpointError, reason
from ..model import detector
from ..model.config import ModelConfig
from ..model.detector import RFCN
from . import states
from .options import MAX_SIDE
from .settings import Settings

FORMAT, PICKLED = 2, 1
_PARAMS, _OPTIMIZER, _META = "model.params", "optimizer.params", "checkpoint.json"
_PICKLE = "trainer.states"

# What reading an archive of arbitrary content raises.
_FOREIGN = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    RuntimeError,  # of MXNet too
    TypeError,
    ValueError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)


def save(path: Path, net: RFCN, trainer: mx.gluon.Trainer, meta: dict) -> None:
    """Write a checkpoint; where that fails, the one before stays.

    Parameters
    ----------
    path : pathlib.Path
    net : detector.RFCN
    trainer : mxnet.gluon.Trainer
    meta : dict
        JSON-ready: step, best, history, arguments, and the image scale (short, max_size). Format,
        configuration and the counts of updates are added.
    """
    optimizer = states.collect(trainer, _names(net, trainer))
    meta = {
        "format": FORMAT,
        "config": net.config.to_dict(),
        "updates": {name: updates for name, (_, updates) in optimizer.items()},
        **meta,
    }
    arrays = {
        f"{name}:{place}": mx.nd.array(array, dtype=array.dtype)
        for name, (own, _) in optimizer.items()
        for place, array in enumerate(own)
    }
    with files.replacing(path) as part:
        weights, others, notes = (part.with_name(name) for name in (_PARAMS, _OPTIMIZER, _META))
        files.save_and_reload(lambda: net.save_parameters(str(weights)), weights)
        files.save_and_reload(lambda: mx.nd.save(str(others), arrays), others)
        notes.write_text(json.dumps(meta))
        with zipfile.ZipFile(part, "w") as archive:
            for file in (weights, others, notes):
                archive.write(file, file.name)


def read_meta(path: Path) -> dict:
    """Read what `save` got, with `config` as a ModelConfig.

    Raises
    ------
    CheckpointError
        The file is missing or no checkpoint of a known format.
    """
    if not Path(path).is_file():
        raise CheckpointError(f"checkpoint: file {path} is missing")
    with _opened(path) as archive:
        meta = json.loads(archive.read(_META))
        if meta["format"] not in (FORMAT, PICKLED):
            raise CheckpointError(
                f"checkpoint: {path} has format {meta['format']}, expected {FORMAT} or {PICKLED}; "
                "train again"
            )
        meta["config"] = ModelConfig.from_dict(meta["config"])
        _check(meta)
    return meta


def _check(meta: dict) -> None:
    """Raise a ValueError for values that the commands could not use."""

    def number(value: Any) -> bool:
        return isinstance(value, (int, float)) and math.isfinite(value)

    def natural(value: Any) -> bool:
        return type(value) is int and 0 <= value < 2**31

    def rows(value: list) -> bool:
        return all(set(row) == set(value[0]) and all(map(number, row.values())) for row in value)

    history, arguments = meta["history"], meta["arguments"]
    fits = {
        "step": natural(meta["step"]),
        "short": natural(meta["short"]) and 1 <= meta["short"] <= MAX_SIDE,
        "max_size": natural(meta["max_size"]) and meta["short"] <= meta["max_size"] <= MAX_SIDE,
        "best": meta["best"] is None or number(meta["best"]),
        "history": rows(history["losses"]) and rows(history["val"]),
        "arguments": isinstance(arguments["optimizer"], str) and natural(arguments["steps"]),
        "held_back": all(isinstance(name, str) for name in meta.get("held_back", [])),
        "updates": all(map(natural, meta.setdefault("updates", {}).values())),
    }
    for name, fit in fits.items():
        if not fit:
            raise ValueError(f"it has no valid '{name}'")


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open a checkpoint; what its content makes fail becomes one sentence.

    Raises
    ------
    CheckpointError
    """
    try:
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                # As `save` writes them, so that nothing grows when it is unpacked.
                if entry.compress_type != zipfile.ZIP_STORED:
                    raise ValueError(f"'{entry.filename}' in it is compressed")
                if entry.compress_size != entry.file_size:
                    raise ValueError(f"'{entry.filename}' in it has two sizes")
            yield archive
    except CheckpointError:
        raise
    except (OSError, *_FOREIGN) as error:
        if isinstance(error, OSError) and (error.filename or isinstance(error, files.OutputError)):
            raise  # of the file itself, or of a temporary one
        raise CheckpointError(
            f"checkpoint: {path} is not a checkpoint of demo_rfcn, or is damaged: {reason(error)}"
        ) from error


def check_config(path: Path, stored: ModelConfig, wanted: ModelConfig) -> None:
    """Refuse a checkpoint of another configuration, naming every difference.

    Raises
    ------
    CheckpointError
    """
    differences = stored.differences(wanted)
    if differences:
        raise CheckpointError(
            f"checkpoint: {path} is of another configuration: {'; '.join(differences)}"
        )


def check_run(path: Path, settings: Settings, *also: str) -> dict:
    """Refuse to pass off the run of other arguments as the one asked for.

    Parameters
    ----------
    path : pathlib.Path
        The run's checkpoint.
    settings : Settings
    *also : str
        See `Settings.differences`.

    Returns
    -------
    dict
        See `read_meta`.

    Raises
    ------
    CheckpointError
    """
    meta = read_meta(path)
    # Those of a folder are not known before it is opened.
    classes = settings.spec.classes or meta["config"].classes
    check_config(path, meta["config"], settings.config(classes))
    if differences := settings.differences(meta["arguments"], *also):
        raise CheckpointError(
            f"checkpoint: {path} is of another run: {'; '.join(differences)}; choose another "
            "--save-prefix for this one"
        )
    return meta


def load_parameters(path: Path, net: RFCN) -> None:
    """Load the parameters of a checkpoint into a net of the same configuration.

    Raises
    ------
    CheckpointError
    """
    with files.temporary_folder() as work, _opened(path) as archive:
        arrays = params.read(archive.extract(_PARAMS, work))
        named = net._collect_params_with_prefix()
        if different := sorted(arrays.keys() ^ named.keys()):
            where = "not in it" if different[0] in named else "of no layer"
            raise ValueError(f"parameter '{different[0]}' is {where}")
        for name, parameter in named.items():
            if arrays[name].shape != parameter.shape:
                raise ValueError(
                    f"parameter '{name}' is {arrays[name].shape}, expected {parameter.shape}"
                )
            parameter.set_data(mx.nd.array(arrays[name]))


def load_detector(
    path: Path, ctx: Sequence[mx.Context], **arguments: Any
) -> tuple[detector.Detector, dict]:
    """Load a checkpoint.

    Parameters
    ----------
    path : pathlib.Path
    ctx : sequence of mxnet.Context
    **arguments
        Of `detector.Detector`.

    Returns
    -------
    detect : detector.Detector
        Hybridized; its `net` holds the parameters.
    meta : dict
        See `read_meta`.
    """
    meta = read_meta(path)
    net = detector.build(meta["config"], ctx, seed=0)
    load_parameters(path, net)
    detect = detector.Detector(net, **arguments)
    detect.hybridize(static_alloc=True)
    return detect, meta


def load_fitting(path: Path, net: RFCN) -> str:
    """Load those parameters of a detector that fit another one, and say which do not.

    Raises
    ------
    CheckpointError
        It is no checkpoint, or its backbone does not fit.
    """
    config = read_meta(path)["config"]
    with files.temporary_folder() as work, _opened(path) as archive:
        arrays = params.read(archive.extract(_PARAMS, work))
    named = net._collect_params_with_prefix()
    fitting = [
        name
        for name, parameter in named.items()
        if name in arrays and arrays[name].shape == parameter.shape
    ]
    if not any(name.startswith("backbone.") for name in fitting):
        raise CheckpointError(
            f"checkpoint: no backbone in {path} that fits; it is of another configuration: "
            f"{'; '.join(config.differences(net.config))}"
        )
    for name in fitting:
        named[name].set_data(mx.nd.array(arrays[name]))
    missing = named.keys() - set(fitting) - {"anchor_grid.base"}
    others = sorted({name.rpartition(".")[0] for name in missing})
    left = f"; not kept, and trained from scratch: {', '.join(others)}" if others else ""
    return f"{len(fitting)} of {len(named)} parameters are those of {path}{left}"


def load_trainer(path: Path, net: RFCN, trainer: mx.gluon.Trainer, meta: dict) -> None:
    """Restore the optimizer's state; whatever is random follows from (seed, step).

    Raises
    ------
    CheckpointError
    """
    names = _names(net, trainer)
    with files.temporary_folder() as work, _opened(path) as archive:
        if meta["format"] == PICKLED:
            stored = states.read_pickle(archive.read(_PICKLE), names)
        else:
            arrays = params.read(archive.extract(_OPTIMIZER, work))
            stored = {name: ([], updates) for name, updates in meta["updates"].items()}
            for name in sorted(arrays):
                stored[name.rpartition(":")[0]][0].append(arrays[name])
        states.restore(trainer, names, stored)


def _names(net: RFCN, trainer: mx.gluon.Trainer) -> dict[int, str]:
    """Return the parameters' names by structure under the numbers that the trainer gives them."""
    named = net._collect_params_with_prefix()
    return {trainer._param2idx[parameter.name]: name for name, parameter in named.items()}
