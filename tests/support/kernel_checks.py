# SPDX-License-Identifier: Apache-2.0
"""Requirements of the CUDA kernels, as a table of checks through the C interface.

tests/src/test_cuda_hostsim.py runs the table on kernels simulated in host memory,
tests/gpu/check_kernels.py on a GPU. Needs neither MXNet nor pytest.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Callable

import numpy as np
from operators import OPERATORS, ROWS
from support.cases import BATCH, PRECISION, SCALES, all_rois, feature_map, row_id
from support.deformed import CALLS, Sampled
from support.overlapped import CALLS as OVERLAPPED
from support.overlapped import Overlapped
from support.suppressed import CALLS as SUPPRESSED
from support.suppressed import Suppressed

from testing import c_api

DTYPES = ("float32", "float64", "float16")
#: Output channels and pooled size: around a block of kTileChannels and of kUnroll, more bins than
#: a batch of ROIPool's backward pass, and more than the threads of a forward block.
SHAPES = ((9, (2, 3)), (3, (7, 7)), (1, (17, 16)))


def _same(array: Any) -> Any:
    return array


class Kernels:
    """Calls of a library on NumPy arrays, which it copies to the device and back."""

    def __init__(
        self,
        library: c_api.Library,
        to_device: Callable = _same,
        to_host: Callable = _same,
        stream: Callable = lambda: None,
    ):
        self.library = library
        self.to_device = to_device
        self.to_host = to_host
        self.stream = stream

    def run(
        self,
        op: str,
        p: Any,
        data: Any,
        rois: Any,
        d_out: Any = None,
        rois_num: Any = None,
        cuda: bool = True,
        **more: Any,
    ) -> tuple:
        """(out,) or, with d_out, the gradients of data, rois and `more`: trans, offset or mask.

        data may be a list of maps, each of which then has a gradient.
        """
        to_device = self.to_device if cuda else _same
        to_host = self.to_host if cuda else _same
        backward = d_out is not None
        operator = self.library.operators[op]
        maps = data if isinstance(data, list) else [data]
        others = {"rois": rois, "rois_num": rois_num, **more}
        given = [*maps, *(others.get(declared["name"]) for declared in operator.inputs[1:])]
        arrays = [None if a is None else to_device(a) for a in given]
        inputs = c_api.tensors(*arrays)
        # What a call leaves untouched shows.
        if backward:
            results = [np.full_like(a, 99) for a in given if a is not None and a is not rois_num]
        else:
            results = [np.full(operator.output_shape(p, maps[0], rois), 99, maps[0].dtype)]
        results = [to_device(array) for array in results]
        device, _workspace = self._device(op, p, inputs, backward, cuda)
        if backward:
            left = iter(results)
            wanted = [None if a is None or a is rois_num else next(left) for a in given]
            self.library.backward(op, p, inputs, to_device(d_out), wanted, device)
        else:
            self.library.forward(op, p, inputs, results[0], device)
        return tuple(to_host(array) for array in results)

    def _device(
        self, op: str, p: Any, inputs: Any, backward: bool, cuda: bool
    ) -> tuple[c_api.Device, Any]:
        """A device, and its workspace, which has to be kept until the call has ended.

        The workspace is exactly what was asked for, in memory of its own, full of rubbish.
        """
        device = c_api.Device(c_api.CUDA if cuda else c_api.CPU)
        size = self.library.workspace(op, p, inputs, backward, device.type)
        rubbish = np.full(max(size, 1), 0xA5, np.uint8)
        workspace = self.to_device(rubbish) if cuda else rubbish
        device.workspace, device.workspace_size = c_api.pointer(workspace), size
        device.stream = self.stream() if cuda else None
        return device, workspace

    def samples(self, call: Sampled, dtype: str, cuda: bool) -> tuple:
        """The output of DeformableSampling, and its gradients."""
        to_device = self.to_device if cuda else _same
        op = "deformable_sampling"
        p = self.library.operators[op].params_of(**call.parameters)
        given = call.arrays(dtype)
        given[1].flat[:3] = [np.nan, np.inf, 6e4]
        arrays, d_out = [to_device(a) for a in given], call.d_out(dtype)
        inputs = c_api.tensors(*arrays)
        results = [to_device(np.full_like(a, 99)) for a in (d_out, *given)]
        for backward in (False, True):
            device, _workspace = self._device(op, p, inputs, backward, cuda)
            if backward:
                self.library.backward(op, p, inputs, to_device(d_out), results[1:], device)
            else:
                self.library.forward(op, p, inputs, results[0], device)
        return tuple((self.to_host if cuda else _same)(array) for array in results)

    def suppressed(self, call: Suppressed, arrays: list, cuda: bool) -> tuple:
        """Outputs of BoxNMS or Proposal, and gradients of the inputs."""
        to_device = self.to_device if cuda else _same
        to_host = self.to_host if cuda else _same
        p = self.library.operators[call.op].params_of(**call.parameters)
        given = [to_device(a) for a in arrays]
        inputs = c_api.tensors(*given)
        if call.op == "box_nms":
            outputs = [np.full_like(arrays[0], 99), np.full((*arrays[0].shape[:-1], 1), 99, "i4")]
        else:
            rows = len(arrays[0]) * p.rpn_post_nms_top_n
            outputs = [np.full((rows, width), 99, arrays[0].dtype) for width in (5, 1)]
        outputs = [to_device(a) for a in outputs]
        gradients = [to_device(np.full_like(a, 99)) for a in arrays]
        for backward in (False, True):
            device, _workspace = self._device(call.op, p, inputs, backward, cuda)
            if backward:
                d_outs = call.d_outs([to_host(a) for a in outputs])
                d_outs = [to_device(a) for a in d_outs]
                self.library.backward(call.op, p, inputs, d_outs, gradients, device)
            else:
                self.library.forward(call.op, p, inputs, outputs, device)
        return tuple(to_host(array) for array in (*outputs, *gradients))

    def overlaps(self, call: Overlapped, arrays: list, cuda: bool) -> tuple:
        """The output of BoxIoU, and gradients of the inputs."""
        to_device = self.to_device if cuda else _same
        p = self.library.operators["box_iou"].params_of(**call.parameters)
        given = [to_device(a) for a in arrays]
        inputs = c_api.tensors(*given)
        results = [np.full(call.out, 99, arrays[0].dtype), *(np.full_like(a, 99) for a in arrays)]
        results = [to_device(a) for a in results]
        for backward in (False, True):
            device, _workspace = self._device("box_iou", p, inputs, backward, cuda)
            if backward:
                self.library.backward("box_iou", p, inputs, results[0], results[1:], device)
            else:
                self.library.forward("box_iou", p, inputs, results[0], device)
        return tuple((self.to_host if cuda else _same)(array) for array in results)

    def compare(self, op: str, p: Any, data: Any, rois: Any, **more: Any) -> tuple:
        """Compare forward and backward of both halves; returns the results of the CUDA half."""
        dtype = (data[0] if isinstance(data, list) else data).dtype
        precision = PRECISION[dtype.name]
        (out,) = self.run(op, p, data, rois, **more)
        (expected,) = self.run(op, p, data, rois, **more, cuda=False)
        assert_same(out, expected, precision.forward)
        d_out = np.random.RandomState(1).randn(*out.shape).astype(dtype)
        gradients = self.run(op, p, data, rois, d_out, **more)
        wanted = self.run(op, p, data, rois, d_out, **more, cuda=False)
        for actual, exact in zip(gradients, wanted):
            assert_same(actual, exact, precision.backward, normwise=True)
        return (out, *gradients)


def assert_same(actual: Any, expected: Any, tolerance: float, normwise: bool = False) -> None:
    """Equal but for the order of sums; NaN equals NaN."""
    actual, expected = actual.astype("float64"), expected.astype("float64")
    finite = expected[np.isfinite(expected)]
    scale = max(1, np.abs(finite).max(initial=0)) if normwise else 1
    np.testing.assert_allclose(actual, expected, tolerance, tolerance * scale)


def arguments_of(op: Any, arguments: dict) -> dict:
    return {**arguments, "rois_grad": 1} if op.rois_grad else arguments


def has_groups(op: Any) -> bool:
    """Whether an operator reads groups of channels."""
    return op.channels(1, (2, 3), {}) > 1


# ---- The checks ----------------------------------------------------------------------------------


def check_against_cpu(op: Any, arguments: dict, dtype: str, kernels: Kernels) -> None:
    symbol = kernels.library.symbols[op.name]
    for channels, pooled in SHAPES:
        scale = SCALES[channels % len(SCALES)]
        data = feature_map(op.channels(channels, pooled, arguments), dtype)
        rois = op.all_rois(scale, "float64" if dtype == "float64" else "float32")
        p = kernels.library.params(symbol, pooled, scale, **arguments_of(op, arguments))
        kernels.compare(symbol, p, data, rois)


def check_awkward_rows(op: Any, arguments: dict, dtype: str, kernels: Kernels) -> None:
    """NaN, infinite, enormous coordinates; batch indices that name no image."""
    symbol = kernels.library.symbols[op.name]
    p = kernels.library.params(symbol, (2, 3), 0.5, **arguments_of(op, arguments))
    data = feature_map(op.channels(2, (2, 3), arguments), dtype)
    good = [
        *([0, *box] for box in ([1, 1, 9, 9], [-1e20, 2, 1e20, 9], [3, 1e20, 9, -1e20])),
        *([1, *box] for box in ([1e9, 1e9, 2e9, 2e9], [-1e6, -1e6, 1e6, 1e6], [-3e38, 0, 3e38, 9])),
        *([0, 1, value, 9, 9] for value in (np.nan, np.inf, -np.inf)),
        [1, np.nan, 1, 9, 9],
        [-1, 1, 1, 9, 9],
        [-np.inf, 1, 1, 9, 9],
        [-0.5, 1, 1, 9, 9],
    ]
    bad = [[index, 1, 1, 9, 9] for index in (BATCH, 0.5, np.nan, np.inf, 1e30)]
    rois = op.rois(good + bad).astype("float64" if dtype == "float64" else "float32")
    kernels.compare(symbol, p, data, rois[: len(good)])
    # The rows that the CPU refuses are NaN, and count as padding in the gradients.
    (out,) = kernels.run(symbol, p, data, rois)
    assert np.isnan(out[len(good) :]).all()
    d_out = np.random.RandomState(2).randn(*out.shape).astype(dtype)
    d_data, d_rois = kernels.run(symbol, p, data, rois, d_out)
    assert (d_rois[len(good) :] == 0).all()
    rois[len(good) :, 0] = -1
    expected, _ = kernels.run(symbol, p, data, rois, d_out)
    np.testing.assert_array_equal(d_data, expected)


def check_roi_forms(op: Any, kernels: Kernels) -> None:
    """(K, 5), (N, R, 4), (K, 4) with rois_num and float16 rois are the same rows."""
    symbol = kernels.library.symbols[op.name]
    rows = np.array([[0, 1, 2, 9, 8], [0, 0, 0, 17, 12], [1, -3, -3, 5, 5], [1, 8, 2, 12, 9]])
    rows = op.rois(rows).astype("float32")
    boxes = rows[:, 1:].copy().reshape(2, 2, op.coordinates)
    flat = boxes.reshape(4, op.coordinates)
    data = feature_map(6 if has_groups(op) else 3)
    p = kernels.library.params(symbol, (2, 3), 0.9)
    out, d_data, _ = kernels.compare(symbol, p, data, rows)
    forms: list[tuple] = [
        (boxes, None),
        (rows.astype("float16"), None),
        (rows.astype("float64"), None),
    ]
    for dtype in ("int32", "int64", "float32", "float64"):
        forms.append((flat, np.array([2, 2], dtype)))
    for rois, rois_num in forms:
        same = kernels.compare(symbol, p, data, rois, rois_num=rois_num)
        np.testing.assert_array_equal(same[0], out)
        np.testing.assert_array_equal(same[1], d_data)
    # Counts that name fewer rows than there are leave the others without an image.
    counts = np.array([1, 2], "int32")
    (short,) = kernels.run(symbol, p, data, flat, rois_num=counts)
    assert np.isnan(short[3]).all()
    assert not np.isnan(short[:3]).any()


def check_large_tables(op: Any, arguments: dict, kernels: Kernels) -> None:
    """More taps than shared memory holds, and boxes far larger than the map."""
    symbol = kernels.library.symbols[op.name]
    rng = np.random.RandomState(3)
    centre = rng.uniform(-50, 2500, (12, 2))
    half = 10 ** rng.uniform(0, 9, (12, 2))
    boxes = np.hstack([centre - half, centre + half])
    for first in (0, 1):
        axis = [first, first + 2]
        boxes[first::4, axis] = boxes[first::4, axis[::-1]]
    rois = np.vstack([[0, 0, 0, 2400, 1], np.insert(boxes, 0, 0, axis=1)])
    p = kernels.library.params(symbol, (1, 3), 1.0, rois_grad=1, **arguments)
    for dtype in ("float32", "float64"):
        kernels.compare(symbol, p, rng.randn(1, 3, 2, 2400).astype(dtype), rois.astype(dtype))


def check_many_bins(op: Any, kernels: Kernels) -> None:
    """Edges and taps of 1 x 1100 bins do not fit into shared memory."""
    data = np.random.RandomState(4).randn(1, 1100 if has_groups(op) else 1, 3, 40)
    rois = op.rois(np.array([[0, 1, 0, 30, 2], [0, -5, 0, 50, 4]], "float64"))
    symbol = kernels.library.symbols[op.name]
    kernels.compare(symbol, kernels.library.params(symbol, (1, 1100), 1.0), data, rois)


def check_nothing_to_do(op: Any, kernels: Kernels) -> None:
    """No rows: nothing is launched forward, and backward writes zeros."""
    symbol = kernels.library.symbols[op.name]
    data, rois = feature_map(6), np.zeros((0, op.coordinates + 1), "float32")
    p = kernels.library.params(symbol, (2, 3), 1.0)
    (out,) = kernels.run(symbol, p, data, rois)
    d_data, _ = kernels.run(symbol, p, data, rois, out)
    assert out.size == 0
    assert (d_data == 0).all()
    # No channels: the gradient of the rois is still written.
    data, rois = np.zeros((1, 0, 4, 4), "float32"), op.rois([[0.0, 0, 0, 3, 3]]).astype("float32")
    (out,) = kernels.run(symbol, p, data, rois)
    _, d_rois = kernels.run(symbol, p, data, rois, out)
    assert (d_rois == 0).all()
    # A map of no rows gives 0, and nothing is read.
    data = np.zeros((1, 6, 0, 5), "float32")
    (out,) = kernels.run(symbol, p, data, rois)
    assert (out == 0).all()


def check_offsets(dtype: str, kernels: Kernels) -> None:
    """DeformablePSROIPool with offsets: classes, parts of several bins, NaN, enormous ones."""
    op = "deformable_ps_roi_pool"
    rng = np.random.RandomState(5)
    rois = all_rois(0.5, "float64" if dtype == "float64" else "float32")
    huge = [[0, -1e20, 2, 1e20, 9], [1, 1e9, 1e9, 2e9, 2e9], [1, 1, np.nan, 9, 9]]
    rois = np.vstack([rois, np.array(huge, rois.dtype)])
    for output_dim, classes, group, parts in ((9, 1, (2, 3), (2, 3)), (6, 3, (1, 2), (2, 1))):
        data = feature_map(output_dim * group[0] * group[1], dtype)
        trans = rng.randn(len(rois), 2 * classes, *parts)
        trans[3] = np.nan
        trans[4, 0] = np.inf
        trans[5, 1] = -6e4
        trans[6, :, :1, :1] = np.nan
        p = kernels.library.params(
            op,
            (2, 3),
            0.5,
            group_size=group,
            part_size=parts,
            trans_std=0.3,
            sample_per_part=3,
        )
        kernels.compare(op, p, data, rois, trans=trans.astype(dtype))


def check_bin_offsets(dtype: str, kernels: Kernels) -> None:
    """DeformableROIAlign: offsets, a mask, or both; NaN, infinite and enormous ones."""
    op = "deformable_roi_align"
    rng = np.random.RandomState(5)
    rois = all_rois(0.5, "float64" if dtype == "float64" else "float32")
    huge = [[0, -1e20, 2, 1e20, 9], [1, 1e9, 1e9, 2e9, 2e9], [1, 1, np.nan, 9, 9]]
    rois = np.vstack([rois, np.array(huge, rois.dtype)])
    data = feature_map(5, dtype)
    offset = rng.randn(len(rois), 2, 2, 3).astype(dtype)
    offset[3] = np.nan
    offset[4, 0] = np.inf
    offset[5, 1] = -6e4
    offset[6, :, :1, :1] = np.nan
    mask = rng.rand(len(rois), 1, 2, 3).astype(dtype)
    for more in ({"offset": offset}, {"mask": mask}, {"offset": offset, "mask": mask}):
        for aligned, sampling_ratio in ((0, 0), (1, 3)):
            arguments = {"aligned": aligned, "sampling_ratio": sampling_ratio, "rois_grad": 1}
            p = kernels.library.params(op, (2, 3), 0.5, gamma=0.3, **arguments)
            kernels.compare(op, p, data, rois, **more)


def check_maximum(dtype: str, kernels: Kernels) -> None:
    """ROIAlign with mode='max'."""
    rois = all_rois(0.5, "float64" if dtype == "float64" else "float32")
    data = feature_map(5, dtype)
    data[0, 1, 3:6, 4] = np.nan
    for aligned, sampling_ratio in ((0, -1), (1, 2)):
        arguments = {"aligned": aligned, "sampling_ratio": sampling_ratio, "mode": "max"}
        p = kernels.library.params("roi_align", (2, 3), 0.5, **arguments)
        kernels.compare("roi_align", p, data, rois)
    data = feature_map(5, dtype)
    p = kernels.library.params("roi_align", (2, 3), 0.5, mode="max", rois_grad=1)
    kernels.compare("roi_align", p, data, rois)


def check_pyramid(dtype: str, kernels: Kernels) -> None:
    """PyramidROIAlign on maps of several sizes, with the gradient of the boxes."""
    op = "pyramid_roi_align"
    rois = all_rois(0.5, "float64" if dtype == "float64" else "float32")
    data = feature_map(5, dtype)
    maps = [np.ascontiguousarray(data[:, :, ::step, ::step]) for step in (1, 2, 4)]
    maps.insert(2, maps[1][:, :, :0])  # without cells
    scales = (0.5, 0.25, 0.125, 0.0625)
    for levels in (1, 2, 4):
        p = kernels.library.params(
            op,
            (2, 3),
            scales[:levels],
            rois_grad=1,
            canonical_size=20.0,
            canonical_level=2,
        )
        kernels.compare(op, p, maps[:levels], rois)
        lists = np.tile(rois, (levels, 1))
        level = np.repeat(np.arange(levels), len(rois))
        # Every row in one list, and some in two; a row in none.
        elsewhere = (np.arange(len(lists)) % levels != level) & (np.arange(len(lists)) % 7 != 0)
        lists[elsewhere, 0] = -1
        p = kernels.library.params(op, (2, 3), scales[:levels], rois_grad=1, assignment="given")
        kernels.compare(op, p, maps[:levels], lists)


def check_samples(name: str, dtype: str, kernels: Kernels) -> None:
    """DeformableSampling with offsets of every kind."""
    precision = PRECISION[dtype]
    out, *gradients = kernels.samples(CALLS[name], dtype, cuda=True)
    expected, *wanted = kernels.samples(CALLS[name], dtype, cuda=False)
    assert_same(out, expected, precision.forward)
    for actual, exact in zip(gradients, wanted):
        assert_same(actual, exact, precision.backward, normwise=True)


def check_suppression(name: str, dtype: str, kernels: Kernels) -> None:
    """The same rows are kept; exp may differ in the last bits of a proposal."""
    call = SUPPRESSED[name]
    for spoiled in (False, True):
        arrays = call.arrays(dtype)
        if spoiled:
            for array in arrays[:2]:
                array.flat[::37] = np.nan
                array.flat[5::41] = np.inf
        results = [kernels.suppressed(call, arrays, cuda) for cuda in (True, False)]
        for actual, expected in zip(*results):
            assert_same(actual, expected, 1e-6)


def check_overlaps(name: str, dtype: str, kernels: Kernels) -> None:
    """The same bytes; gradients are zeros."""
    call = OVERLAPPED[name]
    for spoiled in (False, True):
        arrays = call.arrays(dtype)
        if spoiled:
            for array in arrays:
                array.flat[::37] = np.nan
                array.flat[5::41] = np.inf
        results = [kernels.overlaps(call, arrays, cuda) for cuda in (True, False)]
        for actual, expected in zip(*results):
            np.testing.assert_array_equal(actual, expected)
        assert all((gradient == 0).all() for gradient in results[0][1:])


def _checks() -> dict[str, Callable[[Kernels], None]]:
    checks: dict[str, Callable[[Kernels], None]] = {}
    for op, arguments in ROWS:
        for dtype in DTYPES:
            name = f"{op.name}-{row_id(arguments)}-{dtype}"
            checks[f"cpu-{name}"] = partial(check_against_cpu, op, arguments, dtype)
            checks[f"awkward-{name}"] = partial(check_awkward_rows, op, arguments, dtype)
    for op in OPERATORS:
        checks[f"forms-{op.name}"] = partial(check_roi_forms, op)
        checks[f"bins-{op.name}"] = partial(check_many_bins, op)
        checks[f"nothing-{op.name}"] = partial(check_nothing_to_do, op)
    for op, arguments in ROWS:
        # The operators with taps along each axis; large boxes on all taps there are take long.
        if op.rois_grad and op.coordinates == 4 and arguments.get("sampling_ratio", 2) == 2:
            name = f"large-{op.name}-{row_id(arguments)}"
            checks[name] = partial(check_large_tables, op, arguments)
    for dtype in DTYPES:
        checks[f"offsets-{dtype}"] = partial(check_offsets, dtype)
        checks[f"bin-offsets-{dtype}"] = partial(check_bin_offsets, dtype)
        checks[f"maximum-{dtype}"] = partial(check_maximum, dtype)
        checks[f"pyramid-{dtype}"] = partial(check_pyramid, dtype)
        for name in CALLS:
            checks[f"samples-{name}-{dtype}"] = partial(check_samples, name, dtype)
        for name in OVERLAPPED:
            checks[f"overlaps-{name}-{dtype}"] = partial(check_overlaps, name, dtype)
        for name in SUPPRESSED:
            checks[f"suppression-{name}-{dtype}"] = partial(check_suppression, name, dtype)
    return checks


#: Name -> check(kernels), which raises if something is wrong.
CHECKS = _checks()
