# SPDX-License-Identifier: Apache-2.0
"""Blocks of code of the pages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(\w*) ?(.*)\n((?:.*\n)*?)```$", re.M)


class Block(NamedTuple):
    language: str
    remark: str  # behind the language: the test that runs the block
    code: str


def blocks_of(page: str, remark: str | None = None) -> list[Block]:
    """The blocks of a page, such as docs/onnx.md; only those with this remark, if it is given."""
    blocks = [Block(*found) for found in BLOCK.findall((ROOT / page).read_text())]
    return [block for block in blocks if remark in (None, block.remark)]
