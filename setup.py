# SPDX-License-Identifier: Apache-2.0
"""Packages gluon_roi, whose library CMake builds. pyproject.toml has the metadata.

GLUON_ROI_CUDA        1: CUDA kernels, or fail; 0: none; unset: if nvcc is found, but not in wheels
GLUON_ROI_CUDA_ARCHS  such as "80;90": instead of the list for the toolkit found
CUDA_HOME             where the CUDA toolkit is, if nvcc is not on PATH
CXX                   the C++ compiler, g++ if unset
GLUON_ROI_VARIANT     the preset to package; if unset, cuda or release
"""

import sys

if sys.version_info < (3, 8):  # noqa: UP036 (before imports that Python 3.7 does not have)
    sys.exit("gluon_roi needs Python 3.8 or newer, this is " + sys.version.split()[0])

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
START = sorted((ROOT / "build_tools/start").glob("*gluon_roi*.p*"))
sys.path.insert(0, str(ROOT / "build_tools"))
import links  # noqa: E402
import presets  # noqa: E402


class BuildLibrary(build_ext):
    """Puts the library for MXNet and C, its header and its CMake files into the package."""

    def run(self):
        cuda = presets.with_cuda()
        kind = "with CUDA, which takes minutes" if cuda else "without CUDA"
        print(f"gluon_roi: {kind}", flush=True)  # before CMake's output
        setting = f"-DGLUON_ROI_CUDA={'ON' if cuda else 'OFF'}"
        folder = presets.build(presets.packaged(), setting, target="gluon_roi")
        inplace = self.inplace or self.editable_mode
        package = (ROOT if inplace else Path(self.build_lib)) / "gluon_roi"
        install = [presets.find("cmake"), "--install", str(folder), "--component", "package"]
        stage = folder / "package"
        subprocess.run([*install, "--prefix", str(stage)], check=True, stdout=subprocess.DEVNULL)
        # A new library is moved into place, so a process that has mapped the old one keeps it.
        for file in filter(Path.is_file, stage.rglob("*")):
            target = package / file.relative_to(stage)
            target.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".build-", dir=str(target.parent)) as work:
                fresh = shutil.copy(str(file), work)
                os.replace(fresh, str(target))

    def get_outputs(self):
        return []

    def get_output_mapping(self):
        return {}


class BuildPy(build_py):
    """Puts gluon_roi.pth and its module beside the package, in editable installs as well."""

    def run(self):
        super().run()
        editable = getattr(self, "editable_mode", False)
        folder = self.get_finalized_command("install").install_lib if editable else self.build_lib
        for file in START:
            self.copy_file(str(file), folder)

    def get_outputs(self, include_bytecode=True):
        own = (os.path.join(self.build_lib, file.name) for file in START)
        return [*super().get_outputs(include_bytecode), *own]


class Wheel(bdist_wheel):
    """One wheel for every Python, because the library is not an extension module."""

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


setup(
    # A package index has no other file of the repository.
    long_description=links.rewrite(ROOT / "README.md", lambda *_: None),
    long_description_content_type="text/markdown",
    # In pyproject.toml its form depends on the version of setuptools.
    license="Apache-2.0",
    # Only without CMake and Ninja of the system.
    setup_requires=presets.requirements(),
    ext_modules=[Extension("gluon_roi.libgluon_roi", sources=[])],
    cmdclass={"build_ext": BuildLibrary, "build_py": BuildPy, "bdist_wheel": Wheel},
)
