# SPDX-License-Identifier: Apache-2.0
"""Distributed runs: equal results, and processes that die, freeze or are told to end."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
from demo_runs import (
    REPOSITORY,
    assert_equal_runs,
    free_port,
    parameters,
    python,
    settings_of,
    train_arguments,
)

from demo_rfcn import cli
from demo_rfcn.distributed.stop import SILENCE
from demo_rfcn.run import checkpoint, evaluate

pytestmark = pytest.mark.slow

#: Seconds within which all processes end.
MINUTE = 60
STEPS = 9999
PYTHON = [sys.executable, "-W", "ignore", "-m"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", SILENCE: "6"}
# It would hide lines that stay in a buffer.
ENVIRONMENT.pop("PYTHONUNBUFFERED", None)


def arguments(data: Path, folder: Path, steps: int, *more: str) -> list:
    """Return the line of a worker that makes many small steps."""
    line = train_arguments(data, folder, "--batch-size", "1", "--steps", str(steps))
    return [*line, "--log-interval", "1", "--val-interval", "40", "--val-limit", "4", *more]


class Launched:
    """A `launch` of two workers and a server, and what it prints."""

    def __init__(self, line: list, *flags: str, **variables: str) -> None:
        self.process = subprocess.Popen(
            [*PYTHON, "demo_rfcn", "launch", "-n", "2", "-s", "1", *flags, "--", *line],
            env={**ENVIRONMENT, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        self.children: dict[str, list[int]] = {}

    def until_training(self) -> None:
        """Wait until the workers make steps, and a random time longer."""
        assert self.process.stdout
        for line in self.process.stdout:
            self.lines.append(line)
            if line.startswith("training on"):
                break
        self.children = children(self.process.pid)
        assert [len(each) for each in self.children.values()] == [1, 1, 2], self.lines
        delay = random.uniform(0.1, 0.6)
        print(f"{delay:.2f} seconds of training")  # shown if a test fails
        time.sleep(delay)

    def end(self) -> tuple[int, list[str]]:
        """Return the status and the sentences, when all processes have ended, within a minute."""
        started = time.monotonic()
        output, _ = self.process.communicate(timeout=MINUTE)
        self.lines += output.splitlines()
        while any(map(lives, sum(self.children.values(), []))):
            assert time.monotonic() - started < MINUTE, self.children
            time.sleep(0.1)
        return self.process.returncode, [line for line in self.lines if "demo_rfcn: " in line]


def children(parent: int) -> dict[str, list[int]]:
    """Return the processes that a process has started, by role."""
    found: dict[str, list[int]] = {"scheduler": [], "server": [], "worker": []}
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and status(int(folder.name))[1] == str(parent):
                line = (folder / "cmdline").read_bytes().decode().split("\0")
                role = line[-2] if line[-2] in found else "worker"
                found[role].append(int(folder.name))
        except (OSError, IndexError):
            continue
    return found


def status(process: int) -> list[str]:
    """Return the fields of a process in /proc: its state, its parent, and more."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()


def lives(process: int) -> bool:
    try:
        return status(process)[0] != "Z"
    except OSError:
        return False


#: Ends of a run: the process that gets a signal, the signal; status and last words of `launch`.
KILLED = "launch: a {} was killed by signal 9; all"
ENDS: dict[str, tuple[str, int, int, str]] = {
    "time limit": ("", 0, 0, ""),
    "SIGTERM to a worker": ("worker", signal.SIGTERM, 130, "stopped after step "),
    "SIGINT to launch": ("launch", signal.SIGINT, 130, "stopped after step "),
    "a worker killed": ("worker", signal.SIGKILL, 1, KILLED.format("worker")),
    # Heartbeats detect it, like a machine whose network is cut off.
    "a worker stopped": ("worker", signal.SIGSTOP, 1, "launch: a "),
    "the server killed": ("server", signal.SIGKILL, 1, KILLED.format("server")),
    "launch killed": ("launch", signal.SIGKILL, -signal.SIGKILL, ""),
}


def test_run_resumes_after_each_way_to_end_it(eight_images, tmp_path):
    """A run that ended at random steps equals an uninterrupted one bit for bit, and its scores."""
    last, whole = (tmp_path / name / "last.ckpt" for name in ("parts", "whole"))
    # A learning rate that does not depend on the number of steps.
    rate = ("--lr-mode", "step", "--lr-decay-steps", str(STEPS))
    line, before = arguments(eight_images, last.parent, STEPS, *rate), 0
    for name, (role, number, status, words) in ENDS.items():
        run = Launched([*line, *(() if role else ("--max-seconds", "0.5"))])
        if role:
            run.until_training()
            os.kill(random.choice(run.children.get(role, [run.process.pid])), number)
        code, sentences = run.end()
        assert code == status, (name, run.lines)
        step = checkpoint.read(last).step
        assert before <= step < STEPS, name  # equal if it ended before its first step
        hint = f"continue with --resume {last} (step {step})"
        hints = (hint, "worker 0 keeps the checkpoint")
        # (A worker that was stopped may be woken in time to agree with the other one to stop.)
        told = [each for each in sentences if re.search(" train: worker | stopped after ", each)]
        assert all(each.endswith(hints) for each in told), (name, told)
        assert len(told) > 0 or status != 1, (name, run.lines)
        if status == 130:
            stopped = f"demo_rfcn: stopped after step {step} of {STEPS}; "
            assert sorted(sentences) == [stopped + each for each in hints], name
        elif status >= 0:
            assert (sentences or [""])[-1].startswith("demo_rfcn: " * bool(words) + words), name
        line = arguments(eight_images, last.parent, STEPS, *rate, "--resume", str(last))
        before = step
    code, sentences = Launched(arguments(eight_images, whole.parent, before, *rate)).end()
    assert (code, sentences) == (0, [])
    assert_equal_runs(last, whole)

    # Each worker evaluated a share of the images.
    stored = checkpoint.read(whole)
    (dataset,) = settings_of(line).open("val")
    detect = stored.detector([mx.cpu()])
    scores = evaluate.evaluate(detect, dataset, (160, 160), [mx.cpu()], limit=4)
    row = stored.notes["history"]["val"][-1]
    expected = {"step": before, "map50": scores["map50"], "map75": scores["map75"]}
    assert row == pytest.approx(expected)


def test_two_machines(eight_images, tmp_path):
    """The second one, with only a worker, is switched off: heartbeats stop, and the first ends."""
    address = ["-s", "1", "--address", f"127.0.0.1:{free_port()}", "--only"]
    line = arguments(eight_images, tmp_path, 100_000)
    first = Launched(line, *address, "scheduler", "server", "worker")
    second = Launched(line, *address, "worker")
    while not (tmp_path / "last.ckpt").is_file():  # of the first validation
        assert first.process.poll() is None and second.process.poll() is None
        time.sleep(0.2)
    (worker,) = children(second.process.pid)["worker"]
    for process in (second.process.pid, worker):
        os.kill(process, signal.SIGKILL)
    code, sentences = first.end()
    words = "scheduler: a process of the run does not answer any more"
    assert code == 1 and any(words in each for each in sentences), sentences
    assert second.end()[0] == -signal.SIGKILL
    assert checkpoint.read(tmp_path / "last.ckpt").step >= 40


def test_bad_input_is_one_sentence(eight_images, tmp_path):
    """Both workers print it before they join; the scheduler and the server do not wait."""
    line = arguments(eight_images, tmp_path, 9)
    code, (message,) = Launched([*line, "--dataset-root", "none"]).end()
    assert code == 2 and "dataset: folder none of 'signals' is missing; " in message


def cluster(**own: str) -> dict[str, str]:
    """Return the environment of a run of a server and two workers that `launch` does not start."""
    address = {"DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": str(free_port())}
    numbers = {"DMLC_NUM_SERVER": "1", "DMLC_NUM_WORKER": "2", "DMLC_NODE_HOST": "127.0.0.1"}
    return {**ENVIRONMENT, **address, **numbers, **own}


def started_by_hand(*workers: list) -> list[subprocess.Popen]:
    """Start a scheduler, a server and workers without `launch`."""
    common = cluster()
    serve = [*PYTHON, "demo_rfcn.distributed.serve"]
    lines = [(common, [*serve, role]) for role in ("scheduler", "server")]
    lines += [({**common, "DMLC_ROLE": "worker"}, worker) for worker in workers]
    return [
        subprocess.Popen(words, env=env, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for env, words in lines
    ]


def ends(processes: list, words: str, within: float = MINUTE) -> list[int]:
    """Return the statuses of processes that end in time, each with one sentence if it has words."""
    statuses, started = [], time.monotonic()
    try:
        for process in processes:
            left = within - (time.monotonic() - started)
            _, errors = process.communicate(timeout=max(left, 1))
            sentences = [line for line in errors.splitlines() if line.startswith("demo_rfcn: ")]
            assert len(sentences) == bool(words), errors[-2000:]
            assert all(words in sentence for sentence in sentences), errors[-2000:]
            statuses.append(process.returncode)
    finally:
        for process in processes:
            process.kill()
    return statuses


def worker(data: Path, folder: Path, *more: str) -> list:
    """Return the command of a worker that trains for long."""
    line = arguments(data, folder, 100_000, "--kv-store", "dist_sync", *more)
    return [*PYTHON, "demo_rfcn", *line]


def test_workers_of_different_runs_are_rejected(eight_images, tmp_path):
    others = [worker(eight_images, tmp_path, *flags) for flags in ([], ["--seed", "1"])]
    processes = started_by_hand(*others)
    try:
        words = "worker 1 has another run than worker 0: arguments "
        assert ends(processes[2:], words) == [2, 2]
    finally:
        for process in processes:
            process.kill()
    assert not list(tmp_path.glob("*.ckpt"))


def test_two_workers_equal_one_process_with_the_joined_batch(eight_images, tmp_path):
    """Both workers have the same weights, not only the one that writes the checkpoint."""
    # Adam would turn a rounding error of a gradient near zero into a whole step.
    line = train_arguments(eight_images, tmp_path, "--freeze-bn", "--steps", "2")
    line += ["--optimizer", "sgd"]
    program = [*PYTHON[:-1], str(REPOSITORY / "tests/scripts/train_worker.py")]
    shared = [*line, "--kv-store", "dist_sync", "--batch-size", "1"]
    workers = [[*program, str(tmp_path / f"{number}.npz"), *shared] for number in range(2)]
    assert ends(started_by_hand(*workers), "", 2 * MINUTE) == [0, 0, 0, 0]
    assert cli.main([*line, "--save-prefix", str(tmp_path / "one")]) == 0
    saved, expected = (parameters(path / "last.ckpt") for path in (tmp_path, tmp_path / "one"))
    first, second = (np.load(tmp_path / f"{number}.npz") for number in range(2))
    for name, value in expected.items():
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)
        np.testing.assert_allclose(first[name], value, rtol=1e-4, atol=1e-6, err_msg=name)
        np.testing.assert_array_equal(saved[name], first[name], err_msg=name)


def test_worker_alone_names_the_processes_that_it_waits_for(eight_images, tmp_path):
    program = (
        "import runpy; from demo_rfcn.distributed import workers; workers.START = 3; "
        "runpy.run_module('demo_rfcn', run_name='__main__')"
    )
    variables = cluster(DMLC_ROLE="worker")
    line = arguments(eight_images, tmp_path, 9, "--kv-store", "dist_sync")
    made = python("-c", program, *line, **variables)
    assert made.returncode == 1
    address = f"127.0.0.1:{variables['DMLC_PS_ROOT_PORT']}"
    words = f"waited 3 seconds for the scheduler at {address}, 1 servers and 2 workers"
    assert words in made.stderr
