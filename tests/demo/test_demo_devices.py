# SPDX-License-Identifier: Apache-2.0
"""Several contexts of one process: the same training, divided."""

from __future__ import annotations

import json
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
from demo_runs import train_arguments

from demo_rfcn import cli
from demo_rfcn.commands import evaluate as evaluation
from demo_rfcn.run import checkpoint

pytestmark = pytest.mark.slow


def test_two_contexts_equal_one_with_the_joined_batch(eight_images, tmp_path):
    stored = []
    for contexts in ("1", "2"):
        line = ("--cpus", contexts, "--freeze-bn", "--steps", "1", "--optimizer", "sgd")
        assert cli.main(train_arguments(eight_images, tmp_path / contexts, *line)) == 0
        stored.append(checkpoint.read(tmp_path / contexts / "last.ckpt"))
    (row,), (divided,) = (each.notes["history"]["losses"] for each in stored)
    assert divided == pytest.approx(row, rel=1e-5)
    for name, expected in stored[0].model.items():
        np.testing.assert_allclose(stored[1].model[name], expected, rtol=1e-3, atol=1e-4)


def test_eval_and_detect_on_two_contexts_find_the_same(
    eight_images, short_run, tmp_path, monkeypatch
):
    """In batches of three, the shares differ, and the last batch leaves a context idle."""
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
