# SPDX-License-Identifier: Apache-2.0
"""report.html: its rows; on a phone no word is broken, and no scrolling to the side is needed."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import pytest
from support.browser import BROWSERS, Page
from support.demo_data import open_dataset
from support.demo_runs import settings_of

from demo_rfcn import metrics
from demo_rfcn.data import DATASETS
from demo_rfcn.metrics import METRICS
from demo_rfcn.predictor import Detection
from demo_rfcn.report.page import write_report

LOADED = """new Promise((done) =>
  document.readyState === 'complete' ? done() : addEventListener('load', () => done()))"""
#: The words that stand on more than one line.
BROKEN_WORDS = r"""(() => {
  const broken = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode;
    for (const word of node.textContent.matchAll(/\S+/g)) {
      const range = document.createRange();
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      if (range.getClientRects().length > 1) broken.push(word[0]);
    }
  }
  return broken;
})()"""
FOLDER = "photographs_of_tree_crowns_and_roofs_from_the_air"


def summary_of(folder: str) -> dict[str, Any]:
    """Return the summary of an evaluation, without pictures."""
    scores = dict.fromkeys(METRICS, 0.123)
    names = ("tree", "tree_that_was_felled_before_the_photograph")
    return {
        "location": {"dataset": "voc-like", "dataset_root": f"/data/{folder}"},
        "checkpoint_step": 6,
        "config": {"network": "small", "head": "psroi", "k": 7},
        "arguments": settings_of(["train", "--dataset-root", f"/data/{folder}"]).to_dict(),
        "test": {
            **{**scores, "images": 9, "trained_on": 0, "ms_per_image": 12.3},
            "per_class": dict.fromkeys(names, scores),
            "rpn_recall": {"10": 0.5, "100": 0.9},
        },
        "files": [],
    }


def test_classes_may_have_the_names_of_rows(eight_images, tmp_path):
    """GluonCV calls the mean of the classes mAP, and the report calls it mean."""
    dataset = open_dataset(DATASETS["signals"], eight_images, "test")
    dataset.classes = ("mAP", "mean", *dataset.classes[2:])
    found = {
        index: Detection(rows[:, 4].astype(int), np.ones(len(rows)), rows[:, :4])
        for index, rows in enumerate(dataset.labels)
    }
    found[0] = Detection(np.zeros(0, int), np.zeros(0), np.zeros((0, 4)))
    scores = metrics.scores(dataset, found)
    assert [*scores["per_class"]] == [*dataset.classes]
    values = [row["map50"] for row in scores["per_class"].values() if row["map50"] is not None]
    assert scores["map50"] == pytest.approx(np.mean(values)) and min(values) < 1
    summary = {**summary_of("photos"), "test": {**scores, "ms_per_image": 1, "rpn_recall": {}}}
    page = write_report(tmp_path, summary).read_text()
    assert page.count("<td>mean</td>") == 2 and page.count("<td>mAP</td>") == 1


@pytest.mark.night
def test_report_on_a_phone(tmp_path):
    if not any(map(shutil.which, BROWSERS)):
        pytest.skip("Chromium is not installed")
    address = write_report(tmp_path, summary_of(FOLDER)).as_uri()
    page = Page(tmp_path / "profile")
    try:
        page.size(390, 844, mobile=True)
        page.open(address)
        page.run(LOADED)
        assert page.run("document.querySelector('h1').textContent") == f"R-FCN on {FOLDER}"
        assert page.run(BROKEN_WORDS) == []
        assert page.run("document.scrollingElement.scrollWidth") <= 390
        assert page.problems == []
    finally:
        page.close()
