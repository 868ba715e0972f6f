# SPDX-License-Identifier: Apache-2.0
"""Runs an exported detector where only gluon_roi is imported.

    python read_detector.py STEM SIDE

Reads STEM-SIDE.npy, and writes the detector's outputs to STEM-SIDE.npz.
"""

import sys

import mxnet as mx
import numpy as np

import gluon_roi  # noqa: F401  (makes the operators known)

stem, side = sys.argv[1:]
net = mx.gluon.SymbolBlock.imports(f"{stem}-symbol.json", ["data"], f"{stem}-0000.params")
outputs = net(mx.nd.array(np.load(f"{stem}-{side}.npy")))
np.savez(f"{stem}-{side}.npz", *(output.asnumpy() for output in outputs))
assert not any(name.startswith(("demo_rfcn", "gluoncv")) for name in sys.modules)
