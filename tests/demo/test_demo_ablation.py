# SPDX-License-Identifier: Apache-2.0
"""benchmarks.demo_ablation: its runs, its table, and what it reuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
from matplotlib import pyplot
from support.demo_runs import SMALL, train_arguments

from benchmarks import demo_ablation as ablation
from demo_rfcn import checkpoint
from demo_rfcn.errors import InputError

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("written_signals")]


@pytest.fixture
def study(eight_images, tmp_path, monkeypatch) -> tuple[list[str], Path]:
    """The line of a study of the reference, and its folder."""
    monkeypatch.setattr(ablation, "VARIANTS", (ablation.REFERENCE,))
    data = shutil.copytree(eight_images, tmp_path / "data")
    line = [*train_arguments(data, tmp_path / "study", *SMALL)[1:], "--seeds", "0"]
    return line, tmp_path / "study"


def test_rows_are_reused_only_for_equal_steps_options_and_data(study, tmp_path, capsys):
    line, folder = study
    ablation.main(line)
    text = (folder / "ablation.json").read_text()
    rows = json.loads(text)
    assert [row["variant"] for row in rows] == [ablation.REFERENCE.title, ablation.ROTATED]
    shutil.rmtree(folder / "variant0-seed0")
    (folder / "ablation.md").write_text("| another study |\n")
    capsys.readouterr()
    ablation.main([*line, "0"])  # a seed counts once
    table, errors = capsys.readouterr()
    assert "another study" not in table and "training" not in errors
    for row in rows:
        (text_row,) = (
            each for each in table.splitlines() if each.startswith(f"| {row['variant']} |")
        )
        assert text_row.endswith("| 1 |")
    names = tmp_path / "data/VOC2007/ImageSets/Main/test.txt"
    for more, words in (
        (["--steps", "1"], "steps: 2, not 1"),
        (["--lr", "1e-4"], "lr: 0.002, not"),
    ):
        with pytest.raises(InputError, match=f"of another study: {words}"):
            ablation.main([*line, *more])
    names.write_text("000000\n000001\n")
    with pytest.raises(InputError, match="of another study: its data have changed"):
        ablation.main(line)
    assert (folder / "ablation.json").read_text() == text


@pytest.mark.parametrize("more", [["--k", "3"], ["--seed", "2"], ["--no-ohem"]])
def test_what_the_study_varies_is_refused(more, study):
    with pytest.raises(InputError, match="differs between the runs"):
        ablation.main([*study[0], *more])


def test_a_file_of_a_user_is_kept(study):
    line, folder = study
    folder.mkdir()
    (folder / "ablation.json").write_text("{}")
    with pytest.raises(InputError, match="ablation.json is not of a study"):
        ablation.main(line)
    assert (folder / "ablation.json").read_text() == "{}"


@pytest.mark.night
def test_variants_and_seeds(study):
    line, folder = study
    ablation.main([*line, "1", "--further", "fpn"])
    assert len(json.loads((folder / "ablation.json").read_text())) == 2 * 3
    table = (folder / "ablation.md").read_text()
    fpn = ablation.OPTIONAL_VARIANTS["fpn"]
    for title in (ablation.REFERENCE.title, ablation.ROTATED, fpn.title):
        assert f"| {title} |" in table
    assert pyplot.imread(folder / "ablation.png").std() > 0.01


@pytest.mark.parametrize(
    ("seeds", "row"),
    [([0], "| a | 0.500 | 0.250 | 1 |"), ([0, 1], "| a | 0.550 ± 0.071 | 0.300 ± 0.071 | 2 |")],
)
def test_one_seed_has_no_deviation(seeds, row, tmp_path):
    common = {"variant": "a", "steps": 1}
    rows = [{**common, "seed": s, "map50": 0.5 + s / 10, "map75": 0.25 + s / 10} for s in seeds]
    ablation.write_table(tmp_path / "table.md", rows)
    assert (tmp_path / "table.md").read_text(encoding="utf-8").splitlines()[-1] == row
    ablation.bar_chart(tmp_path / "chart.png", rows)


def test_rotating_twice_changes_nothing(short_run):
    detect = checkpoint.read(short_run / "best.ckpt").detector([mx.cpu()])
    weight = detect.net.head.maps.weight
    before = weight.data().asnumpy()
    ablation.rotate_bins(detect.net)
    assert (weight.data().asnumpy() != before).any()
    ablation.rotate_bins(detect.net)
    np.testing.assert_array_equal(weight.data().asnumpy(), before)
