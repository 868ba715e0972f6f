"""Reading files that this package wrote itself, or that others made."""

from __future__ import annotations

import json
from pathlib import Path

from .errors import InputError


def read_json(path: Path, topic: str):
    """Read a JSON file in UTF-8.

    Raises
    ------
    InputError
        The file cannot be read or holds something else; topic is the first word of the message.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{topic}: {path} is not whole JSON: {error}") from error
