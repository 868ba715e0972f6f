# SPDX-License-Identifier: Apache-2.0
"""Compiles the wheel's library for 64-bit Arm, and runs it where qemu-user is installed.

    python build_tools/cross.py [--calls 200]

Under qemu, a C program (tests/scripts/program.c) and random calls of every operator
(tests/sanitize/driver.cc) have to give the same output and results as on this machine.

Needs g++-aarch64-linux-gnu; CROSS_CXX names another compiler, such as 'clang++
--target=aarch64-linux-gnu'.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

import presets

SYSTEM = Path("/usr/aarch64-linux-gnu")
QEMU = next((q for q in ("qemu-aarch64-static", "qemu-aarch64") if shutil.which(q)), None)


def run(*command: object) -> list[str]:
    words = [str(part) for part in command]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"cross: '{' '.join(words)}' ended with code {done.returncode}")
    return done.stdout.splitlines()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--calls", type=int, default=200, help="random calls to compare")
    arguments = parser.parse_args()
    arm = presets.build("arm64-wheel")
    print(arm / "libgluon_roi.so")
    if QEMU is None or not SYSTEM.is_dir():
        print("cross: compiled, and not run: 'apt-get install qemu-user-static' brings an emulator")
        return
    here = presets.build(presets.packaged())
    printed, digests = [], []
    for folder, emulator in ((here, []), (arm, [QEMU, "-L", SYSTEM])):
        printed.append(run(*emulator, folder / "program"))
        level, *found = run(*emulator, folder / "driver", 1, 0, arguments.calls)
        digests.append(found)
        print(f"{folder.name}: {len(found)} calls, {level}")
    if printed[0] != printed[1]:
        sys.exit(f"cross: program.c prints {printed[1]}, not {printed[0]}")
    differ = [i for i, pair in enumerate(zip(*digests)) if pair[0] != pair[1]]
    if differ:
        sys.exit(f"cross: calls {differ} of seed 1 give other bytes than on this machine")
    print(f"cross: {arguments.calls} calls give the same bytes as on this machine")


if __name__ == "__main__":
    main()
