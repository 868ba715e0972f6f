# SPDX-License-Identifier: Apache-2.0
"""Results of torchvision, Paddle and mmcv, recorded by tests/golden/record.py."""

import os

import mxnet as mx
import numpy as np
import pytest
from golden import record
from operators import BY_NAME
from support.cases import AGREEMENT, AGREEMENT_FUSED, PRECISION, assert_agrees

import gluon_roi

RECORDED = {peer: record.load(peer) for peer in record.PEERS}
CASES = [(peer, name) for peer, (_, arrays) in RECORDED.items() for name in arrays]


@pytest.fixture(params=CASES, ids=lambda case: "-".join(case))
def case(request):
    peer, name = request.param
    about, recorded = RECORDED[peer]
    case, arrays = about["cases"][name], dict(recorded[name])
    dtype = case["dtype"]
    arrays["data"] = (arrays["data"] / 8).astype(dtype)
    if case["gradient"]:
        arrays["d_out"] = (arrays["d_out"] / 8).astype(dtype)
    return case, arrays


def tolerance_of(case):
    """The tolerance of record.py's library for this function."""
    fused = (case["peer"], case["function"]) == ("paddle", "roi_align")
    return AGREEMENT_FUSED if fused else AGREEMENT


def terms_of(case, recorded):
    """Magnitudes that are summed in each element of the gradient."""
    return BY_NAME[case["operator"]].expected_gradients(
        np.abs(recorded["d_out"]),
        recorded["data"],
        recorded["rois"],
        case["pooled"],
        case["scale"],
        **case["ours"],
    )[0]


def test_reference(case):
    case, recorded = case
    operator, tolerance = BY_NAME[case["operator"]], tolerance_of(case)
    arguments = recorded["rois"], case["pooled"], case["scale"]
    out = operator.expected(recorded["data"], *arguments, **case["ours"])
    assert_agrees(out, recorded["out"], recorded["data"], tolerance)
    if case["gradient"]:
        d_data, _ = operator.expected_gradients(
            recorded["d_out"], recorded["data"], *arguments, **case["ours"]
        )
        assert_agrees(d_data, recorded["d_data"], terms_of(case, recorded), tolerance)


def test_operator(case):
    case, recorded = case
    function, tolerance = getattr(gluon_roi.nd, case["operator"]), tolerance_of(case)
    data = mx.nd.array(recorded["data"], dtype=case["dtype"])
    rois = mx.nd.array(recorded["rois"], dtype=case["dtype"])
    data.attach_grad()
    with mx.autograd.record():
        out = function(data, rois, tuple(case["pooled"]), case["scale"], **case["ours"])
    assert_agrees(out.asnumpy(), recorded["out"], recorded["data"], tolerance)
    if case["gradient"]:
        out.backward(mx.nd.array(recorded["d_out"], dtype=case["dtype"]))
        terms = terms_of(case, recorded)
        assert_agrees(data.grad.asnumpy(), recorded["d_data"], terms, tolerance)


@pytest.mark.parametrize("peer", record.PEERS)
def test_files_are_complete(peer):
    """Cases, arguments and inputs in the file are those of record.py, and versions are named."""
    about, arrays = RECORDED[peer]
    assert about["versions"] and about["device"] == "cpu"
    assert about["cases"] == {record.case_name(case): case for case in record.cases(peer)}
    assert set(arrays) == set(about["cases"])
    for name, case in about["cases"].items():
        data, rois, _ = record.inputs(case)
        np.testing.assert_array_equal(arrays[name]["data"] / 8, data)
        np.testing.assert_array_equal(arrays[name]["rois"], rois)
        assert case["dtype"] in PRECISION
        assert ("d_data" in arrays[name]) == case["gradient"]


def test_files_are_small():
    files = [os.path.join(record.FOLDER, f"{peer}.npz") for peer in record.PEERS]
    assert sum(map(os.path.getsize, files)) < 230e3
