# SPDX-License-Identifier: Apache-2.0
"""`data`: a generated data set on disk."""

from __future__ import annotations

from ..data import ensure_dataset
from ..settings import Data


def command(data: Data) -> None:
    """Generate a data set and print its location."""
    made = ensure_dataset(data.dataset, data.dataset_root, data.data_seed)
    print(f"{'wrote' if made else 'reused'} {data.dataset} in {data.dataset_root.resolve()}")
