# SPDX-License-Identifier: Apache-2.0
"""`python -m gluon_roi` and its commands; the functions that take the same files."""

from __future__ import annotations

import compileall
import contextlib
import importlib.util
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import zipfile
from functools import partial
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from unittest import mock

import mxnet as mx
import numpy as np
import pytest
from support.onnx_evaluator import run
from support.processes import START, forked
from support.simd_levels import LEVELS

import gluon_roi
from gluon_roi import _compat
from gluon_roi.__main__ import main
from gluon_roi.__main__ import program as console_script
from gluon_roi.switch import functions, programs

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = ("check", "count", "switch", "export", "run", "bench")
ROIS = [[0, 0, 0, 9, 9], [0, 4, 2, 11, 8], [-1, 0, 0, 0, 0]]


def program(*line, **options):
    return subprocess.run(
        [sys.executable, "-m", "gluon_roi", *map(str, line)],
        capture_output=True,
        text=True,
        **options,
    )


@pytest.fixture(autouse=True)
def this_process_stays_as_it_is(monkeypatch):
    """`run` changes its process, which has other tests to run, also where a test expects no run."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.delenv(_compat.RUN, raising=False)
    with contextlib.ExitStack() as replaced:

        def replace(*options):
            return replaced.enter_context(gluon_roi.replace_builtins(*options))

        monkeypatch.setattr(programs, "replace_builtins", replace)
        yield


@pytest.fixture
def model(tmp_path):
    """The prefix of a symbol and its parameters; the inputs are data and rois."""
    maps = mx.sym.Convolution(mx.sym.var("data"), kernel=(1, 1), num_filter=2, name="maps")
    pooled = mx.sym.contrib.ROIAlign(
        maps, mx.sym.var("rois"), (2, 2), 0.5, sample_ratio=2, name="pool"
    )
    symbol = mx.sym.exp(pooled, name="last")
    rng = np.random.RandomState(0)
    weights = {"maps_weight": rng.randn(2, 3, 1, 1), "maps_bias": rng.randn(2)}
    arrays = {name: mx.nd.array(value) for name, value in weights.items()}
    prefix = tmp_path / "net"
    mx.model.save_checkpoint(str(prefix), 0, symbol, arrays, {})
    return prefix


def files(prefix):
    return f"{prefix}-symbol.json", f"{prefix}-0000.params"


def test_check_is_the_default(capsys):
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert f"library      {gluon_roi.library.PATH}\n" in shown
    for block in gluon_roi.OPERATORS:
        assert f"{block.__name__:20} agrees with the reference\n" in shown


def test_version_and_help(capsys):
    lines = [["--version"], ["--help"], *([name, "--help"] for name in COMMANDS)]
    for line in lines:
        with pytest.raises(SystemExit) as ended:
            main(line)
        shown = capsys.readouterr()
        assert ended.value.code == 0 and not shown.err
        if line == ["--version"]:
            assert shown.out == f"gluon_roi {gluon_roi.__version__}\n"
        else:
            assert shown.out.startswith("usage: ") and line[0].strip("-") in shown.out


def test_console_script(monkeypatch, capsys):
    """pyproject.toml names the function, which reads the line of the process."""
    assert 'gluon-roi = "gluon_roi.__main__:program"' in (ROOT / "pyproject.toml").read_text()
    monkeypatch.setattr(sys, "argv", ["/bin/gluon-roi", "--help"])
    monkeypatch.setattr(signal, "signal", mock.Mock())  # this process keeps its own
    with pytest.raises(SystemExit) as ended:
        console_script()
    assert ended.value.code == 0 and capsys.readouterr().out.startswith("usage: gluon-roi [")


def test_count(model, capsys):
    symbol, _ = files(model)
    assert main(["count", symbol]) == 0
    assert capsys.readouterr().out.split() == ["_contrib_ROIAlign", "1"]
    assert main(["count", symbol, "--all"]) == 0
    rows = dict(line.split() for line in capsys.readouterr().out.splitlines())
    assert rows == {name: str(uses) for name, uses in gluon_roi.count(symbol).items()}
    mx.sym.var("x").save(symbol)
    assert main(["count", symbol]) == 0
    assert capsys.readouterr().out == f"{symbol}: no RoI operator, MXNet's or gluon_roi's\n"


def test_count_of_an_operator_that_is_not_registered(model):
    symbol, _ = files(model)
    text = Path(symbol).read_text()
    Path(symbol).write_text(
        text.replace('"op": "exp",', '"op": "Custom", "param": {"op_type": "t"},')
    )
    used = gluon_roi.count(Path(symbol))
    assert (used["Custom:t"], used["_contrib_ROIAlign"]) == (1, 1)


def test_switch(model, tmp_path, capsys):
    symbol, params = files(model)
    result = tmp_path / "switched-symbol.json"
    assert main(["switch", symbol, str(result), "--bad-index", "padding"]) == 0
    assert capsys.readouterr().out == f"{result}\nswitched: 1 (_contrib_ROIAlign 1)\n"
    expected = gluon_roi.optimize(mx.sym.load(symbol), bad_index="padding")
    assert mx.sym.load(str(result)).tojson() == expected.tojson()
    assert gluon_roi.optimize(symbol, bad_index="padding").tojson() == expected.tojson()
    assert gluon_roi.optimize(Path(symbol), rois_only=True).list_arguments()[0] == "data"
    again = tmp_path / "again.json"
    assert main(["switch", str(result), str(again)]) == 0
    shown = capsys.readouterr().out
    assert shown == f"{again}\nswitched: 0, the file had no operator of MXNet's\n"
    again.unlink()
    assert sorted(os.listdir(tmp_path)) == sorted(
        [Path(symbol).name, Path(params).name, result.name]
    )


def test_switch_names_unknown_custom_operators(model, tmp_path, capsys):
    symbol, _ = files(model)
    text = Path(symbol).read_text()
    Path(symbol).write_text(
        text.replace('"op": "exp",', '"op": "Custom", "attrs": {"op_type": "nobody"},')
    )
    result = tmp_path / "switched.json"
    assert main(["switch", symbol, str(result)]) == 2
    assert not result.exists()
    assert re.fullmatch(
        r"gluon_roi: optimize: node \w+ \(Custom\) is the Custom operator nobody, which is not "
        r"registered; import the Python module that registers it, and call gluon_roi.optimize "
        r"there\n",
        capsys.readouterr().err,
    )


def test_switch_warns_of_custom_operators(model, capsys):
    symbol, _ = files(model)

    @mx.operator.register("command_line_test")
    class Property(mx.operator.CustomOpProp):
        pass

    both = mx.sym.Group(
        [mx.sym.load(symbol), mx.sym.Custom(mx.sym.var("x"), op_type="command_line_test")]
    )
    both.save(symbol)
    assert main(["switch", symbol, f"{symbol}.switched"]) == 0
    error = capsys.readouterr().err
    assert re.fullmatch(r"gluon_roi: optimize: the Custom operators command_line_test .*\n", error)


@pytest.mark.parametrize("part", [False, True], ids=["whole", "part"])
def test_export(model, tmp_path, part, capsys):
    onnx = pytest.importorskip("onnx")
    symbol, params = files(model)
    path = tmp_path / "net.onnx"
    line = ["export", symbol, params, "-o", str(path)]
    if part:
        line += ["--shape", "rois=3,5", "--inputs", "maps=1,2,5,6", "--outputs", "pool"]
        line += ["--dynamic", "maps=2,3"]
    else:
        line += ["--shape", "rois=3,5", "--shape", "data=1,3,5,6", "--dtype", "rois=float32"]
        line += ["--dynamic", "data=2:height,3:width"]
    about = {"short": 5, "classes": ["dog"]}
    (tmp_path / "about.json").write_text(json.dumps(about))
    line += ["--metadata", str(tmp_path / "about.json")]
    assert main(line) == 0
    assert capsys.readouterr().out == f"{path}\n"
    written = {p.key: p.value for p in onnx.load(str(path)).metadata_props}
    assert written == {"short": "5", "classes": '["dog"]'}
    rng = np.random.RandomState(1)
    inputs = {"rois": np.array(ROIS, "float32")}
    inputs["maps" if part else "data"] = rng.randn(1, 2 if part else 3, 7, 8).astype("float32")
    net = mx.sym.load(symbol)
    if part:
        maps = mx.sym.var("maps")
        net = mx.sym.contrib.ROIAlign(maps, mx.sym.var("rois"), (2, 2), 0.5, sample_ratio=2)
    arrays = {name: mx.nd.array(value) for name, value in inputs.items()}
    arrays.update((name[4:], value) for name, value in mx.nd.load(params).items() if not part)
    expected = gluon_roi.optimize(net).bind(mx.cpu(), arrays).forward()[0].asnumpy()
    order = ("rois", "maps") if part else ("data", "rois")
    (out,) = run(path, *(inputs[name] for name in order))
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)
    if not part:  # the function takes the same files
        gluon_roi.onnx.export(
            symbol,
            {"rois": (3, 5), "data": (1, 3, 5, 6)},
            tmp_path / "same.onnx",
            params,
            dynamic={"data": {2: "height", 3: "width"}},
            metadata=about,
        )
        assert (tmp_path / "same.onnx").read_bytes() == path.read_bytes()


def piped(path):
    """A named pipe with the content of a file, which can be read once."""
    fifo = Path(f"{path}.pipe")
    os.mkfifo(fifo)
    content = Path(path).read_bytes()
    threading.Thread(target=fifo.write_bytes, args=[content], daemon=True).start()
    return str(fifo)


def main_in_a_minute(line):
    signal.alarm(60)  # a pipe that is opened again waits for ever
    return main(line)


#: Lines that read the files S and P of a model, and the files that they write.
READING = {
    "count S": [],
    "switch S out": ["out"],
    "switch S out --inference --params P --out-params weights": ["out", "weights"],
    "export S P -o out --shape data=1,3,5,6 --shape rois=3,5": ["out"],
}


@pytest.mark.parametrize("line", READING)
def test_models_from_pipes(line, model):
    """`<(zcat net-symbol.json.gz)`: each file is read once."""
    if line.startswith("export"):
        pytest.importorskip("onnx")
    symbol, params = files(model)
    results = []
    for source in (str, piped):
        words = [source({"S": symbol, "P": params}[w]) if w in "SP" else w for w in line.split()]
        status, _, error = forked(partial(main_in_a_minute, words), model.parent)
        assert (status, error) == (0, "")
        results.append([(model.parent / name).read_bytes() for name in READING[line]])
    assert results[0] == results[1]


#: Python 3.12 has no distutils, which GluonCV's training programs import.
SCRIPT = """
import sys
import helper
import distutils.version
import mxnet as mx
from distutils.util import strtobool
from distutils.version import LooseVersion
x, rois = mx.nd.ones((1, 1, 4, 4)), mx.nd.array({rois})
print(sys.argv[1:], __name__, helper.__name__)
print(mx.nd.contrib.ROIAlign(x, rois, (1, 1), 1.0).asnumpy().ravel()[2])
print(LooseVersion('0.10.5') < LooseVersion('0.9'), strtobool('Yes'), strtobool('off'))
"""


BAD_ROWS = [*ROIS[:2], [3, 0, 0, 1, 1]]


@pytest.mark.parametrize(
    "line, folder, option",
    [
        pytest.param(
            *("package/program.py", ".", "--bad-index=padding"),
            marks=pytest.mark.night,  # test_the_commands_of_the_page runs a script
        ),
        ("-m program", "package", "--bad-index padding"),
    ],
)
def test_run(tmp_path, line, folder, option, monkeypatch):
    """The script gets its own arguments, our operators, and a distutils."""
    monkeypatch.setenv("SETUPTOOLS_USE_DISTUTILS", "stdlib")  # not setuptools' copy
    (tmp_path / "package").mkdir()
    (tmp_path / "package/helper.py").write_text("")
    (tmp_path / "package/program.py").write_text(SCRIPT.format(rois=BAD_ROWS))
    own = ["--help", "--", "-m", "x", "--rois-only"]
    options = ["--rois-only", *option.split(), *line.split()]
    done = program("run", *options, *own, cwd=tmp_path / folder)
    assert done.stdout == f"{own} __main__ helper\n0.0\nFalse 1 0\n", done.stderr


@pytest.mark.night
def test_run_with_a_bad_index(tmp_path):
    (tmp_path / "helper.py").write_text("")
    (tmp_path / "script.py").write_text(SCRIPT.format(rois=BAD_ROWS))
    done = program("run", "script.py", cwd=tmp_path)
    assert "row 2 has batch index 3" in done.stderr


ENDS = {
    "chains": "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise KeyError(2) from e",
    "hook": "import sys\nsys.excepthook = lambda k, e, t: print(k, t.tb_lineno)\n1 / 0",
    "interrupt": "raise KeyboardInterrupt",
    "syntax": "x = (1,\n",
    "exit": "import sys; sys.exit('sentence')",
    "status": "import sys; sys.exit(7)",
    "future": "print((lambda x: 1).__annotations__, f.__annotations__) if (f := None) else 1 / 0",
    "names": (
        "import sys\n"
        "print(__file__, sys.argv, __name__, __spec__, __package__, sys.path[0])\n"
        "def f():\n    raise ValueError('its own')\nf()"
    ),
}


def run_in_child(*line, cwd):
    """`program("run", ...)` in a child of this process, which saves a start of Python."""

    def run():
        try:
            return main(["run", *map(str, line)])
        except Exception as error:
            sys.excepthook(type(error), error, error.__traceback__)  # as Python does at its end
            return 1

    return subprocess.CompletedProcess(line, *forked(run, cwd))


@pytest.mark.parametrize(
    "name, run_program",
    [pytest.param("names", run_in_child, id="names in a child")]
    + [
        pytest.param(name, partial(program, "run"), marks=pytest.mark.night, id=name)
        for name in ENDS
    ],
)
def test_run_ends_and_reports_as_python_does(name, run_program, tmp_path):
    """The same text, to the byte, and the same status: no frame of this package."""
    (tmp_path / "sub").mkdir()
    script = Path("sub", "program.py")
    (tmp_path / script).write_text(ENDS[name])
    python = subprocess.run(
        [sys.executable, str(script), "a"], capture_output=True, text=True, cwd=tmp_path
    )
    actual = run_program(script, "a", cwd=tmp_path)
    expected = python.stdout
    if name == "names" and sys.version_info < (3, 9):
        expected = expected.replace(f"{script} [", f"{tmp_path / script} [", 1)
    assert (actual.returncode, actual.stdout) == (python.returncode, expected)
    if sys.version_info >= (3, 9):  # an older Python shows the path as given
        assert actual.stderr == python.stderr


@pytest.mark.night
def test_run_of_a_module_that_fails(tmp_path):
    """The traceback begins with the module."""
    (tmp_path / "fails.py").write_text("1 / 0")
    found = program("run", "-m", "fails", cwd=tmp_path).stderr.splitlines()
    assert found[1].startswith(f'  File "{tmp_path / "fails.py"}", line 1, in <module>')
    (tmp_path / "package").mkdir()
    (tmp_path / "package/__init__.py").write_text("raise OSError('its own')")
    done = program("run", "-m", "package.module", cwd=tmp_path)
    assert done.returncode == 1 and done.stderr.endswith("OSError: its own\n")
    assert "gluon_roi" not in done.stderr


#: Prints everything that Python gives to a program; the modules next to it are found.
NAMES = """
import sys
names = sorted((name, type(value)) for name, value in globals().items())
import helper
print(names, sys.argv, __package__, __spec__ and __spec__.name, __cached__)
if sys.version_info >= (3, 9):  # before, the path of a script was as given
    print(__file__, sys.path[0])
print(__builtins__.len is len, sys.modules["__main__"].__dict__ is globals())
"""
PROGRAMS = {
    "script": ["folder/program.py"],
    "bytecode": ["folder/program.pyc"],
    "folder": ["folder"],
    "archive": ["packed.zip"],
    "module": ["-m", "program"],
    "package": ["-m", "package"],
    "module of a package": ["-m", "package.program"],
}


@pytest.mark.parametrize("kind", PROGRAMS)
def test_run_gives_a_program_what_python_gives_it(kind, tmp_path):
    folder, package = tmp_path / "folder", tmp_path / "package"
    for parent in (folder, package, tmp_path):
        parent.mkdir(exist_ok=True)
        for name in ("program.py", "__main__.py"):
            (parent / name).write_text(NAMES)
        (parent / "helper.py").write_text("")
    compileall.compile_file(folder / "program.py", legacy=True, quiet=1)
    shutil.make_archive(str(tmp_path / "packed"), "zip", folder)
    line = [*PROGRAMS[kind], "--x"]
    python = subprocess.run(
        [sys.executable, *line], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    done = run_in_child(*line, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, python.stdout, "")


#: A program that starts a process in the way that its argument names, and nothing for None.
PARENT = f"""
import multiprocessing, subprocess, sys

def show():
    import mxnet as mx
    x, rois = mx.nd.ones((1, 1, 4, 4)), mx.nd.array({BAD_ROWS})
    pooled = mx.nd.contrib.ROIAlign(x, rois, (1, 1), 1.0).asnumpy().ravel()[2]
    options = sys.modules["gluon_roi.switch.functions"]._active
    print(pooled, len(options), tuple(options[-1]), flush=True)

if __name__ == "__main__":
    way = sys.argv[1]
    if way in ("spawn", "forkserver"):
        process = multiprocessing.get_context(way).Process(target=show)
        process.start()
        process.join()
    else:
        flags, imports = way.split(":")
        code = f"import {{imports}}, sys; sys.path.insert(0, '.'); import program; program.show()"
        subprocess.run([sys.executable, *flags.split(), "-c", code])
"""


@pytest.mark.parametrize(
    "way",
    [
        "spawn",
        *(
            pytest.param(way, marks=pytest.mark.night)
            for way in ("forkserver", ":mxnet", ":gluon_roi", ":gluoncv", "-E:mxnet", "-s -B:mxnet")
        ),
    ],
)
def test_run_switches_child_processes(way, tmp_path, monkeypatch):
    """With the options of `run`."""
    # As gluon_roi.pth does where the package is installed.
    (tmp_path / "sitecustomize.py").write_text(START)
    if way[0] != "-":
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "program.py").write_text(PARENT)
    options = ("--bad-index", "padding", "--rois-only")
    done = run_in_child(*options, "program.py", way, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "0.0 1 ('padding', True)\n"), done.stderr


def test_processes_that_are_not_switched(model, monkeypatch, capsys):
    """Commands, as `bench` compares with MXNet's operators, and other installations."""
    functions.replace_in_children("padding", True)
    functions.replace_as_parent()
    assert functions.is_replaced()
    assert main(["count", files(model)[0]]) == 0 and not functions.is_replaced()
    monkeypatch.setattr(_compat, "PACKAGE", "elsewhere")
    functions.replace_as_parent()
    assert not functions.is_replaced()
    for value in ("1", "padding"):
        monkeypatch.setenv(_compat.RUN, value)
        with pytest.raises(ImportError, match=f"GLUON_ROI_RUN: expected .*, got '{value}'"):
            functions.replace_as_parent()


def test_an_unknown_instruction_set_is_one_sentence(tmp_path, monkeypatch):
    """The error lists the instruction sets of this processor, in Python and from a command.

    A library reads the variable once, so this is one that nobody has called.
    """
    copy = shutil.copy(str(gluon_roi.library.PATH), str(tmp_path))
    monkeypatch.setattr(gluon_roi.library, "PATH", Path(copy))
    monkeypatch.setenv("GLUON_ROI_SIMD", "mmx")

    def run():
        try:
            gluon_roi.build_info()
        except RuntimeError as error:
            print(error)
        return main(["check"])

    sentence = (
        f"environment variable GLUON_ROI_SIMD: expected {' or '.join(LEVELS)}, which this "
        "processor has, got 'mmx'\n"
    )
    assert forked(run) == (2, sentence, f"gluon_roi: {sentence}")


#: Lines, and what the error says. S and P are the files of the model, F and J are others.
EXPORT = "export S P -o net.onnx"
REFUSED = {
    "frobnicate": "argument COMMAND: invalid choice: 'frobnicate'",
    "check more": "unrecognized arguments: more",
    "--al": "unrecognized arguments: --al",
    "count": "the following arguments are required: MODEL",
    "count none.json": "count: expected a symbol file, but there is no file none.json",
    "count .": "count: expected a symbol file, but . is a folder",
    "count /dev/full": "count: expected a symbol file, but /dev/full is a device",
    "count /dev/null": "count: expected a symbol file, but /dev/null is a device",
    "switch /dev/zero out.json": "switch: IN: expected a symbol file, but /dev/zero is a device",
    "export S /dev/zero -o a --shape data=1": "PARAMS: expected a file of parameters, but /dev/z",
    f"{EXPORT} --shape data=1,3,5,6 --shape rois=3,5 --metadata /dev/zero": "but /dev/zero is a de",
    "count P": "is not a symbol file",
    "count F": "count: F is not a symbol file",
    "count S --everything": "unrecognized arguments: --everything",
    "switch S": "the following arguments are required: OUT",
    "switch none.json out.json": "expected a symbol file, but there is no file none.json",
    "switch F out.json": "F is not a symbol file",
    "switch S .": "switch: OUT: . is a folder",
    "switch S no/out.json": "switch: OUT: there is no folder no",
    "switch S /dev/null": "switch: OUT: expected a file, but /dev/null is a device",
    "switch S out.json --bad-index no": "argument --bad-index: invalid choice: 'no'",
    "switch S ./S": "switch: OUT: expected another file than IN, got net-symbol.json",
    "switch X out.json": "optimize: the symbol has no RoI operator, expected one of ROIPooling",
    "export S P": "the following arguments are required: -o",
    f"{EXPORT} --shape data": "argument --shape: expected NAME=NUMBER,NUMBER,..., got 'data'",
    f"{EXPORT} --shape data=1,x": "argument --shape: expected NAME=NUMBER,NUMBER,..., got",
    f"{EXPORT} --shape data=1,-2": "argument --shape: expected NAME=NUMBER,NUMBER,..., got",
    f"{EXPORT} --shape data=2147483648,2 --shape rois=3,5": "expected sizes up to 2147483647, got",
    EXPORT: "onnx.export: input_shapes: expected a shape for input data, got none",
    f"{EXPORT} --shape data=1,3,5,6": "input_shapes: expected a shape for input rois, got none",
    f"{EXPORT} --shape dat=1": "shapes: the model has no input 'dat', expected one of data, rois",
    f"{EXPORT} --shape data=1 --shape data=2": "--shape: expected data once, got it several times",
    f"{EXPORT} --shape data=1,3,5,6 --shape rois=3,5 --dynamic x=1": "dynamic: the model has no",
    f"{EXPORT} --dynamic data": "argument --dynamic: expected NAME=AXIS,AXIS,... or NAME=AXIS:",
    f"{EXPORT} --dynamic data=2,x": "argument --dynamic: expected NAME=AXIS,AXIS,... or NAME=AXIS",
    f"{EXPORT} --dynamic data=2:h,3": "argument --dynamic: expected NAME=AXIS,AXIS,... or NAME=AX",
    f"{EXPORT} --shape data=1,3,5,6 --shape rois=3,5 --dynamic data=2:": "expected a name for axis",
    f"{EXPORT} --dtype data": "argument --dtype: expected NAME=DTYPE, got 'data'",
    f"{EXPORT} --shape data=1,3,5,6 --shape rois=3,5 --dtype data=x": "x is not a dtype for ",
    f"{EXPORT} --shape data=1,3,5,6 --shape rois=3,5 --dynamic data=4": "dynamic=(4,) for input",
    f"{EXPORT} --shape data=1,3,5,6 --shape rois=3,5 --outputs no": "outputs: the model has no ",
    f"{EXPORT} --shape data=1,4,5,6 --shape rois=3,5": "Error in operator maps: ",
    "export S P -o P --shape data=1": "-o: expected another file than PARAMS, got ",
    "export S none -o net.onnx --shape data=1": "PARAMS: expected a file of parameters, but there",
    "export S F -o net.onnx --shape data=1": "PARAMS: F is not a complete file of parameters",
    "export S . -o net.onnx --shape data=1": "PARAMS: expected a file of parameters, but . is a",
    "export F P -o net.onnx --shape data=1": "F is not a symbol file",
    f"{EXPORT} --shape data=1,3,5,6 --shape rois=3,5 --metadata F": "--metadata: F is not a JSON",
    f"{EXPORT} --shape data=1,3,5,6 --shape rois=3,5 --metadata no": "expected a JSON file, but",
    f"{EXPORT} --shape data=1,3,5,6 --shape rois=3,5 --metadata J": "metadata: expected a dict of",
    "export S P -o J --shape data=1 --metadata J": "-o: expected another file than --metadata",
    "export S P -o no/net.onnx --shape data=1": "-o: there is no folder no",
    "run": "run: expected SCRIPT or -m MODULE, got neither",
    "run -m": "run: expected SCRIPT or -m MODULE, got neither",
    "run none.py": "run: expected a script, but there is no file none.py",
    "run -m none.here": "run: -m: expected a module, but there is none of the name none.here",
    "run .": "run: expected a script, but the folder . has no __main__.py",
    "run Z": "run: expected a script, but the archive Z has no __main__.py",
    "run -m mainless": "run: -m: expected a module, but the package mainless has no __main__",
    "run -m sys": "run: -m: expected a module in Python, but sys is part of Python itself",
    "run -m compiled": "run: -m: expected a module in Python, but compiled is compiled",
    "run --bad-index no F": "argument --bad-index: invalid choice: 'no'",
    "run --other F": "unrecognized arguments: --other",
}


def contents():
    return {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}


@pytest.mark.parametrize("line", REFUSED)
def test_refusals(line, model, tmp_path, capsys, monkeypatch):
    """One sentence, status 2, and no file more or less."""
    monkeypatch.chdir(tmp_path)
    Path("F").write_text("text")
    Path("J").write_text("[]")
    mx.sym.var("x").save("X")
    zipfile.ZipFile("Z", "w").close()
    Path("mainless").mkdir()
    Path("mainless/__init__.py").touch()
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    Path(f"compiled{EXTENSION_SUFFIXES[0]}").touch()
    symbol, params = files("net")
    before = contents()
    words = [{"S": symbol, "P": params, "./S": f"./{symbol}"}.get(w, w) for w in line.split()]
    with pytest.raises(SystemExit) as ended:
        sys.exit(main(words))
    shown = capsys.readouterr()
    assert ended.value.code == 2 and not shown.out
    assert REFUSED[line] in shown.err and re.fullmatch(r"gluon_roi: [^\n]+\n", shown.err)
    assert before == contents()


@pytest.mark.parametrize(
    "line",
    [
        ["count", "--all"],
        pytest.param(["check"], marks=pytest.mark.night),
        pytest.param(["--help"], marks=pytest.mark.night),
    ],
)
def test_a_pipe_that_is_closed(line, model):
    """`python -m gluon_roi | head`: no traceback, whichever write comes after the last read."""
    reader, writer = os.pipe()
    os.close(reader)
    line = [*line, files(model)[0]] if line[0] == "count" else line
    run = subprocess.run(
        [sys.executable, "-m", "gluon_roi", *line], stdout=writer, stderr=subprocess.PIPE
    )
    os.close(writer)
    assert run.returncode and not run.stderr


def test_the_commands_of_the_page(model, tmp_path, monkeypatch, capsys):
    """The first block runs; test_check_is_the_default and test_bench have `check` and `bench`."""
    (tmp_path / "train.py").write_text("import sys; print('trained', *sys.argv)")
    block = (ROOT / "docs/command_line.md").read_text().split("```")[1]
    lines = [line.split() for line in re.findall(r"^python -m gluon_roi (.*)", block, re.M)]
    assert [line[0] for line in lines] == list(COMMANDS)
    by_name = {line[0]: line for line in lines}
    status, shown, error = forked(lambda: main(by_name["run"]), tmp_path)
    assert (status, shown) == (0, "trained train.py --epochs 1\n"), error
    if importlib.util.find_spec("onnx"):
        monkeypatch.chdir(tmp_path)
        assert main(by_name["export"]) == 0 and capsys.readouterr().out == "net.onnx\n"


def test_bench(monkeypatch, capsys):
    """A row for each operator; their results agree."""
    from gluon_roi import side_by_side

    for name, value in (("_BUDGET", 0), ("_BOXES", 5), ("_MAP", (8, 10)), ("_IMAGE", (128, 160))):
        monkeypatch.setattr(side_by_side, name, value)
    assert main(["bench"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[4:]]
    assert [row[0] for row in rows] == ["ROIPool", "ROIAlign", "PSROIPool", "PSROIAlign"]
    assert all(len(row) == 10 and float(row[-1]) < 1e-4 for row in rows)


def test_without_mxnet(tmp_path):
    """One sentence from a command; a program that imports the package gets the error."""
    made = [sys.executable, "-m", "venv", "--without-pip", str(tmp_path)]
    subprocess.run(made, check=True)
    environment = str(tmp_path / "bin" / "python")  # it has no package at all
    sentence = "gluon_roi needs MXNet 1.9.1, 1.9.0 or 1.8.0, found none; run 'pip install "
    for line in (["check"], ["run", "script.py"], ["--help"]):
        done = subprocess.run(
            [environment, "-m", "gluon_roi", *line], capture_output=True, text=True, cwd=ROOT
        )
        assert done.returncode == 2 and done.stderr.startswith(f"gluon_roi: {sentence}")
        assert done.stderr.count("\n") == 1 and not done.stdout
    code = "import gluon_roi"
    done = subprocess.run([environment, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 1 and f"ImportError: {sentence}" in done.stderr
