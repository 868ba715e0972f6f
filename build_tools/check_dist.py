# SPDX-License-Identifier: Apache-2.0
"""Checks the wheels and the sdist of `make wheel`, and types the lines of README.md that install.

    python build_tools/check_dist.py [--only oldest]

Package indexes must be able to show the description. Wheels promise manylinux_2_28 or older;
auditwheel gave them their names. The sdist must have every file of the repository, as it is here:
so it builds what this folder builds. Then a newcomer types the lines of README.md (pip, uv) and of
docs/install.md (the demo; the wheel, with the oldest and the newest Python found) inside a fresh
clone, each way in a new environment; --only chooses one. None may build the library inside the
clone, which would hide that the installed one is not found. CUDA is left out.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"

# mxnet comes first, found by the hook where it is needed. Numbers in an error's sentence come from
# the streams of the installed libstdc++, not of the one that the library was built with.
ERROR = """
import mxnet as mx, gluon_roi
try:
    gluon_roi.nd.PSROIPool(mx.nd.ones((1, 27, 8, 8)), mx.nd.zeros((1, 5)), 3, 1, output_dim=4)
except mx.MXNetError as error:
    assert "data has 27 channels, expected output_dim * 3 * 3 = 36" in str(error), error
"""


def blocks(page: str, language: str) -> str:
    """All code of one language on a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return "\n".join(re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S))


def lines_of(page: str, pattern: str) -> list[str]:
    """The commands of a page that match a pattern, without their comments, each once."""
    found = re.findall(rf"^({pattern}.*?)(?: +#.*)?$", blocks(page, "sh"), re.M)
    return list(dict.fromkeys(found)) or sys.exit(f"check_dist: {page} has no line '{pattern}'")


def demo_lines(pip: str) -> list[str]:
    """The commands of docs/install.md for GluonCV and the demo."""
    return lines_of("docs/install.md", rf"{pip} install (?:'\.\[demo\]'|.* gluoncv)")


class Newcomer:
    """A shell in a folder, with a new environment activated."""

    def __init__(self, folder: Path, environment: Path, python: str, *tools: Path) -> None:
        subprocess.run([python, "-m", "venv", str(environment)], check=True)
        own = "PYTHON", "GLUON_ROI_"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(own)}
        path = os.pathsep.join([str(environment / "bin"), *map(str, tools), os.environ["PATH"]])
        new = {"PATH": path, "VIRTUAL_ENV": str(environment), "GLUON_ROI_CUDA": "0"}
        self.variables, self.folder, self.environment = {**kept, **new}, folder, environment

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
            sys.exit(f"check_dist: '{line}' failed:\n{run.stdout}")
        return run.stdout

    def install(self, lines: list[str], elsewhere: Path) -> None:
        """Type the lines, and use the package; then those for the demo; then remove it."""
        demo = next((n for n, line in enumerate(lines) if "[demo]" in line), len(lines))
        for line in lines[:demo]:
            self.type(line)
        for line in (*lines_of("README.md", "python -m gluon_roi"), "gluon-roi"):
            shown = self.type(line)
            assert str(self.environment) in shown and "DIFFERS" not in shown, shown
        assert not list((self.folder / "gluon_roi").glob("*.so")), "the clone was built"
        self.type(shlex.join(["python", "-c", ERROR]), elsewhere)
        (elsewhere / "example.txt").write_text(blocks("README.md", "pycon"))
        self.type("python -m doctest example.txt", elsewhere)
        if shutil.which("cmake"):
            example = lines_of("docs/c.md", "(?:cmake -S|cmake --build build|build/example/)")
            printed = "".join([self.type(line) for line in example])
            assert "14 16 26 28" in printed and "3.5 5.5 15.5 17.5" in printed, printed
            shutil.rmtree(self.folder / "build/example")
        for line in lines[demo:]:
            self.type(line)
        for folder in (self.folder, elsewhere) if lines[demo:] else ():
            self.type("python -m demo_rfcn demo --steps 2 --val-limit 2", folder)
        self.type("python -m pip uninstall -y gluon_roi")
        files = filter(Path.is_file, self.environment.rglob("*"))
        names = [str(file.relative_to(self.environment)) for file in files]
        left = [name for name in names if re.search("gluon.roi|demo_rfcn", name)]
        assert not [name for name in left if "__pycache__" not in name], left


def check_files(wheels: list[Path], sdist: Path) -> None:
    """Names and contents of what is published."""
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *wheels, sdist], check=True)
    for wheel in wheels:
        glibc = [int(version) for version in re.findall(r"manylinux_2_(\d+)_", wheel.name)]
        assert glibc and min(glibc) <= 28, wheel.name
    if (ROOT / ".git").exists():
        files = subprocess.check_output(["git", "ls-files"], cwd=str(ROOT), text=True).splitlines()
        with tarfile.open(sdist) as tar:
            packed = {each.name.partition("/")[2]: each for each in tar if each.isfile()}
            missing = set(files) - set(packed)
            assert not missing, f"{sdist.name} lacks {sorted(missing)}"
            for name in files:
                file = tar.extractfile(packed[name])
                assert file and file.read() == (ROOT / name).read_bytes(), name
                assert packed[name].mode & 0o111 == (ROOT / name).stat().st_mode & 0o111, name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", choices=("pip", "uv pip", "newest", "oldest"), help="one way")
    options = parser.parse_args()
    wheels = list(DIST.glob("*.whl"))
    check_files(wheels, next(DIST.glob("*.tar.gz")))
    finder = [str(ROOT / "build_tools/find_python.sh"), "--all"]
    pythons = subprocess.check_output(finder, text=True).splitlines()
    line = lines_of("docs/install.md", r"pip install gluon_roi-\*\.whl ")
    ways = {
        **{
            pip: (sys.executable, [*lines_of("README.md", f"{pip} install "), *demo_lines(pip)])
            for pip in ("pip", "uv pip")
        },
        "newest": (pythons[0], line),
        "oldest": (pythons[-1], line),
    }
    with tempfile.TemporaryDirectory() as work_name:
        work = Path(work_name)
        clone, elsewhere = work / "clone", work / "elsewhere"
        # The second way takes what the first one compiled, into build/ of the clone.
        subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
        elsewhere.mkdir()
        for wheel in wheels:
            if wheel.name.endswith(f"_{os.uname().machine}.whl"):
                shutil.copy(str(wheel), str(clone))
        Newcomer(work, work / "tools", sys.executable).type("pip install -q uv")
        for way in [options.only] if options.only else ways:
            python, lines = ways[way]
            print(f"{way}, {python}:", flush=True)
            newcomer = Newcomer(clone, work / way.replace(" ", "-"), python, work / "tools/bin")
            newcomer.install(lines, elsewhere)


if __name__ == "__main__":
    main()
