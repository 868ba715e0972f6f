# SPDX-License-Identifier: Apache-2.0
"""What made a result: a result is reused only if all of it is equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .checkpoint import Checkpoint
from .config import Data
from .data import resolve_location
from .data.dataset import DetectionSet


def data_record(data: Data, dataset: DetectionSet) -> dict[str, Any]:
    """Return the location of a data set, and a digest of the images and boxes that were read."""
    location = resolve_location(vars(data))
    return {"location": location, "images": len(dataset), "digest": dataset.digest}


def result_record(stored: Checkpoint, data: Data, dataset: DetectionSet) -> dict[str, Any]:
    """Return what makes an evaluation: data, scale, and the checkpoint with its step."""
    return {
        "data": data_record(data, dataset),
        "scale": list(data.scale),
        "checkpoint": str(Path(stored.path).resolve()),
        "checkpoint_digest": stored.digest,
        "step": stored.step,
    }
