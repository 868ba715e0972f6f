"""What all tests share."""

import mxnet as mx
import pytest


@pytest.fixture
def ctx() -> mx.Context:
    """The device that operator tests run on: the first GPU where MXNet has one."""
    return mx.gpu(0) if mx.context.num_gpus() else mx.cpu()
