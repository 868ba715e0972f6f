# SPDX-License-Identifier: Apache-2.0
"""The parts by themselves: anchors, targets, sampling, data, batches, and pictures."""

from __future__ import annotations

import warnings

import mxnet as mx
import numpy as np
import pytest
from gluoncv.nn import bbox, coder
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from support.demo_data import batches_of, open_dataset, photographs, write_voc

from demo_rfcn import losses, metrics, model, networks, variants
from demo_rfcn.data import DATASETS, ValidationSplit, loader, open_datasets, signals
from demo_rfcn.data.dataset import DetectionSet, Sample
from demo_rfcn.data.images import Header
from demo_rfcn.model import ModelConfig
from demo_rfcn.predictor import Detection
from demo_rfcn.report import pictures, roi_pictures

BASE = model.base_anchors(8, (2.0, 4.0), (0.5, 1.0, 2.0))


def test_base_anchors_have_their_area_and_ratio():
    width, height = BASE[:, 2] - BASE[:, 0], BASE[:, 3] - BASE[:, 1]
    np.testing.assert_allclose(np.sqrt(width * height), [32, 64] * 3, rtol=1e-6)
    np.testing.assert_allclose(height / width, np.repeat([0.5, 1, 2], 2), rtol=1e-6)
    np.testing.assert_allclose((BASE[:, :2] + BASE[:, 2:]) / 2, 4, atol=1e-5)


def random_boxes(count: int, seed: int) -> np.ndarray:
    """Return boxes in and around an image of 128 x 96 pixels, (2, count, 4)."""
    rng = np.random.default_rng(seed)
    corner, size = rng.uniform(-30, 110, (2, count, 2)), rng.uniform(1, 60, (2, count, 2))
    return np.concatenate([corner, corner + size], axis=-1).astype(np.float32)


def test_box_formulas_equal_gluoncvs():
    """Their convention is the same."""
    boxes, objects, offsets = random_boxes(9, 0), random_boxes(9, 1), random_boxes(9, 2) / 40
    arrays = mx.nd.array(boxes), mx.nd.array(objects)
    ones, matches = mx.nd.ones((2, 9)), mx.nd.arange(9).expand_dims(0).tile((2, 1))
    stds = (0.1, 0.1, 0.2, 0.2)
    expected = coder.NormalizedBoxCenterEncoder(stds)(ones, matches, *arrays)[0].asnumpy()
    cases: list[tuple] = [(mx.nd, *arrays), (np, boxes, objects)]
    for F, first, second in cases:
        halves = model.encode(F, first, second, model.ROI_STDS)
        found = np.concatenate([mx.nd.array(half).asnumpy() for half in halves], axis=-1)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)

    limit = {"clip": np.log(1000 / 16), "convert_anchor": True, "minimal_opset": True}
    decode = coder.NormalizedBoxCenterDecoder(stds, **limit)
    moved = mx.nd.array(offsets)
    found = model.decode(mx.nd, arrays[0], moved, model.ROI_STDS)
    np.testing.assert_allclose(
        found.asnumpy(), decode(moved, arrays[0]).asnumpy(), rtol=1e-5, atol=1e-4
    )

    image = mx.nd.zeros((2, 3, 96, 128))
    clipped = model.clip(mx.nd, arrays[0], image).asnumpy()
    np.testing.assert_array_equal(clipped, bbox.BBoxClipToImage()(arrays[0], image).asnumpy())
    assert clipped[..., 2].max() == 128 and clipped[..., 3].max() == 96

    expected = bbox.BBoxBatchIOU()(*arrays).asnumpy()
    assert (expected > 0).any()
    np.testing.assert_allclose(model.iou_matrix(mx.nd, *arrays).asnumpy(), expected, rtol=1e-5)
    found = model.iou(np, boxes[:, :, None], objects[:, None])[..., 0]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_offsets_of_the_worked_example():
    box, thing = np.array([0, 0, 10, 20.0]), np.array([5, 0, 25, 20.0])
    shift, growth = model.encode(np, box, thing, (1, 1))
    np.testing.assert_allclose([*shift, *growth], [1, 0, np.log(2), 0])
    padding = mx.nd.array([[[-1] * 4, [0, 0, 4, 4]]])
    assert not model.iou_matrix(mx.nd, padding, padding[:, :1]).asnumpy().any()


def test_a_head_pools_the_cells_inside_of_the_edges():
    """A RoI of 16 x 8 pixels has two cells of stride 8, and votes with their mean."""
    config = ModelConfig(("a",), "small", "psroi", 1, True, (2.0,), (1.0,))
    net = networks.build(config, [mx.cpu()], 0)
    features = mx.nd.random.normal(shape=(1, 96, 4, 6))
    maps = net.head.maps(features)[0, :2, 2, 1:3].asnumpy()
    logits, _ = net.head(features, mx.nd.array([[0, 8, 16, 24, 24]]))
    np.testing.assert_allclose(logits[0].asnumpy(), maps.mean(axis=1), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("bottom", "score"), [(5, 1.0), (4.8, 0.0)])
def test_scores_count_the_overlap_of_edges(bottom, score):
    """An IoU of 0.5 is enough, 0.48 is not; with a pixel more on each side, it would be 0.53."""
    labels = np.array([[0, 0, 10, 10, 0, 0]], np.float32)
    sample = Sample("one", "", Header("PNG", (20, 20), 1), labels, np.zeros(1, bool), "")
    found = Detection(np.zeros(1, int), np.ones(1), np.array([[0, 0, 10, bottom]], np.float32))
    scores = metrics.scores(DetectionSet("images", ("a",), [sample]), {0: found})
    assert scores["map50"] == pytest.approx(score)


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (20, 20)])
def test_both_anchor_grids_agree(shape):
    grid = model.AnchorGrid(BASE, 8)
    grid.initialize()
    inside = grid(mx.nd.zeros((2, 4, *shape))).asnumpy()
    np.testing.assert_array_equal(inside[0], losses.anchor_grid(BASE, 8, *shape))


def test_proposals_drop_small_and_overlapping_boxes():
    anchors = mx.nd.array([[[0, 0, 20, 20], [1, 1, 21, 21], [40, 40, 44, 60], [50, 10, 90, 30]]])
    score = mx.nd.array([[1, 2, 9, -1]])
    propose = model.Proposals(pre_nms=4, post_nms=4, nms_thresh=0.7, min_size=8)
    boxes, scores = propose(score, mx.nd.zeros((1, 4, 4)), anchors, mx.nd.zeros((1, 3, 64, 64)))
    expected = [[1, 1, 21, 21], [50, 10, 64, 30], [-1] * 4, [-1] * 4]
    np.testing.assert_allclose(boxes[0].asnumpy(), expected, atol=1e-4)
    np.testing.assert_allclose(scores[0, :2].asnumpy(), 1 / (1 + np.exp([-2.0, 1.0])), rtol=1e-5)
    np.testing.assert_array_equal(scores[0, 2:].asnumpy(), -1)


def rpn_targets(labels: list, size: tuple = (160, 160)) -> tuple:
    """Return the RPN targets of a 160 x 160 batch and its anchors."""
    make = losses.RPNTargets(BASE, 8, 64)
    rows = np.array(labels, np.float32).reshape(-1, 6)
    cls, box = make(rows, size, (160, 160), np.random.default_rng(0))
    return cls, box, losses.anchor_grid(BASE, 8, 20, 20)


def test_rpn_targets_encode_the_box_and_keep_to_the_sample():
    cls, box, anchors = rpn_targets([[40, 40, 75, 72, 1, 0]])
    assert (cls == 1).sum() >= 1 and (cls >= 0).sum() == 64
    decoded = model.decode(mx.nd, mx.nd.array(anchors), mx.nd.array(box), model.RPN_STDS).asnumpy()
    np.testing.assert_allclose(decoded[cls == 1], [[40, 40, 75, 72]] * (cls == 1).sum(), atol=1e-3)
    assert not box[cls != 1].any()


def test_rpn_targets_ignore_the_border_difficult_boxes_and_padding():
    cls, _, anchors = rpn_targets([[40, 40, 75, 72, 1, 1]], size=(160, 100))
    counts = anchors[cls >= 0]
    assert (cls == 1).sum() == 0 and (counts >= 0).all() and (counts[:, 2] < 100).all()


def test_rpn_targets_without_boxes_and_without_anchors_inside_the_image():
    cls, box, _ = rpn_targets([])
    assert (cls == 0).sum() == 64 and (cls == 1).sum() == 0 and not box.any()
    cls, box, _ = rpn_targets([[1, 1, 9, 9, 1, 0]], size=(16, 16))
    assert (cls == -1).all() and not box.any()


def test_roi_targets():
    rois = mx.nd.array([[[10, 10, 50, 50], [12, 10, 52, 50], [90, 90, 99, 99], [60, 60, 80, 80]]])
    labels = mx.nd.array([[[10, 10, 50, 50, 2, 0], [60, 60, 80, 80, 3, 1], [-1] * 6]])
    match = losses.RoITargets()
    cls, box, positive, counts = match(rois, mx.nd.array([[1, 1, 1, 1]]), labels)
    np.testing.assert_array_equal(cls.asnumpy(), [[3, 3, 0, 0]])
    np.testing.assert_array_equal(positive.asnumpy(), [[1, 1, 0, 0]])
    np.testing.assert_array_equal(counts.asnumpy(), [[1, 1, 1, 0]])
    np.testing.assert_allclose(
        box[0].asnumpy(), [[0.0] * 4, [-0.5, 0, 0, 0], [0.0] * 4, [0.0] * 4], atol=1e-5
    )
    *_, counts = match(rois, mx.nd.array([[1, 0, 1, 1]]), labels)
    np.testing.assert_array_equal(counts.asnumpy(), [[1, 0, 1, 0]])


def roi_loss(ohem: bool, counts: list) -> tuple:
    """Return the class loss and the gradient of four RoIs, of which the third is the hardest."""
    cls_pred = mx.nd.array([[[3.0, 0], [1, 0], [-5, 0], [2, 0]]])
    cls_pred.attach_grad()
    zeros = mx.nd.zeros((1, 4))
    loss = (losses.RoILoss if ohem else variants.RandomRoILoss)(num_sample=2)
    with mx.autograd.record():
        zero_boxes = mx.nd.zeros((1, 4, 4))
        cls, box = loss(cls_pred, zero_boxes, zeros, zero_boxes, zeros, mx.nd.array([counts]))
        total = cls + box
    total.backward()
    return cls.asscalar(), np.abs(cls_pred.grad[0].asnumpy()).sum(axis=1)


def test_boxes_vote_within_their_class():
    """The weights are the scores of the boxes whose IoU reaches the threshold."""
    # The third one overlaps too little; the last one is of another class.
    rows = [[0, 0.6, 0, 0, 10, 10], [0, 0.3, 0, 0, 10, 7], [0, 0.3, 0, 0, 10, 4]]
    candidates = mx.nd.array([*rows, [1, 0.9, 0, 0, 10, 9]])
    detections = mx.nd.array([[0, 0.6, 0, 0, 10, 10], [1, 0.9, 0, 0, 10, 9], [-1] * 6])
    voting = variants.BoxVoting(0.5)
    voted = voting(detections.expand_dims(0), candidates.expand_dims(0))[0].asnumpy()
    expected = np.array([[0, 0.6, 0, 0, 10, 9], [1, 0.9, 0, 0, 10, 9], [-1] * 6])
    np.testing.assert_allclose(voted, expected, rtol=1e-6)


def test_ohem_sends_gradients_to_the_hardest_counts_rois_only():
    loss, gradient = roi_loss(True, [1, 1, 1, 1])
    np.testing.assert_allclose(loss, (np.log1p(np.exp(5)) + np.log1p(np.exp(-1))) / 2, rtol=1e-5)
    np.testing.assert_array_equal(gradient > 0, [False, True, True, False])
    _, gradient = roi_loss(True, [1, 1, 0, 0])
    np.testing.assert_array_equal(gradient > 0, [True, True, False, False])
    assert roi_loss(True, [0, 0, 0, 0])[0] == 0


def test_random_sample_has_its_size_and_quota():
    loss = variants.RandomRoILoss(num_sample=8)
    positive = mx.nd.concat(mx.nd.ones((3, 10)), mx.nd.zeros((3, 22)), dim=1)
    counts = mx.nd.ones((3, 32))
    counts[:, 20:] = 0
    chosen = loss.choose(mx.nd, positive, positive, counts)
    np.testing.assert_array_equal(chosen.sum(axis=1).asnumpy(), 8)
    np.testing.assert_array_equal((chosen * positive).sum(axis=1).asnumpy(), 2)
    np.testing.assert_array_equal((chosen * (1 - counts)).asnumpy(), 0)


def test_resize_keeps_within_both_limits():
    image = np.zeros((300, 1200, 3), np.uint8)
    scaled, scale = loader.resize(image, short=600, max_size=1000)
    assert scaled.shape == (250, 1000, 3)
    np.testing.assert_allclose(scale, (1000 / 1200, 250 / 300))


def test_reading_gives_back_the_painted_boxes(eight_images):
    dataset = open_dataset(DATASETS["signals"], eight_images, "test")
    for index in range(len(dataset)):
        image, objects = signals.paint(np.random.default_rng([7, index]))
        pixels, labels = dataset[index]
        assert np.abs(pixels.asnumpy().astype(float) - image).mean() < 20
        expected = [[*box, signals.CLASSES.index(n), hidden] for n, box, hidden in objects]
        np.testing.assert_array_equal(labels, expected)


@pytest.fixture
def drawn(own_dpi, monkeypatch):
    """The figures that would be written, with as many pixels as the demo draws."""
    figures: list[Figure] = []
    monkeypatch.setitem(plt.rcParams, "figure.dpi", own_dpi)
    for module in (pictures, roi_pictures):
        monkeypatch.setattr(module, "write", lambda figure, path: figures.append(figure))
    yield figures
    plt.close("all")


@pytest.mark.parametrize("count", [1, 2, 6, 20, 80])
def test_labels_contrast_with_their_colour(count):
    for colour in pictures.class_colours(count):
        linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
        luminance = float(np.dot(linear, (0.2126, 0.7152, 0.0722)))  # of WCAG
        text = {"black": 0.0, "white": 1.0}[pictures.text_colour(colour)]
        low, high = sorted((text, luminance))
        assert (high + 0.05) / (low + 0.05) >= 4.5


def test_labels_stay_in_their_image(eight_images, drawn, tmp_path):
    """The boxes are in every corner, and one is much narrower than its label."""
    dataset = open_dataset(DATASETS["signals"], eight_images, "test")
    boxes = [[0, 0, 20, 20], [139, 0, 159, 20], [0, 139, 20, 159], [150, 150, 159, 159]]
    found = Detection(np.array([3, 4, 5, 4]), np.full(4, 0.9), np.array(boxes, np.float32))
    pictures.detections(tmp_path / "detections.png", dataset, dict.fromkeys(range(8), found))
    (figure,) = drawn
    figure.canvas.draw()
    texts = 0
    for axis in figure.axes:
        within = axis.get_window_extent().padded(1)
        for text in axis.texts:
            covered = text.get_bbox_patch().get_window_extent()
            assert within.x0 <= covered.x0 and covered.x1 <= within.x1
            assert within.y0 <= covered.y0 and covered.y1 <= within.y1
            texts += 1
    assert texts == 8 * 4


def test_names_of_classes_are_drawn_as_they_are(eight_images, drawn, tmp_path):
    """Formulas, Chinese, and a character that no font has: the class has its number instead."""
    names = ("$a_$", "1 $ or 2 $", "cup", "\u732b \u72ac", "\U000ffffd", "mAP")
    dataset = open_dataset(DATASETS["signals"], eight_images, "test")
    dataset.classes = names
    boxes = np.tile(np.array([[20, 30, 60, 70]], np.float32), (6, 1))
    found = Detection(np.arange(6), np.full(6, 0.9), boxes)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a character without glyph
        pictures.detections(tmp_path / "detections.png", dataset, {0: found})
        drawn[0].canvas.draw()
    labels = [pictures.class_label(names, cls) for cls in range(6)]
    assert [text for text, _ in labels[:3]] == [r"\$a_\$", r"1 \$ or 2 \$", "cup"]
    assert labels[3][0] in (names[3], "class 3")  # if there is a font
    assert [text for text, _ in labels[4:]] == ["class 4", "mAP"]


def test_photographs_are_scaled_before_they_are_drawn():
    _, axis = plt.subplots()
    pictures.show_image(axis, np.zeros((300, 4000, 3), np.uint8))
    (image,) = axis.images
    pixels = image.get_array()
    assert pixels is not None and pixels.shape == (75, 1000, 3)
    assert list(image.get_extent()) == [0, 4000, 300, 0]
    plt.close("all")


@pytest.mark.parametrize("rows", [1, 30])
def test_every_curve_is_in_the_legend(rows, drawn, tmp_path):
    losses = [{"step": step, "a": 1.0, "b": 2.0} for step in range(rows)]
    values = [{"step": step, "map50": 0.5, "map75": 0.4} for step in range(rows)]
    pictures.curves(tmp_path, {"losses": losses, "val": values})
    for figure in drawn:
        (axis,) = figure.axes
        assert len(axis.get_legend().get_texts()) == len(axis.lines)
        assert rows > 1 or all(line.get_marker() == "o" for line in axis.lines[-1:])


@pytest.mark.parametrize("k", [3, 7])
def test_score_maps_are_large_enough_to_see(k, drawn, tmp_path):
    config = ModelConfig(("a", "b"), "small", "psroi", k, True, (2.0,), (1.0,))
    net = networks.build(config, [mx.cpu()], 0)
    image, box = np.zeros((96, 128, 3), np.uint8), np.array([10, 10, 50, 60], np.float32)
    roi_pictures.score_maps(tmp_path / "score_maps.png", net, image, box, cls=1)
    (figure,) = drawn
    figure.canvas.draw()
    axes = [axis for axis in figure.axes if axis.images and axis.images[0].get_array().ndim == 2]
    sizes = sorted(axis.get_window_extent().width for axis in axes)
    assert len(axes) == 2 * (9 + 1)
    assert sizes[0] >= 80
    assert any(axis.get_ylabel() == "score of b" for axis in figure.axes)


def test_data_whose_first_images_have_no_objects(tmp_path):
    """The pictures of RoIs show the first objects that there are."""
    config = ModelConfig(signals.CLASSES, "small", "psroi", 3, True, (2.0,), (1.0,))
    net = networks.build(config, [mx.cpu()], 0)
    image, objects = signals.paint(np.random.default_rng(0))
    root = write_voc(tmp_path, [(image, [])] * 41 + [(image, objects)])
    dataset = open_dataset(DATASETS["signals"], root, "test")
    cls, found = roi_pictures.typical_objects(net, dataset, DATASETS["signals"])
    assert found and signals.CLASSES[cls] in {name for name, *_ in objects}


@pytest.fixture(scope="module")
def voc_root(tmp_path_factory):
    """A folder with VOC2007 and VOC2012, six images each."""
    root = tmp_path_factory.mktemp("voc")
    for year, seed in ((2007, 1), (2012, 2)):
        made = write_voc(root / str(year), photographs(["person", "dog"], seed))
        (made / "VOC2007").rename(root / f"VOC{year}")
    return root


def test_voc_is_not_validated_on_its_test_images(voc_root, tmp_path):
    sets = open_datasets(
        DATASETS["voc"], voc_root, ("train", "val", "test"), split=ValidationSplit()
    )
    train, val, test = ({entry.path for entry in dataset.samples} for dataset in sets)
    assert len(train | val) == 12 and len(val) == 1 and not train & val
    assert test == {path for path in train | val if "VOC2007" in path}  # the lists are equal here
    assert len(test) == 6
    (tmp_path / "VOC2007").symlink_to(voc_root / "VOC2007")
    assert len(open_dataset(DATASETS["voc"], tmp_path, "train")) == 6  # one year is enough


def test_batches_keep_wide_and_tall_images_apart(voc_root):
    batches = batches_of(open_dataset(DATASETS["voc"], voc_root, "train"))
    shapes = [batches.make(step).data.shape for step in range(2 * batches.steps_per_epoch)]
    assert batches.steps_per_epoch == 3
    wide = [shape[3] > shape[2] for shape in shapes]
    assert sum(wide) == 4 and len(set(shapes)) > 1


@pytest.mark.parametrize(("wide", "tall", "batch_size"), [(52, 3, 4), (96, 15, 16), (5, 1, 5)])
def test_every_image_is_trained_on(wide, tall, batch_size):
    """Each is left out of about the same share of the epochs, also if it is of the rarer kind."""
    headers = [Header("PNG", (12, 8), 1)] * wide + [Header("PNG", (8, 12), 1)] * tall
    labels, crowd = np.zeros((0, 6), np.float32), np.zeros(0, bool)
    samples = [Sample(str(n), "", header, labels, crowd, "") for n, header in enumerate(headers)]
    dataset = DetectionSet("images", ("a",), samples)
    batches = loader.TrainLoader(dataset, batch_size, (8, 12), 8, lambda *_: None, seed=0)
    epochs = [batches._epoch_order(epoch) for epoch in range(200)]
    assert all(len(np.unique(images)) == images.size for images in epochs)
    seen = np.bincount(np.concatenate([images.ravel() for images in epochs])) / len(epochs)
    assert len(seen) == wide + tall and np.ptp(seen) < 0.25
    mixed = [np.ptp((images >= wide).astype(int), axis=1).sum() for images in epochs]
    assert max(mixed) <= 1  # batches with wide and tall images


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


def test_colour_jitter_changes_colours_and_flip_mirrors_boxes():
    image, _ = signals.paint(np.random.default_rng(0))
    labels = np.array([[10, 20, 30, 40, 1, 0]], np.float32)
    changed = loader.jitter_colour(image, 0.4, np.random.default_rng(0))
    assert changed.dtype == np.uint8 and (changed != image).any()
    flipped, mirrored = loader.flip(image, labels)
    np.testing.assert_array_equal(flipped, image[:, ::-1])
    np.testing.assert_array_equal(mirrored, [[130, 20, 150, 40, 1, 0]])
