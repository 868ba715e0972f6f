# SPDX-License-Identifier: Apache-2.0
"""Colours of the pictures of the pages, and two files of each: for light and for dark pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable

#: Okabe and Ito's colours, which people with any kind of colour vision tell apart.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7", "#f0e442")
#: Suffix of the file -> background and ink, those of GitHub's pages.
THEMES = {"": ("#ffffff", "#1f2328"), "-dark": ("#0d1117", "#e6edf3")}
#: 830 pixels, the width of a page on GitHub.
WIDTH, DPI = 8.3, 100


def save(draw: Callable[[], Any], path: Path) -> None:
    """Save the figure that draw() returns, once for each theme: x.png and x-dark.png."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from PIL import Image

    for suffix, (paper, ink) in THEMES.items():
        style: Any = dict.fromkeys(
            ("figure.facecolor", "axes.facecolor", "savefig.facecolor"), paper
        )
        names = ["text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"]
        style.update(dict.fromkeys(names, ink))
        style.update({"font.size": 11, "savefig.dpi": DPI})
        with pyplot.rc_context(style):
            figure = draw()
            file = path.with_name(f"{path.stem}{suffix}{path.suffix}")
            figure.savefig(file)
            pyplot.close(figure)
        with Image.open(file) as picture:  # a palette takes a fifth of the bytes
            picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(file, optimize=True)
