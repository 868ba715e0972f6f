# SPDX-License-Identifier: Apache-2.0
"""examples/c and the code on docs/c.md."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import gluon_roi

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs/c.md").read_text()


def run(*command, **options):
    done = subprocess.run(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **options,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def block(begin):
    """The block of code of the page that begins so."""
    return next(text for text in PAGE.split("\n\n") if text.startswith(f"    {begin}"))


def test_the_commands_of_the_page(tmp_path):
    """The project finds the installed header and library; the program prints what the page says."""
    if shutil.which("cmake") is None or shutil.which("cc") is None:
        pytest.skip("cmake or a C compiler is not installed")
    build = tmp_path / "build"
    text = block("cmake").replace("examples/c", str(ROOT / "examples/c"))
    lines = text.replace("build/example", str(build)).split("\n")
    find, compile_, program = [line.split() for line in lines]
    run(*find, f"-DPython3_EXECUTABLE={sys.executable}")
    run(*compile_)
    shown = block("14 16 26 28").split("\n")
    assert run(*program).splitlines() == [line.strip() for line in shown]


def test_the_call_of_the_page(tmp_path):
    """The excerpt is C and C++, and the page's commands compile it."""
    if shutil.which("gcc") is None or shutil.which("g++") is None:
        pytest.skip("gcc or g++ is not installed")
    program = f"""
        #include <gluon_roi.h>
        #include <stdio.h>
        int main(void) {{
          float data[48] = {{7}}, rois[5] = {{0, 0, 0, 4, 4}}, out[4];
          {block("gluon_roi_roi_pool_params")}
          printf("%g", out[0]);
          return 0;
        }}
    """
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for compiler, file in (("gcc", "program.c"), ("g++", "program.cc")):
        (tmp_path / file).write_text(program)
        command = block("gcc").replace("gcc", compiler).replace("program.c", file)
        run("sh", "-c", command, cwd=tmp_path, env=environment)
        assert run(tmp_path / "program") == "7"
    shown = run("sh", "-c", block("python -c"), cwd=tmp_path, env=environment)
    assert shown.split() == [gluon_roi.include(), str(gluon_roi.library.PATH)]
