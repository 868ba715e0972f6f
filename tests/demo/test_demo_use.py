# SPDX-License-Identifier: Apache-2.0
"""Using a trained detector: evaluation, pictures, detection, export, the whole demo."""

from __future__ import annotations

import json
import re
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
from gluoncv import model_zoo
from matplotlib import image as pictures
from odd_images import turned
from PIL import Image
from support.demo_data import open_dataset
from support.demo_runs import run, train_arguments
from support.deployment import assert_same, detect, rows_of
from support.onnx_evaluator import session_of

import gluon_roi
from demo_rfcn import checkpoint
from demo_rfcn.data import DATASETS, signals
from demo_rfcn.predictor import Predictor
from gluon_roi.onnx.metadata import CONSTANTS

pytestmark = pytest.mark.slow


@pytest.fixture(params=["short_run", "deformable_run"])
def trained(request) -> tuple[mx.gluon.Block, list]:
    """The detector of a run, and the flags of a command that uses it."""
    path = request.getfixturevalue(request.param) / "last.ckpt"
    return checkpoint.read(path).detector([mx.cpu()]), ["--name", "small", "--pretrained", path]


def test_export_gives_the_same_boxes(trained, tmp_path):
    detect, saved = trained
    run("export", *saved, "--save-prefix", tmp_path)
    stem = tmp_path / "small"
    net = mx.gluon.SymbolBlock.imports(f"{stem}-symbol.json", ["data"], f"{stem}-0000.params")
    # The last size has fewer anchors than the proposals that are chosen among them.
    for size in ((160, 160), (128, 192), (64, 64)):
        data = np.random.default_rng(0).normal(size=(2, 3, *size)).astype(np.float32)
        found = detect(mx.nd.array(data))
        for loaded, expected in zip(net(mx.nd.array(data)), found):
            np.testing.assert_array_equal(loaded.asnumpy(), expected.asnumpy())
        assert (found[0] >= 0).asnumpy().any()


def test_export_as_onnx_gives_the_same_boxes(trained, tmp_path):
    """One file takes two sizes and two numbers of images."""
    onnx = pytest.importorskip("onnx")
    detect, saved = trained
    run("export", "--format", "onnx", *saved, "--save-prefix", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["small.onnx"]
    model = onnx.load(str(tmp_path / "small.onnx"))
    assert {node.domain for node in model.graph.node} == {""}
    assert [len(o.type.tensor_type.shape.dim) for o in model.graph.output] == [3, 3, 3]
    session = session_of(tmp_path / "small.onnx")
    for shape in ((2, 3, 160, 160), (1, 3, 128, 192)):
        data = np.random.default_rng(0).normal(size=shape).astype(np.float32)
        found = session.run(None, {"data": data})
        for array, expected, near in zip(found, detect(mx.nd.array(data)), (0, 1e-5, 1e-2)):
            np.testing.assert_allclose(array, expected.asnumpy(), rtol=0, atol=near)
        assert (found[0] >= 0).any()


@pytest.fixture(scope="module")
def photo(tmp_path_factory) -> Path:
    """A JPEG on its side, larger than the detector's scale."""
    path = tmp_path_factory.mktemp("photo") / "photo.jpg"
    image = Image.fromarray(signals.paint(np.random.default_rng([9, 0]))[0])
    turned(6)(np.asarray(image.resize((300, 410))), path)
    return path


def deploy(trained: Path, photo: Path, folder: Path, *formats: str) -> list:
    """Export a run in some formats; return the rows of `detect`."""
    saved = ["--pretrained", trained / "best.ckpt", "--save-prefix"]
    for each in formats:
        run("export", "--format", each, *saved, folder)
    run("detect", photo, "--thresh", "0.05", *saved, folder / "demo")
    return rows_of(folder / "demo" / "photo.json")


def assert_detected(folder: Path, photo: Path, expected: list) -> None:
    """Compare what a program found; its picture has the photo's upright size, and boxes."""
    assert_same(rows_of(folder / "drawn.json"), expected)
    drawn = Image.open(folder / "drawn.png")
    assert drawn.size == Image.open(photo).size[::-1] and np.asarray(drawn).std() > 10


def test_onnx_file_gives_the_boxes_of_detect(short_run, photo, tmp_path):
    """The metadata are complete in both formats; the keys are those of GluonCV's detectors."""
    expected = deploy(short_run, photo, tmp_path, "mxnet", "onnx")
    detect(tmp_path / "rfcn.onnx", photo, tmp_path / "drawn.png", 0.05)
    assert_detected(tmp_path, photo, expected)

    stored = checkpoint.read(short_run / "best.ckpt")
    about = json.loads((tmp_path / "rfcn-metadata.json").read_text())
    model = session_of(tmp_path / "rfcn.onnx")
    texts = model.get_modelmeta().custom_metadata_map
    given = {key: json.loads(text) for key, text in texts.items()}
    assert given.pop(CONSTANTS) and given == about
    assert [output.name for output in model.get_outputs()] == ["ids", "scores", "boxes"]
    net = model_zoo.get_model("ssd_300_mobilenet0.25_voc", pretrained_base=False)
    assert list(about) == list(gluon_roi.onnx.detector_metadata(net))
    assert about["classes"] == list(stored.config.classes)
    assert (about["short"], about["max_size"]) == stored.scale


def test_mxnet_files_give_the_boxes_of_detect_without_the_demo(deformable_run, photo, tmp_path):
    expected = deploy(deformable_run, photo, tmp_path, "mxnet")
    detect(tmp_path / "rfcn", photo, tmp_path / "drawn", 0.05)
    assert_detected(tmp_path, photo, expected)


def assert_report(folder: Path, count: int, *words: str) -> None:
    """See that a report is complete, and so are its pictures."""
    page = (folder / "report.html").read_text()
    drawn = json.loads((folder / "summary.json").read_text())["files"]
    assert len(drawn) == count
    assert page.count("data:image/png;base64,") == page.count("<figcaption>") == len(drawn)
    assert all(pictures.imread(folder / name).std() > 0.01 for name in drawn)
    assert 'src="http' not in page
    for text in ("signal_top", "AP@0.75", "width=device-width", *words):
        assert text in page


def test_demo_writes_everything_and_reuses_it(few_signals, tmp_path, capsys):
    folder = tmp_path / "run"
    line = ["demo", *train_arguments(tmp_path / "data", folder)[1:]]
    run(*line)
    output = capsys.readouterr().out
    assert output.strip().endswith(f"report in {folder / 'report.html'}")
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["test"]["images"] == 3
    assert 0 <= summary["test"]["map75"] <= summary["test"]["map50"] <= 1
    assert summary["files"][-1] == "score_maps.png"
    assert_report(folder, 4, "checkpoint of step 6 of 6")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    run(*line)
    again = capsys.readouterr().out
    assert again.count("reused ") == 3  # the data, the run, its results
    assert output.endswith(again[again.index("signals: 3 held-back") :])
    assert before == {path: path.stat().st_mtime_ns for path in before}
    run(*line, "--steps", "8")
    assert json.loads((folder / "summary.json").read_text())["checkpoint_step"] == 8


def test_eval_and_detect_of_a_deformable_run(eight_images, deformable_run, tmp_path, capsys):
    saved = ["--pretrained", deformable_run / "best.ckpt", "--save-prefix", tmp_path]
    run("eval", "--dataset-root", eight_images, *saved)
    assert "signals: 8 images, 8 of them trained on, mAP@0.5" in capsys.readouterr().out
    assert json.loads((tmp_path / "summary.json").read_text())["mean_bin_shift"] > 0
    assert_report(tmp_path, 5, "checkpoint of step 6 of 6", "Shifted bins of good RoIs")
    image = eight_images / "VOC2007/JPEGImages/000000.jpg"
    capsys.readouterr()
    run("detect", image, "--thresh", "1", *saved)
    (line,) = capsys.readouterr().out.splitlines()
    match = re.search(r": 0 objects -> .*; the best score is 0.\d+: (--thresh 0.\d+) would", line)
    assert match, line
    run("detect", image, *match[1].split(), *saved)
    assert re.search(r": [1-9]\d* objects? -> .*/000000.png, .json\n$", capsys.readouterr().out)
    run("detect", image, "--thresh", "0.01", *saved)
    assert pictures.imread(tmp_path / "000000.png").std() > 0.01
    rows = rows_of(tmp_path / "000000.json")
    assert rows
    for row in rows:
        assert row["class"] in signals.CLASSES and 0.01 <= row["score"] <= 1
        assert min(row["box"]) >= 0 and max(row["box"]) <= 160.01


def test_two_contexts_find_the_same(eight_images, short_run):
    """In batches of three, the shares differ, and the last batch leaves a context idle."""
    stored = checkpoint.read(short_run / "last.ckpt")
    dataset = open_dataset(DATASETS["signals"], eight_images, "test")
    one, other = (
        Predictor(stored.detector(ctx), (160, 160), ctx, batch_size)(dataset, range(4))
        for ctx, batch_size in (([mx.cpu()], 1), ([mx.cpu(0), mx.cpu(1)], 3))
    )
    assert sum(len(found.ids) for found in one.values()) > 10
    for index, found in one.items():
        for array, expected in zip(other[index], found):
            np.testing.assert_allclose(array, expected, rtol=1e-4, atol=1e-3)


def contents(folder: Path) -> dict[str, bytes]:
    """Return what all files below a folder hold, by their names."""
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_data_is_reproducible_and_reused(few_signals, tmp_path, capsys):
    one, other = tmp_path / "one", tmp_path / "other"
    run("data", "--dataset-root", one)
    run("data", "--dataset-root", other)
    before = contents(one)
    assert before == contents(other)
    assert capsys.readouterr().out.count("wrote signals") == 2
    run("data", "--dataset-root", one)
    assert "reused signals" in capsys.readouterr().out
    third = tmp_path / "third"
    run("data", "--dataset-root", third, "--data-seed", "1")
    assert contents(third)["test_00000.jpg"] != before["test_00000.jpg"]
