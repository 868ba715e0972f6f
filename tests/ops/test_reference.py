# SPDX-License-Identifier: Apache-2.0
"""The reference itself: derivatives with respect to boxes, edge cases, and rejected arguments.

Values and gradients have one proof for both: the operators equal the reference (test_operators.py),
MXNet's operators and worked examples (test_agreement.py), and their derivatives are those of
differences (test_operators.py).
"""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np
import pytest
from operators import OPERATORS, ROWS
from support.cases import (
    BATCH,
    HEIGHT,
    WIDTH,
    feature_map,
    roi_rows,
    row_id,
)
from support.turns import in_turn

from gluon_roi import reference

by_row = pytest.mark.parametrize("operator, arguments", ROWS, ids=row_id)


# ---- Bins without a finite cell ------------------------------------------------------------------


@pytest.mark.parametrize("fill", [np.nan, -np.inf, np.finfo("float32").min])
def test_roi_pool_without_finite_cells_equals_mxnet(fill):
    data = np.full((1, 1, 4, 4), fill, "float32")
    data[0, 0, 1, 1] = 5
    rois = [[0, 0, 0, 3, 3]]
    x = mx.nd.array(data)
    x.attach_grad()
    with mx.autograd.record():
        y = mx.nd.ROIPooling(x, mx.nd.array(rois), (2, 2), 1)
    y.backward(mx.nd.ones_like(y))
    np.testing.assert_array_equal(reference.roi_pool(data, rois, 2, 1), y.asnumpy())
    d_data = reference.roi_pool_backward(np.ones((1, 1, 2, 2)), data, rois, 2, 1)
    np.testing.assert_array_equal(d_data, x.grad.asnumpy())
    assert d_data.sum() == 1


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_roi_pool_starts_at_the_lowest_number_of_the_type(dtype):
    data = np.full((1, 1, 2, 2), np.nan, dtype)
    out = reference.roi_pool(data, [[0, 0, 0, 1, 1]], 1, 1)
    assert out.ravel().tolist() == [np.finfo(dtype).min]


# ---- Derivatives ---------------------------------------------------------------------------------


@pytest.mark.parametrize("boxes", ["inside", "crossing", "small", "inverted", "random"])
@pytest.mark.parametrize("operator, arguments", [r for r in ROWS if r[0].rois_grad], ids=row_id)
def test_rois_gradient_is_the_finite_difference(operator, arguments, boxes):
    """On a surface without kinks: bilinear in x and y, so that only the borders are to avoid."""
    pooled, scale, step = (2, 3), 0.3, 1e-6
    channels = operator.channels(2, pooled, arguments)
    rng = np.random.RandomState(4)
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    a, b, c = rng.randn(3, BATCH, channels, 1, 1)
    data = a * x + b * y + c * x * y / 9
    rois = roi_rows(boxes, scale, "float64")
    rois[:, 1:] += rng.uniform(-0.01, 0.01, rois[:, 1:].shape)
    rois = operator.rois(rois)

    d_out = rng.randn(len(rois), 2, *pooled)
    _, d_rois = operator.backward(d_out, data, rois, pooled, scale, **arguments)

    def value(k, offsets):
        """The part of row k in the sum of output times d_out, with its coordinates shifted."""
        out = operator.forward(data, rois[[k]] + offsets, pooled, scale, **arguments)
        return (out * d_out[k]).sum()

    for k, i in np.ndindex(len(rois), operator.coordinates):
        offsets = step * np.eye(rois.shape[1])[i + 1]
        difference = (value(k, offsets) - value(k, -offsets)) / (2 * step)
        assert d_rois[k, i + 1] == pytest.approx(difference, rel=1e-6, abs=1e-6)
    assert (d_rois[:, 0] == 0).all()


@pytest.mark.parametrize(
    "operator",
    [op for op in OPERATORS if op.rois_grad and not op.sampled],
    ids=lambda op: op.name,
)
def test_an_integral_is_the_limit_of_finer_and_finer_samples(operator):
    """Midpoints of n x n parts of each bin: the error falls with the square of n."""
    data, pooled, scale = feature_map(2, "float64"), (2, 3), 0.3
    rois = np.vstack([roi_rows(name, scale) for name in ("inside", "crossing", "touching")])
    exact = operator.forward(data, rois, pooled, scale)
    # The surface falls to 0 around the map.
    surface = np.pad(data, ((0, 0), (0, 0), (1, 1), (1, 1)))

    def hats(low, high, bins, n, size):
        at = low + (np.arange(bins * n) + 0.5) * (high - low) / (bins * n)
        return np.maximum(0, 1 - np.abs(at[:, None] - np.arange(-1, size + 1)))

    errors = []
    for n in (8, 32, 128):
        sampled = np.zeros_like(exact)
        for out, (image, *box) in zip(sampled, rois):
            x1, y1, x2, y2 = np.multiply(box, scale)
            wy = hats(y1, y2, pooled[0], n, HEIGHT)
            wx = hats(x1, x2, pooled[1], n, WIDTH)
            samples = np.einsum("iy,cyx,jx->cij", wy, surface[int(image)], wx)
            out[:] = samples.reshape(2, pooled[0], n, pooled[1], n).mean(axis=(2, 4))
        errors.append(np.abs(sampled - exact).max())
    assert errors[0] < 0.05 and errors[1] < errors[0] / 8 and errors[2] < errors[1] / 8


# ---- Layouts and odd rows of rois ----------------------------------------------------------------


def both(operator, data, rois, pooled=(2, 3), scale=1.0, **arguments):
    out = operator.expected(data, rois, pooled, scale, **arguments)
    d_out = np.ones(out.shape)
    return (out, *operator.expected_gradients(d_out, data, rois, pooled, scale, **arguments))


@pytest.fixture(params=OPERATORS, ids=row_id)
def operator(request):
    return request.param


@pytest.fixture
def data(operator):
    return feature_map(operator.channels(2, (2, 3), {}))


def test_layouts_agree(operator, data):
    rows = operator.rois(np.vstack([roi_rows("inside", 1.0), roi_rows("crossing", 1.0)])[:8])
    rows[:, 0] = np.repeat([0, 1], 4)
    boxes = rows[:, 1:]
    out, d_data, d_rois = both(operator, data, rows)
    for rois, further in ((boxes.reshape(2, 4, -1), {}), (boxes, {"rois_num": [4, 4]})):
        other, d_other, d_boxes = both(operator, data, rois, **further)
        np.testing.assert_array_equal(out, other)
        np.testing.assert_array_equal(d_data, d_other)
        assert d_boxes.shape == rois.shape
        np.testing.assert_array_equal(d_rois[:, 1:], d_boxes.reshape(-1, operator.coordinates))
    uneven = both(operator, data, boxes, rois_num=[8, 0])[0]
    np.testing.assert_array_equal(uneven[:4], out[:4])


def test_empty(operator, data):
    box = operator.coordinates
    for rois, further in (
        (np.zeros((0, box + 1)), {}),
        (np.zeros((BATCH, 0, box)), {}),
        (np.zeros((0, box)), {"rois_num": [0, 0]}),
    ):
        out, d_data, d_rois = both(operator, data, rois, **further)
        assert out.shape == (0, 2, 2, 3) and d_rois.shape == rois.shape and not d_data.any()


@pytest.mark.parametrize("index", [-1, -0.5, -np.inf])
@pytest.mark.parametrize("coordinate", [3, np.nan, np.inf, 1e20])
def test_padding_row(operator, data, index, coordinate):
    out, d_data, d_rois = both(operator, data, operator.rois([[index, 0, coordinate, 9, 9]]))
    assert not out.any() and not d_data.any() and not d_rois.any()


@pytest.mark.parametrize("index", [2, 7, 1e9, np.inf, np.nan, 0.5])
def test_bad_batch_index(operator, data, index):
    rois = operator.rois(roi_rows("repeated", 1.0))
    rois[3, 0] = index
    message = (
        f"^{operator.name}: rois row 3 has batch index {index:g}, expected an integer below 2 "
        r"\(the batch size of data\), or negative for a padding row$"
    )
    with pytest.raises(ValueError, match=message.replace("+", r"\+")):
        both(operator, data, rois)


@pytest.mark.parametrize(
    "coordinate, column", in_turn([np.nan, np.inf, -np.inf], [1, 2, 3, 4, -1], every=2)
)
def test_coordinate_not_finite(operator, data, coordinate, column):
    rois = operator.rois(roi_rows("repeated", 1.0))
    expected, d_expected, _ = both(operator, data, np.delete(rois, 2, axis=0))
    rois[2, column] = coordinate
    out, d_data, d_rois = both(operator, data, rois)
    assert np.isnan(out[2]).all()
    np.testing.assert_array_equal(np.delete(out, 2, axis=0), expected)
    np.testing.assert_array_equal(d_data, d_expected)
    assert not d_rois[2].any()


HUGE = [
    [-1e20, -1e20, 1e20, 1e20],
    [0, 0, 1e20, 1e20],
    [1e20, 1e20, 2e20, 2e20],
    [-3e38, -3e38, 3e38, 3e38],
    [0, 2, 1e9, 9],
    [3e38, 3e38, -3e38, -3e38],
    [-1e6, 2, 9, 9],
]


@by_row
def test_huge_coordinates(operator, arguments):
    ones = np.ones((1, operator.channels(1, (3, 3), arguments), HEIGHT, WIDTH), "float32")
    rois = operator.rois(np.hstack([np.zeros((len(HUGE), 1)), HUGE])).astype("float32")
    out, d_data, d_rois = both(operator, ones, rois, (3, 3), 0.5, **arguments)
    for array in (out, d_data, d_rois):
        assert np.isfinite(array).all()
    if not operator.sampled and not operator.rois_grad:
        # The middle bin covers the map, the others lie beyond it.
        assert out[0, 0, 1, 1] == out[3, 0, 1, 1] == 1 and out[0].sum() == out[3].sum() == 1
        assert not out[2].any()
    elif (
        operator.sampled
        and operator.rois_grad
        and operator.coordinates == 4
        and arguments.get("sampling_ratio", -1) < 0
        and "mode" not in arguments
    ):
        # Each sample stands for a cell, from -1 to the size: n cells of m give about n / m.
        assert out[4, 0, 1, 0] == pytest.approx(WIDTH * 3 / 0.5e9, rel=0.1)
        assert out[6, 0, 1, 2] == pytest.approx(5.5 * 3 / 0.5e6, rel=0.2)


def test_inverted_box_is_sampled_backwards():
    box, mirrored = [[0, 2, 3, 9, 8]], [[0, 9, 8, 2, 3]]
    data = feature_map(3)
    arguments: dict[str, Any] = {"sampling_ratio": 2, "aligned": True}
    out = reference.roi_align(data, box, (2, 3), 1.0, **arguments)
    back = reference.roi_align(data, mirrored, (2, 3), 1.0, **arguments)
    np.testing.assert_allclose(back, out[:, :, ::-1, ::-1], 1e-14, 1e-14)
    single = reference.roi_align(data, box, (2, 3), 1.0, sampling_ratio=1, aligned=True)
    adaptive = reference.roi_align(data, mirrored, (2, 3), 1.0, aligned=True)
    np.testing.assert_allclose(adaptive, single[:, :, ::-1, ::-1], 1e-14, 1e-14)


def test_nan_outside_the_box_does_not_leak(operator):
    """All that a box does not touch may be NaN, cells of weight 0 next to a sample included."""
    clean = feature_map(operator.channels(2, (2, 2), {}), "float64")
    rois = operator.rois([[0, 3, 3, 5, 5]])
    arguments: dict[str, Any] = {"aligned": False} if operator.takes("aligned") else {}
    dirty = np.full_like(clean, np.nan)
    # DeformablePSROIPool reads from -0.5 to a whole cell further.
    read = slice(2, 7) if operator.sampled and not operator.rois_grad else slice(3, 6)
    dirty[0, :, read, read] = clean[0, :, read, read]
    expected = operator.forward(clean, rois, 2, 1.0, **arguments)
    np.testing.assert_array_equal(operator.forward(dirty, rois, 2, 1.0, **arguments), expected)
    assert np.isfinite(expected).all()
    # Samples that fall on whole cells: x = 3.5 +- 0.5.
    if operator.takes("sampling_ratio"):
        dirty[0, :, 5:] = dirty[0, :, :, 5:] = np.nan
        arguments = {"aligned": False, "sampling_ratio": 1}
        rois = operator.rois([[0, 2.5, 2.5, 4.5, 4.5]])
        expected = operator.forward(clean, rois, 2, 1.0, **arguments)
        np.testing.assert_array_equal(operator.forward(dirty, rois, 2, 1.0, **arguments), expected)


# ---- Refused arguments ---------------------------------------------------------------------------

BAD_COUNTS = r"rois_num is \[.*\], expected counts that sum to 3"


@pytest.mark.parametrize(
    "change, message",
    [
        ({"data": np.zeros((3, 4, 4))}, "data has 3 dimensions, expected 4"),
        ({"rois": np.zeros((3, 6))}, r"rois has shape \(3, .\), expected \(K, .\)"),
        ({"rois": np.zeros((3, 4))}, r"rois has shape \(3, .\), expected"),
        ({"rois": np.zeros((3, 2, 4))}, "rois has boxes for 3 images, expected 2"),
        ({"rois": np.zeros((3, 4)), "rois_num": [3]}, r"rois_num has shape \(1,\), expected"),
        ({"rois": np.zeros((3, 4)), "rois_num": [1, 1]}, BAD_COUNTS),
        ({"rois": np.zeros((3, 4)), "rois_num": [4, -1]}, BAD_COUNTS),
        ({"pooled_size": 0}, "pooled_size is 0, expected a positive integer"),
        ({"pooled_size": (2, 3, 4)}, r"pooled_size is \(2, 3, 4\), expected"),
        ({"spatial_scale": 0}, "spatial_scale is 0, expected a number above 0, at most 1e.30"),
        ({"spatial_scale": float("nan")}, "spatial_scale is nan, expected"),
    ],
)
def test_refused(operator, data, change, message):
    arguments = {"data": data, "rois": np.zeros((1, 5)), "pooled_size": (2, 3), "spatial_scale": 1}
    arguments.update(change)
    # The columns above are those of upright boxes.
    rois = arguments["rois"]
    more = np.zeros((*rois.shape[:-1], operator.coordinates - 4))
    arguments["rois"] = np.concatenate([rois, more], axis=-1)
    with pytest.raises(ValueError, match=f"^{operator.name}: {message}"):
        operator.forward(**arguments)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"group_size": 3}, r"data has 24 channels, expected a multiple of 3 \* 3"),
        ({"output_dim": 5}, r"data has 24 channels, expected output_dim \* 2 \* 2 = 20"),
        ({"convention": "caffe"}, "convention is 'caffe', expected one of"),
    ],
)
def test_refused_by_ps_roi_pool(change, message):
    with pytest.raises(ValueError, match=f"^PSROIPool: {message}"):
        reference.ps_roi_pool(np.zeros((1, 24, 4, 4)), np.zeros((1, 5)), 2, 1.0, **change)


def test_gradient_of_another_shape_is_refused(operator, data):
    with pytest.raises(ValueError, match=f"^{operator.name}: d_out has shape"):
        rois = np.zeros((1, operator.coordinates + 1))
        operator.backward(np.zeros((1, 1, 1, 1)), data, rois, (2, 3), 1.0)
