# SPDX-License-Identifier: Apache-2.0
"""Each patch of MXNet and GluonCV: the results are those of Python 3.11 with NumPy 1.23."""

import contextlib
import multiprocessing
import re
from pathlib import Path

import gluoncv
import mxnet as mx
import numpy as np
import pytest
from support.processes import python

import gluon_roi
from gluon_roi import _compat

ROOT = Path(__file__).resolve().parents[2]
NEEDED = _compat.is_needed()


# Results. Attributes that are made of NumPy's numbers:

THREE, FOUR = np.int64(3), np.int32(4)
DATA = mx.nd.arange(12)
ATTRIBUTES = {
    "nd": (lambda: mx.nd.reshape(DATA, shape=(THREE, FOUR)).shape, (3, 4)),
    "nd list": (lambda: mx.nd.zeros([THREE, FOUR]).shape, (3, 4)),
    "nd float": (lambda: mx.nd.full((THREE,), np.float32(0.1)).asnumpy()[0], np.float32(0.1)),
    "np": (lambda: mx.np.zeros((THREE, FOUR)).shape, (3, 4)),
    "sym": (lambda: mx.sym.zeros((THREE, FOUR)).attr("shape"), "(3, 4)"),
    "var": (lambda: mx.sym.var("x", shape=(THREE, FOUR)).attr("__shape__"), "(3, 4)"),
    "float in a tuple": (
        lambda: mx.sym.contrib.MultiBoxPrior(mx.sym.var("x"), sizes=(np.float32(0.1),)).attr(
            "sizes"
        ),
        "(0.1,)",
    ),
    "own": (
        lambda: (
            mx.nd.gluon_roi.ROIPool(
                mx.nd.zeros((1, 1, 9, 9)), mx.nd.zeros((1, 5)), (THREE, FOUR), np.float32(0.5)
            ).shape
        ),
        (1, 1, 3, 4),
    ),
}


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_attributes(name):
    value, expected = ATTRIBUTES[name]
    assert value() == expected


def test_attribute_text():
    text = _compat.AttributeText
    assert text((THREE, [np.float32(0.1)], True, None)) == "(3, [0.1], True, None)"
    assert text("np.int64(3)") == "np.int64(3)" and type(text(3)) is str
    assert isinstance("text", text) and not isinstance(3, text)


@pytest.mark.filterwarnings("ignore:Conversion of an array with ndim")
def test_since_when_arrays_of_one_element_are_no_numbers():
    page = (ROOT / "docs/compat_reference.md").read_text()
    since = re.search(
        r"^\| an array of one element does not convert.*?\| (\d+)\.(\d+) \|", page, re.M
    )
    assert since is not None
    is_since = _compat._numpy_version() >= tuple(map(int, since.groups()))
    with pytest.raises(TypeError) if is_since else contextlib.nullcontext():
        float(np.ones(1))


# Sums and products that NumPy 1 makes in float64:

METRICS = {
    "acc": {},
    "mae": {},
    "mse": {},
    "rmse": {},
    "ce": {},
    "nll_loss": {},
    "perplexity": {"ignore_label": 2},
}


@pytest.mark.parametrize("name", METRICS)
def test_metrics_sum_in_float64(name):
    metric = mx.metric.create(name, **METRICS[name])
    one = mx.metric.create(name, **METRICS[name])
    rng = np.random.RandomState(0)
    total, count = 0.0, 0.0
    for _ in range(50):
        scores = rng.uniform(0.01, 1, (7, 3)).astype(np.float32)
        labels = rng.randint(0, 3, 7)
        if name in ("mae", "mse", "rmse"):
            scores, labels = scores[:, 0], scores[:, 1] * 1e4
        pair = [mx.nd.array(labels)], [mx.nd.array(scores / scores.sum(-1, keepdims=True))]
        metric.update(*pair)
        one.reset()
        one.update(*pair)
        total, count = total + float(one.sum_metric), count + float(one.num_inst)
    assert metric.sum_metric == total and metric.num_inst == count
    assert metric.global_sum_metric == total


def test_perplexity_counts_every_label():
    metric = mx.metric.Perplexity(ignore_label=0)
    metric.num_inst = np.float32(2**24)  # where float32 no longer tells odd numbers
    metric.update([mx.nd.array([1])], [mx.nd.array([[0.5, 0.5]])])
    assert metric.num_inst == 2**24 + 1


RATES = {
    "factor": lambda base: mx.lr_scheduler.FactorScheduler(1, 0.9, base_lr=base),
    "poly": lambda base: mx.lr_scheduler.PolyScheduler(100, base_lr=base, warmup_steps=9),
    "cosine": lambda base: mx.lr_scheduler.CosineScheduler(100, base_lr=base, warmup_steps=9),
}


@pytest.mark.parametrize("name", RATES)
@pytest.mark.parametrize("step", [5, 50])
def test_learning_rates_of_float32(name, step):
    base = np.float32(0.1)
    assert RATES[name](base)(step) == RATES[name](float(base))(step)


@pytest.mark.parametrize("name", ["adam", "adamax", "lbsgd", "lars"])
def test_optimizers_with_rates_of_float32(name):
    results = []
    for rate in (np.float32(0.1), float(np.float32(0.1))):
        more = {"warmup_strategy": "lars"} if name == "lbsgd" else {}
        optimizer = mx.optimizer.create(name, learning_rate=rate, wd=0.1, **more)
        weight = mx.nd.array(np.random.RandomState(0).randn(5, 3))
        state = optimizer.create_state(0, weight)
        for i in range(5):
            arguments = [0, weight, mx.nd.array(np.random.RandomState(i).randn(5, 3)), state]
            optimizer.update(*([[a] for a in arguments] if name == "lars" else arguments))
        results.append(weight.asnumpy())
    np.testing.assert_array_equal(*results)


def test_lars_ratio_in_float64():
    optimizer = mx.optimizer.LBSGD(warmup_strategy="lars")
    weight, gradient = mx.nd.array([0.1, 0.7]), mx.nd.array([0.3, 0.2])
    w, g = (float((a * a).asnumpy().sum()) for a in (weight, gradient))
    assert optimizer._get_lars(weight, gradient, 0.1) == (w / (g + 0.1 * w + 1e-18)) ** 0.5


# Files, arrays and functions of NumPy:


def test_recordio():
    header = mx.recordio.IRHeader(0, [1, 2, 3], 7, 0)
    header, content = mx.recordio.unpack(mx.recordio.pack(header, b"abc"))
    assert (header.label.tolist(), header.id, content) == ([1, 2, 3], 7, b"abc")
    image = np.random.RandomState(0).randint(0, 256, (8, 9, 3)).astype(np.uint8)
    packed = mx.recordio.pack_img(mx.recordio.IRHeader(0, 4.0, 1, 0), image, img_fmt=".png")
    np.testing.assert_array_equal(mx.recordio.unpack_img(packed)[1], image)


@pytest.mark.filterwarnings("ignore:NumPy will stop allowing conversion")
def test_numbers_out_of_range_wrap_around():
    for array in (mx.nd.array, mx.np.array):
        assert array([-1, 300], dtype="uint8").asnumpy().tolist() == [255, 44]


def test_ndarray_as_an_array():
    array = mx.nd.array([[1, 2], [3, 4]], dtype="int32")
    assert np.all(array == array)
    assert not np.all(array == 1)
    if np.__version__ >= "2":  # NumPy 1 makes an array of 32 dimensions and NDArrays of it
        assert np.asarray(array).tolist() == [[1, 2], [3, 4]]
        assert np.asarray(array, dtype=np.float64).dtype == np.float64


POSITIVE = mx.np.array([[2.5, 1], [0, 3]])
DISPATCHED = {
    "any": True,
    "all": False,
    "prod": 0.0,
    "around": [[2, 1], [0, 3]],
    "sum": 6.5,
    "max": 3.0,
    "isnan": [[0, 0], [0, 0]],
    "fix": [[2, 1], [0, 3]],
}


@pytest.mark.parametrize("name", DISPATCHED)
def test_numpy_functions_of_mx_np_arrays(name):
    result = getattr(np, name)(POSITIVE)
    assert type(result) is mx.np.ndarray and result.asnumpy().tolist() == DISPATCHED[name]


def test_named_tuples_of_numpy():
    left, values, right = np.linalg.svd(POSITIVE)
    assert all(type(array) is mx.np.ndarray for array in (left, values, right))
    assert left.shape == right.shape == (2, 2) and values.dtype == np.float32


DROPPED = {
    "alltrue": (lambda np: np.alltrue(POSITIVE), False),
    "in1d": (lambda np: np.in1d(POSITIVE, mx.np.array([1, 3])), [False, True, False, True]),
    "msort": (lambda np: np.msort(POSITIVE)[0], [0, 1]),
    "trapz": (lambda np: np.trapz(POSITIVE[0]), 1.75),
    "pad": (lambda np: np.pad(POSITIVE, ((1, 0), (0, 0)), mode="edge")[0], [2.5, 1]),
    "bool": (lambda np: np.ones((2,), dtype=np.bool), [True, True]),
    "PZERO": (lambda np: (np.PZERO, np.NINF), [0.0, float("-inf")]),
}


@pytest.mark.parametrize("name", DROPPED)
def test_names_that_numpy_dropped(name):
    value, expected = DROPPED[name]
    found = value(mx.np)
    found = found.asnumpy() if isinstance(found, mx.np.ndarray) else found
    np.testing.assert_array_equal(found, expected)


def test_functions_removed_before_numpy_1_23():
    with pytest.raises(RuntimeError, match="removed from NumPy"):
        mx.np.npv(0.1, [1, 2])


# Processes:


class Squares(mx.gluon.data.Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        return np.float32(index) ** 2

    def __reduce__(self):
        raise AssertionError("with fork nothing is pickled")


def test_data_loader_forks():
    loader = mx.gluon.data.DataLoader(Squares(), 5, num_workers=2)
    assert [batch.asnumpy().sum() for batch in loader] == [30, 255]


@pytest.mark.skipif(not NEEDED, reason="MXNet has Python's own multiprocessing here")
def test_start_method():
    """fork for MXNet whatever Python's default is, but for spawn, if the program has chosen it."""
    view = mx.gluon.data.dataloader.multiprocessing
    chosen = multiprocessing.get_start_method(allow_none=True)
    try:
        multiprocessing.set_start_method("spawn", force=True)
        assert view.get_context().get_start_method() == "spawn"
        multiprocessing.set_start_method(None, force=True)
        assert view.get_context().get_start_method() == "fork"
    finally:
        multiprocessing.set_start_method(chosen, force=True)
    assert view.queues is multiprocessing.queues


# GluonCV:


def test_gluoncv_check_version():
    gluoncv.utils.check_version("0.9")
    with pytest.raises(AssertionError):
        gluoncv.utils.check_version("99.10")


@pytest.mark.parametrize("first", ["gluoncv", "mxnet, gluoncv"])
def test_gluoncv_beside_torch_2(first, tmp_path):
    """PyTorch is not imported; its version 2 is refused by GluonCV."""
    (tmp_path / "torch.py").write_text("__version__ = '2.14.1+cu130'")
    assert python(f"import {first}, sys; print('torch' in sys.modules)", tmp_path) == "False"


def float32_boxes(count=64):
    rng = np.random.RandomState(0)
    low = rng.uniform(0, 40, (count, 2))
    return np.hstack([low, low + rng.uniform(1, 50, (count, 2))]).astype(np.float32)


@pytest.mark.parametrize("workers", [0, 2])
def test_detection_data_loader(workers):
    """Labels of different lengths, of which NumPy before 1.24 made an array of objects."""
    from gluoncv.data.dataloader import DetectionDataLoader

    counts = (1, 3, 2, 2)
    images = [mx.nd.full((3, 2, 2), n) for n in counts]
    labels = [np.full((n, 5), n, "float32") for n in counts]
    loader = DetectionDataLoader(list(zip(images, labels)), 2, num_workers=workers)
    expected = np.full((4, 3, 5), -1.0)
    for row, n in zip(expected, counts):
        row[:n] = n
    batches = [(image.asnumpy(), label.asnumpy()) for image, label in loader]
    assert [image[:, 0, 0, 0].tolist() for image, _ in batches] == [[1, 3], [2, 2]]
    np.testing.assert_array_equal(batches[0][1], expected[:2])
    np.testing.assert_array_equal(batches[1][1], expected[2:, :2])


@pytest.mark.skipif(not NEEDED, reason="MXNet has NumPy itself here")
@pytest.mark.filterwarnings("ignore:Creating an ndarray from ragged")
def test_lists_of_different_lengths():
    for function in (_compat._numpy().array, _compat._numpy().asarray):
        assert function([[1], [2, 3]]).tolist() == [[1], [2, 3]]
        with pytest.raises(ValueError, match="setting an array element with a sequence"):
            function([[1], [2, 3]], dtype="float32")
        assert function([[1, 2], [3, 4]]).shape == (2, 2)


def test_yolo_targets():
    from gluoncv.model_zoo.yolo.yolo_target import YOLOV3PrefetchTargetGenerator

    box = float32_boxes()[:, None]
    size, width = 97, 3
    anchors = [mx.nd.array([[10.0, 10]])]
    maps, offsets = [mx.nd.zeros((1, 1, width, width))], [mx.nd.zeros((1, width * width, 1, 2))]
    generate = YOLOV3PrefetchTargetGenerator(2)
    for one in box:
        boxes, ids = mx.nd.array(one[None]), mx.nd.zeros((1, 1, 1))
        image = mx.nd.zeros((1, 3, size, size))
        _, centers, _, weights, _ = generate(image, maps, anchors, offsets, boxes, ids)
        gtx, gty, gtw, gth = (a.asnumpy().item() for a in generate.bbox2center(boxes[0]))
        x, y = (value / size * width for value in (gtx, gty))
        cell = int(y) * width + int(x)
        expected = np.array([x - int(x), y - int(y)], np.float32)
        np.testing.assert_array_equal(centers.asnumpy()[0, cell].ravel(), expected)
        area = float(np.float32(gtw) * np.float32(gth))
        weight = np.array([2.0 - area / size / size] * 2, np.float32)
        np.testing.assert_array_equal(weights.asnumpy()[0, cell].ravel(), weight)


def test_center_net_targets():
    from gluoncv.model_zoo.center_net import target_generator

    sizes = np.ceil(float32_boxes()[:, 2:])
    for size in sizes:
        radius = target_generator._gaussian_radius(size)
        assert radius == target_generator._gaussian_radius(size.astype(np.float64))
    generate = target_generator.CenterNetTargetGenerator(2, 16, 16)
    heatmap = generate(float32_boxes(3) / 8, np.ones((3, 1), np.float32))[0].asnumpy()
    assert heatmap[1].max() == 1 and not heatmap[0].any()


def test_alpha_pose_crops():
    from gluoncv.data.transforms.pose import alpha_pose_image_cropper

    boxes = float32_boxes()
    boxes[0] = [47.1, 30, 82.2, 60]
    image = np.zeros((120, 120, 3), np.uint8)
    _, corners = alpha_pose_image_cropper(image, mx.nd.array(boxes), None, (16, 12))
    for box, corner in zip(boxes, corners):
        margin = [float(np.float32(box[i + 2] - box[i])) * 0.3 / 2 for i in (0, 1)]
        assert corner[:2].tolist() == [int(max(0, float(box[i]) - margin[i])) for i in (0, 1)]


def test_siamrpn_scores_in_float32(monkeypatch):
    from gluoncv.model_zoo.siamrpn import siamrpn_tracker

    class Model:
        def template(self, z):
            pass

        def track(self, x):
            rng = np.random.RandomState(0)
            boxes, scores = rng.randn(4, cells), rng.randn(2, cells)
            shapes = (1, 4 * 5, size, size), (1, 2 * 5, size, size)
            arrays = [mx.nd.array(a.reshape(s)) for a, s in zip((boxes, scores), shapes)]
            return dict(zip(("loc", "cls"), arrays))

    tracker = siamrpn_tracker.SiamRPNTracker(Model())
    cells = len(tracker.anchors)
    size = int((cells / 5) ** 0.5)
    image = np.random.RandomState(0).randint(0, 255, (200, 200, 3)).astype(np.uint8)
    tracker.init(image, np.array([60.0, 60, 40, 50]), mx.cpu())
    dtypes = []
    exp = np.exp

    def watched(x):
        dtypes.append(x.dtype)
        return exp(x)

    monkeypatch.setattr(siamrpn_tracker.np, "exp", watched)
    assert len(tracker.track(image, mx.cpu())["bbox"]) == 4
    assert dtypes == [np.dtype("float32")] * 3


def test_color_distortion():
    from gluoncv.data.transforms.experimental.image import np_random_color_distort

    image = np.random.RandomState(0).uniform(0, 255, (6, 6, 3)).astype(np.float32)
    distorted = np_random_color_distort(image, np.random.RandomState(0))
    assert distorted.dtype == np.float32


def test_quantization_thresholds():
    from mxnet.contrib import quantization

    old = (np.ones(8, np.int64), None, np.float32(-0.1), np.float32(0.1), np.float32(0.1))
    values = np.array([0.7, -0.3], np.float32)
    histogram, edges, *_, threshold = quantization.combine_histogram(
        old, values, np.float32(-0.3), np.float32(0.7), np.float32(0.7)
    )
    step = 2 * float(np.float32(0.1)) / 8
    more = int(float(np.float32(0.7) - np.float32(0.1)) // step + 1)
    assert threshold == more * step + float(np.float32(0.1)) and histogram.sum() == 10


def test_quantization_by_entropy():
    from mxnet.contrib import quantization

    data = mx.sym.var("data")
    symbol = mx.sym.FullyConnected(data, num_hidden=4, name="fc")
    rng = np.random.RandomState(0)
    arguments = {"fc_weight": mx.nd.array(rng.randn(4, 6)), "fc_bias": mx.nd.zeros((4,))}
    batches = mx.io.NDArrayIter(rng.randn(8, 6).astype(np.float32), batch_size=4)
    quantized, _, _ = quantization.quantize_model(
        symbol, arguments, {}, ctx=mx.cpu(), calib_mode="entropy", calib_data=batches,
        num_calib_examples=8, label_names=None,
    )  # fmt: skip
    ranges = [key for node in quantized.attr_dict().values() for key in node if "calib" in key]
    assert ranges


@pytest.mark.parametrize("name", ["_gluon_roi_Unknown", "_others_ROIPool"])
def test_operator_that_nobody_registered(name, tmp_path):
    """The error has a hint if the operator is of gluon_roi; other errors stay."""
    symbol = gluon_roi.sym.ROIPool(mx.sym.var("data"), mx.sym.var("rois"), 2, 1.0)
    path = tmp_path / "net-symbol.json"
    path.write_text(symbol.tojson().replace("_gluon_roi_ROIPool", name))
    with pytest.raises(mx.MXNetError) as raised:
        mx.gluon.SymbolBlock.imports(str(path), "data")
    hint = "; 'import gluon_roi' registers it" if name.startswith("_gluon_roi_") else ""
    assert str(raised.value).endswith(f"Operator {name} is not registered{hint}")
