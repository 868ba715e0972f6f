# SPDX-License-Identifier: Apache-2.0
"""Records what PyTorch computes of the small network, for tests where it is not installed.

    python tests/golden/record_torch.py

writes torch.npz: the output, and the gradients of the image and of the weights, of the module that
to_torch makes of tests/support/small_network.py; and the digest of the exported file.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from pathlib import Path

import numpy as np

FILE = Path(__file__).with_name("torch.npz")


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]
    from support import small_network

    import gluon_roi

    net, inputs = small_network.make()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        small_network.export(net, path, fold=False)
        module = gluon_roi.onnx.to_torch(path)
        arrays = {"digest": np.array(digest(path)), **small_network.in_torch(module, inputs)}
    np.savez_compressed(FILE, **arrays)  # type: ignore[arg-type]
