# SPDX-License-Identifier: Apache-2.0
"""Counts the instructions of the innermost loops, for SSE2 and for NEON, in Markdown.

    python -m benchmarks.instructions

For 64-bit Arm under emulation, where nothing can be timed. Reads the objects of `make build` (on
x86-64) and `make cross`. A row is a pass of an operator over blocks of channels. Its numbers are
the lengths of its innermost loops with at least four packed operations, without conversions of
float16 and without tables that are made once per call. Gradients of boxes are left out, because
they are sums of single numbers on both.
"""

from __future__ import annotations

import re
import subprocess
import sys

from .ways import ROOT

# Folder of objects, its objdump, and what a packed operation looks like.
SIDES = (
    ("release", "objdump", r"(?:mul|add|sub|div|max|cmp\w*|and|andn|or)p[sd] "),
    (
        "arm64",
        "aarch64-linux-gnu-objdump",
        r"(?:fmul|fadd|fsub|fdiv|fcmgt|fcmeq|bit|bif|bsl|and) +v",
    ),
)
JUMP = re.compile(r"(?:j\w+|b(?:\.\w+)?|t?cbn?z|tbn?z) +(?:[^<]*, *)?(?:0x)?([0-9a-f]+) <")


def functions(folder, objdump, operator):
    """(name, [(address, instruction)]) of each function of an operator's object."""
    for built in (folder, f"{folder}-cuda"):
        source = ROOT / "build" / built / f"objects/src/ops/{operator}.cc.o"
        if source.is_file():
            command = [objdump, "-dC", "--no-show-raw-insn", str(source)]
            text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            break
    else:
        sys.exit(f"instructions: no object of {operator} for {folder}; run 'make build cross'")
    for part in text.split("\n\n"):
        named = re.search(r"^[0-9a-f]+ <(.+)>:$", part, re.M)
        lines = re.findall(r"^ +([0-9a-f]+):\t(.+)$", part, re.M)
        if named:
            yield named[1], [(int(at, 16), line.replace("\t", " ")) for at, line in lines]


def loops(instructions):
    """The innermost loops of a function, as lists of instructions."""
    index = {at: i for i, (at, _) in enumerate(instructions)}
    found = []
    for i, (_, line) in enumerate(instructions):
        jump = JUMP.match(line)
        begin = index.get(int(jump[1], 16), i + 1) if jump else i + 1
        if begin <= i:
            found.append((begin, i))
    for begin, end in found:
        if not any(begin <= b and e <= end and (b, e) != (begin, end) for b, e in found):
            yield [line for _, line in instructions[begin : end + 1]]


def lengths(folder, objdump, packed, operator):
    """{pass: sorted lengths of its loops}"""
    passes: dict[str, set[int]] = {}
    for name, instructions in functions(folder, objdump, operator):
        kernel = re.search(r"(?:run|align)_((?!simd|avx)\w+)<", name)
        if kernel is None or "run_avx" in name:
            continue
        for loop in loops(instructions):
            if len(loop) < 60 and sum(bool(re.match(packed, line)) for line in loop) >= 4:
                passes.setdefault(kernel[1].replace("_", " "), set()).add(len(loop))
    return {kernel: sorted(found) for kernel, found in passes.items()}


def main():
    print("| operator | pass | SSE2 | NEON |\n|---|---|---|---|")
    for source in sorted((ROOT / "src/ops").glob("*.cc")):
        sides = [lengths(*side, source.stem) for side in SIDES]
        for kernel in sorted({*sides[0], *sides[1]} - {"roi gradient"}):
            cells = [", ".join(map(str, side.get(kernel, ["-"]))) for side in sides]
            print(f"| {source.stem} | {kernel} | {cells[0]} | {cells[1]} |")


if __name__ == "__main__":
    main()
