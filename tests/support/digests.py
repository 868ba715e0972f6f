# SPDX-License-Identifier: Apache-2.0
"""Digests of operators' results, with the instruction set and the threads of this process.

The maps are large enough for several threads, the channels fill one block and leave a remainder,
and RoIs leave parts of the maps free. One image has most of the RoIs, so that the threads of the
others help.
"""

from __future__ import annotations

import hashlib
import itertools
from typing import Any, Callable, Iterator, Sequence, Tuple

import mxnet as mx
import numpy as np
from operators import BY_NAME, OPERATORS

import gluon_roi
from gluon_roi.inference import winograd
from testing.inference_operators import winograd_convolution

from .deformed import CALLS, Sampled, every_half
from .layers import geometry, numbers, run, run_deformable
from .overlapped import CALLS as OVERLAPPED
from .suppressed import CALLS as SUPPRESSED

DTYPES = ("float32", "float64", "float16")
ROWS: list = [(op, arguments) for op in OPERATORS for arguments in op.arguments[:2]]
ROWS += [(op, {"rois_grad": True}) for op in OPERATORS if op.rois_grad]
ROWS += [
    (BY_NAME["DeformablePSROIPool"], {"trans_std": 0.1}),
    (BY_NAME["ROIAlign"], {"mode": "max", "rois_grad": True}),
    (BY_NAME["ROIAlign"], {"mode": "max", "rois_grad": True, "sampling_ratio": 2, "aligned": True}),
    (
        BY_NAME["PyramidROIAlign"],
        {"rois_grad": True, "canonical_size": 20, "canonical_level": 0},
    ),
]
#: The key of a call, and its output and gradients.
Results = Iterator[Tuple[str, Sequence[mx.nd.NDArray]]]
#: Gives the types of data of the next call.
Types = Callable[[], Sequence[str]]


def of_operators(all_types: bool) -> dict[str, list[str]]:
    """Compute digests of the output and the gradients of calls of every operator.

    With `all_types` each call is made in float32, float64 and float16; otherwise the calls cycle
    through these types.
    """
    number = itertools.count()

    def types() -> Sequence[str]:
        return DTYPES if all_types else (DTYPES[next(number) % len(DTYPES)],)

    parts = (_pooling, _deformable_sampling, _suppression, _overlaps)
    results = itertools.chain.from_iterable(part(types) for part in parts)
    return {key: [_digest(array) for array in arrays] for key, arrays in results}


def _digest(array: mx.nd.NDArray) -> str:
    return hashlib.sha256(array.asnumpy().tobytes()).hexdigest()


def _pooling(types: Types) -> Results:
    rng = np.random.RandomState(0)
    corner = rng.uniform((-5, -5), (40, 30), (60, 2))
    image = np.repeat([0, 1, 2], [44, 8, 8])[:, None]
    rois = np.hstack([image, corner, corner + rng.uniform(0, 25, (60, 2))])
    rois[7, 0] = -1
    rois[rois[:, 0] == 2] = [0, 3, 4, 9, 12]
    turned = np.hstack([rois, rng.uniform(-180, 180, (60, 1))])
    for op, arguments in ROWS:
        for pooled in ((3, 2), (7, 7)):
            for dtype in types():
                groups = op.channels(1, pooled, arguments)
                channels = (21 if pooled == (3, 2) else 4) if groups > 1 else 37
                shape = (3, channels * groups, 48, 57)
                data = mx.nd.array(rng.randn(*shape), dtype=dtype)
                boxes = mx.nd.array(turned if op.coordinates == 5 else rois, dtype="float32")
                inputs = [data, boxes]
                maps: Any = data
                scale: Any = 0.9
                more: dict[str, Any] = {}
                if op.several_maps:
                    inputs.append(data[:, :, ::2, ::2])
                    maps, scale = [inputs[0], inputs[2]], (0.9, 0.45)
                if arguments.get("trans_std"):
                    inputs.append(mx.nd.array(rng.randn(60, 2, *pooled), dtype=dtype))
                    more = {"trans": inputs[2]}
                if op.name == "DeformableROIAlign":
                    inputs.append(mx.nd.array(rng.randn(60, 2, *pooled), dtype=dtype))
                    inputs.append(mx.nd.array(rng.rand(60, 1, *pooled), dtype=dtype))
                    more = {"offset": inputs[2], "mask": inputs[3]}
                for array in inputs:
                    array.attach_grad()
                function = getattr(gluon_roi.nd, op.name)
                with mx.autograd.record():
                    more.update(pooled_size=pooled, spatial_scale=scale)
                    out = function(maps, boxes, **arguments, **more)
                out.backward(mx.nd.array(rng.randn(*out.shape), dtype=dtype))
                arrays = (out, *(array.grad for array in inputs))
                yield f"{op.name} {arguments} {dtype} {pooled}", arrays


def _deformable_sampling(types: Types) -> Results:
    sampled = []
    for name, call in CALLS.items():
        call = call._replace(size=(48, 57))
        for dtype in types():
            sampled.append((name, call.parameters, call.arrays(dtype), call.d_out(dtype), 3))
    halves = every_half()
    # The gradients of offset and mask are sums of NaNs, which have the sign of any of them.
    sampled.append(("of every float16", {"kernel": 1}, halves, halves[0], 1))
    for name, parameters, given, d_out, gradients in sampled:
        inputs = [mx.nd.array(a, dtype=a.dtype) for a in given]
        for array in inputs[:gradients]:
            array.attach_grad()
        with mx.autograd.record():
            out = gluon_roi.nd.DeformableSampling(*inputs, **parameters)
        out.backward(mx.nd.array(d_out, dtype=d_out.dtype))
        arrays = (out, *(array.grad for array in inputs[:gradients]))
        yield f"DeformableSampling {name} {d_out.dtype}", arrays


def _suppression(types: Types) -> Results:
    for name, suppressed in SUPPRESSED.items():
        # More than a block of boxes, which divides among threads.
        larger = (1, 24, 25) if suppressed.op == "proposal" else (1400, suppressed.shape[-1])
        suppressed = suppressed._replace(shape=larger)
        for dtype in types():
            inputs = [mx.nd.array(a, dtype=dtype) for a in suppressed.arrays(dtype)]
            declared = "BoxNMS" if suppressed.op == "box_nms" else "Proposal"
            out = getattr(gluon_roi.nd, declared)(*inputs, **suppressed.parameters)
            yield f"{declared} {name} {dtype}", [out]


def _overlaps(types: Types) -> Results:
    for name, overlapped in OVERLAPPED.items():
        # Enough pairs for two threads.
        overlapped = overlapped._replace(lhs=(300,), rhs=(300,))
        for dtype in types():
            inputs = [mx.nd.array(a, dtype=dtype) for a in overlapped.arrays(dtype)]
            out = gluon_roi.nd.BoxIoU(*inputs, **overlapped.parameters)
            yield f"BoxIoU {name} {dtype}", [out]


def of_products() -> dict[str, str]:
    """Digests of what operators compute by a product of matrices (src/cpu/gemm.h).

    Sizes leave a remainder of tiles, cells, channels and outputs.
    """
    return {**_winograd(), **_convolutions(), **_deformable_convolutions()}


def _winograd() -> dict[str, str]:
    rng = np.random.RandomState(0)
    digests = {}
    for images, channels, outputs, height, width in [
        (1, 140, 70, 37, 41),
        (9, 33, 48, 14, 14),
        (1, 64, 112, 90, 100),
        (2, 20, 17, 19, 25),
    ]:
        for dilate in (1, 2):
            for with_residual in (False, True):
                shapes = [(images, channels, height, width), (outputs, channels, 3, 3), (outputs,)]
                shapes += [(images, outputs, height, width)] if with_residual else []
                data, weight, *more = (rng.randn(*shape) for shape in shapes)
                for tile in (4, 6):
                    transformed = winograd.transform_weights(weight, tile)
                    out = winograd_convolution(
                        *map(mx.nd.array, (data, transformed, *more)),
                        num_filter=outputs,
                        dilate=dilate,
                        act_type="relu",
                    )
                    key = f"{data.shape} to {outputs}, dilate {dilate}, residual {with_residual}"
                    digests[f"{key}, tile {tile}"] = _digest(out)
    return digests


def _convolutions() -> dict[str, str]:
    digests = {}
    for images, channels, outputs, height, width, shape in [
        (1, 530, 70, 38, 50, geometry()),
        (2, 100, 41, 75, 101, geometry(stride=2)),
        (1, 3, 64, 150, 200, geometry(7, 2, 3)),
        (9, 60, 31, 14, 14, geometry(3, 1, 1)),
        (1, 1100, 500, 7, 7, geometry()),
        (2, 60, 80, 19, 25, {**geometry(3, 1, 1), "num_group": 5}),
        (2, 50, 100, 38, 51, {**geometry(3, 2, 1), "num_group": 50}),
    ]:
        data = numbers(0, images, channels, height, width)
        per_group = channels // shape.get("num_group", 1)
        weight = numbers(1, outputs, per_group, *shape.pop("kernel"))
        out = run(data, weight, numbers(2, outputs), act_type="leaky", **shape)
        residual = numbers(3, *out.shape)
        for with_residual in (False, True):
            if with_residual:
                out = run(data, weight, numbers(2, outputs), residual, act_type="relu", **shape)
            key = f"{data.shape} to {outputs}, {shape}, residual {with_residual}"
            digests[key] = _digest(mx.nd.array(out))
    return digests


def _deformable_convolutions() -> dict[str, str]:
    digests = {}
    for outputs, channels, size, groups in [
        (70, 60, (38, 50), 1),
        (31, 20, (75, 101), 1),
        (500, 132, (7, 7), 11),
    ]:
        parameters = {"kernel": 3, "pad": 1, "num_deformable_group": groups}
        sampled = Sampled(channels, size, parameters, True)
        weight, bias = numbers(1, outputs, channels, 3, 3), numbers(2, outputs)
        out = run_deformable(sampled.arrays("float32"), weight, bias, act_type="relu", **parameters)
        digests[f"deformable: {channels} of {size} to {outputs}"] = _digest(mx.nd.array(out))
    return digests
