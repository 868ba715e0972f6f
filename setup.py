"""Builds gluon_roi: compiles src/ against the headers of the installed MXNet wheel.

GLUON_ROI_CUDA        1: CUDA kernels, or fail; 0: none; unset: if nvcc is found
GLUON_ROI_CUDA_ARCHS  such as "80;90": instead of the list for the toolkit found
CUDA_HOME             where the CUDA toolkit is, if nvcc is not on PATH
CXX                   the C++ compiler, g++ if unset
"""

import concurrent.futures
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

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
    """The folder of the mxnet package, of the target environment if it is there."""
    site = [Path(sysconfig.get_path(name)) / "mxnet" for name in ("platlib", "purelib")]
    spec = importlib.util.find_spec("mxnet")
    if spec and spec.origin:
        site.append(Path(spec.origin).parent)
    for folder in site:
        if (folder / "include/mxnet/lib_api.h").is_file() and (folder / "src/lib_api.cc").is_file():
            return folder
    sys.exit(
        "gluon_roi: the mxnet wheel with its lib_api.h was not found; "
        "run 'pip install mxnet==1.9.1 numpy==1.23.5' first"
    )


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
            folder = source.parent.name
            target = objects / f"{folder}_{source.stem}{source.suffix.replace('.', '_')}.o"
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
        # For gluon_roi.onnx.export; 1.17 is the last for Python 3.8.
        "onnx": ["onnx>=1.14"],
        "test": ["pytest", "hypothesis"],
        "lint": ["ruff", "mypy", "clang-format", "codespell"],
    },
    ext_modules=[Extension("gluon_roi.libgluon_roi", sources=[])],
    cmdclass={"build_ext": BuildLibrary},
    zip_safe=False,
)
