# SPDX-License-Identifier: Apache-2.0
"""Makes a source folder without a built library use the installed package.

In a clone, Python finds the clone's gluon_roi/ before the installed one, which has the library.

If the package cannot be imported, a command prints one sentence, and a program gets the exception.
"""

import contextlib
import filecmp
import os
import re
import sys
from pathlib import Path
from typing import Iterator, List, Optional

LIBRARY = "libgluon_roi.so"


@contextlib.contextmanager
def errors_of_commands() -> Iterator[None]:
    """Context manager: a command prints import errors as one sentence, and exits with status 2."""
    try:
        yield
    except (ImportError, OSError, RuntimeError) as error:
        if not is_command():
            raise
        reason = " ".join(str(error).split())
        print("gluon_roi: " + reason.replace("gluon_roi: ", "", 1), file=sys.stderr)
        sys.exit(2)


def is_command() -> bool:
    """Whether Python runs ``python -m gluon_roi`` or ``gluon-roi``, and is importing them."""
    first = (getattr(sys, "argv", None) or [""])[0]
    if Path(first).name == "gluon-roi":
        return True
    if first != "-m":  # sys.argv[0] while Python looks for the module
        return False
    line = getattr(sys, "orig_argv", None)  # from Python 3.10 on
    if line is None:
        line = Path("/proc/self/cmdline").read_text(errors="replace").split("\0")
    names = ("gluon_roi", "gluon_roi.__main__")
    after = [word for option, word in zip(line, line[1:]) if option.endswith("m")]
    return any(name in after or "-m" + name in line for name in names)


def use_installed(path: List[str]) -> None:
    """Replace the package's search path with that of the installed package, if both are equal.

    Raises ImportError if they differ, so that an edit of the source folder is never ignored.
    """
    package = Path(path[0]).resolve()
    built = (package / LIBRARY).is_file() or "GLUON_ROI_LIBRARY" in os.environ
    if built or not (package.parent / "setup.py").is_file():
        return
    others = (Path(folder, "gluon_roi").resolve() for folder in sys.path)
    installed = next((other for other in others if (other / LIBRARY).is_file()), None)
    if installed is None:
        return  # library.load() raises the error
    different = first_different(package, installed)
    if different:
        raise ImportError(
            f"gluon_roi: the source folder {package.parent} (version {version_of(package)}) is not "
            f"built, and its gluon_roi/{different} differs from that of gluon_roi "
            f"{version_of(installed)} in {installed.parent}; run "
            "'pip install --force-reinstall --no-deps .' or 'make build' in the source folder, or "
            "start Python in another folder"
        )
    path[:] = [str(installed)]


def first_different(package: Path, installed: Path) -> Optional[Path]:
    for file in sorted(package.rglob("*.py")):
        inside = file.relative_to(package)
        other = installed / inside
        if not (other.is_file() and filecmp.cmp(str(file), str(other), shallow=False)):
            return inside
    return None


def version_of(package: Path) -> str:
    text = (package / "_version.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "(.+)"', text, re.M)
    return found[1] if found else "unknown"
