# SPDX-License-Identifier: Apache-2.0
"""Files of symbols and parameters that are damaged are refused before MXNet believes them."""

from __future__ import annotations

import json
import random
import struct

import mxnet as mx
import numpy as np
import pytest

import gluon_roi
from gluon_roi import files, parameters
from gluon_roi.__main__ import main

S = mx.sym
DENSE = struct.pack("<QQQIii2qiii", 0x112, 0, 1, 0xF993FAC9, 0, 2, 2, 3, 1, 0, 0)
NAME = struct.pack("<QQ", 1, 1) + b"w"


def _saved(path, arrays):
    mx.nd.save(str(path), arrays)
    return path.read_bytes()


def _read(path, content):
    path.write_bytes(content)
    return files.read_parameters("test", path)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "net.params"


def test_files_of_every_kind(path):
    """Dense and sparse arrays, each type, none at all, and those of np_shape and older versions."""
    rng = np.random.RandomState(0)
    dtypes = ("float16", "float32", "float64", "uint8", "int8", "int32", "int64", "bool")
    arrays = {dtype: mx.nd.array(rng.randint(0, 2, (2, 3)), dtype=dtype) for dtype in dtypes}
    dense = np.zeros((5, 3), "float32")
    dense[[1, 4]] = rng.randn(2, 3)
    for storage in ("row_sparse", "csr"):
        arrays[storage] = mx.nd.array(dense).tostype(storage)
        arrays[f"{storage} of zeros"] = mx.nd.zeros((5, 3)).tostype(storage)
    for found in (_read(path, _saved(path, arrays)), _read(path, _saved(path, arrays) + b"more")):
        assert found.keys() == arrays.keys()
        for name, array in arrays.items():
            assert (found[name].asnumpy() == array.asnumpy()).all(), name
    assert _read(path, _saved(path, {})) == {}
    with mx.util.np_shape(True):
        content = _saved(path, {"scalar": mx.nd.ones(()), "none": mx.nd.ones((0, 3))})
    found = _read(path, content)
    assert (found["scalar"].shape, found["none"].shape) == ((), (0, 3))
    values = np.arange(6, dtype="float32")
    head, tail = struct.pack("<QQQ", 0x112, 0, 1), struct.pack("<iii", 1, 0, 0) + values.tobytes()
    for shape in (struct.pack("<Ii2q", 0xF993FAC8, 2, 2, 3), struct.pack("<I2I", 2, 2, 3)):
        found = _read(path, head + shape + tail + NAME)
        assert (found["w"].asnumpy() == values.reshape(2, 3)).all()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        struct.pack("<QQQ", 0x112, 0, 2**40),
        struct.pack("<QQQ", 0x112, 0, 1) + struct.pack("<I", 2**31),
        struct.pack("<QQQIi", 0x112, 0, 1, 0xF993FAC9, 7),
        struct.pack("<QQQIii", 0x112, 0, 1, 0xF993FAC9, 0, 2**31 - 1),
        struct.pack("<QQQIii2qiii", 0x112, 0, 1, 0xF993FAC9, 0, 2, 2**30, 2**30, 1, 0, 0) + NAME,
        struct.pack("<QQQIii2qiii", 0x112, 0, 1, 0xF993FAC9, 0, 2, 2, 3, 1, 0, 99)
        + bytes(24)
        + NAME,
        DENSE + bytes(23),
        DENSE + bytes(24) + struct.pack("<QQ", 1, 2**62) + b"w",
        DENSE + bytes(24) + struct.pack("<Q", 2**60),
    ],
)
def test_sizes_are_not_believed(content, path, monkeypatch):
    """MXNet gets no such file: it would ask for the memory first."""
    monkeypatch.setattr(mx.nd, "load", lambda *_: pytest.fail("MXNet loads it"))
    with pytest.raises(ValueError, match=f"^test: {path} is not a complete file of parameters$"):
        _read(path, content)


def test_random_damage(path):
    """Each byte in turn, and each end: the arrays, or one sentence."""
    random.seed(0)
    sparse = mx.nd.array([[0, 0], [1, 2], [0, 0]])
    arrays = {
        "w": mx.nd.ones((2, 3)),
        "r": sparse.tostype("row_sparse"),
        "c": sparse.tostype("csr"),
    }
    content = _saved(path, arrays)
    assert _read(path, content).keys() == arrays.keys()
    accepted = 0
    for place in range(len(content)):
        for value in (0xFF, 0x7F, content[place] ^ 1 << random.randrange(8)):
            damaged = bytearray(content)
            damaged[place] = value
            try:
                accepted += len(_read(path, bytes(damaged))) > 0
            except ValueError as error:
                assert str(error) == f"test: {path} is not a complete file of parameters"
        with pytest.raises(ValueError, match="not a complete file of parameters"):
            _read(path, content[:place])
    assert accepted > len(content) // 2  # values and names may be any


def test_the_check_reads_no_values(tmp_path):
    """A file of 8 GB, with a hole, takes no time."""
    path = tmp_path / "large.params"
    with path.open("wb") as file:
        file.write(
            struct.pack("<QQQIii2qiii", 0x112, 0, 1, 0xF993FAC9, 0, 2, 2**16, 2**15, 1, 0, 0)
        )
        file.seek(2**33, 1)
        file.write(NAME)
    with path.open("rb") as file:
        assert parameters.check(file) is False


# ---- Symbols -------------------------------------------------------------------------------------


def _content():
    pool = S.ROIPooling(S.var("data"), S.var("rois"), (2, 2), 0.5, name="pool")
    return json.loads(S.softmax(pool, name="last").tojson())


def _head(content):
    content["heads"] = [[3, 1, 0]]


def _large_head(content):
    content["heads"] = [[3, 2**31, 0]]


def _input(content):
    content["nodes"][3]["inputs"] = [[2, 1, 0]]


def _variable(content):
    content["nodes"][2]["inputs"][0] = [0, 1, 0]


DAMAGES = {
    _head: r"node last \(softmax\): the model reads output 1, but the node has 1",
    _large_head: r"node last \(softmax\): the model reads output 2147483648, but the node has 1",
    _input: r"node pool \(ROIPooling\): the model reads output 1, but the node has 1",
    _variable: r"node data \(null\): the model reads output 1, but the node has 1",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_outputs_that_a_node_lacks(damage, tmp_path, capsys):
    """MXNet reads other memory, or ends in SIGSEGV."""
    content, path = _content(), tmp_path / "net-symbol.json"
    damage(content)
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=f"^optimize: {DAMAGES[damage]}$"):
        gluon_roi.optimize(path)
    assert main(["switch", str(path), str(tmp_path / "out.json")]) == 2
    assert capsys.readouterr().err.startswith("gluon_roi: optimize: node ")
    pytest.importorskip("onnx")
    with pytest.raises(ValueError, match=f"^onnx.export: {DAMAGES[damage]}$"):
        gluon_roi.onnx.export(path, [(1, 3, 9, 9), (2, 5)], tmp_path / "model.onnx")
    assert [*tmp_path.iterdir()] == [path]


def test_outputs_that_a_node_has(tmp_path):
    """Several outputs, those of BatchNorm, and heads of one node."""
    path = tmp_path / "net-symbol.json"
    parts = S.split(S.var("x"), num_outputs=3, axis=1)
    norm = S.BatchNorm(parts[2], output_mean_var=True, name="bn")
    S.Group([parts[1], norm[1], parts[0], S.ROIPooling(norm[0], S.var("r"), (2, 2), 1.0)]).save(
        str(path)
    )
    assert len(gluon_roi.optimize(path).list_outputs()) == 4
