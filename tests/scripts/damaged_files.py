# SPDX-License-Identifier: Apache-2.0
"""Reads randomly damaged files; a separate program, because MXNet may crash on one.

    python damaged_files.py COUNT FOLDER

Prints how many checkpoints, then symbols, were read, and how many raised an exception.
"""

from __future__ import annotations

import dataclasses
import json
import random
import sys
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np

import gluon_roi
from demo_rfcn import checkpoint
from demo_rfcn.model import ModelConfig

count, folder = int(sys.argv[1]), Path(sys.argv[2])
#: Sizes and types that a header should not have.
WORDS = (0, 1, 7, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**64 - 1)


def write_whole(kind: str, path: Path) -> None:
    if kind == "checkpoints":
        config = ModelConfig(("a",), "small", "psroi", 3, True, (2.0,), (1.0,))
        notes = {
            "format": checkpoint.FORMAT,
            "config": dataclasses.asdict(config),
            "updates": {},
            "step": 1,
        }
        notes.update(short=9, max_size=9, best=None, held_back=None, pending=[], data={})
        notes.update(history={"losses": [], "val": []}, arguments={"optimizer": "adam", "steps": 9})
        text = np.frombuffer(json.dumps(notes).encode(), np.uint8)
        with path.open("wb") as file:
            arrays: Any = {"model/a": np.ones((2, 3)), "model/b": np.zeros(4), "notes": text}
            np.savez(file, **arrays)
    else:
        data, rois = mx.sym.var("data"), mx.sym.var("rois")
        pooled = mx.sym.ROIPooling(data, rois, pooled_size=(2, 2), spatial_scale=0.5)
        pooled = gluon_roi.sym.ROIAlign(pooled, rois, pooled_size=(2, 2), spatial_scale=0.5)
        pooled.save(str(path))


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Cut, flip, overwrite with a wild number, or repeat a part."""
    content, place = bytearray(data), rng.randrange(len(data))
    how = rng.randrange(4)
    if how == 0:
        return bytes(content[:place])
    if how == 1:
        for _ in range(rng.randrange(1, 6)):
            content[rng.randrange(len(content))] = rng.randrange(256)
    elif how == 2:
        size = rng.choice((4, 8))
        content[place : place + size] = rng.choice(WORDS).to_bytes(8, "little")[:size]
    else:
        content[place:place] = content[rng.randrange(len(content)) :][: rng.randrange(64)]
    return bytes(content)


for kind, name in (("checkpoints", "damaged.ckpt"), ("symbols", "damaged.json")):
    path = folder / name
    write_whole(kind, path)
    original, rng, read, refused = path.read_bytes(), random.Random(0), 0, 0
    for _ in range(count):
        path.write_bytes(damaged(original, rng))
        try:
            if kind == "checkpoints":
                checkpoint.read(path)
            else:
                symbol = mx.sym.load(str(path))
                gluon_roi.count(symbol)
                gluon_roi.optimize(symbol)
            read += 1
        except (ValueError, RuntimeError):
            refused += 1
    print(f"{kind}: read {read}, refused {refused}")
