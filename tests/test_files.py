# SPDX-License-Identifier: Apache-2.0
"""Files that the package writes: complete or not at all, and no other file is touched."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import mxnet as mx
import pytest
from support.damages import files_up_to
from support.processes import ended_by

import gluon_roi
from gluon_roi.__main__ import main
from gluon_roi.files import saved_by_mxnet
from gluon_roi.replacement import Replacement, replacing, work_folder

onnx = pytest.importorskip("onnx")

from gluon_roi.onnx import file as onnx_file  # noqa: E402

SCRIPTS = Path(__file__).parent / "scripts"
SHAPES = [(1, 3, 9, 9), (3, 5)]


def _symbol(units=100):
    pooled = mx.sym.ROIPooling(mx.sym.var("data"), mx.sym.var("rois"), (2, 2), 0.5, name="pool")
    return mx.sym.FullyConnected(pooled, num_hidden=units, no_bias=True, name="fc")


def _params(value=1.0, units=100):
    return {"fc_weight": mx.nd.full((units, 12), value)}


def _export(path, value=1.0):
    gluon_roi.onnx.export(_symbol(), SHAPES, path, _params(value))


def _weight(path):
    """The weight of a model, read from its file of weights if it has one."""
    model = onnx.load(str(path))
    (found,) = (t for t in model.graph.initializer if list(t.dims) == [100, 12])
    return onnx.numpy_helper.to_array(found)


@pytest.fixture
def small_limit(monkeypatch):
    """Weights of more than 1000 bytes get a file of their own."""
    monkeypatch.setattr(onnx_file, "LIMIT", 1000)


@pytest.fixture
def symbol(tmp_path):
    path = tmp_path / "net-symbol.json"
    _symbol().save(str(path))
    return path


def _contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


# ---- Files with similar names --------------------------------------------------------------------


def test_files_with_similar_names_are_not_touched(tmp_path, symbol, monkeypatch):
    names = ("model.part.onnx", "model.onnx.part", "out.part.json", "model.onnx.part.data", "part")
    for name in names:
        (tmp_path / name).write_text("the user's")
    _export(tmp_path / "model.onnx")
    assert main(["switch", str(symbol), str(tmp_path / "out.json")]) == 0
    monkeypatch.setattr(onnx_file, "LIMIT", 1000)
    _export(tmp_path / "model.onnx")
    made = {"net-symbol.json", "model.onnx", "model.onnx.data", "out.json"}
    assert {*os.listdir(tmp_path)} == {*names, *made}
    assert all((tmp_path / name).read_text() == "the user's" for name in names)


def test_another_file_in_the_place_of_the_weights(tmp_path, small_limit):
    """Refused, also if the model exists, and if it names this file but is not gluon_roi's."""
    path, data = tmp_path / "model.onnx", tmp_path / "model.onnx.data"
    data.write_text("the user's")
    other = onnx.ModelProto(producer_name="other")
    tensor = other.graph.initializer.add(data_location=onnx.TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=data.name)
    for old in (None, b"no model", other.SerializeToString()):
        if old is not None:
            path.write_bytes(old)
        before = _contents(tmp_path)
        with pytest.raises(FileExistsError, match=f"would be written to {data}, but another file"):
            _export(path)
        assert _contents(tmp_path) == before
    path.unlink()
    data.unlink()
    data.symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileExistsError):
        _export(path)
    assert [*tmp_path.iterdir()] == [data]


def test_weights_of_an_earlier_export(tmp_path, small_limit, monkeypatch):
    """Each pair has its own file of weights; that of the earlier pair goes at the end."""
    path = tmp_path / "model.onnx"
    seen = set()
    for value in (1, 2, 3):
        _export(path, value)
        (data,) = (p for p in tmp_path.iterdir() if p != path)
        assert (_weight(path) == value).all()
        assert data.name not in seen
        assert data.name == "model.onnx.data" or value > 1
        seen.add(data.name)
    monkeypatch.setattr(onnx_file, "LIMIT", 10**9)
    _export(path, 4)
    assert [*tmp_path.iterdir()] == [path] and (_weight(path) == 4).all()


def test_a_failure_keeps_the_earlier_export(tmp_path, small_limit, monkeypatch):
    path = tmp_path / "model.onnx"
    _export(path)
    before = _contents(tmp_path)
    replace = os.replace

    def fail(part, file):
        if file == path:
            raise OSError(28, "No space left on device")
        replace(part, file)

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match=f"^onnx.export: path: the model cannot be written to {path}"):
        _export(path, 2)
    assert _contents(tmp_path) == before and len([*tmp_path.iterdir()]) == 2


# ---- Several at a time ---------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [10**9, 1000], ids=["one file", "two files"])
def test_threads_that_export_to_one_path(limit, tmp_path, monkeypatch):
    """No error, one complete export at the end, and whoever reads meanwhile has a whole model."""
    monkeypatch.setattr(onnx_file, "LIMIT", limit)
    path = tmp_path / "model.onnx"
    _export(path)
    done = threading.Event()

    def read():
        count = 0
        while not done.is_set() or not count:
            model = onnx.load_model_from_string(path.read_bytes())
            assert len(model.graph.initializer) > 0 and model.graph.output[0].name == "fc_output"
            count += 1

    with ThreadPoolExecutor(9) as pool:
        reader = pool.submit(read)
        try:
            [*pool.map(lambda value: _export(path, value), range(8))]
        finally:
            done.set()
        reader.result()
    weight = _weight(path)
    assert (weight == weight.flat[0]).all() and len([*tmp_path.iterdir()]) == 1 + (limit < 10**9)


@pytest.mark.night
def test_processes_that_switch_to_one_path(tmp_path, symbol):
    result = tmp_path / "out.json"
    line = [sys.executable, "-m", "gluon_roi", "switch", str(symbol), str(result)]
    running = [subprocess.Popen(line, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [process.wait() for process in running] == [0, 0]
    assert gluon_roi.count(result)["_gluon_roi_ROIPool"] == 1
    assert sorted(os.listdir(tmp_path)) == ["net-symbol.json", "out.json"]


# ---- Two files, and signals ----------------------------------------------------------------------


def _conversion(folder, units=100):
    """The line of a conversion for inference, and the sizes of its outputs; the old ones exist."""
    mx.nd.save(str(folder / "net.params"), _params(units=units))
    _symbol(units).save(str(folder / "net.json"))
    line = ["switch", str(folder / "net.json"), str(folder / "out.json"), "--inference"]
    line += ["--params", str(folder / "net.params"), "--out-params", str(folder / "out.params")]
    assert main(line) == 0
    sizes = {name: (folder / name).stat().st_size for name in ("out.json", "out.params")}
    for name in sizes:
        (folder / name).write_text("old")
    return line, sizes


@pytest.mark.parametrize(
    "units, unwritten",
    [
        (100, "--out-params: the parameters cannot be written to {}/out.params"),
        (1, "OUT: the symbol cannot be written to {}/out.json"),
    ],
    ids=["parameters", "symbol"],
)
def test_a_full_disk_changes_neither_file(units, unwritten, tmp_path, capsys):
    """MXNet does not report that its last bytes were not written."""
    line, sizes = _conversion(tmp_path, units)
    before = _contents(tmp_path)
    capsys.readouterr()
    with files_up_to(max(sizes.values()) - 40):
        assert main(line) == 2
    message = f"gluon_roi: switch: {unwritten.format(tmp_path)}: File too large\n"
    assert capsys.readouterr().err == message
    assert _contents(tmp_path) == before and len([*tmp_path.iterdir()]) == len(before)


def test_an_error_of_mxnet_while_it_saves(tmp_path):
    """It is not the disk's."""
    with pytest.raises(mx.MXNetError, match="its own"), saved_by_mxnet(tmp_path / "a.params"):
        raise mx.MXNetError("its own")


def _replace(folder, end=lambda: None):
    """Replace three files, of which one does not exist; call `end` before that."""
    with Replacement() as replacement:
        for name in ("1", "2", "3"):
            with replacement.part("failure", folder / name) as part:
                part.write_text("new")
        end()


@pytest.fixture
def old_files(tmp_path):
    """Two files that `_replace` replaces; it makes the third."""
    for name in ("1", "3"):
        (tmp_path / name).write_text("old")
    return tmp_path


@pytest.mark.parametrize("has_links", [True, False], ids=["links", "no links"])
def test_the_last_of_several_files_cannot_be_replaced(has_links, old_files, monkeypatch):
    """The others are restored, also in file systems without hard links."""
    if not has_links:
        monkeypatch.setattr(os, "link", mock.Mock(side_effect=PermissionError))
    (old_files / "3").unlink()

    def occupy():
        (old_files / "3").mkdir()

    with pytest.raises(OSError, match="^failure: Is a directory$"):
        _replace(old_files, occupy)
    assert _contents(old_files) == {"1": b"old"} and sorted(os.listdir(old_files)) == ["1", "3"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("when", ["written", "replaced"])
def test_a_signal_removes_what_is_unfinished(when, number, old_files):
    """The process ends by the signal, as it does at any other time."""

    def end():
        os.kill(os.getpid(), number)

    def ending_replace(*paths):
        replace(*paths)
        end()

    def run():
        signal.signal(number, signal.SIG_DFL)  # nohup ignores SIGHUP
        if when == "written":
            _replace(old_files, end)
        with mock.patch("os.replace", ending_replace):  # after the first of three files
            _replace(old_files)

    replace = os.replace
    assert ended_by(run) == number
    assert _contents(old_files) == {"1": b"old", "3": b"old"} and len(os.listdir(old_files)) == 2


@pytest.mark.parametrize("handler", [signal.SIG_DFL, signal.SIG_IGN, mock.Mock()])
def test_a_program_keeps_its_handler_of_signals(handler, old_files):
    def end():
        if handler != signal.SIG_DFL:
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, handler)
    try:
        _replace(old_files, end)
        assert signal.getsignal(signal.SIGTERM) == handler
    finally:
        signal.signal(signal.SIGTERM, before)
    assert {path.read_text() for path in old_files.iterdir()} == {"new"}


def test_a_child_that_is_ended_removes_nothing(old_files):
    """Data loaders fork, and end their processes by SIGTERM."""

    def fork():
        assert ended_by(lambda: os.kill(os.getpid(), signal.SIGTERM)) == signal.SIGTERM

    _replace(old_files, fork)
    assert {path.read_text() for path in old_files.iterdir()} == {"new"}


def test_what_a_killed_process_leaves_is_removed_by_the_next(old_files):
    """Not what a running process writes, another host, or the user."""

    def kill():
        os.kill(os.getpid(), signal.SIGKILL)

    assert ended_by(lambda: _replace(old_files, kill)) == signal.SIGKILL
    (left, *_) = abandoned = [path for path in old_files.iterdir() if path.is_dir()]
    assert len(abandoned) == 3 and left.name.startswith(".gluon_roi-")
    shutil.copytree(left, old_files / ".gluon_roi-users")
    (lock,) = (old_files / ".gluon_roi-users").glob("owner-*")
    lock.rename(lock.with_name("owner-another-host"))
    with work_folder(old_files) as folder:
        with replacing("failure", old_files / "1") as part:
            part.write_text("new")
        assert folder.is_dir()
    assert sorted(os.listdir(old_files)) == [".gluon_roi-users", "1", "3"]


def test_the_command_is_ended(tmp_path, monkeypatch):
    """`kill`, `timeout` and `docker stop` while MXNet writes."""
    line, _ = _conversion(tmp_path)
    before = _contents(tmp_path)
    monkeypatch.setattr(mx.nd, "save", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    assert ended_by(lambda: main(line)) == signal.SIGTERM
    assert _contents(tmp_path) == before and len([*tmp_path.iterdir()]) == len(before)


# ---- Paths ---------------------------------------------------------------------------------------


def test_the_umask_decides_who_may_read(tmp_path, symbol):
    for mask, mode in ((0o022, 0o644), (0o077, 0o600), (0o002, 0o664)):
        before = os.umask(mask)
        try:
            path, result = tmp_path / f"{mask}.onnx", tmp_path / f"{mask}.json"
            _export(path)
            main(["switch", str(symbol), str(result)])
        finally:
            os.umask(before)
        assert {path.stat().st_mode & 0o777, result.stat().st_mode & 0o777} == {mode}
    path.chmod(0o640)
    _export(path)
    assert path.stat().st_mode & 0o777 == 0o640  # as other programs that write to a file


def test_a_symbolic_link_is_written_through(tmp_path, symbol, small_limit):
    """The link stays, and the file that it leads to is replaced, or made."""
    folder = tmp_path / "store"
    folder.mkdir()
    for name, exists in (("made.onnx", False), ("old.onnx", True), ("old.json", True)):
        place, link = folder / name, tmp_path / name
        if exists:
            place.write_text("old")
        link.symlink_to(Path("store", name))
        if name.endswith("json"):
            assert main(["switch", str(symbol), str(link)]) == 0
            assert gluon_roi.count(place)["_gluon_roi_ROIPool"] == 1
        else:
            _export(link)
            assert (_weight(place) == 1).all()
        assert link.is_symlink() and not place.is_symlink()
    names = ["made.onnx", "made.onnx.data", "old.json", "old.onnx", "old.onnx.data"]
    assert sorted(os.listdir(folder)) == names
    loop = tmp_path / "loop.onnx"
    loop.symlink_to(loop)
    with pytest.raises(OSError, match="loop.onnx is a symbolic link that leads to itself"):
        _export(loop)
    astray = tmp_path / "astray.onnx"
    astray.symlink_to(tmp_path / "no" / "model.onnx")
    with pytest.raises(FileNotFoundError, match=f"path: there is no folder {tmp_path / 'no'}"):
        _export(astray)
    assert loop.is_symlink() and astray.is_symlink()


def test_the_file_that_is_read_is_not_written(tmp_path, symbol, capsys):
    """It is refused by its name, another spelling of it, a hard link and a symbolic link."""
    params = tmp_path / "net-0000.params"
    mx.nd.save(str(params), _params())
    (tmp_path / "sub").mkdir()
    for kind, source in (("model", symbol), ("params", params)):
        hard, soft = tmp_path / f"{kind}.hard", tmp_path / f"{kind}.soft"
        os.link(source, hard)
        soft.symlink_to(source)
        other = tmp_path / "sub" / ".." / source.name
        for path in (source, other, hard, soft):
            before = _contents(tmp_path)
            with pytest.raises(ValueError, match=f"path: expected another file than {kind}, got"):
                gluon_roi.onnx.export(symbol, SHAPES, path, params)
            if kind == "model":
                assert main(["switch", str(symbol), str(path)]) == 2
                message = f"gluon_roi: switch: OUT: expected another file than IN, got {path}\n"
                assert capsys.readouterr().err == message
            assert _contents(tmp_path) == before


@pytest.mark.parametrize("name", ["m.json", "m.textproto", "m.onnxtxt", "m", "m" * 255])
def test_a_model_is_protobuf_whatever_its_name(name, tmp_path):
    path = tmp_path / name
    _export(path)
    assert onnx.load_model_from_string(path.read_bytes()).producer_name == "gluon_roi"


def test_paths_that_cannot_be_written(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_text("old")
    path.chmod(0o400)
    if os.geteuid():  # root may write to every file
        with pytest.raises(OSError, match=f"path: {path} cannot be written: Permission denied"):
            _export(path)
    for name in ("a\0b", b"model.onnx", 5):
        with pytest.raises(TypeError, match="onnx.export: path: expected a file, got"):
            _export(name)
    assert _contents(tmp_path) == {"model.onnx": b"old"}


@pytest.mark.night
def test_a_disk_that_fills_up(tmp_path):
    """A small file system in a namespace, which needs no rights, becomes full, then read-only."""
    own = ["unshare", "--user", "--map-root-user", "--mount"]
    probe = [*own, "mount", "-t", "tmpfs", "tmpfs", str(tmp_path)]
    if not shutil.which("unshare") or subprocess.run(probe, capture_output=True).returncode:
        pytest.skip("this system does not let users mount a file system in a namespace")
    done = subprocess.run(
        [*own, sys.executable, str(SCRIPTS / "full_disk_export.py"), str(tmp_path)],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
