# SPDX-License-Identifier: Apache-2.0
"""Using a trained detector: evaluation, pictures, detection, export, the whole demo."""

from __future__ import annotations

import json
import subprocess
import sys

import mxnet as mx
import numpy as np
import pytest
from demo_runs import REPOSITORY, open_dataset, python, refused, train_arguments
from matplotlib import image as pictures

from demo_rfcn import cli
from demo_rfcn.commands import ablate
from demo_rfcn.data import DATASETS, signals
from demo_rfcn.model.detections import detect_dataset
from demo_rfcn.run import checkpoint

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("run", ["short_run", "deformable_run"])
def test_export_gives_the_same_boxes(run, request, tmp_path):
    """Also in a process that imports only mxnet and gluon_roi."""
    trained = request.getfixturevalue(run)
    detect = checkpoint.read(trained / "last.ckpt").detector([mx.cpu()])
    saved = ["--pretrained", str(trained / "last.ckpt"), "--save-prefix", str(tmp_path)]
    assert cli.main(["export", "--name", "small", *saved]) == 0
    stem = tmp_path / "small"
    net = mx.gluon.SymbolBlock.imports(f"{stem}-symbol.json", ["data"], f"{stem}-0000.params")
    # The last size has fewer anchors than the proposals that are chosen among them.
    for size in ((160, 160), (128, 192), (64, 64)):
        data = np.random.default_rng(0).normal(size=(2, 3, *size)).astype(np.float32)
        found = detect(mx.nd.array(data))
        for ours, theirs in zip(net(mx.nd.array(data)), found):
            np.testing.assert_array_equal(ours.asnumpy(), theirs.asnumpy())
        assert (found[0] >= 0).asnumpy().any()
    np.save(f"{stem}-64.npy", data)
    script = str(REPOSITORY / "tests/scripts/read_detector.py")
    subprocess.run([sys.executable, script, str(stem), "64"], check=True)
    for ours, theirs in zip(np.load(f"{stem}-64.npz").values(), found):
        np.testing.assert_array_equal(ours, theirs.asnumpy())


@pytest.mark.parametrize("run", ["short_run", "deformable_run"])
def test_export_as_onnx_gives_the_same_boxes(run, request, tmp_path):
    """One file takes two sizes and two numbers of images."""
    onnx = pytest.importorskip("onnx")
    trained = request.getfixturevalue(run)
    detect = checkpoint.read(trained / "last.ckpt").detector([mx.cpu()])
    saved = ["--pretrained", str(trained / "last.ckpt"), "--save-prefix", str(tmp_path)]
    assert cli.main(["export", "--format", "onnx", "--name", "small", *saved]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["small.onnx"]
    model = onnx.load(str(tmp_path / "small.onnx"))
    assert {node.domain for node in model.graph.node} == {""}
    assert [len(o.type.tensor_type.shape.dim) for o in model.graph.output] == [3, 3, 3]
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(str(tmp_path / "small.onnx"))
    for shape in ((2, 3, 160, 160), (1, 3, 128, 192)):
        data = np.random.default_rng(0).normal(size=shape).astype(np.float32)
        found = session.run(None, {"data": data})
        for ours, theirs, near in zip(found, detect(mx.nd.array(data)), (0, 1e-5, 1e-2)):
            np.testing.assert_allclose(ours, theirs.asnumpy(), rtol=0, atol=near)
        assert (found[0] >= 0).any()


def test_demo_writes_everything_and_reuses_it(few_signals, tmp_path, capsys):
    line = ["demo", *train_arguments(tmp_path / "data", tmp_path / "run")[1:]]
    assert cli.main(line) == 0
    output = capsys.readouterr().out
    assert output.strip().endswith(f"report in {tmp_path / 'run' / 'report.html'}")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["test"]["images"] == 3
    assert 0 <= summary["test"]["map75"] <= summary["test"]["map50"] <= 1
    for name in summary["files"]:
        assert pictures.imread(tmp_path / "run" / name).std() > 0.01
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    assert cli.main(line) == 0
    again = capsys.readouterr().out
    assert again.count("reused ") == 3  # the data, the run, its results
    assert output.endswith(again[again.index("signals: 3 held-back") :])
    assert before == {path: path.stat().st_mtime_ns for path in before}
    assert cli.main([*line, "--steps", "8"]) == 0
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["checkpoint_step"] == 8


def test_eval_and_detect(eight_images, short_run, tmp_path, capsys):
    saved = ["--pretrained", str(short_run / "best.ckpt"), "--save-prefix", str(tmp_path)]
    assert cli.main(["eval", "--dataset-root", str(eight_images), *saved]) == 0
    assert "8 held-back images, mAP@.5" in capsys.readouterr().out
    page = (tmp_path / "report.html").read_text()
    assert page.count("data:image/png;base64,") == page.count("<figcaption>") == 4
    for words in ("signal_top", "AP@.75", "checkpoint of step 6 of 6", "width=device-width"):
        assert words in page
    assert 'src="http' not in page
    image = next((eight_images / "VOC2007" / "JPEGImages").iterdir())
    assert cli.main(["detect", str(image), "--thresh", "0.01", *saved]) == 0
    rows = json.loads((tmp_path / f"{image.stem}.json").read_text())
    assert pictures.imread(tmp_path / f"{image.stem}.png").std() > 0.01
    for row in rows:
        assert row["class"] in signals.CLASSES and 0.01 <= row["score"] <= 1
        assert min(row["box"]) >= -1 and max(row["box"]) <= 161


def test_two_contexts_find_the_same(eight_images, short_run):
    """In batches of three, the shares differ, and the last batch leaves a context idle."""
    stored = checkpoint.read(short_run / "last.ckpt")
    dataset = open_dataset(DATASETS["signals"], eight_images, "test")
    one, other = (
        detect_dataset(stored.detector(ctx), dataset, range(4), (160, 160), ctx, batch_size)
        for ctx, batch_size in (([mx.cpu()], 1), ([mx.cpu(0), mx.cpu(1)], 3))
    )
    assert sum(len(found.ids) for found in one.values()) > 10
    for index, found in one.items():
        for ours, theirs in zip(other[index], found):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-3)


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


def test_data_is_reproducible_and_reused(few_signals, tmp_path, capsys):
    for name in ("first", "second"):
        assert cli.main(["data", "--dataset-root", str(tmp_path / name)]) == 0
    first, second = (
        {path.name: path.read_bytes() for path in (tmp_path / name).rglob("*") if path.is_file()}
        for name in ("first", "second")
    )
    assert first == second
    assert capsys.readouterr().out.count("wrote signals") == 2
    assert cli.main(["data", "--dataset-root", str(tmp_path / "first")]) == 0
    assert "reused signals" in capsys.readouterr().out
    assert cli.main(["data", "--dataset-root", str(tmp_path / "first"), "--data-seed", "1"]) == 0
    third = (tmp_path / "first" / "VOC2007" / "JPEGImages" / "test_00000.jpg").read_bytes()
    assert third != second["test_00000.jpg"]


def test_ablation_compares_and_is_resumable(
    written_signals, eight_images, tmp_path, monkeypatch, capsys
):
    names = list(ablate.VARIANTS)
    few = {name: ablate.VARIANTS[name] for name in (names[0], names[-1])}
    monkeypatch.setattr(ablate, "VARIANTS", few)
    line = ["ablate", *train_arguments(eight_images, tmp_path)[1:], "--seeds", "0", "1"]
    line += ["--further", "fpn"]
    assert cli.main([*line, "--steps", "2"]) == 0
    rows = json.loads((tmp_path / "ablation.json").read_text())
    assert len(rows) == 2 * 4  # the reference counts twice: as it is, and rotated
    for name in (names[-1], ablate.FURTHER["fpn"][0]):
        assert name in (tmp_path / "ablation.md").read_text()
    assert pictures.imread(tmp_path / "ablation.png").std() > 0.01
    capsys.readouterr()
    assert cli.main([*line, "--steps", "2"]) == 0
    assert "training" not in capsys.readouterr().err
    assert json.loads((tmp_path / "ablation.json").read_text()) == rows
    (message,) = refused([*line, "--steps", "3"], capsys)
    assert "of another run: steps: 2, not 3" in message


def test_rotating_twice_changes_nothing(short_run):
    detect = checkpoint.read(short_run / "best.ckpt").detector([mx.cpu()])
    weight = detect.net.head.class_maps.weight
    before = weight.data().asnumpy()
    ablate.rotate_bins(detect.net)
    assert (weight.data().asnumpy() != before).any()
    ablate.rotate_bins(detect.net)
    np.testing.assert_array_equal(weight.data().asnumpy(), before)


def test_times_name_every_part_of_a_step(eight_images):
    line = ["--repeats", "1", "--dataset", "voc-like", "--batch-size", "2", "--short", "96"]
    line += ["--max-size", "96", "--dataset-root", str(eight_images / "VOC2007")]
    made = python("-m", "benchmarks.demo_step", *line)
    assert made.returncode == 0, made.stderr[-2000:]
    for part in ("data", "backbone", "proposals", "PSROI", "backward", "update", "roi_fc"):
        assert part in made.stdout
