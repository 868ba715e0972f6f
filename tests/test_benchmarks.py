# SPDX-License-Identifier: Apache-2.0
"""The benchmark scripts run and write their files. Timings are never asserted."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace

import mxnet as mx
import numpy as np
import pytest
from operators import BY_NAME
from support.demo_data import write_eight

from benchmarks import demo_step, growth, onnx, small, speed
from benchmarks.convolutions import Convolution
from benchmarks.kernels import library, moved_bytes, touched_cells
from benchmarks.rows import Row
from benchmarks.suppression import Suppression
from benchmarks.ways import WAYS
from benchmarks.work import ITEMS, OPERATORS, POOLING, Item

pytestmark = pytest.mark.night

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def benchmarks(*arguments, module="benchmarks"):
    return subprocess.run(
        [sys.executable, "-m", module, *arguments], cwd=ROOT, capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("benchmarks")
    only = "^ROIPool C=512 7x7 K=2000|^PSROIAlign 21x7x7 sampling 2 K=300|^DeformableC"
    only += "|^BoxIoU|^BoxNMS rot"
    several = ["--threads", "1", "2", "--dtype", "float32", "float64"]
    peer = ["--peer", f"torchvision={sys.executable}"]
    several += ["--processor-time"]
    done = benchmarks("--quick", "--only", only, *several, *peer, "--output", str(folder))
    assert done.returncode == 0, done.stderr
    (folder / "stderr").write_text(done.stderr)
    return folder


def test_json(folder):
    report = json.loads((folder / "results.json").read_text())
    assert report["machine"]["cpu"] and report["versions"]["mxnet"] == "1.9.1"
    assert report["command"][:4] == ["python", "-m", "benchmarks", "--quick"]
    rows = {(r["item"], r["dtype"], r["way"], r["threads"]): r for r in report["rows"]}
    for threads, dtype in ((1, "float32"), (2, "float32"), (1, "float64"), (2, "float64")):
        for way in WAYS:
            row = rows["ROIPool C=512 7x7 K=2000", dtype, way, threads]
            for name in ("gluon_roi", "mxnet", "limit"):
                result = row["results"][name]
                low, high = result["quartiles_ms"]
                assert 0 < low <= result["median_ms"] <= high and result["calls"] >= 2
                # Every library does the same work.
                assert not result["other_convention"]
            assert row["bytes_to_move"] > 0
            limit, ours = (row["results"][k]["median_ms"] for k in ("limit", "gluon_roi"))
            assert row["of_limit"] == limit / ours
            if way != "forward, out=":
                row = rows["DeformableConvolution 512 -> 512 3x3", dtype, way, threads]
                assert not row["results"]["mxnet"]["other_convention"]
        assert ("PSROIAlign 21x7x7 sampling 2 K=300", dtype, "forward", threads) in rows
        assert ("PSROIAlign 21x7x7 sampling 2 K=300", dtype, "forward, out=", threads) not in rows


def test_rotated_boxes(folder):
    """The rows run where no library that has them is installed."""
    rows = json.loads((folder / "results.json").read_text())["rows"]
    boxes = {row["item"]: row for row in rows if row["item"].startswith("Box")}
    assert boxes["BoxNMS rotated n=5000 of an aerial image"]["best_peer"] is None
    assert boxes["BoxIoU rotated 1000 x 1000"]["best_peer"] is None
    assert not boxes["BoxIoU 1000 x 1000"]["results"]["mxnet"]["other_convention"]


def test_output_of_indices():
    """What detectron2 and torchvision return, as BoxNMS does."""
    item = Suppression("", 3, batches=2)
    data = np.arange(12.0).reshape(2, 3, 2)
    expected = [[[2, 3], [-1, -1], [-1, -1]], [[10, 11], [6, 7], [-1, -1]]]
    assert item.output(data, np.array([5, 1, 3])).tolist() == expected


#: A map of 8 x 8 with stride 1, and a box from (1, 1) to (3, 4).
SMALL = {"channels": 3, "rois": 1, "pooled": 2, "image": (8, 8), "stride": 1, "sampling_ratio": 1}
BOX = (0, 1, 1, 3, 4)


@pytest.mark.parametrize(
    "operator, boxes, changes, cells",
    (
        # Rows 1 to 4, columns 1 to 3.
        ("ROIPool", [BOX], {}, 12),
        ("ROIPool", [BOX, BOX], {}, 12),
        ("ROIPool", [BOX, (0, 3, 4, 3, 5)], {}, 12 + 1),
        # One sample in the middle, at (2, 2.5), of which a column gets no weight.
        ("ROIAlign", [BOX], {"pooled": 1}, 2),
        ("ROIAlign", [(0, 1, 1, 4, 4)], {"pooled": 1}, 4),
        ("ROIAlign", [(0, 1, 1, 4, 4)], {"sampling_ratio": 2, "mode": "max"}, 16),
        # Four bins on maps of their own: rows 1 and 2 or 3 and 4, columns 1 and 2 or 2 and 3.
        ("PSROIPool", [BOX], {}, 16),
        ("PSROIPool", [(0, 0, 0, 7, 7)], {}, 64),
        # A small box on the fine map, its sample on a cell, and a large one on the coarse map.
        ("PyramidROIAlign", [(0, 1, 1, 3, 3)], {"pooled": 1, "levels": 2}, 1),
        (
            "PyramidROIAlign",
            [(0, 0, 0, 64, 64), (0, 0, 0, 448, 450)],
            {"pooled": 1, "levels": 2, "image": (512, 512), "stride": 16},
            1 + 2,
        ),
    ),
)
def test_touched_cells(operator, boxes, changes, cells):
    item = Item("by hand", operator, **{**SMALL, **changes})
    assert touched_cells(item, np.array(boxes, np.float32)) == cells * item.channels


def test_moved_bytes():
    """One box over the whole map of 4 x 4: what is read and written is all there is."""
    item = Item("", "ROIPool", 2, 1, pooled=2, image=(64, 64), sides=(64, 64), dtype="float64")
    cells, out, rois = 8 * 2 * 16, 8 * 2 * 4, 4 * 5
    forward, both = cells + rois + out, 2 * (cells + rois + out) + cells
    assert moved_bytes(item) == {
        "forward": forward,
        "forward, out=": forward,
        "forward+backward": both,
        "forward in a network": forward,
        "forward+backward in a network": both,
    }
    # The backward pass of an average reads no map.
    item = replace(item, operator="ROIAlign", sampling_ratio=8)
    assert moved_bytes(item)["forward+backward"] == both - cells
    assert moved_bytes(replace(item, mode="max"))["forward+backward"] == both


def test_moved_bytes_of_a_convolution():
    """Every input and the output once; then the gradients of both."""
    item = Convolution("", "DeformableConvolution", 2, size=(4, 5), dtype="float16")
    cells, weights = 4 * 5 * (2 + 18), 2 * 2 * 9
    forward = 2 * (cells + weights + 4 * 5 * 2)
    assert moved_bytes(item)["forward"] == forward
    assert moved_bytes(item)["forward+backward"] == 2 * forward + 2 * (cells + weights)
    samples = replace(item, operator="DeformableSampling")
    assert moved_bytes(samples)["forward"] == 2 * (cells + 9 * 4 * 5 * 2)


def test_rows_keep_their_class():
    for item in ITEMS:
        assert Row.from_dict(json.loads(json.dumps(item.as_dict()))) == item


def test_work_is_what_operators_declare():
    """Peers are measured where the library that declares it is not there."""
    declared = {op.name: op for op in library().operators.values() if op.pools_boxes}
    boxes = {item.operator for item in POOLING}
    assert boxes == set(OPERATORS) <= set(declared)
    for name, measured in OPERATORS.items():
        roles = {given["role"] for given in declared[name].inputs}
        assert measured.offsets == ("like" in roles)
        assert measured.rotated == (declared[name].coordinates == 5)
        assert measured.several_maps == declared[name].inputs[0]["several"]
        assert measured.maxima != BY_NAME[name].linear
        parameters = declared[name].parameters
        assert measured.samples == ("sampling_ratio" in parameters)
        assert measured.score_maps == ("output_dim" in parameters)
        assert set(measured.arguments) <= set(parameters)


def test_table_and_chart(folder):
    lines = (folder / "results.txt").read_text().splitlines()
    head = next(line for line in lines if line.startswith("work "))
    assert {"gluon_roi", "best", "limit", "of", "mxnet"} <= set(head.split())
    work = [line for line in lines if line.startswith(("ROIPool", "PSROIAlign"))]
    assert len(work) == 36 and sum("K=2000 float64 " in line for line in work) == 10
    assert (folder / "results.png").read_bytes().startswith(b"\x89PNG")


def test_idle(folder):
    """One row for each state, with a time for each kind of page; the name chooses it alone."""
    folder = folder / "idle"
    done = benchmarks("--quick", "--only", "^idle", "--output", str(folder))
    assert done.returncode == 0, done.stderr
    report = json.loads((folder / "results.json").read_text())
    assert report["rows"] == [] and len(report["idle"]) == 3
    for row in report["idle"]:
        assert len(row["results"]) == 3
        for result in row["results"].values():
            assert 0 < result["low_ms"] <= result["median_ms"] <= result["high_ms"]
    assert "after 3 idle seconds" in (folder / "results.txt").read_text()


def test_small(tmp_path):
    """A time of ours and of MXNet's for every way and pass; our parts add up to it."""
    arguments = ("--quick", "--only", "PSROIAlign", "--output", str(tmp_path))
    done = benchmarks(*arguments, module="benchmarks.small")
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "small.json").read_text())["rows"]
    ways = [(way, True) for way in ("nd", "block", "hybrid", "static")]
    changing = ("nd, two maps in turn", "hybrid, two maps in turn", "nd, two K in turn")
    ways += [(way, False) for way in (*changing, "hybrid, two K in turn", "nd, a new scale")]
    expected = {(way, p, split) for way, split in ways for p in ("forward", "forward+backward")}
    assert {(row["way"], row["pass"], "parts_us" in row) for row in rows} == expected
    assert len(rows) == len(expected)
    for row in rows:
        for name in ("gluon_roi", "mxnet"):
            assert 0 < row[name]["issue_us"] < row[name]["median_us"]
        if "parts_us" in row:
            whole = row["gluon_roi"]["median_us"]
            assert sum(row["parts_us"].values()) == pytest.approx(whole)
            assert row["parts_us"]["kernel"] > 0
    lines = (tmp_path / "small.txt").read_text().splitlines()
    assert sum(line.startswith("small PSROIAlign") for line in lines) == len(rows)


def test_small_calls_return_the_same():
    """What is timed computes, in every way, what the operator gives."""
    (item,) = [item for item in POOLING if item.name.startswith("small PSROIAlign")]
    inputs = small.Inputs(*item.arrays())
    expected = small.ours(item, "nd")(inputs.data, inputs.rois).asnumpy()
    for way in small.HYBRIDIZED:
        function = small.ours(item, way)
        called = [function, small.direct(function, inputs.data, inputs.rois)]
        for function in (*called, small.theirs(item, way)):
            out = function(inputs.data, inputs.rois).asnumpy()
            np.testing.assert_allclose(out, expected, atol=1e-5)


def test_growth(tmp_path):
    picture = tmp_path / "growth.png"
    arguments = ("--quick", "--operators", "PSROIAlign", "--output", str(picture))
    done = benchmarks(*arguments, module="benchmarks.growth")
    assert done.returncode == 0, done.stderr
    head, *lines = done.stdout.splitlines()
    assert head.split()[:3] == ["axis", "operator", "at"]
    # Four axes, two points and their slope.
    assert sum(" PSROIAlign " in line for line in lines) == len(lines) == 4 * 3
    assert picture.read_bytes().startswith(b"\x89PNG")
    again = tmp_path / "again.png"
    stored = ("--draw", str(picture.with_suffix(".json")), "--output", str(again))
    assert benchmarks(*stored, module="benchmarks.growth").stdout == done.stdout
    assert again.read_bytes().startswith(b"\x89PNG")


def test_memory_of_a_call():
    """ROIPool holds a block of 16 channels of the map, in any number of channels."""
    item = growth.item_of("ROIPool", size=(200, 304))
    fresh = growth.process("memory", **growth.GIVE_BACK)
    most = fresh.require(item=item.as_dict())
    fresh.close()
    block = 16 * 200 * 304 * 4
    # Beside it there are small tables, and some kernels of Linux count in large steps.
    assert 0.8 * block < most["forward"] <= most["forward+backward"] < 1.3 * block


def test_slope():
    rows = [{"at": at, "forward ms": 3 * at**2 if at > 4 else 7} for at in (1, 4, 16, 64, 256)]
    assert growth.slope(rows, "forward ms") == pytest.approx(2)


@pytest.mark.parametrize("peer", ["torchvision", "caffe=/usr/bin/python3"])
def test_a_wrong_peer_is_refused(peer):
    done = benchmarks("--peer", peer)
    assert done.returncode == 1 and f"--peer {peer}: expected LIBRARY=PYTHON" in done.stderr


def test_a_peer_that_cannot_be_imported_is_left_out(folder):
    if "torchvision is left out" not in (folder / "stderr").read_text():
        pytest.skip("torchvision is installed next to MXNet")
    assert "torchvision" not in (folder / "results.txt").read_text()


def test_whole_models():
    """Times of a training step, and the operators of inference before and after the switch."""
    few = ("--size", "64", "96", "--runs", "1")
    whole = "benchmarks.switch_whole"
    done = benchmarks(*few, "--only", "rfcn", "--training", module=whole)
    assert re.search(r"rfcn, training step: \d+\.\d+ s -> ", done.stdout), done.stderr
    done = benchmarks(*few, "--only", "deformable_rfcn", "--profile", module=whole)
    assert done.returncode == 0, done.stderr
    before, after = done.stdout.split("inference, switched")
    for name in ("Proposal", "DeformablePSROIPool", "BoxNMS", "DeformableSampling"):
        assert f"_gluon_roi_{name} |" in after and f"_gluon_roi_{name} |" not in before
    assert "_contrib_DeformableConvolution |" in before and "_contrib_" not in after


def test_both_forms_of_suppression_keep_the_same_boxes():
    random = np.random.RandomState(0)
    corners = random.uniform(0, 100, (1, 200, 2))
    rows = [random.randint(0, 5, (1, 200, 1)), random.rand(1, 200, 1), corners, corners + 30]
    data = mx.nd.array(np.concatenate(rows, axis=2))
    kept = [symbol.eval(data=data)[0].asnumpy()[0, :, 1] for symbol in onnx.suppressions()]
    np.testing.assert_array_equal(*kept)
    assert 5 < (kept[0] >= 0).sum() < 200


def test_detections_of_an_rfcn_have_their_class():
    """Its fifth output has rows of score and corners for each class, -1 if suppressed."""
    found = np.full((2, 2, 5), -1.0)
    found[1, 0] = 0.5, 1, 2, 3, 4
    np.testing.assert_array_equal(onnx.detections([0, 0, 0, 0, found]), [[1, 0.5, 1, 2, 3, 4]])


def test_speed(tmp_path):
    """The picture of README.md: from results of a run, or from what it stored."""

    def row(item, way, threads=1):
        other = {"median_ms": 3.0, "other_convention": True}
        results = {"gluon_roi": {"median_ms": 1.0}, "mxnet": {"median_ms": 2.0}, "paddle": other}
        return {"item": item, "way": way, "threads": threads, "results": results}

    rows = [row(item, way) for item in speed.ROWS for way in speed.WAYS]
    more = [row(item, "forward") for item in speed.ROWS] + [row(next(iter(speed.ROWS)), "x", 2)]
    report = {"machine": {}, "versions": {"gluon_roi": "1", "limit": "2"}, "rows": rows + more}
    results, picture = tmp_path / "results.json", tmp_path / "speed.png"
    results.write_text(json.dumps(report))
    speed.main([str(results), "--output", str(picture)])
    stored = json.loads(picture.with_suffix(".json").read_text())
    assert stored["versions"] == {"gluon_roi": "1"}
    assert all(
        stored["times"][item][way] == {"gluon_roi": 1.0, "mxnet": 2.0}
        for item in speed.ROWS
        for way in speed.WAYS
    )
    drawn = picture.read_bytes()
    speed.main(["--output", str(picture)])
    assert picture.read_bytes() == drawn
    report["rows"] = more
    results.write_text(json.dumps(report))
    with pytest.raises(SystemExit, match="the results lack"):
        speed.main([str(results), "--output", str(picture)])


def test_times_name_every_part_of_a_step(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(demo_step, "HEAD_MAP", (8, 8))
    monkeypatch.setattr(demo_step, "ROI_COUNTS", (3, 10))
    root = write_eight(tmp_path / "signals") / "VOC2007"
    line = ["--repeats", "1", "--dataset", "voc-like", "--batch-size", "2", "--short", "96"]
    line += ["--max-size", "96", "--dataset-root", str(root)]
    demo_step.main(line)
    said = capsys.readouterr().out
    for part in ("data", "backbone", "proposals", "PSROI", "backward", "update", "roi_fc"):
        assert part in said
    assert "| outside the graph: " in said


def test_a_step_is_compared_with_another_process(tmp_path, capsys):
    """MXNet stands in for PyTorch, whose losses and times are in benchmarks/RESULTS.md."""
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} "$1" "$2" gluon_roi "$4"\n')
    program.chmod(0o755)
    root = write_eight(tmp_path / "signals") / "VOC2007"
    line = ["--repeats", "1", "--rounds", "1", "--dataset", "voc-like", "--batch-size", "2"]
    line += ["--short", "96", "--max-size", "96", "--dataset-root", str(root)]
    demo_step.main(["--torch", str(program), *line])
    said = capsys.readouterr().out
    assert "| PyTorch, torchvision | " in said and said.endswith("within 0\n")


def test_inference_zoo():
    done = benchmarks("--rounds", "1", "--only", "squeezenet1.1", module="benchmarks.inference_zoo")
    assert done.returncode == 0, done.stderr
    header, _, line = done.stdout.splitlines()
    assert line.startswith("| squeezenet1.1 | 224 |") and line.count("|") == header.count("|") == 9
