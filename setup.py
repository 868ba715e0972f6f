"""Packages gluon_roi; build_tools/native.py compiles its library, and lists what it heeds."""

import os
import re
import shutil
import sys
from importlib import metadata
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "build_tools"))
import native  # noqa: E402


class BuildLibrary(build_ext):
    """One shared library for MXNet and the C interface, not a Python extension module."""

    def get_ext_filename(self, fullname):
        return fullname.replace(".", "/") + ".so"

    def build_extension(self, ext):
        built = native.build("release")
        library = Path(self.get_ext_fullpath(ext.name))
        library.parent.mkdir(parents=True, exist_ok=True)
        # A process that has the old library mapped keeps it: the new one is moved into place.
        fresh = library.with_suffix(".fresh.so")
        shutil.copy(built, fresh)
        os.replace(fresh, library)


def requirements():
    # A CUDA build of MXNet (mxnet-cu117 and the like) is another distribution with the same files;
    # asking for "mxnet" beside it would overwrite it.
    installed = {(d.metadata["Name"] or "").lower() for d in metadata.distributions()}
    cuda_build = any(name.startswith("mxnet-cu") for name in installed)
    return ["numpy==1.23.5"] + ([] if cuda_build else ["mxnet==1.9.1"])


version_line = (ROOT / "gluon_roi/__init__.py").read_text()
setup(
    name="gluon_roi",
    version=re.search(r'^__version__ = "(.+)"', version_line, re.M)[1],
    description="Region-of-interest operators for MXNet 1.9.1 and Gluon",
    long_description=(ROOT / "README.md").read_text(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.8,<3.12",
    packages=find_packages(include=["gluon_roi", "gluon_roi.*"]),
    install_requires=requirements(),
    extras_require={
        # gluoncv, matplotlib and tqdm for demo_rfcn.
        "demo": ["gluoncv==0.10.5", "matplotlib", "tqdm"],
        "test": ["pytest", "hypothesis"],
        "lint": ["ruff", "mypy", "clang-format", "codespell"],
    },
    ext_modules=[Extension("gluon_roi.libgluon_roi", sources=[])],
    cmdclass={"build_ext": BuildLibrary},
    zip_safe=False,
)
