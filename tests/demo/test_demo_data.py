# SPDX-License-Identifier: Apache-2.0
"""VOC's own layout, digits, and the batches of a run."""

from __future__ import annotations

import numpy as np
import pytest
from demo_runs import open_dataset, photographs, write_voc

from demo_rfcn.data import (
    DATASETS,
    Held,
    augment,
    digits,
    loader,
    open_datasets,
    signals,
    voc_files,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def voc_root(tmp_path_factory):
    """A folder with VOC2007 and VOC2012, six images each."""
    root = tmp_path_factory.mktemp("voc")
    for year, seed in ((2007, 1), (2012, 2)):
        made = write_voc(root / str(year), photographs(["person", "dog"], seed))
        (made / voc_files.YEAR_FOLDER).rename(root / f"VOC{year}")
    return root


def test_voc_is_not_validated_on_its_test_images(voc_root, tmp_path):
    sets = open_datasets(DATASETS["voc"], voc_root, ("train", "val", "test"), held=Held())
    train, val, test = ({entry.path for entry in dataset.entries} for dataset in sets)
    assert len(train | val) == 12 and len(val) == 1 and not train & val
    assert test == {path for path in train | val if "VOC2007" in path}  # the lists are equal here
    assert len(test) == 6
    (tmp_path / "VOC2007").symlink_to(voc_root / "VOC2007")
    assert len(open_dataset(DATASETS["voc"], tmp_path, "train")) == 6  # one year is enough


def test_digits_are_handwriting_within_their_boxes():
    pytest.importorskip("sklearn")
    for seed in range(5):
        image, objects = digits.paint(np.random.default_rng(seed))
        assert image.shape == (160, 160, 3) and objects
        for name, (x1, y1, x2, y2), _ in objects:
            assert name in digits.CLASSES
            assert 0 <= x1 < x2 < 160 and 0 <= y1 < y2 < 160
    assert DATASETS["digits"].flip_p == 0


def batches_of(dataset, seed: int = 0, **parts) -> loader.TrainLoader:
    """Return a loader of four images a batch, 80 pixels wide, without RPN targets."""

    def no_targets(labels, size, padded, rng):
        return np.zeros(1, np.float32), np.zeros((1, 4), np.float32)

    change = augment.Augmentation(0.5, (0.8, 1.2), 0.2)
    return loader.TrainLoader(dataset, 4, (80, 200), 16, change, no_targets, seed, **parts)


def test_batches_keep_wide_and_tall_images_apart(voc_root):
    batches = batches_of(open_dataset(DATASETS["voc"], voc_root, "train"))
    shapes = [batches.make(step).data.shape for step in range(2 * batches.steps_per_epoch)]
    assert batches.steps_per_epoch == 3
    wide = [shape[3] > shape[2] for shape in shapes]
    assert sum(wide) == 4 and len(set(shapes)) > 1


def test_batches_follow_from_seed_and_step_alone(voc_root):
    dataset = open_dataset(DATASETS["voc"], voc_root, "train")
    stream = batches_of(dataset).batches()
    third = [next(stream) for _ in range(4)][3]
    again = next(batches_of(dataset).batches(first=3))
    other = next(batches_of(dataset, seed=1).batches(first=3))
    np.testing.assert_array_equal(third.data, again.data)
    assert third.data.shape != other.data.shape or (third.data != other.data).any()


def test_workers_make_the_parts_of_one_batch(eight_images):
    dataset = open_dataset(DATASETS["signals"], eight_images, "train")
    whole = batches_of(dataset).make(1)
    parts = [batches_of(dataset, rank=rank, num_workers=2).make(1) for rank in range(2)]
    for name in ("data", "labels"):
        joined = np.concatenate([getattr(part, name)[..., :80, :80] for part in parts])
        np.testing.assert_array_equal(joined, getattr(whole, name)[..., :80, :80])


def test_colour_jitter_keeps_boxes_and_flip_mirrors_them():
    image, _ = signals.paint(np.random.default_rng(0))
    labels = np.array([[10, 20, 30, 40, 1, 0]], np.float32)
    change = augment.Augmentation(flip_p=1.0, color_jitter=0.4)
    changed, mirrored = change(image, labels, np.random.default_rng(0))
    assert changed.dtype == np.uint8 and (changed != image[:, ::-1]).any()
    np.testing.assert_array_equal(mirrored, [[129, 20, 149, 40, 1, 0]])
    np.testing.assert_array_equal(augment.flip(image, labels)[0], image[:, ::-1])
