# SPDX-License-Identifier: Apache-2.0
"""The command line: ``python -m gluon_roi``, or ``gluon-roi``."""

from __future__ import annotations

import argparse
import signal
import sys
import warnings
from pathlib import Path
from typing import Any, Callable, NoReturn, Sequence

import mxnet as mx

import gluon_roi
from gluon_roi import files, self_check, side_by_side
from gluon_roi.inference.model_files import convert_symbol
from gluon_roi.onnx.torch_program import onnx_or_program
from gluon_roi.replacement import Replacement, replacing, through_links
from gluon_roi.switch import functions, models, programs


class _Parser(argparse.ArgumentParser):
    """Reports a wrong command line in one sentence."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"gluon_roi: {message}; see '{self.prog} --help'\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, and return its exit status: 0, 1 if a check fails, or 2 if it is rejected."""
    line = list(sys.argv[1:] if argv is None else argv)
    end = programs.program_at(line) if line[:1] == ["run"] else len(line)
    given = vars(_parser().parse_args(line[:end]))
    command: Callable[..., int] = given.pop("command")
    functions.inherited.close()  # commands are about MXNet's own operators
    if command is programs.run:
        return programs.run(line[end:], **given)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            return command(**given)
    except (OSError, ValueError, TypeError, ImportError, RuntimeError) as error:
        print(f"gluon_roi: {files.sentence(str(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def program() -> NoReturn:
    """The console script."""
    # Like other programs, exit silently if the reader of a pipe has exited (head, less).
    if sys.argv[1:2] != ["run"]:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main())


def _show_warning(message: Any, *_: Any, **__: Any) -> None:
    print(f"gluon_roi: {' '.join(str(message).split())}", file=sys.stderr)


# ---- Commands ------------------------------------------------------------------------------------


def _count(model: str, all: bool) -> int:
    counted = gluon_roi.count(model)
    shown = {name: uses for name, uses in counted.items() if uses or all}
    for name, uses in shown.items():
        print(f"{name:40} {uses}")
    if not shown:
        print(f"{model}: no RoI operator, MXNet's or gluon_roi's")
    return 0


def _switch(
    model: str,
    result: str,
    bad_index: str,
    rois_only: bool,
    inference: bool,
    params: str | None,
    out_params: str | None,
    shape: list[tuple[str, tuple]],
    no_winograd: bool,
) -> int:
    file = files.target("switch: OUT", result)
    read = {"IN": model, "--params": params}
    files.check_other_file("switch: OUT", file, read)
    if inference:
        return _switch_for_inference(
            model,
            file,
            bad_index,
            rois_only,
            params,
            out_params,
            _by_name("switch: --shape", shape),
            not no_winograd,
        )
    for option, value in (
        ("--params", params),
        ("--out-params", out_params),
        ("--shape", shape),
        ("--no-winograd", no_winograd),
    ):
        if value:
            raise ValueError(f"switch: {option} is for --inference")
    source = files.read_symbol("switch: IN", model)
    symbol = gluon_roi.optimize(source, bad_index=bad_index, rois_only=rois_only)
    with replacing(f"switch: OUT: the symbol cannot be written to {file}", file) as part:
        part.write_text(symbol.tojson(remove_amp_cast=False), encoding="utf-8")
    print(file)
    print(f"switched: {_changes(source, symbol)}")
    return 0


def _switch_for_inference(
    model: str,
    file: Path,
    bad_index: str,
    rois_only: bool,
    params: str | None,
    out_params: str | None,
    shapes: dict[str, tuple],
    winograd: bool,
) -> int:
    """Write the symbol and the parameters that inference needs."""
    if params is None or out_params is None:
        raise ValueError(
            "switch: --inference changes the parameters too: expected --params FILE and "
            "--out-params FILE"
        )
    out = files.target("switch: --out-params", out_params)
    read = {"IN": model, "--params": params, "OUT": file}
    files.check_other_file("switch: --out-params", out, read)
    if through_links(out) == through_links(file):
        raise ValueError(f"switch: --out-params: expected another file than OUT, got {out}")
    source = files.read_symbol("switch: IN", model)
    values = files.read_parameters("switch: --params", params)
    switched = models.switch_file(source, bad_index, rois_only)
    converted = convert_symbol(switched, values, shapes, winograd)
    with Replacement() as replacement:
        failure = f"switch: --out-params: the parameters cannot be written to {out}"
        with replacement.part(failure, out) as part, files.saved_by_mxnet(part):
            mx.nd.save(str(part), converted.parameters)
        failure = f"switch: OUT: the symbol cannot be written to {file}"
        with replacement.part(failure, file) as part:
            part.write_text(converted.symbol.tojson(remove_amp_cast=False), encoding="utf-8")
    print(file, out, sep="\n")
    print(f"switched: {_changes(source, switched)}")
    for what, count in converted.changes.items():
        print(f"{what}: {count}")
    return 0


def _changes(model: files.SymbolText, symbol: mx.sym.Symbol) -> str:
    """The replaced operators of MXNet, such as 3 (ROIPooling 2, _contrib_Proposal 1)."""
    before, after = gluon_roi.count(model), gluon_roi.count(symbol)
    changed = {
        name: uses - after.get(name, 0)
        for name, uses in before.items()
        if not name.startswith(("_gluon_roi_", "Custom"))
    }
    parts = [f"{name} {uses}" for name, uses in changed.items() if uses > 0]
    total = sum(uses for uses in changed.values() if uses > 0)
    return f"{total} ({', '.join(parts)})" if parts else "0, the file had no operator of MXNet's"


def _export(
    model: str,
    params: str,
    result: str,
    shape: list[tuple[str, tuple]],
    dtype: list[tuple[str, str]],
    dynamic: list[tuple[str, tuple | dict]],
    inputs: list[tuple[str, tuple]],
    outputs: list[str] | None,
    output_names: list[str] | None,
    metadata: str | None,
    verify: bool,
    verify_inputs: str | None,
    no_fold: bool,
) -> int:
    file = files.target("export: -o", result)
    read = {
        "SYMBOL": model,
        "PARAMS": params,
        "--metadata": metadata,
        "--verify-inputs": verify_inputs,
    }
    files.check_other_file("export: -o", file, read)
    given: bool | dict = verify
    if verify_inputs is not None:
        given = files.read_arrays("export: --verify-inputs", verify_inputs)
    shapes = _by_name("export: --shape", shape)
    cuts = _by_name("export: --inputs", inputs)
    with onnx_or_program(file, {**shapes, **cuts}) as path:
        gluon_roi.onnx.export(
            files.read_symbol("export: SYMBOL", model),
            shapes,
            path,
            files.read_parameters("export: PARAMS", params),
            input_types=_by_name("export: --dtype", dtype),
            dynamic=_by_name("export: --dynamic", dynamic),
            inputs=cuts,
            outputs=outputs,
            output_names=output_names,
            metadata=None if metadata is None else files.read_json("export: --metadata", metadata),
            verify=given,
            fold=not no_fold,
        )
    print(file)
    return 0


def _by_name(option: str, pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{option}: expected {twice} once, got it several times")
    return found


# ---- Arguments -----------------------------------------------------------------------------------


def _sizes(text: str) -> tuple[str, tuple[int, ...]]:
    """NAME=1,3,600,800."""
    name, equals, numbers = text.rpartition("=")
    try:
        sizes = tuple(int(number) for number in numbers.split(",") if numbers)
    except ValueError:
        sizes = (-1,)
    if not (name and equals) or any(size < 0 for size in sizes):
        raise argparse.ArgumentTypeError(f"expected NAME=NUMBER,NUMBER,..., got {text!r}")
    return name, sizes


def _axes(text: str) -> tuple[str, tuple[int, ...] | dict[int, str]]:
    """NAME=0,2,3, or NAME=0:batch,2:height,3:width."""
    name, equals, axes = text.partition("=")
    pairs = [axis.partition(":") for axis in axes.split(",") if axis]
    if not (name and equals) or not all(
        axis.isdecimal() and bool(colon) == bool(pairs[0][1]) for axis, colon, _ in pairs
    ):
        raise argparse.ArgumentTypeError(
            f"expected NAME=AXIS,AXIS,... or NAME=AXIS:NAME,AXIS:NAME,..., got {text!r}"
        )
    if pairs and pairs[0][1]:
        return name, {int(axis): label for axis, _, label in pairs}
    return name, tuple(int(axis) for axis, _, _ in pairs)


def _dtype(text: str) -> tuple[str, str]:
    """NAME=float16."""
    name, equals, dtype = text.rpartition("=")
    if not (name and equals and dtype):
        raise argparse.ArgumentTypeError(f"expected NAME=DTYPE, got {text!r}")
    return name, dtype


def _parser() -> _Parser:
    is_script = Path(sys.argv[0]).name == "gluon-roi"
    parser = _Parser(
        prog="gluon-roi" if is_script else "python -m gluon_roi",
        description="RoI operators for MXNet. Without a command, check is run.",
    )
    parser.add_argument("--version", action="version", version=f"gluon_roi {gluon_roi.__version__}")
    parser.set_defaults(command=self_check.check)
    commands = parser.add_subparsers(metavar="COMMAND")

    def command(name: str, function: Callable, text: str) -> _Parser:
        made = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        made.set_defaults(command=function)
        return made

    command(
        "check",
        self_check.check,
        "print the build, and self-test every operator on the CPU and every GPU",
    )

    sub = command("count", _count, "count the RoI operators of a symbol file")
    sub.add_argument("model", metavar="MODEL", help="symbol file, such as net-symbol.json")
    sub.add_argument("--all", action="store_true", help="include operators with a count of 0")

    sub = command("switch", _switch, "switch MXNet's operators in a symbol file to gluon_roi's")
    sub.add_argument("model", metavar="IN", help="symbol file")
    sub.add_argument("result", metavar="OUT", help="symbol file to write")
    _add_options(sub)
    sub.add_argument("--inference", action="store_true", help="convert it for inference as well")
    sub.add_argument("--params", metavar="FILE", help="the parameters, for --inference")
    sub.add_argument("--out-params", metavar="FILE", help="file of parameters to write")
    shapes: dict[str, Any] = {"type": _sizes, "action": "append", "default": []}
    sub.add_argument("--shape", **shapes, metavar="NAME=SIZES", help="usual: data=1,3,600,800")
    sub.add_argument("--no-winograd", action="store_true", help="smaller files, but slower")

    sub = command("export", _export, "write a model to an ONNX file, or to a .pt2 file of PyTorch")
    sub.add_argument("model", metavar="SYMBOL", help="symbol file")
    sub.add_argument("params", metavar="PARAMS", help="file of parameters")
    sub.add_argument("-o", dest="result", metavar="FILE", required=True, help="file to write")
    lists: dict[str, Any] = {"type": _sizes, "action": "append", "default": []}
    sub.add_argument(
        "--shape", **lists, metavar="NAME=SIZES", help="shape of an input: data=1,3,600,800"
    )
    sub.add_argument(
        "--dynamic",
        **{**lists, "type": _axes},
        metavar="NAME=AXES",
        help="axes to leave dynamic: data=0,2,3, or with names data=0:batch,2:height,3:width",
    )
    sub.add_argument(
        "--dtype",
        **{**lists, "type": _dtype},
        metavar="NAME=DTYPE",
        help="dtype of an input, if it is not that of the parameters: data=float16",
    )
    lists.update(nargs="+", action="extend")
    sub.add_argument("--inputs", **lists, metavar="NAME=SIZES", help="nodes that become inputs")
    sub.add_argument("--outputs", nargs="+", metavar="NAME", help="nodes that become the outputs")
    sub.add_argument(
        "--output-names", nargs="+", metavar="NAME", help="names of the outputs in the file"
    )
    sub.add_argument("--metadata", metavar="FILE", help="JSON file of metadata to store")
    sub.add_argument(
        "--verify",
        action="store_true",
        help="first compare the model in onnxruntime with MXNet's, on random inputs",
    )
    sub.add_argument(
        "--verify-inputs", metavar="FILE", help="the same on the arrays of a file of numpy.savez"
    )
    sub.add_argument("--no-fold", action="store_true", help="keep batch normalisation")

    sub = command("run", programs.run, "run a Python program with MXNet's operators switched")
    _add_options(sub)
    sub.usage = f"{sub.prog} [--bad-index padding] [--rois-only] (SCRIPT | -m MODULE) ARGS..."

    command("bench", side_by_side.bench, "compare the speed of operators with MXNet's on this CPU")
    return parser


def _add_options(parser: _Parser) -> None:
    parser.add_argument(
        "--bad-index",
        choices=("error", "padding"),
        default="error",
        help="for a batch index beyond the batch: raise an error, or treat the row as padding",
    )
    parser.add_argument(
        "--rois-only", action="store_true", help="switch only operators that pool boxes"
    )


if __name__ == "__main__":
    program()
