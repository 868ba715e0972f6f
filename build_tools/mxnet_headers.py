# SPDX-License-Identifier: Apache-2.0
"""Copies the parts of the mxnet package that the build needs: headers and one source file.

    python build_tools/mxnet_headers.py FOLDER

They come from the installed mxnet, or else from its wheel. With a copy, nothing is compiled again
when mxnet is installed after gluon_roi.
"""

from __future__ import annotations

import importlib.machinery
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path

INSTALL = "pip install --no-deps mxnet==1.9.1"
NEEDED = ("include", "src/lib_api.cc", "libinfo.py")


def installed_mxnet() -> Path | None:
    """The folder of the mxnet package, of the target environment if it is there."""
    site = [Path(sysconfig.get_path(name)) / "mxnet" for name in ("platlib", "purelib")]
    spec = importlib.machinery.PathFinder.find_spec("mxnet")
    if spec and spec.origin:
        site.append(Path(spec.origin).parent)
    for folder in site:
        if (folder / "include/mxnet/lib_api.h").is_file() and (folder / "src/lib_api.cc").is_file():
            return folder
    return None


def check_version(folder: Path) -> None:
    """Another MXNet has another library API."""
    found = re.search(r'__version__ = "(.+)"', (folder / "libinfo.py").read_text())
    if found is None or not found[1].startswith(("1.9.1", "1.9.0", "1.8.0")):
        sys.exit(
            "gluon_roi needs MXNet 1.9.1, 1.9.0 or 1.8.0, found "
            f"{found[1] if found else 'another'} in {folder}; run '{INSTALL}'"
        )


def fetch(target: Path) -> None:
    """Extract the files from MXNet's wheel.

    MXNet is not a build requirement, because pip would install NumPy below 2 with it, which has no
    wheels for Python 3.13 and later.
    """
    print("gluon_roi: mxnet is not installed; taking its headers from its wheel")
    with tempfile.TemporaryDirectory() as work:
        download = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", work]
        if subprocess.run([*download, "mxnet==1.9.1"], stderr=subprocess.DEVNULL).returncode:
            sys.exit(f"gluon_roi: MXNet's headers cannot be downloaded; run '{INSTALL}' first")
        with zipfile.ZipFile(next(Path(work).glob("*.whl"))) as wheel:
            needed = tuple(f"mxnet/{name}" for name in NEEDED)
            names = [name for name in wheel.namelist() if name.startswith(needed)]
            wheel.extractall(target.parent, names)


def main() -> None:
    target = Path(sys.argv[1])
    installed = installed_mxnet()
    if installed:
        check_version(installed)
    if (target / "libinfo.py").is_file():
        return
    if installed is None:
        fetch(target)
        return
    for name in NEEDED:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (installed / name).is_dir() else shutil.copy
        copy(str(installed / name), str(target / name))


if __name__ == "__main__":
    main()
