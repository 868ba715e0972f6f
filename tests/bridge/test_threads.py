# SPDX-License-Identifier: Apache-2.0
"""Calls from several Python threads: refused calls, threads that end, forks."""

import copy
import gc
import pickle
import runpy
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import mxnet as mx
import numpy as np
import pytest
from in_graphs import POOLED, SCALE, SCRIPTS, channels_of
from operators import OPERATORS
from support.processes import forked

import gluon_roi
from gluon_roi.bridge import block as bridge_block

OP = OPERATORS[0]


def inputs_of(op):
    rng = np.random.RandomState(0)
    data = mx.nd.array(rng.randn(2, channels_of(op), 7, 7))
    return data, mx.nd.array(op.rois([[0, 0, 0, 20, 20], [1, 3, 4, 9, 22]]))


def test_refused_calls_do_not_reach_other_threads():
    """In a process of its own: a call that shared what another leaves behind may end it."""

    def run():
        # A shared graph of a block broke in each of 6 runs of 200 calls, a shared function in 5.
        for calls, ways in (200, ["nd", "nd,recorded"]), (50, ["hybrid", "static,recorded"]):
            sys.argv = ["", str(calls), *ways]
            runpy.run_path(str(SCRIPTS / "refused_calls.py"), run_name="__main__")

    status, shown, error = forked(run)
    assert (status, shown) == (0, "equal\nequal\n"), error[-2000:]


def compiled_calls():
    gc.collect()
    return sum(isinstance(value, mx.nd.CachedOp) for value in gc.get_objects())


def test_threads_that_end_leave_nothing():
    """There are as many compiled calls as ran at the same time, whatever the number of threads."""
    data, rois = inputs_of(OP)

    def calls():
        for _ in range(3):
            OP.function(data, rois, POOLED, SCALE).wait_to_read()

    calls()
    before = compiled_calls()
    for _ in range(20):
        thread = threading.Thread(target=calls)
        thread.start()
        thread.join()
    assert compiled_calls() == before


def test_a_refused_call_leaves_no_compiled_call():
    data, rois = inputs_of(OP)
    for _ in range(2):
        OP.function(data, rois, POOLED, SCALE)
    before = compiled_calls()
    for _ in range(3):
        with pytest.raises(mx.MXNetError, match="rois has shape"):
            OP.function(data, rois[:, :3], POOLED, SCALE)
    assert compiled_calls() < before
    assert OP.function(data, rois, POOLED, SCALE).shape == (2, 3, *POOLED)


def test_a_block_in_a_child_that_was_forked_during_a_call():
    """Another thread is inside of a hybridized block; it does not exist in the child."""
    data, rois = inputs_of(OP)
    pool = OP.block(POOLED, SCALE)
    pool.hybridize()
    expected = pool(data, rois).asnumpy().tobytes()
    inside, end = threading.Event(), threading.Event()

    def call():
        with bridge_block._graph_lock:
            inside.set()
            end.wait(60)

    thread = threading.Thread(target=call)
    thread.start()
    try:
        assert inside.wait(60)
        status, _, error = forked(lambda: pool(data, rois).asnumpy().tobytes() != expected)
    finally:
        end.set()
        thread.join()
    assert status == 0, error[-2000:]


def test_a_block_is_built_by_one_thread():
    """The first calls of a hybridized block, in several threads."""
    data, rois = inputs_of(OP)
    expected = OP.function(data, rois, POOLED, SCALE).asnumpy()
    pools = [OP.block(POOLED, SCALE) for _ in range(5)]
    start = threading.Barrier(8, timeout=60)

    def call(_):
        results = []
        for pool in pools:
            start.wait()
            results.append(pool(data, rois).asnumpy())
        return results

    for pool in pools:
        pool.hybridize()
    with ThreadPoolExecutor(start.parties) as threads:
        for results in threads.map(call, range(start.parties)):
            for result in results:
                np.testing.assert_array_equal(result, expected)


def test_blocks_can_be_copied():
    """The lock of hybridized blocks is no part of them."""
    pool = gluon_roi.ROIAlign(2, 1.0)
    pool.hybridize()
    data, rois = mx.nd.ones((1, 1, 4, 4)), mx.nd.array([[0, 0, 0, 3, 3]])
    for other in (copy.deepcopy(pool), pickle.loads(pickle.dumps(pool))):
        np.testing.assert_array_equal(other(data, rois).asnumpy(), pool(data, rois).asnumpy())
