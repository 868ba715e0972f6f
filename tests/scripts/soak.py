# SPDX-License-Identifier: Apache-2.0
"""Many calls through MXNet in one process: memory stays flat, threads do not interfere, forks work.

    python tests/scripts/soak.py [--calls 20000] [--only nd hybrid ...]

Each kind of call is made this many times, forward and backward, with every operator that pools
boxes in turn, with every deformable convolution ("convolutions"), or with BoxNMS, Proposal and
BoxIoU ("suppression"). Memory is read 12 times. Until the third reading caches fill; from then on,
memory may grow by at most LIMIT. The first fault ends the program with exit code 1.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Callable

os.environ["MXNET_SUBGRAPH_VERBOSE"] = "0"

import mxnet as mx  # noqa: E402
import numpy as np  # noqa: E402

import gluon_roi  # noqa: E402

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from operators import OPERATORS  # noqa: E402
from support.overlapped import CALLS as OVERLAPPED  # noqa: E402
from support.suppressed import CALLS, Suppressed  # noqa: E402

#: Megabytes that a process may grow by; a gradient has 0.1 or more, which adds up if it is lost.
LIMIT = 8.0
LOOKS, CACHES_FILL = 12, 3
POOLED, SCALE, IMAGES, ROIS = (7, 7), 0.25, 2, 64
THREADS, REFUSED_EVERY = 8, 5
#: Calls of one operator in a row, which threads make at the same time.
IN_A_ROW = 2 * THREADS
#: Besides WAYS.
OTHERS = ("convolutions", "suppression", "threads", "fork")

Call = Callable[[], None]


class Pool(mx.gluon.HybridBlock):
    """An operator behind a part of a network."""

    def __init__(self, op: Any) -> None:
        super().__init__()
        self.pool = op.block(pooled_size=POOLED, spatial_scale=SCALE)

    def hybrid_forward(self, F: Any, data: Any, rois: Any) -> Any:
        return self.pool(F.relu(data), rois)


def arrays(op: Any, seed: int, rows: int = ROIS, size: tuple[int, int] = (20, 25)) -> tuple:
    """data and rois, which have padding among them."""
    rng = np.random.RandomState(seed)
    data = rng.randn(IMAGES, op.channels(4, POOLED, {}), *size)
    low = rng.uniform(-20, 80, (rows, 2))
    boxes = np.hstack([low, low + rng.uniform(0, 100, (rows, 2))])
    rois = np.hstack([rng.randint(-1, IMAGES, (rows, 1)), boxes])
    return mx.nd.array(data), mx.nd.array(op.rois(rois))


def both_passes(function: Callable, data: Any, *others: Any) -> tuple:
    """The output and the gradient of the first input, the map."""
    data.attach_grad()
    with mx.autograd.record():
        out = function(data, *others)
    out.backward()
    return out, data.grad


# ---- Ways of calling: an operator -> a function that makes one call ------------------------------


def imperative(op: Any) -> Call:
    function = op.function
    data, rois = arrays(op, 0)
    return lambda: both_passes(lambda x, r: function(x, r, POOLED, SCALE), data, rois)[
        1
    ].wait_to_read()


def hybridized(op: Any, **how: bool) -> Call:
    block = Pool(op)
    block.hybridize(**how)
    data, rois = arrays(op, 0)
    return lambda: both_passes(block, data, rois)[1].wait_to_read()


def static(op: Any) -> Call:
    return hybridized(op, static_alloc=True, static_shape=True)


def symbol_of(op: Any) -> Any:
    return Pool(op)(mx.sym.var("data"), mx.sym.var("rois"))


def executor(op: Any) -> Call:
    data, rois = arrays(op, 0)
    bound = symbol_of(op).simple_bind(mx.cpu(), data=data.shape, rois=rois.shape)

    def call() -> None:
        (out,) = bound.forward(is_train=True, data=data, rois=rois)
        bound.backward(mx.nd.ones_like(out))
        bound.grad_dict["data"].wait_to_read()

    return call


def module(op: Any) -> Call:
    data, rois = arrays(op, 0)
    # Module wants the same first dimension everywhere: boxes per image.
    rois = rois[:, 1:].reshape((IMAGES, -1, op.coordinates))
    loss = mx.sym.MakeLoss(symbol_of(op).reshape((IMAGES, -1)))
    bound = mx.mod.Module(loss, data_names=("data", "rois"), label_names=None)
    bound.bind([("data", data.shape), ("rois", rois.shape)], inputs_need_grad=True)
    bound.init_params()
    batch = mx.io.DataBatch([data, rois])

    def call() -> None:
        bound.forward(batch, is_train=True)
        bound.backward()
        bound.get_input_grads()[0].wait_to_read()

    return call


def new_rois(op: Any) -> Call:
    """Another K in each call, of a network that is compiled."""
    block = Pool(op)
    block.hybridize(static_alloc=True)
    data, rois = arrays(op, 0)
    rng = np.random.RandomState(0)
    return lambda: both_passes(block, data, rois[: rng.randint(1, ROIS)])[1].wait_to_read()


def new_maps(op: Any) -> Call:
    """A new map of another size, and new RoIs, in each call."""
    function = op.function
    rng = np.random.RandomState(0)

    def call() -> None:
        data, rois = arrays(op, rng.randint(1000), ROIS, tuple(rng.randint(5, 30, 2)))
        both_passes(lambda x, r: function(x, r, POOLED, SCALE), data, rois)[1].wait_to_read()

    return call


def errors(op: Any) -> Call:
    """A batch index beyond the batch, RoIs without a column, an argument: each is refused."""
    function = op.function
    data, rois = arrays(op, 0)
    wrong = rois.copy()
    wrong[-1, 0] = IMAGES
    calls = [
        lambda: function(data, wrong, POOLED, SCALE).wait_to_read(),
        lambda: function(data, rois[:, :3], POOLED, SCALE).wait_to_read(),
        lambda: function(data, rois, POOLED, -SCALE).wait_to_read(),
    ]

    def call() -> None:
        for one in calls:
            try:
                one()
            except (mx.MXNetError, ValueError):
                continue
            sys.exit(f"{op.name}: a wrong call passed")

    return call


WAYS: dict[str, Callable[[Any], Call]] = {
    "nd": imperative,
    "hybrid": hybridized,
    "static": static,
    "Executor": executor,
    "Module": module,
    "new K": new_rois,
    "new maps": new_maps,
    "errors": errors,
}


def convolutions() -> list[Call]:
    """Deformable convolutions: the samples, the function, and both blocks in compiled networks."""
    rng = np.random.RandomState(0)
    sizes = ((IMAGES, 8, 20, 25), (IMAGES, 18, 20, 25), (4, 8, 3, 3))
    data, offset, weight = (mx.nd.array(rng.randn(*size)) for size in sizes)

    def learned(block: Any) -> Callable:
        net = block(4, kernel_size=3, padding=1, in_channels=8)
        net.initialize()
        net.hybridize(static_alloc=True)
        return lambda x, moves: net(x)

    def call(function: Callable) -> Call:
        return lambda: both_passes(function, data, offset)[1].wait_to_read()

    nd = gluon_roi.nd
    return [
        call(lambda x, moves: nd.DeformableSampling(x, moves, kernel=3, pad=1)),
        call(lambda x, moves: nd.DeformableConvolution(x, moves, weight, kernel=3, pad=1)),
        call(learned(gluon_roi.DeformableConvolution)),
        call(learned(gluon_roi.ModulatedDeformableConvolution)),
    ]


def suppression(one: Suppressed) -> tuple[Callable, list]:
    """BoxNMS or Proposal, and its inputs."""
    function = partial(getattr(gluon_roi.nd, one.name), **one.parameters)
    return function, [mx.nd.array(array) for array in one.arrays("float32")]


def suppressions() -> list[Call]:
    """BoxNMS and Proposal as functions, and as blocks of hybridized networks."""

    def call(function: Callable, inputs: list) -> Call:
        return lambda: both_passes(function, *inputs)[1].wait_to_read()

    calls = []
    for one in CALLS.values():
        function, inputs = suppression(one)
        block = getattr(gluon_roi, one.name)(**one.parameters)
        block.hybridize(static_alloc=True)
        calls += [call(function, inputs), call(block, inputs)]
    for overlapped in OVERLAPPED.values():
        inputs = [mx.nd.array(array) for array in overlapped.arrays("float32")]
        calls.append(call(partial(gluon_roi.nd.BoxIoU, **overlapped.parameters), inputs))
    return calls


# ---- What is looked at ---------------------------------------------------------------------------


def megabytes() -> float:
    """Memory of this process, without what the allocator keeps for later."""
    mx.nd.waitall()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def check_memory(way: str, count: int) -> None:
    began = time.monotonic()
    others = {"convolutions": convolutions, "suppression": suppressions}
    calls = others[way]() if way in others else [WAYS[way](op) for op in OPERATORS]
    seen = []
    for look in range(LOOKS):
        for i in range(look * count // LOOKS, (look + 1) * count // LOOKS):
            calls[i % len(calls)]()
        seen.append(megabytes())
    after = seen[CACHES_FILL:]
    third = len(after) // 3
    grown = statistics.median(after[-third:]) - statistics.median(after[:third])
    seconds = time.monotonic() - began
    print(
        f"{way}: {count} calls, {seen[-1]:.0f} MB, grown by {grown:.1f}, {seconds:.0f} s",
        flush=True,
    )
    if grown > LIMIT:
        sys.exit(f"{way}: the process grows: {' '.join(f'{mb:.1f}' for mb in seen)} MB")


def check_threads(count: int) -> None:
    """The same bytes from each of THREADS Python threads as from one, beside refused calls."""

    others = list(CALLS.values())

    def call(number: int, refused: bool = False) -> list | None:
        """Bytes of a call, or None if it is refused: with a column too few, or a dtype."""
        place = number // IN_A_ROW
        function: Callable
        inputs: Any
        if place < len(OPERATORS):
            function = partial(OPERATORS[place].function, pooled_size=POOLED, spatial_scale=SCALE)
            inputs = arrays(OPERATORS[place], number, 1 + number % 50)
        else:
            function, inputs = suppression(others[place - len(OPERATORS)])
        if refused:
            last = inputs[-1].astype("int32") if number % 2 else inputs[-1][..., :2]
            inputs = (*inputs[:-1], last)
        try:
            results = both_passes(function, *inputs)
        except mx.MXNetError:
            if not refused:
                raise
            return None
        return [array.asnumpy().tobytes() for array in results]

    def call_in_turn(number: int) -> list | None:
        return call(number % different, refused=number % REFUSED_EVERY == 0)

    began = time.monotonic()
    different = IN_A_ROW * (len(OPERATORS) + len(others))
    expected = [call(number) for number in range(different)]
    with ThreadPoolExecutor(THREADS) as pool:
        for number, results in enumerate(pool.map(call_in_turn, range(count))):
            refused = number % REFUSED_EVERY == 0
            if results != (None if refused else expected[number % different]):
                sys.exit(f"call {number} gives something else beside {THREADS - 1} other threads")
    seconds = time.monotonic() - began
    print(f"{THREADS} threads: {count} calls, the same as alone, {seconds:.0f} s", flush=True)


def check_fork() -> None:
    for used_before in ("c", "mxnet"):
        script, library = str(HERE / "fork.py"), str(gluon_roi.library.PATH)
        command = [sys.executable, script, used_before, library]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=300)
        if done.stdout.split() != ["equal"] * 4:
            sys.exit(f"fork after {used_before}: expected 4 x equal, got '{done.stdout}'")
        print(f"fork after {used_before}: two children, two calls each, equal", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--calls", type=int, default=20000, help="of each way (default: 20000)")
    parser.add_argument("--only", nargs="+", default=[*WAYS, *OTHERS])
    options = parser.parse_args()
    unknown = set(options.only) - {*WAYS, *OTHERS}
    if unknown or options.calls < LOOKS:
        parser.error(f"expected {', '.join([*WAYS, *OTHERS])}, and at least {LOOKS} calls")
    for name in options.only:
        if name == "threads":
            check_threads(options.calls)
        elif name == "fork":
            check_fork()
        else:
            check_memory(name, options.calls)


if __name__ == "__main__":
    main()
