# SPDX-License-Identifier: Apache-2.0
"""The checks of this repository: the one list that Makefile, .ci/run and the workflows call.

    make test ARGS='-k onnx'      a check by its name; ARGS go to it
    make checks                   the checks with the tag `push`, which .ci/run and every push run
    make checks ARGS='-t night'   the slow checks, run every night and before a release

All checks but `matrix` and `torch` run in .venv, and the Makefile builds what they need. `matrix`
runs the quick half of the tests on every Python found, with its oldest and its newest NumPy, and on
the newest Python with the MXNets before 1.9.1; ARGS may be '--python 3.8 3.14' or '--tags
extremes'. `torch` runs the tests that need PyTorch. Both keep their environments in .venv-matrix/,
and docs/results/compat.md has the summary of `matrix`.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nox

ROOT = Path(__file__).resolve().parent.parent
# Waiting threads must not spin, because other processes run tests on the same cores.
PASSIVE = {"OMP_WAIT_POLICY": "passive"}
# `test` gives a process one thread, because there is a process for each core. Tests of threads,
# such as tests/src/test_simd.py, ask for more. `test-all` leaves each process all threads.
ONE_THREAD = {**PASSIVE, "OMP_NUM_THREADS": "1"}
PYTEST = ["python", "-m", "pytest", "-n", "auto", "--maxprocesses", "4", "--dist", "worksteal"]
QUICK = [*PYTEST, "-m", "not slow and not night"]

nox.options.default_venv_backend = "venv"
nox.options.envdir = str(ROOT / ".venv-matrix")
nox.options.reuse_venv = "yes"

# A check in .venv, whose programs come first on PATH.
here = functools.partial(nox.session, venv_backend="none")


@here(tags=["push"])
def test(session: nox.Session) -> None:
    """Run the tests of what the package claims."""
    session.chdir(ROOT)
    session.run(*PYTEST, "-m", "not night", *session.posargs, env=ONE_THREAD)


@here(name="test-all", tags=["night"])
def test_all(session: nox.Session) -> None:
    """Run all tests."""
    session.chdir(ROOT)
    if not session.posargs:
        session.notify("torch")
    session.run(*PYTEST, *session.posargs, env=PASSIVE)


@here()
def check(session: nox.Session) -> None:
    """Run the quick half of the tests."""
    session.chdir(ROOT)
    session.run(*QUICK, *session.posargs, env=PASSIVE)


@here(tags=["push"])
def lint(session: nox.Session) -> None:
    """Fail on warnings of earlier builds, then run the linters that pyproject.toml pins."""
    session.chdir(ROOT)
    logs = [log for log in Path("build").rglob("*.o.log") if "warning" in log.read_text()]
    if logs:
        session.error(f"warnings in {' '.join(map(str, logs))}")
    listed = subprocess.check_output(["git", "ls-files", "*.c", "*.h", "*.cc", "*.cu"], text=True)
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("clang-format", "--dry-run", "--Werror", *listed.split())
    session.run("mypy")
    session.run("codespell")
    # The analyzer takes most of the time; `analyze` runs it.
    run_clang_tidy(session, "--checks=-clang-analyzer-*")


@here(tags=["night"])
def analyze(session: nox.Session) -> None:
    """Run clang-tidy with clang's analyzer."""
    session.chdir(ROOT)
    run_clang_tidy(session)


def run_clang_tidy(session: nox.Session, *options: str) -> None:
    session.run("cmake", "--preset", "release", silent=True)
    sources = sorted(str(file) for file in Path("src").rglob("*.cc") if "arm" not in file.parts)
    # Two processes at a time.
    tidy = ["xargs", "-P", "2", "-n", "1", "clang-tidy", "-p", "build/release", "--quiet"]
    done = subprocess.run([*tidy, *options], input="\n".join(sources), text=True)
    if done.returncode:
        session.error("clang-tidy")


@here(tags=["push"])
def pages(session: nox.Session) -> None:
    """Build the site without the explorer, whose kernels take minutes to compile."""
    session.chdir(ROOT)
    session.run("python", "build_tools/build_docs.py", "--without-explorer")


@here(tags=["night"])
def docs(session: nox.Session) -> None:
    """Build the site, and open its pages in Chromium if it is installed."""
    session.chdir(ROOT)
    checked = ["--check"] if shutil.which("chromium") else []
    session.run("python", "build_tools/build_docs.py", *(session.posargs or checked))


@here(tags=["push"])
def cross(session: nox.Session) -> None:
    """Compare the library for 64-bit Arm, under qemu-user, with this machine's."""
    session.chdir(ROOT)
    if "CROSS_CXX" not in os.environ and not shutil.which("aarch64-linux-gnu-g++"):
        session.skip("g++-aarch64-linux-gnu is not installed")
    session.run("python", "build_tools/cross.py", *session.posargs)


@here(tags=["push"])
def wheels(session: nox.Session) -> None:
    """Check the files of wheels and sdist, and the wheel with the oldest Python found."""
    session.chdir(ROOT)
    session.run("python", "build_tools/check_dist.py", "--only", "oldest")


@here(name="check-dist", tags=["night"])
def check_dist(session: nox.Session) -> None:
    """Do the same with each way to install them, and run the lines of README.md."""
    session.chdir(ROOT)
    session.run("python", "build_tools/check_dist.py", *session.posargs)


# ---- Other Pythons, NumPys and MXNets ------------------------------------------------------------

# The oldest NumPy with wheels, from 1.23 on. Other Pythons are tested with their newest NumPy only.
OLDEST_NUMPY = {
    **dict.fromkeys(("3.8", "3.9", "3.10", "3.11"), "==1.23.5"),
    "3.12": "==1.26.0",
    "3.13": "==2.1.0",
    "3.14": "==2.3.2",
}
MXNET = "1.9.1"
OLDER_MXNETS = ("1.9.0", "1.8.0.post0")

finding = [str(ROOT / "build_tools/find_python.sh"), "--all"]
pythons = subprocess.run(finding, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
os.environ["PATH"] = os.pathsep.join([os.environ["PATH"], *map(os.path.dirname, pythons)])
show = "import sys; print('%d.%d' % sys.version_info[:2])"
versions = [subprocess.check_output([python, "-c", show], text=True).strip() for python in pythons]
pairs = [
    (version, numpy, MXNET)
    for version in versions
    for numpy in dict.fromkeys(("", OLDEST_NUMPY.get(version, "")))
]
older = [(versions[0], "", mxnet) for mxnet in OLDER_MXNETS]
# `make test` has run all tests on this Python, with the newest NumPy. MXNet 1.8.0 stands for both
# older MXNets: 1.9.0 has the library API of 1.9.1.
this = ".".join(map(str, sys.version_info[:2])), "", MXNET
extremes = [each for each in (pairs[0], pairs[-1], older[-1]) if each != this]
rows = [
    nox.param(*row, tags=["extremes", "night"] if row in extremes else []) for row in pairs + older
]


@nox.session(tags=["night"])
def torch(session: nox.Session) -> None:
    """Run what needs PyTorch in an environment of its own, because torch takes gigabytes."""
    session.chdir(ROOT)
    session.install("--prefer-binary", "-e", ".[demo,onnx,test,torch]", "setuptools>=70.1")
    session.install("--no-deps", f"mxnet=={MXNET}", "gluoncv==0.10.5")
    files = [
        "tests/examples/test_gluoncv_to_torch.py",
        "tests/onnx/test_onnx_zoo.py",
        "tests/onnx/test_to_torch.py",
        "tests/pages/test_to_torch_page.py",
    ]
    session.run(*PYTEST, "-k", "torch", *files, *session.posargs, env=PASSIVE)


@nox.session
@nox.parametrize("python, numpy, mxnet", rows)
def matrix(session: nox.Session, numpy: str, mxnet: str) -> None:
    """Run the quick half of the tests in an environment of its own."""
    session.chdir(ROOT)
    packages = ["-e", ".[demo,onnx,test]", f"numpy{numpy}", "setuptools>=70.1"]
    session.install("--prefer-binary", *packages)
    session.install("--no-deps", f"mxnet=={mxnet}", "gluoncv==0.10.5")
    session.run("python", "-c", "import numpy; print('NumPy', numpy.__version__)")
    session.run(*QUICK, "-p", "no:cacheprovider", *session.posargs, env=PASSIVE)
