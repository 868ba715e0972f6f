# SPDX-License-Identifier: Apache-2.0
"""The check command: it finds a planted error, and passes and records a GPU that agrees.

No machine here has a GPU: contexts of MXNet stand in for it, and the simulated CUDA kernels run
the same cases through the C interface.
"""

from __future__ import annotations

import ctypes
import os
import stat
import warnings

import mxnet as mx
import numpy as np
import presets
import pytest

import gluon_roi
from gluon_roi import gpu, self_check
from gluon_roi.self_check import MXNetDevice, Results, cases, differences
from testing import c_api

NAMES = [case.operator.name for case in cases()]


class Wrong(MXNetDevice):
    """A device with an error of one kind in every result of one type."""

    def __init__(self, where: str, dtype: str = "float32") -> None:
        super().__init__(mx.cpu())
        self.where, self.dtype, self.runs = where, dtype, 0

    def run(self, case, dtype, d_outs):
        results = super().run(case, dtype, d_outs)
        self.runs += 1
        if dtype == self.dtype and d_outs is not None:
            arrays = [*results.outputs, *results.gradients.values()]
            changed = {
                "output": results.outputs[0],
                "gradient": results.gradients[next(iter(case.inputs))],
                "repeat": arrays[0],
                "nan": arrays[0],
            }[self.where]
            if self.where == "nan":
                changed.flat[0] = np.nan
            elif self.where == "repeat":
                limit = changed.dtype.type(-np.inf if self.runs % 2 else np.inf)
                changed.flat[0] = np.nextafter(changed.flat[0], limit)
            else:
                changed.flat[-1] += 0.05 * max(1, np.nanmax(np.abs(changed)))
        return results


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "where, expected",
    [
        ("output", "float32 output 0 by 0.0"),
        ("gradient", "float32 gradient of "),
        ("nan", "float32 output 0 by inf, expected at most 2e-06"),
        ("repeat", "float32 from one run to the next"),
    ],
)
def test_planted_error_is_found(name, where, expected):
    case = cases()[NAMES.index(name)]
    found = differences(case, Wrong(where), MXNetDevice(mx.cpu()), repeats=True)
    assert found and all(line.startswith("float32 ") for line in found)
    assert any(line.startswith(expected) for line in found), found


class SimulatedDevice:
    """The CUDA kernels on simulated threads, through the C interface."""

    def __init__(self, library: c_api.Library) -> None:
        self.library = library

    def run(self, case, dtype, d_outs):
        operator = self.library.operators[case.operator.symbol]
        arrays = case.arrays(dtype)
        arguments = dict(case.arguments)
        arguments.pop("output_score", None)
        p = operator.params_of(**arguments)
        # Counts of boxes, the last input of some operators, are not given.
        counts = [None for given in operator.inputs if given["role"] == "counts"]
        inputs = c_api.tensors(*arrays.values(), *counts)
        expected = MXNetDevice(mx.cpu()).run(case, dtype, None)
        outputs = [np.full_like(output, 9) for output in expected.outputs]
        if operator.symbol == "box_nms":
            record = np.full((*outputs[0].shape[:-1], 1), 9, "int32")
            outputs.append(record)
        self._call(operator, p, inputs, None, outputs)
        gradients = [np.full_like(value, 9) for value in arrays.values()]
        if d_outs is not None:
            heads = [*d_outs, *outputs[len(d_outs) :]]
            self._call(operator, p, inputs, heads, [*gradients, *counts])
        return Results(outputs[: len(expected.outputs)], dict(zip(arrays, gradients)))

    def _call(self, operator, p, inputs, heads, results):
        device = c_api.Device(c_api.CUDA)
        backward = heads is not None
        size = self.library.workspace(operator.symbol, p, inputs, backward, c_api.CUDA)
        workspace = np.full(max(size, 1), 0xA5, np.uint8)
        device.workspace, device.workspace_size = c_api.pointer(workspace), size
        if backward:
            self.library.backward(operator.symbol, p, inputs, heads, results, device)
        else:
            self.library.forward(operator.symbol, p, inputs, results, device)


@pytest.fixture(scope="module")
def simulated():
    return SimulatedDevice(c_api.Library(presets.build("hostsim") / "libgluon_roi.so"))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_simulated_kernels_pass(simulated, name):
    case = cases()[NAMES.index(name)]
    assert not differences(case, simulated, MXNetDevice(mx.cpu()), repeats=True)


# ---- The command on a machine with GPUs ----------------------------------------------------------


class OnCpu(MXNetDevice):
    """Runs what is meant for a GPU on the CPU; gpu(1) has an error."""

    def run(self, case, dtype, d_outs):
        results = MXNetDevice(mx.cpu()).run(case, dtype, d_outs)
        if self.context == mx.gpu(1) and case.operator.name == "ROIAlign":
            results.outputs[0].flat[0] += 1
        return results


@pytest.fixture
def gpus(monkeypatch, tmp_path):
    """Two GPUs that stand on the CPU, an empty cache, and no warning given before."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(mx.context, "num_gpus", lambda: 2)
    monkeypatch.setattr(self_check, "MXNetDevice", OnCpu)
    monkeypatch.setattr(gpu, "_quiet", set())
    monkeypatch.setattr(gpu, "device_name", lambda index: f"GPU {index}, 9.0")
    return tmp_path


def test_check_compares_and_records_every_gpu(gpus, capsys):
    assert self_check.check() == 1
    shown = capsys.readouterr().out.splitlines()
    assert "gpu(0)       GPU 0, 9.0" in shown and "gpu(1)       GPU 1, 9.0" in shown
    for name in NAMES:
        assert f"{name:20} agrees with the reference" in shown
        assert f"{name:20} agrees with the CPU on gpu(0)" in shown
        verdict = "DIFFERS from" if name == "ROIAlign" else "agrees with"
        assert f"{name:20} {verdict} the CPU on gpu(1)" in shown
    assert gpu.is_checked(mx.gpu(0)) and not gpu.is_checked(mx.gpu(1))
    (file,) = (gpus / "gluon_roi").iterdir()
    assert f"gpu(0) is recorded as checked in {file}" in shown
    assert "GPU: GPU 0, 9.0" in file.read_text()


def test_warning_until_the_check_has_passed(gpus, monkeypatch):
    with pytest.warns(UserWarning, match=r"checked on gpu\(0\) \(GPU 0, 9.0\).*gluon_roi check"):
        gpu.warn_unless_checked(mx.gpu(0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gpu.warn_unless_checked(mx.gpu(0))  # once in a process
        gpu.warn_unless_checked(mx.cpu())
        gpu.record_check(mx.gpu(1))
        gpu.warn_unless_checked(mx.gpu(1))
    # Another library, another GPU, or a damaged record: it counts as not checked.
    monkeypatch.setattr(gpu, "_library_digest", lambda: "other")
    assert not gpu.is_checked(mx.gpu(1))
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(gpus))
    monkeypatch.setattr(gpu, "device_name", lambda index: "other GPU")
    assert not gpu.is_checked(mx.gpu(1))
    gpu.record_check(mx.gpu(1)).write_bytes(b"\xff")
    assert not gpu.is_checked(mx.gpu(1))


def test_cache_that_cannot_be_written(gpus, monkeypatch, capsys):
    (gpus / "gluon_roi").write_text("a file of the user's")
    monkeypatch.setattr(mx.context, "num_gpus", lambda: 1)
    monkeypatch.setattr(self_check, "cases", lambda: cases()[:1])
    assert self_check.check() == 0
    assert "gpu(0) cannot be recorded as checked, and will warn again" in capsys.readouterr().out
    assert (gpus / "gluon_roi").read_text() == "a file of the user's"


def test_a_call_that_fails_on_the_gpu_differs(gpus, monkeypatch, capsys):
    def run(self, case, dtype, d_outs):
        raise mx.MXNetError("no kernel image is available")

    monkeypatch.setattr(OnCpu, "run", lambda self, *a: run(self, *a) if self.context != mx.cpu()
                        else MXNetDevice.run(self, *a))  # fmt: skip
    monkeypatch.setattr(self_check, "cases", lambda: cases()[:2])
    assert self_check.check() == 1
    shown = capsys.readouterr().out
    assert shown.count("float32: no kernel image is available") == 2 * 2


class Net(mx.gluon.nn.HybridBlock):
    def hybrid_forward(self, F, data, rois):
        return F.contrib.ROIAlign(data, rois, (2, 2), 0.5, sample_ratio=2)


def test_every_way_to_call_looks_at_the_device(monkeypatch):
    """Eager calls, blocks, hybridized or not, and optimize."""
    seen: list = []
    monkeypatch.setattr(gpu, "HAS_GPUS", True)
    monkeypatch.setattr(gpu, "warn_unless_checked", seen.append)
    data, rois = mx.nd.ones((1, 4, 8, 8)), mx.nd.array([[0, 0, 0, 9, 9]])
    gluon_roi.nd.ROIAlign(data, rois, 2, 0.5)
    block = gluon_roi.ROIAlign(2, 0.5)
    block(data, rois)
    assert seen == [mx.cpu()] * 2
    block.hybridize()
    block(data, rois)
    assert len(seen) > 2
    del seen[:]
    gluon_roi.optimize(Net(), data, rois)
    assert mx.cpu() in seen


def test_name_of_a_device_without_a_driver(monkeypatch):
    def missing(name):
        raise OSError(name)

    gpu.device_name.cache_clear()
    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert gpu.device_name(0) == "of unknown name"
    gpu.device_name.cache_clear()


def test_record_has_the_mode_of_other_files(gpus):
    old = os.umask(0o022)
    try:
        mode = stat.S_IMODE(gpu.record_check(mx.gpu(0)).stat().st_mode)
    finally:
        os.umask(old)
    assert mode == 0o644
