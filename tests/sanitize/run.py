# SPDX-License-Identifier: Apache-2.0
"""Random hostile calls of every operator, made by driver.cc, and random layers of the operators for
inference, made by layers.cc, under sanitizers.

    python tests/sanitize/run.py [--calls 3000] [--seed 1] [--only asan tsan]

asan: AddressSanitizer and UndefinedBehaviorSanitizer, at every SIMD level of this machine, which
must give the same results. tsan: ThreadSanitizer, a tenth of the calls, at the baseline,
which is all that its build has.

The first fault ends the run with exit code 1, after the sanitizer's report and the command that
repeats only that call.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Sequence

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "build_tools"))
import presets  # noqa: E402

LEVELS = ("neon",) if platform.machine() == "aarch64" else ("sse2", "avx2", "avx512")


def run(driver: Path, seed: int, calls: int, level: str = LEVELS[-1]) -> tuple[str, list[str]]:
    """The level that ran, the best of the machine up to `level`, and a digest for each call."""
    began = time.monotonic()
    done = subprocess.run(
        [str(driver), str(seed), "0", str(calls)],
        env={**os.environ, "GLUON_ROI_SIMD": level},
        stdout=subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        sys.exit(f"{driver.parent.name} at {level}: exit code {done.returncode}")
    first, *digests = done.stdout.splitlines()
    ran = first[len("level ") :]
    seconds = time.monotonic() - began
    name = driver.parent.name
    print(f"{name} at {ran}: {len(digests)} calls without a fault, {seconds:.0f} s", flush=True)
    return ran, digests


def compare_levels(driver: Path, seed: int, calls: int) -> None:
    results: dict[str, list[str]] = {}
    for level in LEVELS:
        ran, digests = run(driver, seed, calls, level)
        if ran != level:
            print(f"this machine has no {level}")
            break
        results[level] = digests
    for level, digests in results.items():
        for call, (expected, got) in enumerate(zip(results[LEVELS[0]], digests)):
            if got != expected:
                sys.exit(
                    f"call {call} gives something else at {level} than at {LEVELS[0]}; repeat "
                    f"it with: GLUON_ROI_SIMD={level} {driver} {seed} {call} 1"
                )
    print(f"the same results at {', '.join(results)}", flush=True)


def run_layers(layers: Path, seed: int, count: int, levels: Sequence[str]) -> None:
    for level in levels:
        environment = {**os.environ, "GLUON_ROI_SIMD": level}
        done = subprocess.run([str(layers), str(seed), str(count)], env=environment)
        if done.returncode:
            sys.exit(f"{layers.parent.name} at {level}: exit code {done.returncode}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--calls", type=int, default=3000, help="at each level (default: 3000)")
    parser.add_argument("--seed", type=int, default=1, help="of the random numbers (default: 1)")
    parser.add_argument("--only", nargs="+", default=["asan", "tsan"], choices=["asan", "tsan"])
    options = parser.parse_args()
    if "asan" in options.only:
        folder = presets.build("asan")
        run_layers(folder / "layers", options.seed, max(options.calls // 5, 1), LEVELS)
        compare_levels(folder / "driver", options.seed, options.calls)
    if "tsan" in options.only:
        folder = presets.build("tsan")
        run_layers(folder / "layers", options.seed, max(options.calls // 50, 1), LEVELS[:1])
        run(folder / "driver", options.seed, max(options.calls // 10, 1))


if __name__ == "__main__":
    main()
