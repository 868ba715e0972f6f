# SPDX-License-Identifier: Apache-2.0
"""Writes gluon_roi/nd.pyi, which shows editors the operators' functions with whole docstrings.

    python build_tools/stubs.py

At run time a function's docstring is made of its block's, and one input may be left out among
positional arguments. Editors and type checkers see neither, so they read this file. A test compares
it with the functions.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from pathlib import Path
from typing import Any, Callable, Iterable

ROOT = Path(__file__).resolve().parent.parent
STUB = ROOT / "gluon_roi/nd.pyi"
HEAD = '''# SPDX-License-Identifier: Apache-2.0
"""Made by build_tools/stubs.py from the functions themselves; see nd.py."""

from typing import Any, Sequence, overload

from .bridge import Tensor
'''


def written(name: str, parameters: Iterable[inspect.Parameter], returns: str) -> str:
    """A signature, with the parameters that only have names behind a star."""
    lines = []
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in lines:
            lines.append("*")
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        lines.append(f"{parameter.name}: {parameter.annotation}{default}")
    return "\n".join([f"def {name}(", *(f"    {line}," for line in lines), f") -> {returns}:"])


def function_stub(name: str, function: Any) -> str:
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    docstring = textwrap.indent(
        f'"""{inspect.getdoc(function)}\n"""', "    ", lambda line: bool(line.strip())
    )
    header = written(name, parameters, signature.return_annotation)
    if function.left_out is None:
        return f"{header}\n{docstring}\n"
    # Without the input among positional arguments; it may still be named.
    place = list(signature.parameters).index(function.left_out)
    moved = parameters.pop(place).replace(kind=inspect.Parameter.KEYWORD_ONLY, default=None)
    without = written(name, [*parameters, moved], signature.return_annotation)
    return f"@overload\n{header}\n{docstring}\n\n@overload\n{without} ...\n"


def text(functions: dict[str, Callable]) -> str:
    """The whole file."""
    stubs = (function_stub(name, function) for name, function in functions.items())
    names = "".join(f'    "{name}",\n' for name in functions)
    return "\n".join([HEAD, f"__all__ = [\n{names}]\n", *stubs])


def main() -> None:
    sys.path.insert(0, str(ROOT))
    from gluon_roi import nd

    STUB.write_text(text({name: getattr(nd, name) for name in nd.__all__}))


if __name__ == "__main__":
    main()
