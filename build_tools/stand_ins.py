# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for the Arm libraries that MXNet's wheel for 64-bit Arm was linked with.

    python build_tools/stand_ins.py LIBMXNET    compares FORWARDED with the needs of a libmxnet.so

Arm's Performance Libraries are in no package registry. OpenBLAS has the same functions, and the
wheel scipy-openblas32 contains it, but with names that begin with "scipy_". So
libarmpl_lp64_mp.so holds a jump for each function. The functions of the other two libraries are in
glibc as well, so these stand-ins are empty. gluon_roi/_arm.py loads all three.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

OPENBLAS = "libscipy_openblas.so"
BLAS = """
    cblas_cgemm cblas_ddot cblas_dgemm cblas_dger cblas_dsyrk cblas_dtrmm cblas_dtrsm cblas_saxpy
    cblas_sdot cblas_sgemm cblas_sger cblas_ssyrk cblas_strmm cblas_strsm cblas_zgemm
"""
LAPACKE = "geev gelqf gesdd gesv gesvd getrf getri orglq potrf potri syevd"
LAPACK = "gels geqrf gesdd gesv getrf posv potrf"
#: By MXNet 1.9.0 and 1.9.1.
FORWARDED = (
    *BLAS.split(),
    *(f"LAPACKE_{kind}{name}" for kind in "sd" for name in LAPACKE.split()),
    *(f"{kind}{name}_" for kind in "sd" for name in LAPACK.split()),
)
NAMES = ("libarmpl_lp64_mp.so", "libamath.so", "libastring.so")


def build(compiler: list[str], name: str, folder: Path) -> Path:
    """Write one stand-in into a folder."""
    folder.mkdir(parents=True, exist_ok=True)

    def link(name: str, lines: list[str], *needed: Path) -> Path:
        source, target = folder / f"{name}.s", folder / name
        source.write_text("".join(f"{line}\n" for line in lines))
        command = [*compiler, "-shared", "-nostdlib", "-s", f"-Wl,--no-as-needed,-soname,{name}"]
        command += [str(source), *map(str, needed), "-o", str(target)]
        subprocess.run(command, check=True)
        return target

    if name != NAMES[0]:
        return link(name, [])
    # An empty one with OpenBLAS's name, so that the jumps are looked up in the real one.
    openblas = link(OPENBLAS, [])
    jumps = [f".globl {f}\n.type {f}, %function\n{f}: b scipy_{f}" for f in FORWARDED]
    return link(name, jumps, openblas)


def main() -> int:
    """Return 1 unless FORWARDED lists the functions that LIBMXNET takes from Arm's libraries.

    Names from glibc have a version, and names from MXNet's own C++ are mangled: both are left out.
    """
    nm = ["nm", "-D", "--undefined-only", sys.argv[1]]
    text = subprocess.run(nm, check=True, stdout=subprocess.PIPE, text=True).stdout
    wanted = set(re.findall(r" U ((?:cblas|LAPACKE)_\w+|[sd]\w+_)$", text, re.M))
    for word, names in (
        ("lacks", wanted - {*FORWARDED}),
        ("has in addition", {*FORWARDED} - wanted),
    ):
        print(word, *sorted(names))
    return int(wanted != {*FORWARDED})


if __name__ == "__main__":
    sys.exit(main())
