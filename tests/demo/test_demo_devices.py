# SPDX-License-Identifier: Apache-2.0
"""Several contexts and several processes: the same training, divided."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
from demo_runs import REPOSITORY, free_port, parameters, train_arguments

from demo_rfcn import cli
from demo_rfcn.commands import evaluate as evaluation
from demo_rfcn.run import checkpoint

pytestmark = pytest.mark.slow

# Keeps the parameters of every worker, not only of the one that writes the checkpoints.
WORKER = str(REPOSITORY / "tests/scripts/train_worker.py")


def test_two_contexts_equal_one_with_the_joined_batch(eight_images, tmp_path):
    """After one step with two images."""
    stored = []
    for contexts in ("1", "2"):
        line = ("--cpus", contexts, "--freeze-bn", "--steps", "1", "--optimizer", "sgd")
        assert cli.main(train_arguments(eight_images, tmp_path / contexts, *line)) == 0
        stored.append(checkpoint.read(tmp_path / contexts / "last.ckpt"))
    (row,), (divided,) = (each.notes["history"]["losses"] for each in stored)
    assert divided == pytest.approx(row, rel=1e-5)
    for name, expected in stored[0].model.items():
        np.testing.assert_allclose(stored[1].model[name], expected, rtol=1e-3, atol=1e-4)


def test_a_run_on_two_contexts_resumes(eight_images, tmp_path):
    line = train_arguments(eight_images, tmp_path, "--cpus", "2", "--kv-store", "local")
    assert cli.main([*line, "--max-seconds", "1e-9"]) == 0
    last = tmp_path / "last.ckpt"
    assert json.loads((tmp_path / "history.json").read_text())["val"][-1]["step"] == 1
    assert cli.main([*line, "--resume", str(last)]) == 0
    assert json.loads((tmp_path / "history.json").read_text())["val"][-1]["step"] == 6


def test_eval_and_detect_on_two_contexts_find_the_same(
    eight_images, short_run, tmp_path, monkeypatch
):
    """Batches of three, so that the shares differ, and the last one leaves a context idle."""
    names = sorted(map(str, (eight_images / "VOC2007" / "JPEGImages").iterdir()))[:4]
    # The pictures are those of the first context.
    monkeypatch.setattr(evaluation, "PICTURED", 1)
    monkeypatch.setattr(evaluation, "write_report", lambda *_: None)
    monkeypatch.setattr(evaluation.inside, "score_maps", lambda *_: {})
    found: list = []
    for more in (["--batch-size", "1"], ["--batch-size", "3", "--cpus", "2"]):
        folder = tmp_path / str(len(found))
        line = ["--pretrained", str(short_run / "last.ckpt"), "--save-prefix", str(folder), *more]
        assert cli.main(["detect", *names, "--thresh", "0.01", *line]) == 0
        rows = [json.loads((folder / f"{Path(name).stem}.json").read_text()) for name in names]
        assert cli.main(["eval", *line]) == 0
        scores = json.loads((folder / "summary.json").read_text())["test"]
        del scores["ms_per_image"]
        found.append((rows, scores))
    (one, scores), (other, other_scores) = found
    assert sum(map(len, one)) > 10
    for first, second in zip(one, other):
        assert [row["class"] for row in first] == [row["class"] for row in second]
        for key in ("score", "box"):
            values = [[row[key] for row in rows] for rows in (first, second)]
            np.testing.assert_allclose(values[0], values[1], rtol=1e-4, atol=1e-3)
    assert scores == other_scores


@pytest.mark.skipif(mx.context.num_gpus() > 0, reason="the message is for machines without one")
@pytest.mark.parametrize("command", ["train", "eval", "detect"])
def test_missing_gpu(command, eight_images, short_run, tmp_path, capsys):
    image = eight_images / "VOC2007" / "JPEGImages" / "000000.jpg"
    line = {
        "train": train_arguments(eight_images, tmp_path),
        "eval": ["eval", "--pretrained", str(short_run / "last.ckpt")],
        "detect": ["detect", str(image), "--pretrained", str(short_run / "last.ckpt")],
    }[command]
    assert cli.main([*line, "--save-prefix", str(tmp_path / "out"), "--gpus", "0"]) == 2
    assert "--gpus 0, but MXNet sees 0 GPUs" in capsys.readouterr().err


def distributed(data: Path, folder: Path, *arguments: str) -> None:
    """Train with a scheduler, a server and two workers; worker i leaves its parameters in i.npz."""
    settings = {
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(free_port()),
        "DMLC_NUM_SERVER": "1",
        "DMLC_NUM_WORKER": "2",
        "DMLC_NODE_HOST": "127.0.0.1",
        "PYTHONPATH": str(REPOSITORY),
    }
    own = (*arguments, "--kv-store", "dist_sync", "--batch-size", "1")
    commands = {
        "scheduler": [["-c", "import mxnet"]],
        "server": [["-c", "import mxnet"]],
        "worker": [
            [WORKER, str(folder / f"{number}.npz"), *train_arguments(data, folder, *own)]
            for number in range(2)
        ],
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", *command],
            env={**os.environ, **settings, "DMLC_ROLE": role},
            stderr=subprocess.PIPE,
        )
        for role, repeated in commands.items()
        for command in repeated
    ]
    try:
        for process in processes:
            _, errors = process.communicate(timeout=120)
            assert process.returncode == 0, errors.decode()[-2000:]
    finally:
        for process in processes:
            process.kill()


def test_two_workers_of_a_distributed_store_equal_one_process(eight_images, tmp_path):
    # Adam would turn a rounding error of a gradient near zero into a whole step.
    common = ("--freeze-bn", "--steps", "2", "--optimizer", "sgd")
    distributed(eight_images, tmp_path, *common)
    assert cli.main(train_arguments(eight_images, tmp_path / "one", *common)) == 0
    expected = parameters(tmp_path / "one" / "last.ckpt")
    saved = parameters(tmp_path / "last.ckpt")
    first, second = (np.load(tmp_path / f"{number}.npz") for number in range(2))
    for name, value in expected.items():
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)
        np.testing.assert_allclose(first[name], value, rtol=1e-4, atol=1e-6, err_msg=name)
        np.testing.assert_array_equal(saved[name], first[name], err_msg=name)
