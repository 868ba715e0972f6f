"""Common to all tests."""

import contextlib
from typing import Iterator

import mxnet as mx
import pytest


@pytest.fixture
def ctx() -> mx.Context:
    """The device that operator tests run on: the first GPU where MXNet has one."""
    return mx.gpu(0) if mx.context.num_gpus() else mx.cpu()


@pytest.fixture(autouse=True)
def errors_end_with_their_test() -> Iterator[None]:
    """An error that a test provokes and nobody waits for would be raised in the next one.

    MXNet marks what a failing operator writes as failed, the temporary space that all operators
    share included. A training step that fails in its forward pass can fail in its backward pass
    once more, after the first error has been seen.
    """
    yield
    with contextlib.suppress(mx.MXNetError):
        mx.nd.waitall()
