# SPDX-License-Identifier: Apache-2.0
"""Common to all tests.

MXNet, whose import takes seconds, is not imported here, but where it is used: pytest also reads
this file where it only hands tests on to its workers.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Iterator

import pytest

if TYPE_CHECKING:
    import mxnet as mx


@pytest.fixture
def ctx() -> mx.Context:
    """The device that operator tests run on: the first GPU where MXNet has one."""
    import mxnet as mx

    return mx.gpu(0) if mx.context.num_gpus() else mx.cpu()


@pytest.fixture
def mxnet_cpu() -> None:
    """Skip a test that compares with MXNet's own kernels on the CPU, if there is a GPU."""
    import mxnet as mx

    if mx.context.num_gpus():
        pytest.skip("MXNet's own kernels on the CPU are meant")


@pytest.fixture(autouse=True)
def errors_end_with_their_test() -> Iterator[None]:
    """Wait for errors that a test provokes, which would otherwise be raised in the next test.

    MXNet marks all arrays that a failing operator writes as failed, including the temporary space
    that all operators share. A training step that fails in its forward pass can fail again in its
    backward pass, after the first error has been seen.
    """
    import mxnet as mx

    yield
    with contextlib.suppress(mx.MXNetError):
        mx.nd.waitall()
