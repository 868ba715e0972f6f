"""What all tests share."""

import contextlib
from typing import Iterator

import mxnet as mx
import pytest

# What `make check` and `make matrix`, the quick half, leave to `make test`: beginnings of test ids.
SLOW = (
    "tests/demo/test_demo_amp.py",
    "tests/demo/test_demo_data.py",
    "tests/demo/test_demo_devices.py",
    "tests/demo/test_demo_disk.py",
    "tests/demo/test_demo_networks.py",
    "tests/demo/test_demo_train.py",
    "tests/demo/test_demo_use.py",
    "tests/test_benchmarks.py",
    "tests/test_c_abi.py::test_fork",
    "tests/test_cuda_",
    "tests/test_edges.py::test_nothing_crashes",
    "tests/test_edges.py::test_same_bytes_from_any_number_of_threads",
    "tests/test_graph.py::test_a_program_exports_the_same_file_each_time",
    "tests/test_graph.py::test_export_to_a_new_process",
    "tests/test_graph.py::test_many_users",
    "tests/test_properties.py",
    "tests/test_reference.py::test_mxnet[float64",
    "tests/test_reliability.py",
    "tests/test_simd.py",
)
# Of these it keeps float32.
SLOW_DTYPES = ("tests/test_operators.py", "tests/test_edges.py")


def pytest_collection_modifyitems(items: list) -> None:
    for item in items:
        test = item.nodeid
        other_dtype = test.startswith(SLOW_DTYPES) and test.endswith(("float64]", "float16]"))
        if test.startswith(SLOW) or other_dtype:
            item.add_marker(pytest.mark.slow)


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
