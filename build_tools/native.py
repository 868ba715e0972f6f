# SPDX-License-Identifier: Apache-2.0
"""Compiles src/ for setup.py, the tests, debugging and the sanitizers: the only build recipe.

    python build_tools/native.py VARIANT...    builds these VARIANTS, and prints their paths

Sources are found, not listed. Files that are up to date are not compiled again. All output goes to
build/: build/VARIANT/, and compile_commands.json for editors and clang-tidy.

GLUON_ROI_CUDA        1: CUDA kernels, or fail; 0: none; unset: if nvcc is found
GLUON_ROI_CUDA_ARCHS  such as "80;90": instead of the list for the toolkit found
CUDA_HOME             where the CUDA toolkit is, if nvcc is not on PATH
CXX                   the C++ compiler, g++ if unset; CROSS_CXX: that for 64-bit Arm; EMXX: that for
                      WebAssembly
GLUON_ROI_VARIANT     what setup.py packages, release if unset
"""

from __future__ import annotations

import concurrent.futures
import fcntl
import importlib.machinery
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
BUILD = ROOT / "build"
COMPILE_COMMANDS = BUILD / "compile_commands.json"

# No variant may contract a * b + c: results would differ in their last bits. Warnings are errors in
# `make lint` alone, because a newer compiler has others.
COMMON = ("-std=c++17", "-fPIC", "-Wall", "-Wextra", "-Wshadow", "-ffp-contract=off")
# -falign-loops: without it, where the linker puts a kernel decides whether its innermost loop lies
# across two of the processor's fetch blocks: ROIPool took 1 or 1.1 times as long, with the same
# instructions.
FAST = ("-O3", "-fopenmp", "-falign-loops=32")
# Without optimisation, which takes most of the time that compiling takes.
DEBUG = ("-O0", "-DGLUON_ROI_DEBUG")
# The line numbers that sanitizers print. With all that a debugger can use, compiling takes a third
# longer.
LINES = "-g1"
# -fsanitize=undefined leaves out the conversion of a float to an integer that it does not fit.
ASAN = ("-fsanitize=address,undefined,float-cast-overflow", "-fno-sanitize-recover=all")
SIMULATOR = ROOT / "tests/hostsim"
SIMULATED = (f"-I{SIMULATOR}", "-Wno-unknown-pragmas", "-Wno-unused-parameter")
# The machine code that each toolkit still makes; the newest is added as PTX for later GPUs.
CUDA_ARCHS = {11: [60, 70, 75, 80, 86], 12: [60, 70, 75, 80, 86, 89, 90], 13: [75, 80, 86, 89, 90]}


@dataclass(frozen=True)
class Variant:
    """One way to compile the sources. Flags are g++'s, and its linker's where they concern it."""

    flags: tuple[str, ...]
    #: With what MXNet loads; else the C interface alone.
    mxnet: bool = False
    #: nvcc: if it is found and wanted; simulator: the CUDA kernels as C++, for the CPU.
    cuda: str = "none"
    nvcc_flags: tuple[str, ...] = ()
    #: For the simulated kernels alone: all else has the flags, and is the objects, of `rest_of`.
    simulated_flags: tuple[str, ...] = ()
    rest_of: str = ""
    #: A source with main(): the product is a program, not a library.
    program: Path | None = None
    #: The compiler for another machine, one of CROSS; else that of CXX.
    cross: str = ""


DRIVER = ROOT / "tests/sanitize/driver.cc"
PORTABLE = ("-include", str(ROOT / "build_tools/manylinux.h"))
ARM64 = "aarch64-linux-gnu-g++"
WASM = "em++"
#: Compilers for other machines: the variable that names another one, the package of Debian.
CROSS = {ARM64: ("CROSS_CXX", "g++-aarch64-linux-gnu"), WASM: ("EMXX", "emscripten")}
VARIANTS = {
    # What is installed.
    "release": Variant(FAST, mxnet=True, cuda="nvcc"),
    # The same for wheels, which have to load where glibc and libstdc++ are older ones.
    "wheel": Variant((*FAST, *PORTABLE), mxnet=True, cuda="nvcc", nvcc_flags=PORTABLE),
    # Both for 64-bit Arm, on a machine that is none.
    "arm64": Variant(FAST, mxnet=True, cross=ARM64),
    "arm64-wheel": Variant((*FAST, *PORTABLE), mxnet=True, cross=ARM64),
    # For the explorer of the site (docs/explorer): small, because a page carries all of it.
    "wasm": Variant(("-Os", "-msimd128", "-fwasm-exceptions"), cross=WASM),
    # For a debugger, and to find what reads memory that it has not written.
    "debug": Variant((*DEBUG, "-g", "-fopenmp"), mxnet=True),
    # For a machine that has a GPU and no MXNet (tests/gpu).
    "gpu": Variant(FAST, cuda="nvcc", nvcc_flags=("-lineinfo",)),
    # Random hostile calls (make cross; make sanitize). They read the operators' declarations, which
    # the library does not export.
    "driver": Variant(FAST, program=DRIVER),
    "arm64-driver": Variant(FAST, program=DRIVER, cross=ARM64),
    "asan": Variant((*DEBUG, LINES, "-fopenmp", *ASAN), program=DRIVER),
    "tsan": Variant((*DEBUG, "-O1", LINES, "-fopenmp", "-fsanitize=thread"), program=DRIVER),
    # The CUDA kernels where there is no GPU (tests/test_cuda_hostsim.py).
    "hostsim": Variant(("-O0", LINES, *SIMULATED), cuda="simulator"),
    "hostsim-asan": Variant(
        ("-O0", LINES, *SIMULATED), cuda="simulator", simulated_flags=ASAN, rest_of="hostsim"
    ),
}


#: Of commands and of compilers' output, which have names of files: as bytes, in any locale.
TEXT: dict[str, Any] = {"encoding": "utf-8", "errors": "surrogateescape"}


def stop(sentence: str) -> NoReturn:
    sys.exit(f"gluon_roi: {sentence}")


# ---- What the build needs ------------------------------------------------------------------------


def find_mxnet() -> Path:
    """Copy the parts of the mxnet package that the build needs: headers and one source file.

    With a copy, nothing is compiled again when mxnet is installed after gluon_roi.
    """
    kept = BUILD / "mxnet-1.9.1/mxnet"
    installed = installed_mxnet()
    if installed:
        check_mxnet(installed)
    if not (kept / "libinfo.py").is_file():
        if installed:
            for name in ("include", "src/lib_api.cc", "libinfo.py"):
                (kept / name).parent.mkdir(parents=True, exist_ok=True)
                copy = shutil.copytree if (installed / name).is_dir() else shutil.copy
                copy(str(installed / name), str(kept / name))
        else:
            fetch_mxnet(kept.parent)
    return kept


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


def check_mxnet(folder: Path) -> None:
    """One sentence for another MXNet, whose library API is another."""
    found = re.search(r'__version__ = "(.+)"', (folder / "libinfo.py").read_text())
    if found is None or not found[1].startswith(("1.9.1", "1.9.0", "1.8.0")):
        sys.exit(
            "gluon_roi needs MXNet 1.9.1, 1.9.0 or 1.8.0, found "
            f"{found[1] if found else 'another'} in {folder}; "
            "run 'pip install --no-deps mxnet==1.9.1'"
        )


def fetch_mxnet(folder: Path) -> None:
    """Extract the files that the build needs from MXNet's wheel.

    MXNet is not a build requirement, because pip would install NumPy below 2 with it, which has no
    wheels for Python 3.13 and later.
    """
    print("gluon_roi: mxnet is not installed; taking its headers from its wheel")
    with tempfile.TemporaryDirectory() as work:
        download = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", work]
        if subprocess.run([*download, "mxnet==1.9.1"]).returncode:
            stop(
                "MXNet's headers cannot be downloaded; "
                "run 'pip install --no-deps mxnet==1.9.1' first"
            )
        with zipfile.ZipFile(next(Path(work).glob("*.whl"))) as wheel:
            needed = ("mxnet/include/", "mxnet/src/lib_api.cc", "mxnet/libinfo.py")
            wheel.extractall(folder, [n for n in wheel.namelist() if n.startswith(needed)])


def find_compiler(cross: str = "") -> list[str]:
    """The command of the C++ compiler, which may bring flags."""
    variable, package = CROSS.get(cross, ("CXX", "g++"))
    compiler = os.environ.get(variable, cross or "g++")
    if shutil.which(compiler.split()[0]) is None:
        stop(
            f"the C++ compiler '{compiler}' was not found; "
            f"run 'apt-get install {package}', or set {variable} to a compiler with C++17"
        )
    return compiler.split()


def compiler_of(name: str) -> list[str]:
    return find_compiler(VARIANTS[name].cross)


def is_for_arm(name: str) -> bool:
    cross = VARIANTS[name].cross
    return cross == ARM64 if cross else platform.machine() == "aarch64"


def find_nvcc() -> str | None:
    """The path of nvcc, or None for a build without CUDA."""
    wanted = os.environ.get("GLUON_ROI_CUDA", "")
    if wanted == "0":
        return None
    home = os.environ.get("CUDA_HOME")
    nvcc = shutil.which("nvcc", path=str(Path(home) / "bin")) if home else shutil.which("nvcc")
    if nvcc is None and wanted:
        stop(
            "GLUON_ROI_CUDA=1, but nvcc was not found; set CUDA_HOME to the folder of the CUDA "
            "toolkit, or GLUON_ROI_CUDA=0"
        )
    return nvcc


def cuda_configuration(nvcc: str) -> tuple[str, list[int]]:
    """(version of the toolkit, list of architectures such as [80, 90])."""
    text = subprocess.run([nvcc, "--version"], check=True, stdout=subprocess.PIPE, text=True).stdout
    version = re.search(r"release (\d+)\.(\d+)", text)
    if version is None:
        stop(f"'{nvcc} --version' names no release; set GLUON_ROI_CUDA=0")
    major = min(max(int(version[1]), min(CUDA_ARCHS)), max(CUDA_ARCHS))
    listed = os.environ.get("GLUON_ROI_CUDA_ARCHS")
    if listed and not re.fullmatch(r"\d+([;, ]+\d+)*", listed):
        stop(f"GLUON_ROI_CUDA_ARCHS: expected a list such as '80;90', got '{listed}'")
    archs = [int(arch) for arch in re.split("[;, ]+", listed)] if listed else CUDA_ARCHS[major]
    return f"{version[1]}.{version[2]}", sorted(archs)


# ---- The recipe ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recipe:
    """The commands that make one variant."""

    product: Path
    #: (source, object file, command), in the order in which they are linked.
    jobs: list[tuple[Path, Path, list[str]]]
    link: list[str]


def recipe_of(name: str) -> Recipe:
    variant = VARIANTS[name]
    compiler = compiler_of(name)
    nvcc = find_nvcc() if variant.cuda == "nvcc" else None
    folder = BUILD / (f"{name}-cuda" if nvcc and variant.mxnet else name)
    wasm = variant.cross == WASM
    product = folder / (
        "driver" if variant.program else "gluon_roi.js" if wasm else "libgluon_roi.so"
    )
    flags = [*COMMON, *variant.flags]
    sources = sorted(SOURCE.rglob("*.cc"))
    if variant.mxnet:
        mxnet = find_mxnet()
        sources.append(mxnet / "src/lib_api.cc")
        # MXNet's header counts as a system header: its warnings are not ours.
        flags += ["-isystem", str(mxnet / "include/mxnet"), "-isystem", str(mxnet / "include")]
    else:
        of_mxnet = re.compile('#include "(lib_api|mxnet_shapes).h"')
        sources = [source for source in sources if not of_mxnet.search(source.read_text())]
    if variant.program:
        sources.append(variant.program)
        flags.append(f"-I{find_source('gluon_roi.h').parent}")

    link = [*compiler, *variant.flags, *variant.simulated_flags]
    cuda_command: list[str] = []
    if nvcc:
        version, archs = cuda_configuration(nvcc)
        shown = ";".join(map(str, archs))
        print(
            f"gluon_roi: with CUDA {version}, architectures {shown} and PTX of {archs[-1]}, which "
            "takes minutes; GLUON_ROI_CUDA=0 leaves CUDA out"
        )
        defines = cuda_defines(version, shown)
        flags += defines
        cuda_command = [nvcc, "-std=c++17", "-O3", "-fmad=false", *variant.nvcc_flags, *defines]
        cuda_command += ["-Xcompiler", "-fPIC,-Wall,-Wshadow,-ffp-contract=off", "-Xptxas", "-v"]
        cuda_command += [f"-gencode=arch=compute_{a},code=sm_{a}" for a in archs]
        cuda_command += [f"-gencode=arch=compute_{archs[-1]},code=compute_{archs[-1]}"]
        # nvcc knows where its static runtime is; the library then loads without a driver.
        link = [nvcc, "-ccbin", compiler[0], "--cudart", "static", "-Xcompiler", "-fopenmp"]
    elif variant.cuda == "nvcc":
        print("gluon_roi: without CUDA")
    elif variant.cuda == "simulator":
        flags += cuda_defines("hostsim", "")
        cuda_command = [*compiler, *flags, *variant.simulated_flags, "-x", "c++"]
    if cuda_command:
        sources += sorted(SOURCE.rglob("*.cu"))

    jobs = []
    for source in sources:
        # The object's name carries the folders of its source: two files may have the same name.
        inside = ROOT if ROOT in source.parents else Path(source.anchor)
        shared = variant.rest_of and source.suffix != ".cu"
        objects = (BUILD / variant.rest_of if shared else folder) / "objects"
        target = objects / f"{source.relative_to(inside)}.o"
        command = cuda_command if source.suffix == ".cu" else [*compiler, *flags]
        if source.name == "lib_api.cc":
            # src/bindings/mxnet.cc has an _opVersion() that serves several MXNets.
            command = [*command, "-w", "-D_opVersion=built_for"]
        command = [*command, "-MD", "-MF", f"{target}.d", "-c", str(source), "-o", str(target)]
        jobs.append((source, target, command))

    if wasm:
        link += wasm_link_flags()
    elif not variant.program:
        # Undefined symbols are errors, so that an operator without its CUDA half does not link.
        linker_flags = ["-z", "defs"]
        if variant.mxnet:
            linker_flags.append(f"--version-script={find_source('exports.map')}")
        if variant.mxnet and name != "debug":
            linker_flags.append("-s")
        for flag in linker_flags:
            link += ["-Xlinker", flag]
        link.append("-shared")
    link += [*(str(target) for _, target, _ in jobs), "-o", str(product)]
    if PORTABLE[0] in variant.flags:
        # Where dlopen() was before glibc 2.34, since when nothing needs it.
        link += ["-Xlinker", "--no-as-needed", "-l:libdl.so.2"]
    return Recipe(product, jobs, link)


def wasm_link_flags() -> list[str]:
    """One JavaScript file that carries the machine code, as pages of files cannot fetch another.

    It defines gluonRoi(), which returns a promise of the functions of gluon_roi.h.
    """
    header = find_source("gluon_roi.h").read_text()
    operators = re.findall(r"\bX\((\w+)\)", header.split("#define GLUON_ROI_OPERATORS(X)")[1])
    names = [f"gluon_roi_{op}_{way}" for op in operators for way in ("forward", "backward")]
    names += re.findall(r"^const char\* (\w+)\(void\);$", header, re.M)
    settings = {
        "SINGLE_FILE": "1",
        "MODULARIZE": "1",
        "EXPORT_NAME": "gluonRoi",
        "ENVIRONMENT": "web",
        "FILESYSTEM": "0",
        "ALLOW_MEMORY_GROWTH": "1",
        "EXPORTED_FUNCTIONS": ",".join(f"_{name}" for name in ("malloc", "free", *names)),
        "EXPORTED_RUNTIME_METHODS": "UTF8ToString",
    }
    return [word for key, value in settings.items() for word in ("-s", f"{key}={value}")]


def find_source(name: str) -> Path:
    return next(SOURCE.rglob(name))


def cuda_defines(version: str, archs: str) -> list[str]:
    return [
        "-DGLUON_ROI_WITH_CUDA",
        f'-DGLUON_ROI_CUDA_VERSION="{version}"',
        f'-DGLUON_ROI_CUDA_ARCHS="{archs}"',
    ]


# ---- Building ------------------------------------------------------------------------------------


def build(name: str) -> Path:
    """Build the parts of a variant that are not up to date; returns the library or program."""
    recipe = recipe_of(name)
    folder = recipe.product.parent
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        # Another process may build the same.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if name == "release":
            write_compile_commands(recipe)
        stale = [job for job in recipe.jobs if not is_current(*job)]
        if stale:
            print(f"gluon_roi: compiling {len(stale)} files for {folder.relative_to(ROOT)}")
            sys.stdout.flush()
        done, started = [], time.monotonic()
        shown = started
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            for good in pool.map(lambda job: run(job[1], job[2]), stale):
                done.append(good)
                now = time.monotonic()
                if now - shown > 10 and len(done) < len(stale):
                    shown = now
                    print(f"gluon_roi: {len(done)} of {len(stale)} files in {now - started:.0f} s")
                    sys.stdout.flush()
        broken = [str(job[0].relative_to(ROOT)) for job, good in zip(stale, done) if not good]
        if broken:
            stop(f"{', '.join(broken)} did not compile")
        noted = note_of(recipe.product)
        linked = not stale and recipe.product.is_file() and noted == text_of(recipe.link)
        if not linked and not run(recipe.product, recipe.link):
            stop(f"{recipe.product.relative_to(ROOT)} did not link")
    return recipe.product


def run(target: Path, command: list[str]) -> bool:
    """Run a command that makes `target`, and store the command and its output beside it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    note, log = Path(f"{target}.cmd"), Path(f"{target}.log")
    note.unlink(missing_ok=True)
    # Debian keeps the modules that em++'s linker takes from Node.js there; other nodes do not look.
    env = {"NODE_PATH": "/usr/share/nodejs", **os.environ}
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env, **TEXT
    )
    log.write_text(done.stdout, **TEXT)
    good = done.returncode == 0
    # Of a kernel ptxas lists what it uses, which nobody reads unless something is wrong.
    if not good or "warning" in done.stdout:
        print(done.stdout, end="", file=sys.stderr)
    if good:
        note.write_text(text_of(command), **TEXT)
    return good


def text_of(command: list[str]) -> str:
    """The text of a command, including what nvcc adds to it."""
    names = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")
    return shlex.join([*command, *(os.environ[name] for name in names if os.environ.get(name))])


def note_of(target: Path) -> str:
    note = Path(f"{target}.cmd")
    return note.read_text(**TEXT) if note.is_file() else ""


def is_current(source: Path, target: Path, command: list[str]) -> bool:
    """Whether target was made by this command from the current source and headers."""
    if not target.is_file() or note_of(target) != text_of(command):
        return False
    made = target.stat().st_mtime
    # "target: source header header ...", with spaces inside of names and line ends escaped.
    listed = Path(f"{target}.d").read_text(**TEXT).replace("\\\n", " ").split(": ", 1)[1]
    files = [Path(name.replace("\\ ", " ")) for name in re.split(r"(?<!\\)\s+", listed.strip())]
    return all(file.is_file() and file.stat().st_mtime < made for file in files)


def write_compile_commands(recipe: Recipe) -> None:
    """Write the command of each file, for clangd and clang-tidy."""
    driver = [job for job in recipe_of("asan").jobs if job[0] == DRIVER]
    entries = [
        {"directory": str(ROOT), "file": str(source), "arguments": command}
        for source, _, command in (*recipe.jobs, *driver)
    ]
    text = json.dumps(entries, indent=1)
    if not COMPILE_COMMANDS.is_file() or COMPILE_COMMANDS.read_text() != text:
        COMPILE_COMMANDS.write_text(text)


if __name__ == "__main__":
    unknown = [name for name in sys.argv[1:] if name not in VARIANTS]
    if unknown or not sys.argv[1:]:
        stop(f"expected variants out of {', '.join(VARIANTS)}, got '{' '.join(unknown)}'")
    for name in sys.argv[1:]:
        print(build(name))
