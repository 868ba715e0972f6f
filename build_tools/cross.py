# SPDX-License-Identifier: Apache-2.0
"""Compiles the library for 64-bit Arm on another machine, and runs it where qemu-user is installed.

    python build_tools/cross.py [--calls 200]

Under qemu, a C program (tests/scripts/program.c) and random calls of every operator
(tests/sanitize/driver.cc) have to give the same output and results as on this machine.

Needs g++-aarch64-linux-gnu; CROSS_CXX names another compiler, such as 'clang++
--target=aarch64-linux-gnu'.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

import native
import stand_ins

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "tests/scripts/program.c"
SYSTEM = Path("/usr/aarch64-linux-gnu")
QEMU = next((q for q in ("qemu-aarch64-static", "qemu-aarch64") if shutil.which(q)), None)


def compile_with(compiler, source, library):
    """A program that uses a library from where it was built."""
    target = library.parent / source.stem
    command = [*compiler, "-O2", "-x", "c++", "-std=c++17", "-fopenmp", "-ffp-contract=off"]
    command += [f"-I{native.find_source('gluon_roi.h').parent}", str(source), "-x", "none"]
    command += [str(library), f"-Wl,-rpath,{library.parent}", "-o", str(target)]
    subprocess.run(command, check=True)
    return target


def run(*command, **environment):
    words = [str(part) for part in command]
    done = subprocess.run(
        words, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        sys.exit(f"cross: '{' '.join(words)}' ended with code {done.returncode}")
    return done.stdout.splitlines()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--calls", type=int, default=200, help="random calls to compare")
    arguments = parser.parse_args()
    libraries = {name: native.build(name) for name in ("release", "arm64")}
    print(libraries["arm64"].relative_to(ROOT))
    for name in stand_ins.NAMES:
        stand_ins.build(native.compiler_of("arm64"), name, native.BUILD / "arm")
    if QEMU is None or not SYSTEM.is_dir():
        print("cross: compiled, and not run: 'apt-get install qemu-user-static' brings an emulator")
        return
    printed, digests = {}, {}
    for name, library in libraries.items():
        compiler = native.compiler_of(name)
        emulator = [QEMU, "-L", SYSTEM] if name == "arm64" else []
        printed[name] = run(*emulator, compile_with(compiler, PROGRAM, library))
        driver = native.build("arm64-driver" if name == "arm64" else "driver")
        level, *digests[name] = run(*emulator, driver, 1, 0, arguments.calls)
        print(f"{name}: {len(digests[name])} calls, {level}")
    if printed["arm64"] != printed["release"]:
        sys.exit(f"cross: {PROGRAM.name} prints {printed['arm64']}, not {printed['release']}")
    differ = [i for i, pair in enumerate(zip(*digests.values())) if pair[0] != pair[1]]
    if differ:
        sys.exit(f"cross: calls {differ} of seed 1 give other bytes than on this machine")
    print(f"cross: {arguments.calls} calls give the same bytes as on this machine")


if __name__ == "__main__":
    main()
