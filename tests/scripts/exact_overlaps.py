# SPDX-License-Identifier: Apache-2.0
"""Compares BoxIoU with exact arithmetic on random and hostile pairs of rotated boxes.

python exact_overlaps.py PAIRS [SEED]

Prints the seed, and the largest error of each type; status 1 if one exceeds 1e-6.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from support.overlaps import exact_overlap, random_pairs  # noqa: E402

LIMIT = 1e-6
EACH = 5000


def exact(work: tuple) -> np.ndarray:
    """The overlaps of the pairs of a seed."""
    seed, count, dtype = work
    return np.array([exact_overlap(*pair) for pair in zip(*random_pairs(seed, count, dtype))])


def main() -> None:
    import mxnet as mx

    import gluon_roi

    overlap: Any = gluon_roi.nd.BoxIoU
    count = int(sys.argv[1])
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else int.from_bytes(os.urandom(3), "little")
    print(f"seed {seed}", flush=True)
    works = [
        (seed + n, min(EACH, count - n * EACH), ("float32", "float64")[n % 2])
        for n in range(-(-count // EACH))
    ]
    worst = {"float32": 0.0, "float64": 0.0}
    with ProcessPoolExecutor() as processes:
        for work, expected in zip(works, processes.map(exact, works)):
            dtype = work[2]
            one, other = (mx.nd.array(a, dtype=dtype) for a in random_pairs(*work))
            got = overlap(one, other, format="rotated", aligned=True).asnumpy()
            swapped = overlap(other, one, format="rotated", aligned=True).asnumpy()
            errors = np.abs(got.astype("float64") - expected)
            place = int(errors.argmax())
            if not errors.max() <= LIMIT or got.min() < 0 or got.max() > 1:
                sys.exit(
                    f"seed {work[0]}, pair {place} of {work[1]} {dtype}: expected "
                    f"{expected[place]!r}, got {got[place]!r}"
                )
            if got.tobytes() != swapped.tobytes():
                sys.exit(f"seed {work[0]}, {dtype}: the order of the boxes changes the result")
            worst[dtype] = max(worst[dtype], float(errors.max()))
    shown = ", ".join(f"{value:.1e} in {dtype}" for dtype, value in worst.items())
    print(f"{count} pairs, largest error {shown}")


if __name__ == "__main__":
    main()
