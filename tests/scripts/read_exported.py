# SPDX-License-Identifier: Apache-2.0
"""Runs exported networks where only gluon_roi is imported, and compares their outputs.

    python read_exported.py NAME ...

The files NAME-symbol.json, NAME-0000.params and NAME.npz (x, rois, out) are in the working folder.
"""

import sys

import mxnet as mx
import numpy as np

import gluon_roi  # noqa: F401  (makes the operators known)

for name in sys.argv[1:]:
    files = f"{name}-symbol.json", ["data0", "data1"], f"{name}-0000.params"
    net = mx.gluon.SymbolBlock.imports(*files)
    arrays = np.load(f"{name}.npz")
    out = net(mx.nd.array(arrays["x"]), mx.nd.array(arrays["rois"]))
    np.testing.assert_array_equal(out.asnumpy(), arrays["out"], err_msg=name)
