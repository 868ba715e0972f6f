# SPDX-License-Identifier: Apache-2.0
"""Several threads call one operator, and one call in three is refused: prints "equal".

    python refused_calls.py CALLS WAY...

Each of six threads makes CALLS calls with the same parameters: of the function ("nd"), of a block
that is hybridized ("hybrid"), or with static memory ("static"); forward, or with the backward pass
("nd,recorded"). Valid calls return the bytes of a call without other threads.
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, List

import mxnet as mx
import numpy as np

import gluon_roi

THREADS, REFUSED_EVERY = 6, 3
POOLED, SCALE = 7, 0.125
HYBRIDIZE = {"hybrid": {}, "static": {"static_alloc": True, "static_shape": True}}
RNG = np.random.RandomState(0)
DATA = RNG.randn(2, 8, 7, 7).astype("float32")
ROIS = np.array([[0, 0, 0, 30, 30], [1, 3, 4, 50, 60]], "float32")
REFUSED = [
    ("rois has shape", ROIS[:, 1:]),  # four columns
    ("rois has dtype int32", ROIS.astype("int32")),
]


def function_of(way: str) -> Callable:
    if way == "nd":
        return lambda data, rois: gluon_roi.nd.ROIAlign(data, rois, POOLED, SCALE)
    block = gluon_roi.ROIAlign(POOLED, SCALE)
    block.hybridize(**HYBRIDIZE[way])
    return block


def result_of(function: Callable, recorded: bool) -> List[bytes]:
    """The bytes of the output, and of the gradient of data."""
    # Arrays of one thread: MXNet keeps the recorded graph in the arrays that it reads.
    data, rois = mx.nd.array(DATA), mx.nd.array(ROIS)
    if not recorded:
        return [function(data, rois).asnumpy().tobytes()]
    data.attach_grad()
    with mx.autograd.record():
        out = function(data, rois)
    out.backward()
    return [out.asnumpy().tobytes(), data.grad.asnumpy().tobytes()]


def refuse(function: Callable, number: int) -> None:
    expected, rois = REFUSED[number % len(REFUSED)]
    try:
        function(mx.nd.array(DATA), mx.nd.array(rois, dtype=rois.dtype)).wait_to_read()
    except mx.MXNetError as error:
        assert expected in str(error), error
    else:
        raise AssertionError(f"a call was accepted, expected: {expected}")


def check(way: str, calls: int) -> None:
    way, _, recorded = way.partition(",")
    function = function_of(way)
    expected = result_of(function, bool(recorded))

    def run(thread: int) -> Any:
        for number in range(calls):
            if number % REFUSED_EVERY == thread % REFUSED_EVERY:
                refuse(function, number)
            else:
                assert result_of(function, bool(recorded)) == expected

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(run, range(THREADS)))


if __name__ == "__main__":
    calls, *ways = sys.argv[1:]
    for way in ways:
        check(way, int(calls))
    print("equal")
