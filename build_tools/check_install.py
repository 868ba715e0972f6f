# SPDX-License-Identifier: Apache-2.0
"""Types the lines of README.md inside a fresh clone, as a newcomer does: pip, uv, the wheel.

    python build_tools/check_install.py

The lines are read from README.md, that of the wheel from docs/install.md, and those of the C
example from docs/c.md. Each way has a new environment. None may build the library inside the clone,
which would hide that the installed one is not found. CUDA is left out.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from check_dist import ROOT, newest


def lines_of(page: Path, pattern: str) -> list[str]:
    """The commands of a page that match a pattern, without their comments, each once."""
    found = re.findall(rf"^    ({pattern}.*?)(?: +#.*)?$", page.read_text(), re.M)
    if not found:
        sys.exit(f"check_install: {page} has no line '{pattern}'")
    return list(dict.fromkeys(found))


class Newcomer:
    """A shell in a folder, with an environment activated."""

    def __init__(self, folder: Path, environment: Path, *tools: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        path = os.pathsep.join([str(environment / "bin"), *map(str, tools), os.environ["PATH"]])
        self.variables = {
            **kept,
            "PATH": path,
            "VIRTUAL_ENV": str(environment),
            "GLUON_ROI_CUDA": "0",
        }
        self.folder = folder

    def type(self, line: str, folder: Path | None = None) -> str:
        print(f"  {line}", flush=True)
        run = subprocess.run(
            line,
            shell=True,
            cwd=str(folder or self.folder),
            env=self.variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if run.returncode:
            sys.exit(f"check_install: '{line}' failed:\n{run.stdout}")
        return run.stdout


def main() -> None:
    readme = ROOT / "README.md"
    check = lines_of(readme, "python -m gluon_roi")
    ways = {
        "pip": lines_of(readme, "pip install "),
        "uv": lines_of(readme, "uv pip install "),
        "wheel": lines_of(ROOT / "docs/install.md", r"pip install gluon_roi-\*\.whl "),
    }
    example = lines_of(ROOT / "docs/c.md", "(?:cmake -S|cmake --build build|build/example/)")
    with tempfile.TemporaryDirectory() as work_name:
        work = Path(work_name)
        clone, elsewhere = work / "clone", work / "elsewhere"
        subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
        elsewhere.mkdir()
        tools = Newcomer(work, work / "tools")
        tools.type("pip install -q uv")
        for way, lines in ways.items():
            print(f"{way}:", flush=True)
            if way == "wheel":
                shutil.copy(str(newest("*x86_64.whl")), str(clone))
            # The second way takes what the first one compiled, into build/.
            newcomer = Newcomer(clone, work / way, work / "tools/bin")
            newcomer.type(lines[0])
            (shown,) = map(newcomer.type, check)
            assert str(work / way) in shown and "DIFFERS" not in shown, shown
            assert not list((clone / "gluon_roi").glob("*.so")), "the clone was built"
            if shutil.which("cmake"):
                assert "14 16 26 28" in [newcomer.type(line) for line in example][-1]
                shutil.rmtree(clone / "build/example")
            for line in lines[1:]:
                newcomer.type(line)
                for folder in (clone, elsewhere):
                    newcomer.type("python -m demo_rfcn demo --steps 2 --val-limit 2", folder)


if __name__ == "__main__":
    main()
