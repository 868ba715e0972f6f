# SPDX-License-Identifier: Apache-2.0
"""Exports of labelling tools: every box is that of the drawn pixels, every split is kept."""

from __future__ import annotations

import numpy as np
import pytest
from label_exports import CLASSES, COLOURS, LAYOUTS, SPLITS

from demo_rfcn.data import DATASETS, ValidationSplit, open_datasets
from demo_rfcn.data.dataset import DetectionSet

VOC_LIKE = DATASETS["voc-like"]


def assert_drawn(dataset: DetectionSet) -> None:
    """See that the boxes of each image are exactly around the pixels of their class."""
    for index, labels in enumerate(dataset.labels):
        pixels = dataset.read(index)
        assert len(labels) == len(CLASSES)
        for *box, cls, _ in labels:
            rows, columns = np.nonzero((pixels == COLOURS[CLASSES[int(cls)]]).all(axis=2))
            edges = columns.min(), rows.min(), columns.max() + 1, rows.max() + 1
            np.testing.assert_allclose(box, edges, atol=1e-3)


@pytest.mark.parametrize("draw", LAYOUTS)
def test_exports_are_read_as_they_are(draw, tmp_path):
    if draw.__name__.startswith("coco"):
        pytest.importorskip("pycocotools")
    root = tmp_path / "photos"
    draw(root)
    purposes = ("train", "val", "test")
    sets = open_datasets(VOC_LIKE, root, purposes, split=ValidationSplit(0.3))
    for dataset in sets:
        assert dataset.classes == CLASSES and dataset.trained_on == set()
        assert_drawn(dataset)
    counts = [*map(len, SPLITS.values())] if LAYOUTS[draw] else [5, 2, 2]
    assert [len(dataset) for dataset in sets] == counts
