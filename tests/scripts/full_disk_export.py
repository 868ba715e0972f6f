# SPDX-License-Identifier: Apache-2.0
"""Exports and switches on a disk that is full, then read-only, in a mount namespace.

    unshare --user --map-root-user --mount python full_disk_export.py WORK

WORK is an empty folder.
"""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from pathlib import Path

import mxnet as mx

import gluon_roi
from gluon_roi.__main__ import main
from gluon_roi.onnx import file as onnx_file

disk = Path(sys.argv[1]) / "disk"
disk.mkdir()
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], check=True)
model, result, symbol = disk / "model.onnx", disk / "out.json", Path(sys.argv[1]) / "net.json"
params, weights = symbol.with_suffix(".params"), disk / "out.params"
inference = ("--inference", "--params", str(params), "--out-params", str(weights))
pooled = mx.sym.ROIPooling(mx.sym.var("x"), mx.sym.var("rois"), (2, 2), 0.5)
net = mx.sym.FullyConnected(pooled, num_hidden=400, no_bias=True, name="fc")
net.save(str(symbol))
mx.nd.save(str(params), {"fc_weight": mx.nd.ones((400, 12))})


def export(limit: int) -> None:
    onnx_file.LIMIT = limit
    params = {"fc_weight": mx.nd.ones((400, 12))}
    gluon_roi.onnx.export(net, [(1, 3, 9, 9), (3, 5)], model, params)


def switch(*options: str) -> None:
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        status = main(["switch", str(symbol), str(result), *options])
    if status:
        raise OSError(errors.getvalue().strip())


def fails(call, *arguments, message: str) -> None:
    """The call fails with the message, and the disk stays as it was."""
    before = {path.name: path.read_bytes() for path in disk.iterdir()}
    try:
        call(*arguments)
    except OSError as error:
        assert str(error) == message, error
    else:
        raise AssertionError(f"no error, but expected {message}")
    assert {path.name: path.read_bytes() for path in disk.iterdir()} == before


export(10**9)
switch(*inference)
ballast = disk / "ballast"
with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
    while True:
        file.write(bytes(4096))
reason = "No space left on device"
path = "onnx.export: path:"
fails(export, 10**9, message=f"{path} the model cannot be written to {model}: {reason}")
data = f"{path} the weights of {model} cannot be written to {model}.data: {reason}"
fails(export, 1000, message=data)
out = f"gluon_roi: switch: OUT: the symbol cannot be written to {result}: {reason}"
fails(switch, message=out)
out = f"gluon_roi: switch: --out-params: the parameters cannot be written to {weights}: {reason}"
fails(switch, *inference, message=out)
ballast.unlink()
subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
reason = "Read-only file system"
fails(export, 10**9, message=f"{path} {model} cannot be written: {reason}")
fails(switch, message=f"gluon_roi: switch: OUT: {result} cannot be written: {reason}")
model = disk / "new.onnx"
fails(export, 10**9, message=f"{path} the model cannot be written to {model}: {reason}")
