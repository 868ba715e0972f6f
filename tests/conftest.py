"""What all tests share."""

import mxnet as mx
import pytest

# What `make check` and `make matrix`, the quick half, leave to `make test`: beginnings of test ids.
SLOW = (
    "tests/demo/test_demo_amp.py",
    "tests/demo/test_demo_devices.py",
    "tests/demo/test_demo_networks.py",
    "tests/demo/test_demo_train.py",
    "tests/demo/test_demo_use.py",
    "tests/test_benchmarks.py",
    "tests/test_cuda_",
    "tests/test_edges.py::test_nothing_crashes",
    "tests/test_edges.py::test_same_bytes_from_any_number_of_threads",
    "tests/test_properties.py",
)


def pytest_collection_modifyitems(items: list) -> None:
    for item in items:
        if item.nodeid.startswith(SLOW):
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def ctx() -> mx.Context:
    """The device that operator tests run on: the first GPU where MXNet has one."""
    return mx.gpu(0) if mx.context.num_gpus() else mx.cpu()
