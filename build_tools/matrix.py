# SPDX-License-Identifier: Apache-2.0
"""Runs the quick half of the tests on every Python found, with its oldest and its newest NumPy.

And on the newest Python with the MXNets before 1.9.1.

    python build_tools/matrix.py [--only 3.8 3.14] [--extremes]

Run it with the interpreter of an environment that has gluon_roi with its extras (make build). Each
pair of Python and NumPy has its own environment under .venv-matrix/, in which the package of this
folder is installed. The final table is the source of the one in docs/compat.md.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# The first with wheels, but not before 1.23. A Python that is not here has its newest only.
OLDEST_NUMPY = {
    "3.8": "1.23.5",
    "3.9": "1.23.5",
    "3.10": "1.23.5",
    "3.11": "1.23.5",
    "3.12": "1.26.0",
    "3.13": "2.1.0",
    "3.14": "2.3.2",
}
MXNET = "1.9.1"
OLDER_MXNETS = ("1.9.0", "1.8.0.post0")
TESTS = ["-m", "pytest", "-m", "not slow", "-p", "no:cacheprovider"]
# As in the Makefile.
TESTS += ["-n", "auto", "--maxprocesses", "4", "--dist", "loadfile"]
ENVIRONMENT = {**os.environ, "OMP_WAIT_POLICY": "passive"}


def output(*command):
    words = [str(part) for part in command]
    return subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def requirements():
    """The requirements of gluon_roi with the extras demo, onnx and test, without NumPy."""
    wanted = []
    for line in metadata.requires("gluon_roi") or ():
        name, _, condition = line.partition(";")
        if "extra" not in condition:
            wanted.append(line)
        elif any(extra in condition for extra in ("demo", "onnx", "test")):
            wanted.append(name)
    return [line for line in wanted if not line.startswith("numpy")]


def environment(python, version, numpy, mxnet):
    """The interpreter of an environment of these versions, created if it does not exist."""
    name = f"{version}-{numpy or 'newest'}" + ("" if mxnet == MXNET else f"-mxnet-{mxnet}")
    folder = ROOT / ".venv-matrix" / name
    inside = folder / "bin/python"
    if not (folder / "ready").is_file():
        output(python, "-m", "venv", "--clear", folder)
        pip = [inside, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        pinned = f"numpy=={numpy}" if numpy else "numpy"
        # The tests of setup.py run it, and build what they need.
        tools = output(inside, ROOT / "build_tools/presets.py", "--requirements").split()
        output(*pip, "--prefer-binary", pinned, "setuptools>=70.1", *tools, *requirements())
        output(*pip, "--no-deps", f"mxnet=={mxnet}", "gluoncv==0.10.5")
        # What an editable install places there, without compiling the library for each of them.
        site = Path(output(inside, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"))
        start = ROOT / "build_tools/start"
        line = (start / "gluon_roi.pth").read_text()
        (site / "gluon_roi.pth").write_text(f"{ROOT}\n{start}\n{line}")
        (folder / "ready").touch()
    return inside


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", nargs="+", help="these Pythons, such as 3.8 3.14")
    parser.add_argument(
        "--extremes",
        action="store_true",
        help="the oldest and the newest only, but for the one of make test",
    )
    arguments = parser.parse_args()
    pythons = {}
    for python in output(ROOT / "build_tools/find_python.sh", "--all").splitlines():
        pythons[output(python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])")] = python
    chosen: list[tuple[str, str | None, str]] = []
    for version in arguments.only or pythons:
        chosen.append((version, None, MXNET))
        if version in OLDEST_NUMPY:
            chosen.append((version, OLDEST_NUMPY[version], MXNET))
    older = [(chosen[0][0], None, mxnet) for mxnet in OLDER_MXNETS]
    if arguments.extremes:
        # All tests have run where this runs, on the newest NumPy (make test). Of the older MXNets
        # the last: the other one has the library API of 1.9.1.
        here = ".".join(map(str, sys.version_info[:2]))
        chosen = [one for one in (chosen[0], chosen[-1]) if one != (here, None, MXNET)]
        older = older[-1:]
    rows = []
    for version, numpy, mxnet in (*chosen, *older):
        inside = environment(pythons[version], version, numpy, mxnet)
        numpy = output(inside, "-c", "import numpy; print(numpy.__version__)")
        found = f"Python {version}, NumPy {numpy}, MXNet {mxnet}"
        print(f"\n{found}: {shlex.join(TESTS)}", flush=True)
        begin = time.monotonic()
        passed = subprocess.run([inside, *TESTS], cwd=ROOT, env=ENVIRONMENT).returncode == 0
        seconds = time.monotonic() - begin
        rows.append((version, numpy, mxnet, f"{'passed' if passed else 'FAILED'}, {seconds:.0f} s"))
    print("\n| Python | NumPy | MXNet | quick half of the tests |\n|---|---|---|---|")
    for row in rows:
        print("| {} | {} | {} | {} |".format(*row))
    return any("FAILED" in row[3] for row in rows)


if __name__ == "__main__":
    sys.exit(main())
