# SPDX-License-Identifier: Apache-2.0
"""Links of the pages, rewritten for the site (build_docs.py) and for package indexes (setup.py)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Callable

ROOT = Path(__file__).resolve().parent.parent
#: Links to files that are not pages lead there; if it is empty, they become plain text.
REPOSITORY = "".join(re.findall(r'^Source = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.M))
#: A block of code or a link: the mark of a picture, the text, the target.
LINK = re.compile(r"^```.*?^```$|(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^)\s]+)\)", re.M | re.S)
#: A picture with a second file for dark pages, as GitHub wants it: source and alternative text.
PICTURE = re.compile(r'<picture>\s*<source .*?>\s*<img src="(.+?)" alt="(.+?)">\s*</picture>', re.S)


def read(file: Path) -> str:
    """A page whose pictures are all Markdown's, each by the name of its light file."""
    return PICTURE.sub(r"![\2](\1)", file.read_text(encoding="utf-8"))


def find(file: Path) -> list[tuple[str, str, str]]:
    """The links of a page."""
    text = read(file)
    return [(link[1], link[2], link[3]) for link in LINK.finditer(text) if link[3]]


def rewrite(file: Path, place_of: Callable[[Path], str | None]) -> str:
    """A page whose links to files lead to place_of(file), or into the repository if it is None."""

    def rewritten(link: re.Match) -> str:
        image, text, target = link.groups()
        path, mark, anchor = (target or "").partition("#")
        if not target or ":" in path:
            return link[0]
        goal = (file.parent / path).resolve() if path else file
        place = place_of(goal)
        if place is None and REPOSITORY:
            folder = f"{REPOSITORY}/{'raw' if image else 'blob'}/main"
            place = f"{folder}/{goal.relative_to(ROOT).as_posix()}"
        if place is None:
            return "" if image else text
        return f"{image}[{text}]({place}{mark}{anchor})"

    return LINK.sub(rewritten, read(file))
