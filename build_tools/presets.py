# SPDX-License-Identifier: Apache-2.0
"""Calls CMake for setup.py, the tests and the other programs of this folder.

    python build_tools/presets.py PRESET...        builds these, and prints their folders
    python build_tools/presets.py --requirements   the packages that this environment needs for it

CMake and Ninja of this environment come first, then the system's. CMakePresets.json lists the
presets, and CMakeLists.txt is the recipe.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
OLDEST_CMAKE = (3, 25)


def stop(sentence: str) -> NoReturn:
    sys.exit(f"gluon_roi: {sentence}")


def find(tool: str) -> str:
    """The path of a program, of this environment or of the system; "" without one."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return shutil.which(tool, path=path) or ""


def cmake_version() -> tuple[int, ...]:
    """Of the CMake found; () without one."""
    cmake = find("cmake")
    if not cmake:
        return ()
    shown = subprocess.run([cmake, "--version"], stdout=subprocess.PIPE, text=True).stdout
    found = re.match(r"cmake version (\d+)\.(\d+)", shown)
    return tuple(map(int, found.groups())) if found else ()


def requirements() -> list[str]:
    """The packages to install before building: none if the system's tools are new enough."""
    needed = [] if cmake_version() >= OLDEST_CMAKE else ["cmake>=3.25"]
    return needed if find("ninja") else [*needed, "ninja"]


def find_nvcc() -> bool:
    """Whether to build with CUDA; with GLUON_ROI_CUDA=1, CMake reports a missing nvcc."""
    wanted = os.environ.get("GLUON_ROI_CUDA", "")
    home = os.environ.get("CUDA_HOME")
    path = str(Path(home) / "bin") if home else None
    return wanted != "0" and bool(wanted or shutil.which("nvcc", path=path))


def sentence_of(output: str) -> str:
    """The first error in CMake's output, which is wrapped and indented."""
    error = re.search(r"^CMake Error.*\n\n?((?:  .*\n|\n(?=  ))+)", output, re.M)
    text = " ".join(error[1].split()) if error else output
    return text if text.startswith("gluon_roi") else f"gluon_roi: {text}"


def with_cuda() -> bool:
    """Whether the library of the package gets CUDA kernels: in a wheel only if asked for."""
    asked = os.environ.get("GLUON_ROI_CUDA") or not packaged().endswith("wheel")
    return bool(asked) and find_nvcc()


def packaged() -> str:
    """The preset that setup.py packages."""
    return os.environ.get("GLUON_ROI_VARIANT") or ("cuda" if find_nvcc() else "release")


def folder_of(preset: str) -> Path:
    """Two presets share a folder."""
    listed = json.loads((ROOT / "CMakePresets.json").read_text())["configurePresets"]
    folder = next((each.get("binaryDir") for each in listed if each["name"] == preset), None)
    return BUILD / (preset if not folder or "$" in Path(folder).name else Path(folder).name)


def build(preset: str, *settings: str, target: str = "") -> Path:
    """Configure and build a preset; returns its folder. Settings are like -DNAME=VALUE."""
    if preset == "debug":
        settings = f"-DGLUON_ROI_CUDA={'ON' if find_nvcc() else 'OFF'}", *settings
    cmake, ninja = find("cmake"), find("ninja")
    if not ninja or cmake_version() < OLDEST_CMAKE:
        version = ".".join(map(str, cmake_version()))
        found = "" if ninja else "; Ninja was not found"
        found += f"; found CMake {version}" if version else "; CMake was not found"
        stop(f"the build needs CMake 3.25 and Ninja{found}; run 'pip install cmake ninja'")
    folder = folder_of(preset)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        # Another process may build the same.
        fcntl.flock(lock, fcntl.LOCK_EX)
        configure = [cmake, "--preset", preset, f"-DCMAKE_MAKE_PROGRAM={ninja}"]
        configure += [f"-DGLUON_ROI_PYTHON={sys.executable}", *settings]
        done = subprocess.run(
            configure,
            cwd=str(ROOT),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="surrogateescape",
        )
        if done.returncode:
            sys.exit(sentence_of(done.stdout))
        command = [cmake, "--build", "--preset", preset, *(["--target", target] if target else [])]
        if subprocess.run(command, cwd=str(ROOT)).returncode:
            stop(f"'{' '.join(['cmake', *command[1:]])}' failed")
    return folder


def main() -> None:
    if sys.argv[1:] == ["--requirements"]:
        print(*requirements())
        return
    for preset in sys.argv[1:]:
        print(build(preset))


if __name__ == "__main__":
    main()
