# SPDX-License-Identifier: Apache-2.0
"""Checks and times the CUDA kernels on a GPU, through the C interface, with torch's memory.

    python build_tools/presets.py gpu && python tests/gpu/check_kernels.py [PART ...]

The parts are table, reference, torchvision, repeat, large and time; by default all run. Needs NumPy
and torch with CUDA, and torchvision for the parts `torchvision` and `time`, but not MXNet. Exits
with 1 if a check fails.

Without a GPU, the parts table, reference, torchvision and repeat run on simulated kernels, in host
memory:

    python build_tools/presets.py hostsim
    python tests/gpu/check_kernels.py --simulated build/hostsim/libgluon_roi.so
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import statistics
import sys
import types
from functools import partial
from pathlib import Path
from typing import Any, Callable, Iterator

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
# Only gluon_roi.reference is used, because the import of the package needs MXNet.
package = types.ModuleType("gluon_roi")
package.__path__ = [str(ROOT / "gluon_roi")]
sys.modules["gluon_roi"] = package

from operators import ROWS  # noqa: E402
from support.cases import PRECISION, feature_map, row_id  # noqa: E402
from support.kernel_checks import CHECKS, Kernels, arguments_of, assert_same  # noqa: E402

from benchmarks.libraries import Torchvision  # noqa: E402
from benchmarks.work import POOLING, Item  # noqa: E402
from testing import c_api  # noqa: E402

#: "cpu" for simulated kernels.
DEVICE = "cuda"
RUNS = 20


def stream() -> int:
    return torch.cuda.current_stream().cuda_stream if DEVICE == "cuda" else 0


@contextlib.contextmanager
def own_stream() -> Iterator[None]:
    if DEVICE != "cuda":
        yield
        return
    own = torch.cuda.Stream()
    own.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(own):
        yield
    own.synchronize()


def to_device(array: np.ndarray) -> torch.Tensor:
    # A copy, also where there is nothing to copy.
    return torch.from_numpy(np.ascontiguousarray(array)).to(DEVICE)


def to_host(tensor: torch.Tensor) -> np.ndarray:
    return tensor.cpu().numpy()


class Call:
    """Forward and backward of one operator on arrays that stay on the GPU."""

    def __init__(self, library: c_api.Library, op: str, p: Any, data: Any, rois: Any):
        self.library, self.op, self.p, self.data, self.rois = library, op, p, data, rois
        self.inputs = c_api.tensors(data, rois)
        shape = library.operators[op].output_shape(p, data, rois)
        self.out = torch.empty(shape, dtype=data.dtype, device=DEVICE)
        self.d_data = torch.empty_like(data)
        self.d_rois = torch.empty_like(rois)
        sizes = [library.workspace(op, p, self.inputs, b, c_api.CUDA) for b in (False, True)]
        self.memory = torch.empty(max(sizes) + 1, dtype=torch.uint8, device=DEVICE)

    def _device(self) -> c_api.Device:
        memory = self.memory
        return c_api.Device(c_api.CUDA, stream(), memory.data_ptr(), memory.numel())

    def forward(self) -> torch.Tensor:
        self.library.forward(self.op, self.p, self.inputs, self.out, self._device())
        return self.out

    def backward(self, d_out: torch.Tensor) -> torch.Tensor:
        gradients = (self.d_data, self.d_rois)
        self.library.backward(self.op, self.p, self.inputs, d_out, gradients, self._device())
        return self.d_data

    def both(self, d_out: torch.Tensor) -> torch.Tensor:
        self.forward()
        return self.backward(d_out)


# ---- Parts ---------------------------------------------------------------------------------------


def table(library: c_api.Library) -> dict[str, Callable[[], None]]:
    """The checks that the simulated kernels pass: against the CPU half, on awkward input."""
    kernels = Kernels(library, to_device, to_host, stream)
    return {name: partial(check, kernels) for name, check in CHECKS.items()}


def reference(library: c_api.Library) -> dict[str, Callable[[], None]]:
    """Values and gradients against gluon_roi.reference."""
    kernels = Kernels(library, to_device, to_host, stream)

    def check(op: Any, arguments: dict, dtype: str) -> None:
        pooled, scale = (2, 3), 0.3
        data = feature_map(op.channels(17, pooled, arguments), dtype)
        rois = op.all_rois(scale, "float64" if dtype == "float64" else "float32")
        symbol = library.symbols[op.name]
        p = library.params(symbol, pooled, scale, **arguments_of(op, arguments))
        (out,) = kernels.run(symbol, p, data, rois)
        precision = PRECISION[dtype]
        assert_same(out, op.expected(data, rois, pooled, scale, **arguments), precision.forward)
        d_out = np.random.RandomState(1).randn(*out.shape).astype(dtype)
        expected = op.expected_gradients(d_out, data, rois, pooled, scale, **arguments)
        for actual, exact in zip(kernels.run(symbol, p, data, rois, d_out), expected):
            assert_same(actual, np.asarray(exact), precision.backward, normwise=True)

    return {
        f"{op.name}-{row_id(arguments)}-{dtype}": partial(check, op, arguments, dtype)
        for op, arguments in ROWS
        for dtype in PRECISION
    }


#: What is timed, and compared with torchvision; the others are compared with the CPU.
WORK = tuple(item for item in POOLING if Torchvision.has(item))


def peer(item: Item) -> Callable:
    """The same operator in torchvision."""
    from torchvision import ops

    size, scale, ratio = (item.pooled,) * 2, 1 / item.stride, item.sampling_ratio
    if item.operator == "ROIPool":
        return lambda x, r: ops.roi_pool(x, r, size, scale)
    if item.operator == "ROIAlign":
        return lambda x, r: ops.roi_align(x, r, size, scale, ratio, item.aligned)
    if item.operator == "PSROIPool":
        return lambda x, r: ops.ps_roi_pool(x, r, size, scale)
    return lambda x, r: ops.ps_roi_align(x, r, size, scale, ratio)


def params_of(library: c_api.Library, item: Item) -> tuple[str, Any]:
    symbol, arguments = library.symbols[item.operator], item.arguments
    if item.operator == "PSROIPool":
        arguments["convention"] = "torchvision"
    size = (item.pooled, item.pooled)
    return symbol, library.params(symbol, size, 1 / item.stride, **arguments)


def torchvision(library: c_api.Library) -> dict[str, Callable[[], None]]:
    """Values and gradients against torchvision.ops on the GPU, on the work that is timed."""

    def check(item: Item) -> None:
        data, rois, d_out = (to_device(array) for array in item.arrays())
        call = Call(library, *params_of(library, item), data, rois)
        data.requires_grad_()
        expected = peer(item)(data, rois)
        # torchvision's sample positions come out of fused multiply-adds, 1e-5 cells away from ours.
        near = 1e-4 if item.of.samples else 1e-5
        torch.testing.assert_close(call.forward(), expected.detach(), rtol=near, atol=near)
        if item.operator == "PSROIPool":
            return  # torchvision's own gradient is not that of its forward pass
        expected.backward(d_out)
        scale = float(data.grad.abs().max())
        torch.testing.assert_close(
            call.backward(d_out), data.grad, rtol=1e-4, atol=1e-4 * max(1, scale)
        )

    return {item.name: partial(check, item) for item in WORK}


def repeat(library: c_api.Library) -> dict[str, Callable[[], None]]:
    """The same bytes in every run, forward and backward, on a separate stream."""

    def check(item: Item) -> None:
        data, rois, d_out = (to_device(array) for array in item.arrays())
        with own_stream():
            symbol, p = params_of(library, item)
            if symbol.endswith("align"):
                p.rois_grad = 1
            call = Call(library, symbol, p, data, rois)
            call.forward()
            call.backward(d_out)
            first = [x.clone() for x in (call.out, call.d_data, call.d_rois)]
            for _ in range(RUNS - 1):
                call.forward()
                call.backward(d_out)
                for a, b in zip(first, (call.out, call.d_data, call.d_rois)):
                    assert torch.equal(a.view(torch.int32), b.view(torch.int32))

    return {item.name: partial(check, item) for item in WORK}


def large(library: c_api.Library) -> dict[str, Callable[[], None]]:
    """Offsets beyond 2^31: the last image of a large batch against the same image alone."""

    def check(op: str) -> None:
        data = torch.randn(3, 1024, 900, 900, dtype=torch.float16, device=DEVICE)
        rois = torch.tensor([[2, 3, 5, 800, 700], [2, 850, 880, 899, 899.0]], device=DEVICE)
        alone = rois.clone()
        alone[:, 0] = 0
        p = library.params(op, (2, 2), 1.0)
        whole = Call(library, op, p, data, rois)
        part = Call(library, op, p, data[2:].clone(), alone)
        assert torch.equal(whole.forward(), part.forward())
        d_out = torch.randn_like(whole.out)
        assert torch.equal(whole.backward(d_out)[2:], part.backward(d_out))
        assert not whole.d_data[:2].any()

    return {op: partial(check, op) for op in library.operators}


# ---- Times ---------------------------------------------------------------------------------------


def median(calls: list[Callable[[], Any]]) -> float:
    """Milliseconds of a call, by events; calls take turns, so that no input stays in the cache."""
    times = []
    for i in range(8 + RUNS * 2):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        calls[i % len(calls)]()
        end.record()
        end.synchronize()
        if i >= 8:
            times.append(begin.elapsed_time(end))
    return statistics.median(times)


def copy_bandwidth() -> float:
    """Bandwidth of a copy on this GPU in TB/s, counting reads and writes."""
    source, target = (torch.empty(1 << 28, device=DEVICE) for _ in range(2))
    return 2 * source.nbytes / median([lambda: target.copy_(source)]) / 1e9


def times_of(library: c_api.Library, item: Item) -> list[float]:
    """Medians of forward and of forward + backward, ours and torchvision's."""
    data, rois, d_out = (to_device(array) for array in item.arrays())
    theirs = peer(item)

    def their_forward(x: torch.Tensor) -> Any:
        return theirs(x.detach(), rois)

    def their_both(x: torch.Tensor) -> Any:
        return torch.autograd.grad(theirs(x, rois), x, d_out)

    inputs = [
        data.clone().requires_grad_() for _ in range(max(2, min(16, (1 << 27) // data.nbytes)))
    ]
    calls = [Call(library, *params_of(library, item), x.detach(), rois) for x in inputs]
    ways: list[list[Callable[[], Any]]] = [
        [call.forward for call in calls],
        [partial(their_forward, x) for x in inputs],
        [partial(call.both, d_out) for call in calls],
        [partial(their_both, x) for x in inputs],
    ]
    return [median(way) for way in ways]


def times(library: c_api.Library) -> None:
    """A table beside torchvision; the bars are 1.5x forward, 2x forward + backward."""
    copy = copy_bandwidth()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, copies {copy:.2f} TB/s")
    print("ms forward: ours, torchvision; forward + backward: ours, torchvision; copy bandwidth")
    for item in WORK:
        a, b, c, d = times_of(library, item)
        share = item.bytes / (a * 1e9) / copy
        print(
            f"{item.name:38} {a:8.3f} {b:8.3f} {b / a:5.2f}x   {c:8.3f} {d:8.3f} {d / c:5.2f}x"
            f"   {share:4.0%}"
        )


PARTS = {f.__name__: f for f in (table, reference, torchvision, repeat, large)}
#: Those that take minutes in a simulation, and not days.
SIMULATED = ("table", "reference", "torchvision", "repeat")


def main() -> int:
    global DEVICE, RUNS
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", help=", ".join([*PARTS, "time"]))
    parser.add_argument("--library", default=str(ROOT / "build/gpu/libgluon_roi.so"))
    parser.add_argument("--simulated", metavar="LIBRARY", help="of kernels that run on the CPU")
    options = parser.parse_args()
    parts = SIMULATED if options.simulated else (*PARTS, "time")
    unknown = set(options.parts) - set(parts)
    if unknown:
        parser.error(f"unknown parts: {', '.join(sorted(unknown))}; expected {', '.join(parts)}")
    if options.simulated:
        DEVICE, RUNS = "cpu", 2
    library = c_api.Library(options.simulated or options.library)
    has_peer = importlib.util.find_spec("torchvision") is not None
    failures = 0
    for part in options.parts or parts:
        if part in ("torchvision", "time") and not has_peer:
            print(f"{part}: skipped, torchvision is not installed")
            continue
        if part == "time":
            times(library)
            continue
        checks = PARTS[part](library)
        passed = 0
        for name, check in checks.items():
            try:
                check()
                passed += 1
            except Exception as error:  # every failure is reported, then the next check runs
                print(f"{part}: {name}: {type(error).__name__}: {error}")
        failures += len(checks) - passed
        print(f"{part}: {passed} of {len(checks)} checks passed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
