# SPDX-License-Identifier: Apache-2.0
"""Runs MXNet's own unit tests, and compares two such runs.

    python tests/scripts/mxnet_tests.py run MXNET FOLDER [--only NAME ...] [--seconds 900]
    python tests/scripts/mxnet_tests.py compare OLD NEW

MXNET is a checkout of MXNet at the tag 1.9.1; its tests/python/unittest is not modified. The tests
run with the interpreter that runs this file, and the mxnet installed there. pytest writes FOLDER, a
JUnit file for each of them. pytest-xdist replaces the process of a test that hangs or crashes. All
random numbers have the same seed in both runs.

This file is also a plugin of pytest. It replaces nose, which does not run on current Pythons, and
gives the tests the names that NumPy has dropped since.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import re
import signal
import subprocess
import sys
import types
import unittest
import xml.etree.ElementTree
from pathlib import Path

SEED = "20220517"
SECONDS = "MXNET_TESTS_SECONDS"


# The pytest plugin.


def nose_tools():
    """The functions of nose.tools that MXNet's tests use."""
    tools = types.ModuleType("nose.tools")
    case = unittest.TestCase()
    for name in dir(case):
        if name.startswith("assert") and "_" not in name:
            pep8 = re.sub("([A-Z])", lambda found: "_" + found[1].lower(), name)
            setattr(tools, pep8, getattr(case, name))

    def raises(*exceptions):
        def decorate(function):
            return functools.wraps(function)(lambda: case.assertRaises(exceptions, function))

        return decorate

    tools.__dict__.update(
        ok_=case.assertTrue, eq_=case.assertEqual, make_decorator=functools.wraps, raises=raises
    )
    return tools


def pytest_configure(config):
    nose, tools = types.ModuleType("nose"), nose_tools()
    nose.__dict__["tools"] = tools
    sys.modules.update({"nose": nose, "nose.tools": tools})
    give_names()
    config.addinivalue_line("markers", "serial: one of MXNet's")


def give_names():
    """Give numpy the names that it has dropped, because the tests use them too."""
    import mxnet  # noqa: F401 (loads gluon_roi/_compat.py where it is needed)
    import numpy

    compat = sys.modules.get("gluon_roi._compat")
    if compat and compat.is_needed():
        for name, value in vars(compat._numpy()).items():
            if not hasattr(numpy, name):
                setattr(numpy, name, value)


def pytest_runtest_setup():
    # The signal ends the process of a test that hangs, even outside Python.
    signal.alarm(int(os.environ[SECONDS]))


# Runs, and their comparison.


def run(arguments):
    files = sorted(Path(arguments.mxnet).resolve().glob("tests/python/unittest/test_*.py"))
    if not files:
        sys.exit(f"mxnet_tests: {arguments.mxnet} has no tests; expected MXNet at 1.9.1")
    folder = Path(arguments.folder).resolve()
    (folder / "work").mkdir(parents=True, exist_ok=True)
    own = {"PYTHONPATH": str(Path(__file__).resolve().parent), "PYTHONDONTWRITEBYTECODE": "1"}
    own.update(MXNET_TEST_SEED=SEED, MXNET_MODULE_SEED=SEED)
    own[SECONDS] = str(arguments.seconds)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "1", "-p", "mxnet_tests"]
    command += ["-p", "no:cacheprovider", "-c", os.devnull, "--tb", "line"]
    for path in files:
        if path.stem in (arguments.only or [path.stem]):
            print(f"\n{path.stem}", flush=True)
            report = f"--junitxml={folder / path.stem}.xml"
            # A session, so that the workers of a test that was ended end with it.
            process = subprocess.Popen(
                [*command, report, "--rootdir", str(path.parent), str(path)],
                cwd=str(folder / "work"),
                env={**os.environ, **own},
                start_new_session=True,
            )
            process.wait()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def outcomes(report):
    """Outcome and reason of each test of a file."""
    found = {}
    for test in xml.etree.ElementTree.parse(report).iter("testcase"):
        faults = [fault for fault in test if fault.tag in ("failure", "error", "skipped")]
        kinds = {fault.tag: fault.get("message") or "" for fault in faults} or {"passed": ""}
        found[test.get("name")] = next(iter(kinds.items()))
    return found


def compare(arguments):
    """A table in Markdown of the files in both runs, and every test that differs; 1 if one does."""
    old, new = Path(arguments.old), Path(arguments.new)
    print(f"| file | tests | {old.name} | {new.name} | differ |\n|---|---|---|---|---|")
    rows, differences = [], []
    for name in sorted(file.name for file in old.glob("*.xml") if (new / file.name).exists()):
        before, after = outcomes(old / name), outcomes(new / name)
        tests = sorted({*before, *after})
        pairs = [(t, before.get(t, ("absent", "")), after.get(t, ("absent", ""))) for t in tests]
        differ = [(name, *pair) for pair in pairs if pair[1][0] != pair[2][0]]
        passed = [sum(pair[i][0] == "passed" for pair in pairs) for i in (1, 2)]
        rows.append((len(tests), *passed, len(differ)))
        differences += differ
        print(f"| {name[:-4]} |", *(f"{count} |" for count in rows[-1]))
    print("| all |", *(f"{sum(column)} |" for column in zip(*rows)))
    for name, test, before, after in differences:
        print(f"\n{name[:-4]}::{test}: {before[0]} -> {after[0]}")
        print(f"  {(after[1] or before[1]).strip()[:300]}")
    return bool(differences)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("mxnet", help="a checkout of MXNet at 1.9.1")
    running.add_argument("folder", help="for the outcomes")
    running.add_argument("--only", nargs="+", help="names of files, such as test_metric")
    running.add_argument("--seconds", type=int, default=900, help="a test takes longer: it hangs")
    comparing = commands.add_parser("compare")
    comparing.add_argument("old")
    comparing.add_argument("new")
    arguments = parser.parse_args()
    return run(arguments) if arguments.command == "run" else compare(arguments)


if __name__ == "__main__":
    sys.exit(main())
