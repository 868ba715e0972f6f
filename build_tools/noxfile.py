# SPDX-License-Identifier: Apache-2.0
"""The quick half of the tests on every Python found, with its oldest and its newest NumPy.

And on the newest Python with the MXNets before 1.9.1. `make matrix` calls it, with ARGS such as
'--python 3.8 3.14' or '--tags extremes'. Environments are kept in .venv-matrix/. Its summary is the
source of the table in docs/results/compat.md.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import nox

ROOT = Path(__file__).resolve().parent.parent
# The first with wheels, but not before 1.23. A Python that is not here has its newest only.
OLDEST_NUMPY = {
    **dict.fromkeys(("3.8", "3.9", "3.10", "3.11"), "==1.23.5"),
    "3.12": "==1.26.0",
    "3.13": "==2.1.0",
    "3.14": "==2.3.2",
}
MXNET = "1.9.1"
OLDER_MXNETS = ("1.9.0", "1.8.0.post0")
COMMAND = ["python", "-m", "pytest", "-m", "not slow and not night", "-p", "no:cacheprovider"]
COMMAND += ["-n", "auto", "--maxprocesses", "4", "--dist", "loadfile"]  # as in the Makefile

nox.options.default_venv_backend = "venv"
nox.options.envdir = str(ROOT / ".venv-matrix")
nox.options.reuse_venv = "yes"

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
# `make test` has run all tests on this Python, with the newest NumPy. Of the older MXNets the last
# is enough: the other one has the library API of 1.9.1.
here = ".".join(map(str, sys.version_info[:2])), "", MXNET
extremes = [each for each in (pairs[0], pairs[-1], older[-1]) if each != here]
rows = [nox.param(*row, tags=["extremes"] * (row in extremes)) for row in pairs + older]


@nox.session
@nox.parametrize("python, numpy, mxnet", rows)
def tests(session: nox.Session, numpy: str, mxnet: str) -> None:
    session.chdir(ROOT)
    packages = ["-e", ".[demo,onnx,test]", f"numpy{numpy}", "setuptools>=70.1"]
    session.install("--prefer-binary", *packages)
    session.install("--no-deps", f"mxnet=={mxnet}", "gluoncv==0.10.5")
    session.run("python", "-c", "import numpy; print('NumPy', numpy.__version__)")
    session.run(*COMMAND, *session.posargs, env={"OMP_WAIT_POLICY": "passive"})
