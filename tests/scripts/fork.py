# SPDX-License-Identifier: Apache-2.0
"""Uses the library on all threads, forks, and uses it in the child, twice: prints 4 x "equal".

python fork.py c|mxnet LIBRARY   what the process used before the fork: the C interface, or MXNet
"""

import os
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
from testing import c_api  # noqa: E402

LIBRARY = c_api.Library(sys.argv[2])
RNG = np.random.RandomState(0)
DATA = RNG.randn(2, 64, 40, 60).astype("float32")
LOW = RNG.uniform(0, 500, (100, 2))
ROIS = np.hstack([RNG.randint(0, 2, (100, 1)), LOW, LOW + RNG.uniform(30, 300, (100, 2))])
ROIS = ROIS.astype("float32")


def through_c() -> np.ndarray:
    p = LIBRARY.params("roi_align", (7, 7), 1 / 16)
    inputs = c_api.tensors(DATA, ROIS)
    out = np.empty((100, 64, 7, 7), "float32")
    LIBRARY.forward("roi_align", p, inputs, out, c_api.Device(c_api.CPU))
    return out


def through_mxnet() -> np.ndarray:
    import mxnet as mx

    import gluon_roi

    arrays = mx.nd.array(DATA), mx.nd.array(ROIS)
    return gluon_roi.nd.ROIAlign(*arrays, 7, 1 / 16).asnumpy()


call = {"c": through_c, "mxnet": through_mxnet}[sys.argv[1]]
expected = call()
for _ in range(2):
    child = os.fork()
    if child == 0:
        for _ in range(2):
            print("equal" if np.array_equal(call(), expected) else "different", flush=True)
        os._exit(0)
    os.waitpid(child, 0)
