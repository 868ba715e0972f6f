# SPDX-License-Identifier: Apache-2.0
"""Common to all tests."""

import collections
import contextlib
from typing import Iterator

import mxnet as mx
import pytest

#: Files that take minutes with few tests, the longest first.
LONGEST = (
    "test_onnx_zoo.py",
    "test_demo_launch.py",
    "test_benchmarks.py",
    "test_cuda_hostsim.py",
    "test_cuda_build.py",
    "test_example_c.py",
    "test_reliability.py",
    "test_simd.py",
)


def pytest_configure(config: pytest.Config) -> None:
    """Let pytest-xdist keep the order of files; the one for Python 3.8 always has its own."""
    config.option.loadscopereorder = False


def pytest_collection_modifyitems(items: list) -> None:
    """Put long files first, so that no worker is left with one when the others are done."""
    place = {name: index for index, name in enumerate(LONGEST)}
    count = collections.Counter(item.path for item in items)
    items.sort(
        key=lambda item: (place.get(item.path.name, len(place)), -count[item.path], item.path)
    )


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
