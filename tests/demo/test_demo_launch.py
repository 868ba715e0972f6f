# SPDX-License-Identifier: Apache-2.0
"""Distributed runs: equal results, and processes that die, freeze or are told to end."""

from __future__ import annotations

import re
import signal
import sys
import threading
from pathlib import Path
from unittest import mock

import mxnet as mx
import pytest
from launches import Process, children, kill, launched, stand_in
from support.demo_runs import REPOSITORY, assert_equal_runs, free_port, settings_of, train_arguments
from support.processes import forked

from demo_rfcn import checkpoint, cli, launch
from demo_rfcn.distributed import workers
from demo_rfcn.distributed.stop import HEARTBEAT_INTERVAL_VAR, HEARTBEAT_TIMEOUT_VAR
from demo_rfcn.run import digest

pytestmark = pytest.mark.slow

STEPS = 9999
SILENT = "demo_rfcn: scheduler: a process of the run does not answer any more"
#: Two images in each validation; a learning rate that does not depend on the number of steps.
COMMON = ["--log-interval", "1", "--val-interval", "9999", "--val-limit", "4", "--batch-size", "1"]
COMMON += ["--steps", str(STEPS), "--lr-mode", "step", "--lr-decay", "1"]


@pytest.fixture(autouse=True)
def environment(monkeypatch) -> None:
    """Set that of the started processes, without lines that stay in a buffer."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    for name, value in (
        ("OMP_NUM_THREADS", "1"),
        (HEARTBEAT_TIMEOUT_VAR, "6"),
        (HEARTBEAT_INTERVAL_VAR, "2"),
    ):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))


def assert_equals_a_run_of_one_process(last: Path, eight_images: Path, folder: Path) -> None:
    """Compare the last checkpoint of two workers with an uninterrupted run.

    That has the workers' images on two contexts: test_demo_train.py compares it with one context.
    """
    stored = checkpoint.read(last)
    line_of_one = [*COMMON, "--cpus", "2", "--batch-size", "2", "--steps", stored.step]
    line = train_arguments(eight_images, folder / "whole", *line_of_one)

    def run() -> None:
        mx.base._LIB.MXSetNumOMPThreads(1)  # as in the workers
        assert cli.main(line) == 0

    status, _, error = forked(run)
    assert status == 0, error[-2000:]
    assert_equal_runs(last, folder / "whole" / "last.ckpt")
    expected = checkpoint.read(folder / "whole" / "last.ckpt")
    # Worker 0 has evaluated alone.
    scores, own = (each.history["val"][-1] for each in (stored, expected))
    assert scores == pytest.approx(own)


@pytest.mark.night
def test_two_workers_equal_one_process(eight_images, tmp_path):
    last = tmp_path / "run" / "last.ckpt"
    line = train_arguments(eight_images, last.parent, *COMMON, "--steps", "3")
    assert launched(line) == (0, [])
    assert checkpoint.read(last).step == 3
    assert_equals_a_run_of_one_process(last, eight_images, tmp_path)


@pytest.mark.night
def test_run_resumes_bit_for_bit_after_each_way_to_end_it(eight_images, tmp_path):
    """It was ended at random steps, and equals an uninterrupted run of one process."""
    last, before = tmp_path / "parts" / "last.ckpt", 0

    def line(*more: object) -> list[str]:
        resume = ("--resume", last) if last.exists() else ()
        return train_arguments(eight_images, last.parent, *COMMON, *resume, *more)

    def check(messages: list[str]) -> int:
        """Return the step of the checkpoint, which the workers must have named."""
        step = checkpoint.read(last).step
        assert before <= step < STEPS  # equal if it ended before its first step
        messages = [each for each in messages if re.search(" train: worker | stopped after ", each)]
        hint = f"continue with --resume {last} (step {step})"
        # If worker 0 is lost, the checkpoint is the last one that it had written.
        assert messages and all(each.endswith((hint, "the checkpoint")) for each in messages), (
            messages
        )
        return step

    code, messages = launched(line(), end=kill("worker", signal.SIGTERM))
    before = check(messages)
    assert code == 130 and len(messages) == 2
    assert all(f"demo_rfcn: stopped after step {before} of {STEPS}; " in each for each in messages)

    code, messages = launched(line(), end=kill("server", signal.SIGSTOP))
    before = check(messages)
    assert code == 1 and SILENT in messages
    assert messages[-1].startswith("demo_rfcn: launch: a scheduler ended with status 1; all other")

    # The second machine is lost: the first one gets no heartbeats any more.
    address = ["--address", f"127.0.0.1:{free_port()}", "--only"]
    second = Process(line("--val-interval", "9"), *address, "worker")
    written = last.stat().st_mtime_ns
    code, messages = launched(
        line("--val-interval", "9"),
        *(*address, "scheduler", "server", "worker"),
        end=lambda _: kill("worker", signal.SIGKILL)(children(second.number)),
        trains=lambda: last.stat().st_mtime_ns != written,
    )
    before = check(messages)
    assert code == 1 and SILENT in messages
    code, messages = second.end()
    assert code == 1 and "a worker was killed by signal 9; all other" in messages[-1]

    Process(line()).kill_in_training()
    assert before <= checkpoint.read(last).step

    assert launched(line("--max-seconds", "0.5")) == (0, [])
    assert before < checkpoint.read(last).step
    assert_equals_a_run_of_one_process(last, eight_images, tmp_path)


#: What both or the first of two workers do, in sh; the status of `launch`, and the sentences.
LOST, TOLD, WRONG = (f"demo_rfcn: {words}" for words in ("one is lost", "told to stop", "no data"))
ENDED = (
    "demo_rfcn: launch: a worker was killed by signal 9; all other processes of this machine ended"
)
ACTS = {
    "test $first && kill -9 $$": (1, LOST, ENDED),
    "test $first && kill -INT $PPID": (130, TOLD),
    f"echo {WRONG} >&2; exit 2": (2, WRONG),
}


@pytest.mark.parametrize("act", ACTS)
def test_launch_ends_all(act, tmp_path, monkeypatch):
    """A program stands in for all processes; as scheduler and server it does not end."""
    program = stand_in(tmp_path, act, told=TOLD, lost=LOST)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(launch, "PATIENCE", 0.5)
    status, *words = ACTS[act]
    code, messages = launched(["train"])
    assert (code, set(messages)) == (status, set(words))


def test_a_machine_with_servers_only_waits_for_the_end_of_training(tmp_path, monkeypatch):
    """A program stands in for both; it ends by itself, as servers do after the last worker."""
    program, ended = tmp_path / "program", tmp_path / "ended"
    program.write_text(f"#!/bin/sh\nsleep 2\necho $3 >> {ended}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(launch, "PATIENCE", 0.2)
    address = ["--address", f"127.0.0.1:{free_port()}", "--only", "scheduler", "server"]
    assert launched(["train"], *address) == (0, [])
    assert sorted(ended.read_text().split()) == ["scheduler", "server"]


def test_bad_input_is_found_before_the_workers_join(eight_images, tmp_path, rejects):
    line = train_arguments(eight_images, tmp_path, "--kv-store", "dist_sync")
    rejects([*line, "--dataset-root", "none"], "dataset: folder none of 'signals' is missing; ")


@pytest.fixture
def cluster(monkeypatch) -> str:
    """Be a worker of a run of a server and two workers; return the scheduler's address."""
    port = str(free_port())
    values = {"ROLE": "worker", "PS_ROOT_URI": "127.0.0.1", "PS_ROOT_PORT": port}
    for name, value in {**values, "NUM_SERVER": "1", "NUM_WORKER": "2"}.items():
        monkeypatch.setenv(f"DMLC_{name}", value)
    return f"127.0.0.1:{port}"


@pytest.mark.parametrize("rank", [0, 1])
def test_workers_of_different_runs_are_rejected(
    rank, cluster, eight_images, tmp_path, monkeypatch, rejects
):
    def push_and_pull(key: int, table: mx.nd.NDArray) -> None:
        """Add what the other worker pushes."""
        table[1 - rank] = table[rank]
        table[1 - rank, 3] += 1

    store = mock.Mock(rank=rank, num_workers=2, pushpull=push_and_pull)
    monkeypatch.setattr(mx.kv, "create", lambda kind: store)
    line = train_arguments(eight_images, tmp_path, "--kv-store", "dist_sync")
    rejects(line, "worker 1 was started with different options than worker 0: options ")
    assert not list(tmp_path.glob("*.ckpt"))


def test_runs_differ_in_arguments_that_change_results():
    digests = [
        digest(settings_of(["train", "--steps", "9", *more]))
        for more in ([], ["--dataset-root", "elsewhere"], ["--seed", "1"], ["--val-limit", "9"])
    ]
    assert digests[0] == digests[1] and len(set(digests)) == 3


def test_worker_alone_names_the_processes_that_it_waits_for(
    cluster, eight_images, tmp_path, monkeypatch, capsys
):
    joined = threading.Event()
    monkeypatch.setattr(workers, "JOIN_TIMEOUT_S", 1)
    monkeypatch.setattr(mx.kv, "create", lambda kind: joined.wait(20))
    assert cli.main(train_arguments(eight_images, tmp_path, "--kv-store", "dist_sync")) == 1
    joined.set()
    words = f"waited 1 seconds for the scheduler at {cluster}, 1 servers and 2 workers"
    assert words in capsys.readouterr().err
