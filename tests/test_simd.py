"""The same bytes at every instruction-set level of this machine, and for one thread and two."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

import gluon_roi

LEVELS = ("sse2", "avx2", "avx512")

# Runs in a process of its own, since the level and the threads are decided once. The maps are
# large enough for two threads; channels fill one block and leave a rest; RoIs leave parts of the
# maps free.
SCRIPT = """
import hashlib, json
import mxnet as mx
import numpy as np
import gluon_roi

ROWS = [("ROIPool", {}), ("ROIAlign", {"sampling_ratio": 2}), ("ROIAlign", {"rois_grad": True}),
        ("PSROIPool", {}), ("PSROIPool", {"convention": "torchvision"}),
        ("PSROIAlign", {"sampling_ratio": 2}), ("PSROIAlign", {"rois_grad": True}),
        ("RotatedROIAlign", {"rois_grad": True}), ("PrROIPool", {"rois_grad": True})]
rng = np.random.RandomState(0)
corner = rng.uniform((-5, -5), (40, 30), (60, 2))
rois = np.hstack([np.arange(60)[:, None] % 3, corner, corner + rng.uniform(0, 25, (60, 2))])
rois[7, 0] = -1
rois[rois[:, 0] == 2] = [0, 3, 4, 9, 12]
turned = np.hstack([rois, rng.uniform(-180, 180, (60, 1))])
digests = {}
for name, arguments in ROWS:
    for dtype in ("float32", "float64", "float16"):
        for pooled in ((3, 2), (7, 7)):
            groups = pooled[0] * pooled[1] if name.startswith("PS") else 1
            channels = (21 if pooled == (3, 2) else 4) if groups > 1 else 37
            shape = (3, channels * groups, 48, 57)
            data = mx.nd.array(rng.randn(*shape), dtype=dtype)
            boxes = mx.nd.array(turned if name == "RotatedROIAlign" else rois, dtype="float32")
            data.attach_grad()
            boxes.attach_grad()
            with mx.autograd.record():
                out = getattr(gluon_roi.nd, name)(data, boxes, pooled, 0.9, **arguments)
            out.backward(mx.nd.array(rng.randn(*out.shape), dtype=dtype))
            arrays = (out, data.grad, boxes.grad)
            key = f"{name} {arguments} {dtype} {pooled}"
            digests[key] = [hashlib.sha256(a.asnumpy().tobytes()).hexdigest() for a in arrays]
print(json.dumps({"level": gluon_roi.build_info()["simd"], "digests": digests}))
"""


def digests(level: str, threads: int) -> dict:
    """Of output, data gradient and RoI gradient, for every operator and dtype."""
    environment = {**os.environ, "GLUON_ROI_SIMD": level, "OMP_NUM_THREADS": str(threads)}
    answer = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    answer = json.loads(answer.stdout.splitlines()[-1])
    assert answer["level"] == level
    return answer["digests"]


@pytest.fixture(scope="module")
def baseline() -> dict:
    return digests("sse2", 1)


def test_threads(baseline):
    assert digests("sse2", 2) == baseline


@pytest.mark.parametrize("level", LEVELS[1:])
def test_levels(level, baseline):
    # This process runs at the best level, unless the environment names a lower one.
    if LEVELS.index(level) > LEVELS.index(gluon_roi.build_info()["simd"]):
        pytest.skip(f"no {level} here")
    for threads in (1, 2):
        assert digests(level, threads) == baseline
