# SPDX-License-Identifier: Apache-2.0
"""Builds the site, build/docs/index.html, from the pages of docs/ and from docstrings.

    python build_tools/build_docs.py [--check]

The pages stay where and as they are. Copies of them go to build/site, where links have the targets
of the site, the lists of docs/index.md become its table of contents, and every public name has a
page that Sphinx fills from its docstring. docs/explorer.md becomes a program if em++ is installed.
--check opens the site in Chromium: check_site.py.
"""

from __future__ import annotations

import contextlib
import html
import importlib
import inspect
import itertools
import os
import re
import shutil
import sys
import textwrap
from pathlib import Path

import presets

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
COPIES = ROOT / "build/site"
SITE = ROOT / "build/docs"
EXPLORER = DOCS / "explorer"
#: The compiler of the explorer's kernels.
EMXX = os.environ.get("EMXX", "em++")
#: Links to files that are not pages lead there; if it is empty, they become plain text.
REPOSITORY = "".join(re.findall(r'^Source = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.M))

LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^)\s]+)\)")
#: How a block of commands begins.
SHELL = re.compile(r"(\w+=\S+ )*(\S*/)?(pip|uv|make|python\d?|git|apt-get|cmake|cc|gcc|g\+\+) ")
LIST = """.. py:data:: gluon_roi.OPERATORS

   The blocks of all operators, in the order of tables.
"""
#: Pages of the reference: module, title. A page lists the names in the module's __all__.
GROUPS = {
    "operators": ("gluon_roi.nd", "Operators"),
    "switching": ("gluon_roi.switch", "Switching models"),
    "rois": ("gluon_roi.rois", "Layouts of boxes"),
    "onnx": ("gluon_roi.onnx", "Export to ONNX"),
    "library": ("gluon_roi.library", "The library"),
    "reference": ("gluon_roi.reference", "Reference in NumPy"),
}


def parts(text: str) -> list[tuple[bool, str]]:
    """A page in parts, code and prose in turn, each with whether it is code."""
    lines: list[tuple[bool, str]] = []
    fenced = code = False
    for line in text.splitlines():
        fence = line.lstrip().startswith("```")
        # An indented line is code after a blank line. (Lists are indented by less.) A blank line
        # between two of them belongs to the code.
        code = line.startswith("    ") and (code or not lines or not lines[-1][1].strip())
        if code:
            blank = len(list(itertools.takewhile(lambda one: not one[1].strip(), lines[::-1])))
            before = len(lines) - blank
            if before and lines[before - 1][0] and lines[before - 1][1].startswith("    "):
                lines[before:] = [(True, "")] * blank
        lines.append((fenced or fence or code, line))
        fenced ^= fence
    return [
        (is_code, "\n".join(line for _, line in group))
        for is_code, group in itertools.groupby(lines, key=lambda line: line[0])
    ]


def links(file: Path, image: str = "") -> list[Path]:
    """Files that a page links to; with "!", its pictures."""
    prose = "\n".join(text for is_code, text in parts(file.read_text()) if not is_code)
    targets = [target for kind, _, target in LINK.findall(prose) if kind == image]
    return [(file.parent / target.partition("#")[0]).resolve() for target in targets]


def pages() -> dict[Path, Path]:
    """The pages of the site, those of docs/ and others that its index names: file -> place."""
    places = {file: file.relative_to(DOCS) for file in DOCS.rglob("*.md")}
    for file in links(DOCS / "index.md"):
        if file.suffix == ".md" and file not in places:
            places[file] = file.relative_to(ROOT)
    return places


def copy_of(file: Path, places: dict[Path, Path]) -> str:
    """A page, with links as its place in the site needs them."""

    def link_of_site(link: re.Match) -> str:
        image, text, target = link.groups()
        path, mark, anchor = target.partition("#")
        if not path or ":" in path:
            return link[0]
        goal = (file.parent / path).resolve()
        if not goal.exists():
            sys.exit(f"{file.relative_to(ROOT)}: the link to {path} leads nowhere")
        place = goal.relative_to(ROOT) if image else places.get(goal)
        if place:
            return f"{image}[{text}]({os.path.relpath(place, places[file].parent)}{mark}{anchor})"
        return in_repository(image, text, goal, mark + anchor)

    return "\n".join(
        fenced(text) if is_code else LINK.sub(link_of_site, text)
        for is_code, text in parts(file.read_text())
    )


def in_repository(image: str, text: str, goal: Path, anchor: str = "") -> str:
    """A link to a file in the repository; if its address is not known, the text alone."""
    if REPOSITORY:
        folder = f"{REPOSITORY}/{'raw' if image else 'blob'}/main"
        return f"{image}[{text}]({folder}/{goal.relative_to(ROOT)}{anchor})"
    return "" if image else text


def fenced(code: str) -> str:
    """A block of code with the name of its language, which Sphinx colours."""
    if code.startswith("```"):
        return code
    code = textwrap.dedent(code)
    language = "text"
    if code.startswith(">>> "):
        language = "pycon"
    elif SHELL.match(code):
        language = "shell"
    else:
        with contextlib.suppress(SyntaxError):
            compile(code, "block", "exec")
            language = "python"
    return f"```{language}\n{code}\n```"


def toctrees(index: str) -> str:
    """Tables of contents of the lists of links in docs/index.md, as in its copy."""
    trees = []
    for section in re.split(r"^## ", index, flags=re.M)[1:]:
        entries = re.findall(r"^- \[.+?\]\((.+)\.md\)", section, re.M)
        caption = section.splitlines()[0]
        trees.append(_toctree(*entries, hidden=True, caption=caption))
    return "\n".join(trees)


def _toctree(*entries: str, hidden: bool = False, caption: str = "") -> str:
    options = [":hidden:"] * hidden + [f":caption: {caption}"] * bool(caption)
    return "\n".join(["", "```{toctree}", ":glob:", *options, "", *entries, "```", ""])


def public_name(module: str, name: str) -> str:
    """The shortest public name: gluon_roi.optimize, not gluon_roi.switch.optimize."""
    import gluon_roi

    is_short = name in gluon_roi.__all__ and module != "gluon_roi.nd"
    return f"gluon_roi.{name}" if is_short else f"{module}.{name}"


def reference() -> dict[str, str]:
    """Every page of the reference: name of the file -> text."""
    texts = {"index.md": "# Reference\n" + _toctree(*GROUPS)}
    for group, (module_name, title) in GROUPS.items():
        module = importlib.import_module(module_name)
        names = {name: public_name(module_name, name) for name in module.__all__}
        summaries = {
            full: (inspect.getdoc(getattr(module, name)) or "").partition("\n")[0]
            for name, full in names.items()
        }
        rows = [f"* :py:func:`{full}`: {text}" for full, text in summaries.items()]
        lines = [f".. automodule:: {module_name}", f".. py:currentmodule:: {module_name}", *rows]
        if group == "operators":
            lines.append(LIST)
        body = "\n\n".join(lines)
        tree = _toctree(*names.values(), hidden=True)
        texts[f"{group}.md"] = f"# {title}\n\n```{{eval-rst}}\n{body}\n```\n{tree}"
        for name, full in names.items():
            page = f"# {full}\n\n```{{eval-rst}}\n.. autofunction:: {full}\n```\n"
            texts[f"{full}.md"] = _operator_page(name) if group == "operators" else page
    return texts


def _operator_page(name: str) -> str:
    """An operator as a block and as a function."""
    texts = {file: file.read_text() for file in sorted(DOCS.glob("operators/*.md"))}
    found = [file for file, text in texts.items() if re.search(rf"^    {name}\(", text, re.M)]
    if not found:
        sys.exit(f"build_docs: no page of docs/operators/ has the signature of {name}")
    return f"""# {name}

[Formula and worked numbers](../operators/{found[0].name})

```{{eval-rst}}
.. autoclass:: gluon_roi.{name}

.. autofunction:: gluon_roi.nd.{name}

   Also ``gluon_roi.sym.{name}``, ``mx.npx.gluon_roi.{name}`` and, inside ``hybrid_forward``,
   ``F.gluon_roi.{name}``.
```
"""


def explorer_kernels() -> Path | None:
    """The kernels for the explorer, compiled to WebAssembly; None without the compiler."""
    if shutil.which(EMXX.split()[0]) is None:
        print(
            f"build_docs: the explorer is left out, because '{EMXX}' was not found; "
            "run 'apt-get install emscripten'"
        )
        return None
    return presets.build("wasm") / "gluon_roi.js"


def with_explorer(page: str) -> str:
    """The page with the explorer, in place of the sentence that says how to get it."""
    body = f"```{{raw}} html\n{(EXPLORER / 'explorer.html').read_text()}```"
    return re.sub(r'<div id="explorer-tool">.*?</div>', lambda _: body, page, flags=re.S)


def add_explorer(kernels: Path, site: Path) -> None:
    """Put what the page of the explorer loads into a site."""
    target = site / EXPLORER.name
    target.mkdir()
    for file in (kernels, EXPLORER / "explorer.js", EXPLORER / "explorer.css"):
        shutil.copy(file, target)


def size_pictures() -> None:
    """Give every picture its width and height, so that text does not jump when it has loaded."""
    from sphinx.util.images import get_image_size

    for page in SITE.rglob("*.html"):

        def sized(tag: re.Match, folder: Path = page.parent) -> str:
            size = get_image_size(str(folder / html.unescape(tag[1])))
            width, height = size or sys.exit(f"build_docs: {tag[1]} has no size")
            return f'<img width="{width}" height="{height}"{tag[0][4:]}'

        text = page.read_text()
        page.write_text(re.sub(r'<img\b[^>]*?\ssrc="([^":]+)"', sized, text))


def collect(explorer: bool) -> None:
    """Write the sources of the site into build/site."""
    shutil.rmtree(COPIES, ignore_errors=True)
    texts = {Path("reference", name): text for name, text in reference().items()}
    places = pages()
    for file, place in places.items():
        texts[place] = copy_of(file, places)
        for picture in links(file, "!"):
            copy = COPIES / picture.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(picture, copy)
    if explorer:
        texts[Path("explorer.md")] = with_explorer(texts[Path("explorer.md")])
    texts[Path("index.md")] += toctrees(texts[Path("index.md")])
    texts[Path("index.md")] += _toctree("reference/index", hidden=True, caption="Reference")
    texts[Path("operators.md")] += _toctree("operators/*", hidden=True)
    for place, text in texts.items():
        (COPIES / place).parent.mkdir(parents=True, exist_ok=True)
        (COPIES / place).write_text(text)


def main() -> None:
    # The package of the repository, not one that is installed.
    sys.path.insert(0, str(ROOT))
    try:
        from sphinx.cmd.build import main as sphinx
    except ImportError as error:
        sys.exit(f"build_docs: {error}; run 'make docs', which needs Python 3.10 or newer")
    kernels = explorer_kernels()
    collect(kernels is not None)
    shutil.rmtree(SITE, ignore_errors=True)
    status = sphinx(["-q", "-W", "--keep-going", "-E", "-c", str(DOCS), str(COPIES), str(SITE)])
    if status:
        sys.exit(status)
    if kernels:
        add_explorer(kernels, SITE)
    size_pictures()
    print(f"the site is {SITE / 'index.html'}")
    if "--check" in sys.argv[1:]:
        import check_site

        check_site.main()


if __name__ == "__main__":
    main()
