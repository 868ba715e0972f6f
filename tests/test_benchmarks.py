"""The benchmark script runs and writes what it promises. Timings are never asserted."""

import json
import os
import subprocess
import sys

import pytest

from benchmarks.libraries import WAYS

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def benchmarks(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments], cwd=ROOT, capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("benchmarks")
    only = "ROIPool C=512 7x7 K=2000|ROIAlign 21x7x7 sampling 2 K=300"
    several = ["--threads", "1", "2", "--dtype", "float32", "float64"]
    done = benchmarks("--quick", "--only", only, *several, "--output", str(folder))
    assert done.returncode == 0, done.stderr
    return folder


def test_json(folder):
    report = json.loads((folder / "results.json").read_text())
    assert report["machine"]["cpu"] and report["versions"]["mxnet"] == "1.9.1"
    assert report["command"][:4] == ["python", "-m", "benchmarks", "--quick"]
    rows = {(r["item"], r["dtype"], r["way"], r["threads"]): r for r in report["rows"]}
    for threads, dtype in ((1, "float32"), (2, "float32"), (1, "float64"), (2, "float64")):
        for way in WAYS:
            row = rows["ROIPool C=512 7x7 K=2000", dtype, way, threads]
            for library in ("gluon_roi", "mxnet", "memcpy"):
                result = row["results"][library]
                low, high = result["quartiles_ms"]
                assert 0 < low <= result["median_ms"] <= high and result["calls"] >= 2
                # Every library does the same work.
                assert not result["other_convention"]
        assert ("PSROIAlign 21x7x7 sampling 2 K=300", dtype, "forward", threads) in rows
        assert ("PSROIAlign 21x7x7 sampling 2 K=300", dtype, "forward, out=", threads) not in rows


def test_table_and_chart(folder):
    lines = (folder / "results.txt").read_text().splitlines()
    head = next(line for line in lines if line.startswith("work "))
    assert {"gluon_roi", "best", "memcpy", "mxnet"} <= set(head.split())
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


@pytest.mark.parametrize("peer", ["torchvision", "caffe=/usr/bin/python3"])
def test_a_wrong_peer_is_refused(peer):
    done = benchmarks("--peer", peer)
    assert done.returncode == 1 and f"--peer {peer}: expected LIBRARY=PYTHON" in done.stderr


def test_a_peer_that_cannot_be_imported_is_left_out(folder):
    done = benchmarks(
        "--quick",
        "--only",
        "small PSROIAlign",
        "--peer",
        f"torchvision={sys.executable}",
        "--output",
        str(folder / "without"),
    )
    assert done.returncode == 0
    if "torchvision is left out" not in done.stderr:
        pytest.skip("torchvision is installed next to MXNet")
    assert "torchvision" not in (folder / "without" / "results.txt").read_text()
