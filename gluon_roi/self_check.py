# SPDX-License-Identifier: Apache-2.0
"""The check command: tests every operator on the CPU, and on every GPU that MXNet finds.

On the CPU each operator is compared with its NumPy reference, on a GPU with the CPU: forward and
backward, in float16, float32 and float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Sequence

import mxnet as mx
import numpy as np

import gluon_roi
from gluon_roi import _compat, gpu, reference
from gluon_roi.files import sentence
from gluon_roi.library import Declared

POOLED, SCALE = 3, 0.1


class Tolerance(NamedTuple):
    """Maximum error, relative to a value plus the largest value."""

    forward: float
    backward: float


TOLERANCES = {
    "float32": Tolerance(2e-6, 2e-5),
    "float64": Tolerance(1e-12, 1e-12),
    "float16": Tolerance(1e-3, 2e-3),
}


@dataclass(frozen=True)
class Case:
    """A call of an operator."""

    operator: Declared
    inputs: dict[str, np.ndarray]  # by name, float64; the maps of a pyramid are data0, data1, ...
    arguments: dict[str, Any]
    has_geometry: bool = True  # whether positions are float32 for float16 and float32 data

    def arrays(self, dtype: str) -> dict[str, np.ndarray]:
        """The inputs in this dtype; RoIs are never float16."""
        rois = "float64" if dtype == "float64" else "float32"
        return {
            name: value.astype(rois if name == self.operator.rois_name else dtype)
            for name, value in self.inputs.items()
        }

    def named(self, values: Sequence[Any]) -> dict[str, Any]:
        """Map the names of the function's arguments to values in the order of the inputs."""
        named = dict(zip(self.inputs, values))
        if self.operator.several_maps:
            maps = [name for name in named if name != self.operator.rois_name]
            named["data"] = [named.pop(name) for name in maps]
        return named


class Results(NamedTuple):
    outputs: list[np.ndarray]
    gradients: dict[str, np.ndarray]  # by the name of the input


class Device(Protocol):
    """An implementation of the operators."""

    def run(self, case: Case, dtype: str, d_outs: list[np.ndarray] | None) -> Results:
        """Run a case, including its backward pass if output gradients are given."""


class MXNetDevice:
    """A context of MXNet.

    MXNet's kernels are not used: arrays are copied, and head gradients are given.
    """

    def __init__(self, context: mx.Context) -> None:
        self.context = context

    def _array(self, value: np.ndarray) -> mx.nd.NDArray:
        return mx.nd.array(value, ctx=self.context, dtype=value.dtype)

    def run(self, case: Case, dtype: str, d_outs: list[np.ndarray] | None) -> Results:
        arrays = case.arrays(dtype)
        inputs = [self._array(value) for value in arrays.values()]
        # Filled, so that elements that the backward pass does not write differ.
        gradients = [self._array(np.full_like(value, 9)) for value in arrays.values()]
        mx.autograd.mark_variables(inputs, gradients)
        function = getattr(gluon_roi.nd, case.operator.name)
        with mx.autograd.record():
            result = function(**case.named(inputs), **case.arguments)
        outputs = result if isinstance(result, list) else [result]
        if d_outs is not None:
            mx.autograd.backward(outputs, [self._array(value) for value in d_outs])
        return Results(
            [output.asnumpy() for output in outputs],
            {name: array.asnumpy() for name, array in zip(arrays, gradients)},
        )


class Reference:
    """The NumPy functions of gluon_roi.reference."""

    def run(self, case: Case, dtype: str, d_outs: list[np.ndarray] | None) -> Results:
        arrays = case.arrays(dtype)
        arguments = {name: value for name, value in case.arguments.items() if name != "rois_grad"}
        arguments.pop("output_score", None)
        if case.has_geometry:
            arguments["geometry"] = np.float64 if dtype == "float64" else np.float32
        inputs = case.named(list(arrays.values()))
        symbol = case.operator.symbol
        if symbol == "box_nms":
            out, record = reference.box_nms(**inputs, **arguments)
            if d_outs is None:
                return Results([out], {})
            return Results([out], {"data": reference.box_nms_backward(d_outs[0], record)})
        if not any(declared.has_gradient for declared in case.operator.inputs):
            found = getattr(reference, symbol)(**inputs, **arguments)
            zeros = {name: np.zeros_like(value) for name, value in arrays.items()}
            return Results(list(found) if isinstance(found, tuple) else [found], zeros)
        outputs = [getattr(reference, symbol)(**inputs, **arguments)]
        if d_outs is None:
            return Results(outputs, {})
        found = getattr(reference, f"{symbol}_backward")(d_outs[0], **inputs, **arguments)
        # One array, or one for each input with a gradient; the gradients of a pyramid are a list.
        listed = list(found) if isinstance(found, tuple) else [found]
        listed = [*listed[0], *listed[1:]] if case.operator.several_maps else listed
        named = (name for name in arrays if case.operator.input_of(name).has_gradient)
        gradients = {name: np.zeros(value.shape) for name, value in arrays.items()}
        gradients.update(zip(named, listed))
        return Results(outputs, gradients)


def cases() -> list[Case]:
    """One case for each operator, in the order of OPERATORS."""
    declared = gluon_roi.library.operators()
    return [_case(declared[block.__name__]) for block in gluon_roi.OPERATORS]


def _case(operator: Declared) -> Case:
    rng = np.random.RandomState(0)
    if operator.name == "BoxNMS":
        return Case(operator, {"data": np.sort(rng.rand(2, 90, 6))}, {"overlap_thresh": 0.25})
    if operator.name == "BoxIoU":
        boxes = rng.uniform((0, 0, 4, 4, -180), (40, 40, 30, 30, 180), (2, 20, 5))
        return Case(operator, {"lhs": boxes[0], "rhs": boxes[1]}, {"format": "rotated"})
    if operator.name == "Proposal":
        inputs = {
            "cls_prob": rng.rand(2, 6, 9, 8),
            "bbox_pred": 0.3 * rng.randn(2, 12, 9, 8),
            "im_info": np.full((2, 3), 120.0),
        }
        proposals = {"scales": (4.0,), "rpn_post_nms_top_n": 30, "rpn_min_size": 0}
        return Case(operator, inputs, {**proposals, "output_score": True})
    if operator.name == "DeformableSampling":
        inputs = {
            name: rng.randn(2, channels, 20, 30)
            for name, channels in (("data", 4), ("offset", 18), ("mask", 9))
        }
        return Case(operator, inputs, {"kernel": 3, "pad": 1})
    return _pooling_case(operator, rng)


def _pooling_case(operator: Declared, rng: np.random.RandomState) -> Case:
    """16 boxes on two images, with a padding row and a NaN coordinate."""
    data = rng.randn(2, 27, 20, 30)
    low = rng.uniform(0, 200, (16, 2))
    rois = np.hstack([rng.randint(0, 2, (16, 1)), low, low + rng.uniform(1, 150, (16, 2))])
    if operator.coordinates == 5:
        rois = np.hstack([rois, rng.uniform(-180, 180, (16, 1))])
    rois[3, 0], rois[5, 2] = -1, np.nan
    scale: Any = SCALE
    inputs = {"data": data, "rois": rois}
    if operator.several_maps:
        inputs = {"data0": data, "data1": data[:, :, ::2, ::2], "rois": rois}
        scale = (SCALE, SCALE / 2)
    if "trans" in operator.input_names:
        inputs["trans"] = rng.randn(16, 2, POOLED, POOLED)
    if "offset" in operator.input_names:
        inputs["offset"] = rng.randn(16, 2, POOLED, POOLED)
        inputs["mask"] = rng.rand(16, 1, POOLED, POOLED)
    arguments: dict[str, Any] = {"pooled_size": POOLED, "spatial_scale": scale}
    if "rois_grad" in operator.parameters:
        arguments["rois_grad"] = True
    has_geometry = operator.name not in ("ROIPool", "PSROIPool", "PrROIPool")
    return Case(operator, inputs, arguments, has_geometry)


def differences(case: Case, device: Device, expected_by: Device, repeats: bool) -> list[str]:
    """Descriptions of all differences. With `repeats`, two runs must also be identical."""
    found = []
    for dtype, tolerance in TOLERANCES.items():
        try:
            shapes = expected_by.run(case, dtype, None).outputs
            rng = np.random.RandomState(1)
            d_outs = [rng.randn(*output.shape).astype(dtype) for output in shapes]
            expected = expected_by.run(case, dtype, d_outs)
            actual = device.run(case, dtype, d_outs)
            again = device.run(case, dtype, d_outs) if repeats else actual
        except (mx.MXNetError, RuntimeError) as error:
            found.append(f"{dtype}: {sentence(str(error))}")
            continue
        pairs = [
            (f"output {i}", a, b, tolerance.forward)
            for i, (a, b) in enumerate(zip(actual.outputs, expected.outputs))
        ]
        pairs += [
            (f"gradient of {name}", actual.gradients[name], value, tolerance.backward)
            for name, value in expected.gradients.items()
        ]
        for name, a, b, limit in pairs:
            distance = _distance(a, b)
            if not distance <= limit:
                found.append(f"{dtype} {name} by {distance:.2g}, expected at most {limit:g}")
        same = all(
            a.tobytes() == b.tobytes()
            for a, b in zip(
                [*actual.outputs, *actual.gradients.values()],
                [*again.outputs, *again.gradients.values()],
            )
        )
        if not same:
            found.append(f"{dtype} from one run to the next")
    return found


def _distance(actual: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference, relative to the expected value plus the largest value."""
    if actual.shape != expected.shape or (np.isnan(actual) != np.isnan(expected)).any():
        return np.inf
    with np.errstate(over="ignore"):
        expected = expected.astype(actual.dtype).astype("float64")
    magnitude = np.abs(expected) + max(1.0, np.nanmax(np.abs(expected), initial=0.0))
    return float(np.nanmax(np.abs(actual.astype("float64") - expected) / magnitude, initial=0.0))


def check() -> int:
    """Print the build, patches that do not match, and the result for each operator.

    Return 1 if an operator differs or a patch does not match, otherwise 0.
    """
    info = {"library": gluon_roi.library.PATH, **gluon_roi.build_info()}
    for key, value in info.items():
        print(f"{key:12} {value}")
    unmatched = _compat.unmatched()
    for line in unmatched:
        print(line)
    cpu = MXNetDevice(mx.cpu())
    agree = _print_results(cpu, Reference(), "the reference", False)
    failed = not agree or len(unmatched) > 0
    for context in map(mx.gpu, range(mx.context.num_gpus())):
        print(f"{str(context):12} {gpu.device_name(context.device_id)}")
        gpu.check_begins(context)
        if _print_results(MXNetDevice(context), cpu, f"the CPU on {context}", True):
            _record(context)
        else:
            failed = True
    return 1 if failed else 0


def _print_results(device: Device, expected_by: Device, expected: str, repeats: bool) -> bool:
    """Print a line for each operator and each difference; return whether all agree."""
    agree = True
    for case in cases():
        found = differences(case, device, expected_by, repeats)
        agree = agree and not found
        result = "DIFFERS from" if found else "agrees with"
        print(f"{case.operator.name:20} {result} {expected}", flush=True)
        for line in found:
            print(f"{'':20} {line}")
    return agree


def _record(context: mx.Context) -> None:
    try:
        print(f"{context} is recorded as checked in {gpu.record_check(context)}")
    except OSError as error:
        print(f"{context} cannot be recorded as checked, and will warn again: {error}")
