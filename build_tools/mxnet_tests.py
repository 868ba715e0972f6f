# SPDX-License-Identifier: Apache-2.0
"""Runs MXNet's own unit tests, and compares two such runs.

    python build_tools/mxnet_tests.py run MXNET --out new.json [--only NAME ...] [--seconds 900]
    python build_tools/mxnet_tests.py compare old.json new.json

MXNET is a checkout of MXNet at the tag 1.9.1; its tests/python/unittest is not modified. The tests
run with the interpreter that runs this file, and the mxnet installed there. A test that hangs or
crashes ends the process of its file; the rest of the file continues in another process. All random
numbers have the same seed in both runs.

This file is also the pytest plugin of those processes. It writes the result of each test as it
ends, replaces nose, which does not run on current Pythons, and gives the tests the names that NumPy
has dropped since.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
import types
import unittest
from collections import Counter
from pathlib import Path
from typing import Any

REPORT = "MXNET_TESTS_REPORT"
DONE = "MXNET_TESTS_DONE"
SEED = "20220517"


# The pytest plugin.


def nose_tools():
    """The functions of nose.tools that MXNet's tests use."""
    tools = types.ModuleType("nose.tools")
    case = unittest.TestCase()
    for name in dir(case):
        if name.startswith("assert") and "_" not in name:
            pep8 = re.sub("([A-Z])", lambda found: "_" + found[1].lower(), name)
            setattr(tools, pep8, getattr(case, name))

    def ok_(condition, message=None):
        assert condition, message

    def eq_(a, b, message=None):
        assert a == b, message

    def make_decorator(function):
        return functools.wraps(function)

    def raises(*exceptions):
        def decorate(function):
            @functools.wraps(function)
            def wrapped(*args, **kwargs):
                case.assertRaises(exceptions, function, *args, **kwargs)

            return wrapped

        return decorate

    for function in (ok_, eq_, make_decorator, raises):
        setattr(tools, function.__name__, function)
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


def write_report(**fields):
    with open(os.environ[REPORT], "a") as file:
        file.write(json.dumps(fields) + "\n")


def pytest_collection_modifyitems(config, items):
    done = set(json.loads(os.environ[DONE]))
    items[:] = [item for item in items if item.name not in done]
    write_report(left=[item.name for item in items])


def pytest_collectreport(report):
    if report.failed:
        write_report(test="(import)", outcome="failed", reason=reason_of(report))


def pytest_runtest_logstart(nodeid, location):
    write_report(started=nodeid.split("::", 1)[1])


def pytest_runtest_logreport(report):
    if report.when == "call" or report.outcome != "passed":
        name = report.nodeid.split("::", 1)[1]
        write_report(test=name, outcome=report.outcome, reason=reason_of(report))


def reason_of(report):
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash:
        return crash.message[:400]
    return str(report.longrepr)[-400:] if report.longrepr else ""


# Running the files.


def run_file(path, seconds, log):
    """Outcome and reason of each test of a file: {name: [outcome, reason]}."""
    outcomes: dict[str, list[str]] = {}
    while True:
        with tempfile.TemporaryDirectory() as work:
            report = Path(work) / "report"
            report.touch()
            environment = {
                **os.environ,
                REPORT: str(report),
                DONE: json.dumps(sorted(outcomes)),
                "PYTHONPATH": str(Path(__file__).resolve().parent),
                "PYTHONDONTWRITEBYTECODE": "1",
                "MXNET_TEST_SEED": SEED,
                "MXNET_MODULE_SEED": SEED,
            }
            command = [
                sys.executable,
                "-m",
                "pytest",
                "-p",
                "mxnet_tests",
                "-p",
                "no:cacheprovider",
            ]
            command += ["-c", os.devnull, "--rootdir", str(path.parent), str(path)]
            # A session of its own, so that the workers of a test that hangs end with it.
            process = subprocess.Popen(
                command, cwd=work, env=environment, stdout=log, stderr=log, start_new_session=True
            )
            ended = wait(process, report, seconds)
            lines = [json.loads(line) for line in report.read_text().splitlines()]
            started = next((line["started"] for line in reversed(lines) if "started" in line), None)
            for line in lines:
                if "test" in line:
                    outcomes.setdefault(line["test"], [line["outcome"], line["reason"]])
            left: list[str] = next((line["left"] for line in lines if "left" in line), [])
        if ended == "done" or started is None:
            if ended != "done" and not outcomes:
                outcomes["(import)"] = [ended, "before the first test"]
            return outcomes
        outcomes.setdefault(started, [ended, ""])
        if not set(left) - set(outcomes):
            return outcomes


def wait(process, report, seconds):
    """'done'; 'hung' if no test ended for so many seconds; 'crashed' if a signal ended it."""
    size, since = 0, time.monotonic()
    while process.poll() is None:
        time.sleep(0.2)
        if report.stat().st_size != size:
            size, since = report.stat().st_size, time.monotonic()
        if time.monotonic() - since > seconds:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return "hung"
    return "done" if process.returncode >= 0 else "crashed"


def run(arguments):
    folder = Path(arguments.mxnet).resolve() / "tests/python/unittest"
    files = sorted(folder.glob("test_*.py"))
    if not files:
        sys.exit(f"mxnet_tests: {folder} has no tests; expected a checkout of MXNet at 1.9.1")
    if arguments.only:
        files = [path for path in files if path.stem in arguments.only]
    versions = "import gluon_roi, mxnet, numpy; print(mxnet.__version__, numpy.__version__)"
    found = subprocess.run([sys.executable, "-c", versions], stdout=subprocess.PIPE, check=True)
    mxnet, numpy = found.stdout.decode().split()
    out = Path(arguments.out)
    result: dict[str, Any] = {
        "python": platform.python_version(),
        "mxnet": mxnet,
        "numpy": numpy,
        "files": {},
    }
    with open(out.with_suffix(".log"), "a") as log:
        for path in files:
            begin = time.monotonic()
            result["files"][path.stem] = run_file(path, arguments.seconds, log)
            counts = Counter(outcome for outcome, _ in result["files"][path.stem].values())
            print(f"{path.stem:32} {time.monotonic() - begin:6.0f} s  {dict(counts)}", flush=True)
            out.write_text(json.dumps(result, indent=1))


# Comparing two runs.


def compare(arguments):
    """A table in Markdown of the files in both runs, and every test that differs; 1 if one does."""
    old, new = (json.loads(Path(path).read_text()) for path in (arguments.old, arguments.new))
    names = [f"{run['python']}, NumPy {run['numpy']}" for run in (old, new)]
    print(f"| file | tests | {names[0]} | {names[1]} | differ |\n|---|---|---|---|---|")
    differences = []
    totals: Counter[str] = Counter()
    absent = ["absent", ""]
    for stem in sorted({*old["files"]} & {*new["files"]}):
        before, after = old["files"][stem], new["files"][stem]
        tests = sorted({*before, *after})
        differ = [t for t in tests if before.get(t, absent)[0] != after.get(t, absent)[0]]
        passed = [sum(o == "passed" for o, _ in outcomes.values()) for outcomes in (before, after)]
        print(f"| {stem} | {len(tests)} | {passed[0]} | {passed[1]} | {len(differ)} |")
        totals.update(tests=len(tests), old=passed[0], new=passed[1], differ=len(differ))
        differences += [(stem, t, before.get(t, absent), after.get(t, absent)) for t in differ]
    print("| all | {tests} | {old} | {new} | {differ} |".format(**totals))
    for stem, test, before, after in differences:
        print(f"\n{stem}::{test}: {before[0]} -> {after[0]}")
        print(f"  {(after[1] or before[1]).strip()[:300]}")
    return 1 if differences else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("mxnet", help="a checkout of MXNet at 1.9.1")
    running.add_argument("--out", required=True, help="JSON file for the outcomes")
    running.add_argument("--only", nargs="+", help="names of files, such as test_metric")
    running.add_argument("--seconds", type=float, default=900, help="a test takes longer: it hangs")
    comparing = commands.add_parser("compare")
    comparing.add_argument("old")
    comparing.add_argument("new")
    arguments = parser.parse_args()
    return run(arguments) if arguments.command == "run" else compare(arguments)


if __name__ == "__main__":
    sys.exit(main())
