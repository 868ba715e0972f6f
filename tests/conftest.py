# SPDX-License-Identifier: Apache-2.0
"""Common to all tests."""

import contextlib
from typing import Iterator

import mxnet as mx
import pytest


@pytest.fixture
def ctx() -> mx.Context:
    """The device that operator tests run on: the first GPU where MXNet has one."""
    return mx.gpu(0) if mx.context.num_gpus() else mx.cpu()


@pytest.fixture
def mxnet_cpu() -> None:
    """Skip a test that compares with MXNet's own kernels on the CPU, if there is a GPU."""
    if mx.context.num_gpus():
        pytest.skip("MXNet's own kernels on the CPU are meant")


@pytest.fixture(autouse=True)
def errors_end_with_their_test() -> Iterator[None]:
    """Wait for errors that a test provokes, which would otherwise be raised in the next test.

    MXNet marks all arrays that a failing operator writes as failed, including the temporary space
    that all operators share. A training step that fails in its forward pass can fail again in its
    backward pass, after the first error has been seen.
    """
    yield
    with contextlib.suppress(mx.MXNetError):
        mx.nd.waitall()
