# SPDX-License-Identifier: Apache-2.0
"""`data`: a generated data set on disk."""

from __future__ import annotations

from ..run.settings import Settings


def command(settings: Settings) -> None:
    """Generate a data set and print its location."""
    verb = "wrote" if settings.generate() else "found"
    print(f"{verb} {settings.dataset} in {settings.dataset_root.resolve()}")
