# SPDX-License-Identifier: Apache-2.0
"""Wrong calls of the C interface: each is refused with a sentence."""

from __future__ import annotations

import ctypes
import functools
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
from support import c_calls

import gluon_roi
from testing import c_api

CPU = c_api.Device(c_api.CPU)
LIBRARY = c_api.Library(gluon_roi.library.PATH)
#: Operators that pool boxes; tests/ops/test_deformable_convolution.py calls the other.
OF_BOXES = [op for op, operator in LIBRARY.operators.items() if operator.pools_boxes]
good_call = functools.partial(c_calls.good_call, LIBRARY)
whole_call = functools.partial(c_calls.whole_call, LIBRARY)


def spoil_scale(p, arrays):
    negative = -1 if isinstance(p.spatial_scale, float) else (ctypes.c_double * 8)(-1)
    p.spatial_scale = negative


WRONG = {
    "output shape": (
        lambda p, a: a.update(out=a["out"][:1]),
        "output: expected float32 (2, 1, 2, 2)",
    ),
    "output dtype": (lambda p, a: a.update(out=a["out"].astype("float64")), "got float64"),
    "data rank": (lambda p, a: a.update(data=a["data"][0]), "expected 4 dimensions"),
    "data dtype": (lambda p, a: a.update(data=a["data"].astype("int32")), "data has dtype int32"),
    "rois columns": (lambda p, a: a.update(rois=a["rois"][:, :3].copy()), "expected (K, "),
    "batch index": (lambda p, a: a["rois"].fill(1), "row 0 has batch index 1"),
    "scale": (spoil_scale, "argument spatial_scale: expected"),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("op", OF_BOXES)
def test_errors(op, wrong):
    """A code and a sentence that names operator, argument, expected and got."""
    spoil, sentence = WRONG[wrong]
    p, arrays = good_call(op)
    spoil(p, arrays)
    inputs = c_api.tensors(arrays["data"], arrays["rois"])
    with pytest.raises(c_api.Error) as error:
        LIBRARY.forward(op, p, inputs, arrays["out"], CPU)
    assert error.value.code == c_api.INVALID
    assert str(error.value).startswith(f"{LIBRARY.operators[op].name}: ")
    assert sentence in str(error.value)


#: A tensor that a careless caller may pass, and what the sentence says of it.
WRONG_TENSORS = {
    "no memory": (lambda t: setattr(t, "data", None), "expected memory, got NULL"),
    "odd address": (lambda t: setattr(t, "data", t.data + 1), "expected memory at a multiple of 4"),
    "ndim -1": (lambda t: setattr(t, "ndim", -1), "expected ndim from 0 to 4, got -1"),
    "ndim 5": (lambda t: setattr(t, "ndim", 5), "expected ndim from 0 to 4, got 5"),
    "no size": (lambda t: setattr(t, "ndim", 0), ""),
    "negative size": (lambda t: t.shape.__setitem__(0, -1), "expected no negative size"),
    "smallest size": (lambda t: t.shape.__setitem__(0, -(2**63)), "expected no negative size"),
    "too many": (lambda t: t.shape.__setitem__(0, 2**61), "expected at most 1152921504606846975"),
    "dtype": (lambda t: setattr(t, "dtype", 99), "an unknown type"),
}


@pytest.mark.parametrize("wrong", WRONG_TENSORS)
@pytest.mark.parametrize("op", OF_BOXES)
def test_wrong_tensors(op, wrong):
    """In every array of every function: a sentence, and nothing is read or written."""
    spoil, sentence = WRONG_TENSORS[wrong]
    operator = LIBRARY.operators[op]
    p, arrays = good_call(op)
    names = [declared["name"] for declared in operator.inputs]
    written = [f"d_{name}" for name in names if name != "rois_num"]
    for which in (*names, "out", *written):
        if which.replace("d_", "") not in ("data", "rois", "out") and wrong == "no size":
            continue  # with its memory, that is a tensor of another rank; without, none at all
        here = {
            "data": arrays["data"],
            "rois": arrays["rois"][:, 1:].copy() if which == "rois_num" else arrays["rois"],
            "trans": np.zeros((2, 2, 2, 2), "float32"),
            "offset": np.zeros((2, 2, 2, 2), "float32"),
            "mask": np.zeros((2, 1, 2, 2), "float32"),
            "rois_num": np.array([2], "int32") if which == "rois_num" else None,
        }
        slopes = {f"d_{name}": np.zeros_like(here[name]) for name in names if name != "rois_num"}
        given = {name: c_api.tensor(array) for name, array in {**here, **slopes}.items()}
        out = c_api.tensor(arrays["out"])
        spoil({**given, "out": out}[which])
        inputs = (c_api.Tensor * len(names))(*(given[name] for name in names))
        gradients = c_api.tensors(*[None] * len(names))
        for place, name in enumerate(written):
            gradients[place] = given[name]
        calls: dict[str, tuple] = {"backward": (ctypes.byref(out), gradients, ctypes.byref(CPU))}
        if not which.startswith("d_"):
            calls["forward"] = (ctypes.byref(out), ctypes.byref(CPU))
        if which in names and "address" not in wrong and "mem" not in wrong:
            size = ctypes.c_size_t(0)
            calls["workspace"] = (0, c_api.CPU, ctypes.byref(size))
        for function, more in calls.items():
            with pytest.raises(c_api.Error) as error:
                LIBRARY.call(f"{op}_{function}", ctypes.byref(p), inputs, len(inputs), *more)
            assert error.value.code == c_api.INVALID
            assert str(error.value).startswith(f"{operator.name}: ")
            assert sentence in str(error.value)


@pytest.mark.parametrize("op", LIBRARY.operators)
def test_required_inputs(op):
    """A required input that is left out is named; all functions work once it is there."""
    operator = LIBRARY.operators[op]
    p, arrays, outputs = whole_call(op)
    gradients = [np.zeros_like(a) for a in arrays]
    size = ctypes.c_size_t(0)

    def calls(given):
        inputs = c_api.tensors(*given)
        yield lambda: LIBRARY.forward(op, p, inputs, outputs, CPU)
        yield lambda: LIBRARY.backward(op, p, inputs, outputs, gradients, CPU)
        more = 1, c_api.CPU, ctypes.byref(size)
        whole = ctypes.byref(p), inputs, len(inputs), *more
        yield lambda: LIBRARY.call(f"{op}_workspace", *whole)

    for call in calls(arrays):
        call()
    required = [i for i, declared in enumerate(operator.inputs) if not declared["optional"]]
    assert required
    for place in required:
        name = operator.inputs[place]["name"]
        sentence = f"^{operator.name}: {name}: expected an array, got none"
        for call in calls([None if i == place else a for i, a in enumerate(arrays)]):
            for array in (*outputs, *gradients):
                array.fill(99)
            with pytest.raises(c_api.Error, match=sentence) as error:
                call()
            assert error.value.code == c_api.INVALID
            assert all((array == 99).all() for array in (*outputs, *gradients))


@pytest.mark.parametrize("op", LIBRARY.operators)
def test_arrays_to_write_share_no_memory(op):
    """Neither two gradients, nor two outputs, nor a gradient and d_out."""
    operator = LIBRARY.operators[op]
    p, arrays, outputs = whole_call(op)
    names = [declared["name"] for declared in operator.inputs]
    inputs = c_api.tensors(*arrays)
    memory = [np.zeros_like(a) for a in arrays]
    both = np.zeros(1 << 10)  # room for any of them

    def refused(function, sentence, *more):
        with pytest.raises(c_api.Error, match=f"^{operator.name}: {sentence}"):
            whole = ctypes.byref(p), inputs, len(inputs), *more, ctypes.byref(CPU)
            LIBRARY.call(f"{op}_{function}", *whole)

    shared = "expected memory of its own, got some that is shared with"
    for place, name in enumerate(names):
        for other in ["d_out", *(f"d_{earlier}" for earlier in names[:place])]:
            given, gradients = c_api.tensors(*outputs), c_api.tensors(*memory)
            earlier = given[0] if other == "d_out" else gradients[names.index(other[2:])]
            gradients[place].data = earlier.data = both.ctypes.data
            refused("backward", f"d_{name}: {shared} {other}", given, gradients)
    if len(outputs) > 1:
        given = c_api.tensors(*outputs)
        given[0].data = given[1].data = both.ctypes.data
        refused("forward", f"{operator.outputs[1]}: {shared} output", given)


def test_maps_of_a_pyramid_are_numbered():
    """So that an error says which of several gradients is meant."""
    p = LIBRARY.params("pyramid_roi_align", (2, 2), (1.0, 0.5))
    maps = [np.zeros((1, 1, size, size), "float32") for size in (4, 2)]
    rois, out = np.zeros((2, 5), "float32"), np.zeros((2, 1, 2, 2), "float32")
    memory = np.zeros((1, 1, 4, 4), "float32")
    gradients = (memory, memory[:, :, :1].reshape(1, 1, 2, 2), None)
    with pytest.raises(c_api.Error, match="d_data 1: expected memory of its own.* with d_data 0"):
        LIBRARY.backward("pyramid_roi_align", p, c_api.tensors(*maps, rois), out, gradients, CPU)
    with pytest.raises(c_api.Error, match="PyramidROIAlign: data 1: expected an array, got none"):
        LIBRARY.forward("pyramid_roi_align", p, c_api.tensors(maps[0], None, rois), out, CPU)


OPTIONAL = [
    (op, place)
    for op in OF_BOXES
    for place, declared in enumerate(LIBRARY.operators[op].inputs)
    if declared["optional"]
]


@pytest.mark.parametrize("op, place", OPTIONAL)
def test_gradient_of_an_absent_input(op, place):
    """A tensor without dimensions has one element, at an address that nobody may write to."""
    p, arrays = good_call(op)
    names = [declared["name"] for declared in LIBRARY.operators[op].inputs]
    inputs = c_api.tensors(*(arrays.get(name) for name in names))
    gradients = c_api.tensors(np.zeros_like(arrays["data"]), *[None] * (len(names) - 1))
    gradients[place].data = 8
    sentence = f"d_{names[place]} is given, expected none where there is no {names[place]}"
    with pytest.raises(c_api.Error, match=sentence):
        more = ctypes.byref(c_api.tensor(arrays["out"])), gradients, ctypes.byref(CPU)
        LIBRARY.call(f"{op}_backward", ctypes.byref(p), inputs, len(inputs), *more)


@pytest.mark.parametrize("op", OF_BOXES)
def test_wrong_number_of_inputs(op):
    p, arrays = good_call(op)
    most = len(LIBRARY.operators[op].inputs)
    for count in (-1, 0, 1, most + 1):
        absent = [None] * (most - 1)
        inputs = c_api.tensors(*[arrays["data"], arrays["rois"], *absent][: max(count, 0)])
        with pytest.raises(c_api.Error, match=f"expected 2 to {most} inputs, got {count}"):
            more = ctypes.byref(c_api.tensor(arrays["out"])), ctypes.byref(CPU)
            LIBRARY.call(f"{op}_forward", ctypes.byref(p), inputs, count, *more)


@pytest.mark.parametrize("op", OF_BOXES)
def test_shared_memory(op):
    """What a call writes must not be what it reads."""
    p, arrays = good_call(op)
    inputs = c_api.tensors(arrays["data"], arrays["rois"])
    out = c_api.tensor(arrays["out"])
    out.data = inputs[0].data + 8
    with pytest.raises(c_api.Error, match="output: expected memory of its own, .* with data"):
        more = ctypes.byref(out), ctypes.byref(CPU)
        LIBRARY.call(f"{op}_forward", ctypes.byref(p), inputs, len(inputs), *more)
    with pytest.raises(c_api.Error, match="d_data: expected memory of its own, .* with data"):
        LIBRARY.backward(op, p, inputs, arrays["out"], (arrays["data"], None), CPU)


def test_null_pointers():
    p, arrays = good_call("roi_pool")
    inputs = c_api.tensors(arrays["data"], arrays["rois"])
    out = c_api.tensor(arrays["out"])
    whole = [ctypes.byref(p), inputs, 2, ctypes.byref(out), ctypes.byref(CPU)]
    for missing in (0, 1, 3, 4):
        some = [None if i == missing else x for i, x in enumerate(whole)]
        with pytest.raises(c_api.Error, match="ROIPool: expected params.*, got a NULL pointer"):
            LIBRARY.call("roi_pool_forward", *some)
    out.data = None
    with pytest.raises(c_api.Error, match="ROIPool: output: expected memory, got NULL"):
        LIBRARY.call("roi_pool_forward", *whole)
    with pytest.raises(c_api.Error, match="device type: expected .* got 7"):
        LIBRARY.forward("roi_pool", p, inputs, arrays["out"], c_api.Device(7))


def test_last_error_belongs_to_the_thread():
    p, arrays = good_call("roi_pool")
    inputs = c_api.tensors(arrays["data"], arrays["rois"])
    with pytest.raises(c_api.Error):
        LIBRARY.forward("roi_pool", p, inputs, arrays["data"], CPU)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(LIBRARY.c.gluon_roi_last_error()))
    thread.start()
    thread.join()
    assert seen == [b""]
    assert LIBRARY.c.gluon_roi_last_error().startswith(b"ROIPool: output")


@pytest.mark.parametrize("op", OF_BOXES)
def test_cuda_where_there_is_none(op):
    """Naming the GPU without CUDA in the build, or without a GPU, is an error and not a crash."""
    if mx.context.num_gpus():
        pytest.skip("there is a GPU")
    p, arrays = good_call(op)
    inputs = c_api.tensors(arrays["data"], arrays["rois"])
    if gluon_roi.has_cuda():
        expected, sentence = c_api.CUDA_ERROR, "CUDA: "
    else:
        expected, sentence = c_api.NO_CUDA, "run 'GLUON_ROI_CUDA=1 pip install"
        with pytest.raises(c_api.Error, match="built without CUDA"):
            LIBRARY.workspace(op, p, inputs, False, c_api.CUDA)
    workspace = np.zeros(1 << 20, np.uint8)
    device = c_api.Device(c_api.CUDA, None, workspace.ctypes.data, workspace.size)
    for call in (
        lambda: LIBRARY.forward(op, p, inputs, arrays["out"], device),
        lambda: LIBRARY.backward(
            op, p, inputs, arrays["out"], (np.zeros_like(arrays["data"]), None), device
        ),
    ):
        with pytest.raises(c_api.Error) as error:
            call()
        assert error.value.code == expected
        assert sentence in str(error.value)


# ---- The host ------------------------------------------------------------------------------------


def answers_of(script: str, *arguments: str, **environment: str) -> dict:
    """What a script has printed as JSON, in a process with these environment variables."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parents[1] / "scripts" / script), *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("threads", [pytest.param("1", marks=pytest.mark.night), "2"])
@pytest.mark.parametrize(
    "variable, value",
    [
        ("GLUON_ROI_SIMD", "mmx"),
        pytest.param("GLUON_ROI_HUGE_PAGES", "yes", marks=pytest.mark.night),
    ],
)
def test_wrong_environment(variable, value, threads):
    """Every function of the header ends in a sentence that names the variable, and writes nothing.

    No exception leaves a function of C, where it would end the process.
    """
    environment = {variable: value, "OMP_NUM_THREADS": threads}
    answers = answers_of("poisoned.py", str(gluon_roi.library.PATH), **environment)
    sentence = f"gluon_roi: environment variable {variable}: expected "
    chosen = variable == "GLUON_ROI_SIMD"
    assert answers.pop("last_error") == ["", ""]
    assert answers.pop("operators")[0].startswith('[{"name": "')
    text, message = answers.pop("build_info")
    assert (text is None) == chosen and message.startswith(sentence if chosen else "")
    assert len(answers) == 3 * len(LIBRARY.operators)
    for function, (code, message, untouched) in answers.items():
        assert untouched, function
        if function.endswith("_workspace"):
            assert code == c_api.OK
            continue
        assert code == c_api.INVALID, function
        assert message.startswith(sentence) and message.endswith(f"got '{value}'"), message


def test_lack_of_memory():
    """A code of its own, and one sentence for any number of threads: operator and bytes.

    Calls that read few cells of a large map do not lack it.
    """
    # libgomp ends threads after a call with fewer tasks, and starts them again. If the memory of a
    # stack is not free yet, it needs more.
    answers = [
        answers_of(
            "little_memory.py",
            str(gluon_roi.library.PATH),
            OMP_NUM_THREADS=threads,
            OMP_STACKSIZE="1M",
        )
        for threads in ("1", "3")
    ]
    assert answers[0] == answers[1]
    for op, (code, message) in answers[0]["many cells"].items():
        assert code == c_api.NO_MEMORY, (op, message)
        name = LIBRARY.operators[op].name
        found = re.match(rf"{name}: there is not enough memory for (\d+) bytes more$", message)
        assert found and int(found[1]) > 1 << 20, message
    for samples, answer in answers[0]["few cells"].items():
        assert answer == [c_api.OK, ""], samples
