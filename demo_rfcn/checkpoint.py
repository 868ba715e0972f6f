"""Checkpoints: one file with everything that a run needs to go on, written atomically.

A checkpoint is a zip archive of `model.params` (MXNet parameters by structure), `trainer.states`
(the optimizer's state) and `checkpoint.json` (model configuration, arguments, step, best score,
history, random states).
"""

from __future__ import annotations

import json
import random
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import mxnet as mx
import numpy as np

from . import files
from .detector import RFCN, ModelConfig
from .errors import CheckpointError

FORMAT = 1
_PARAMS, _TRAINER, _META = "model.params", "trainer.states", "checkpoint.json"


def save(path: Path, net: RFCN, trainer: mx.gluon.Trainer, meta: dict) -> None:
    """Write a checkpoint; where that fails, the one before stays.

    Parameters
    ----------
    path : pathlib.Path
    net : detector.RFCN
    trainer : mxnet.gluon.Trainer
    meta : dict
        JSON-ready: step, best, history, arguments, and the image scale (short, max_size). Format,
        configuration and random states are added.
    """
    meta = {
        "format": FORMAT,
        "config": net.config.to_dict(),
        "random": {"python": random.getstate(), "numpy": _numpy_state()},
        **meta,
    }
    with files.replacing(path) as part:
        stored = {name: part.with_name(name) for name in (_PARAMS, _TRAINER, _META)}
        params = stored[_PARAMS]
        files.save_and_reload(lambda: net.save_parameters(str(params)), params)
        trainer.save_states(str(stored[_TRAINER]))
        stored[_META].write_text(json.dumps(meta))
        with zipfile.ZipFile(part, "w") as archive:
            for name, file in stored.items():
                archive.write(file, name)


def read_meta(path: Path) -> dict:
    """Read what `save` got, with `config` as a ModelConfig.

    Raises
    ------
    CheckpointError
        The file is missing or no checkpoint of this format.
    """
    if not Path(path).is_file():
        raise CheckpointError(f"checkpoint: file {path} is missing")
    with _opened(path) as archive:
        meta = json.loads(archive.read(_META))
        if meta["format"] != FORMAT:
            raise CheckpointError(
                f"checkpoint: {path} has format {meta['format']}, expected {FORMAT}; train anew"
            )
        meta["config"] = ModelConfig.from_dict(meta["config"])
    return meta


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except (zipfile.BadZipFile, EOFError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise CheckpointError(
            f"checkpoint: {path} is not a checkpoint of demo_rfcn, or is damaged"
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


def load_parameters(path: Path, net: RFCN, ctx: Sequence[mx.Context]) -> None:
    """Load the parameters of a checkpoint into a net of the same configuration."""
    with files.temporary_folder() as work, _opened(path) as archive:
        net.load_parameters(archive.extract(_PARAMS, work), ctx=ctx)


def load_trainer(path: Path, trainer: mx.gluon.Trainer, meta: dict) -> None:
    """Restore the optimizer's state and the random states of Python and NumPy.

    MXNet's generator cannot be read; training seeds it from (seed, step) before every step instead.
    """
    with files.temporary_folder() as work, _opened(path) as archive:
        trainer.load_states(archive.extract(_TRAINER, work))
    version, internal, gauss = meta["random"]["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, *rest = meta["random"]["numpy"]
    np.random.set_state((name, np.array(keys, np.uint32), *rest))


def _numpy_state() -> list:
    name, keys, *rest = np.random.get_state(legacy=True)
    return [name, np.asarray(keys).tolist(), *rest]
