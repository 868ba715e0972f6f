# SPDX-License-Identifier: Apache-2.0
"""Builds the site, build/docs/index.html, from the pages of docs/ and from docstrings.

    python build_tools/build_docs.py [--check] [--without-explorer]

Sphinx needs one folder of pages, and these stay where and as they are: docs/, src/, benchmarks/. So
copies go to build/site, where links have the targets of the site, the lists of docs/index.md become
its table of contents, and every public name has a page that Sphinx fills from its docstring.
docs/explorer.md becomes a program if em++ is installed, which takes minutes. --check opens the site
in Chromium.
"""

from __future__ import annotations

import html
import importlib
import os
import re
import shutil
import sys
from pathlib import Path

import links
import presets

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
COPIES = ROOT / "build/site"
SITE = ROOT / "build/docs"
EXPLORER = DOCS / "explorer"
#: The compiler of the explorer's kernels.
EMXX = os.environ.get("EMXX", "em++")
#: A picture of docs/: text, folder, name.
DRAWN = re.compile(r"!\[([^\]]*)\]\(((?:\.\./)*)([\w-]+)\.png\)")
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


def pages() -> dict[Path, Path]:
    """Pages and pictures of docs/, and other pages that its index names: file -> place."""
    named = (DOCS / target.partition("#")[0] for _, _, target in links.find(DOCS / "index.md"))
    others = {file.resolve() for file in named if file.suffix == ".md"}
    own = [*DOCS.rglob("*.md"), *DOCS.glob("*.png")]
    return {
        **{file: file.relative_to(ROOT) for file in others},
        **{file: file.relative_to(DOCS) for file in own},
    }


def copy_of(file: Path, places: dict[Path, Path]) -> str:
    """A page, with links as its place in the site needs them."""

    def place_of(goal: Path) -> str | None:
        if not goal.exists():
            sys.exit(f"{file.relative_to(ROOT)}: the link to {goal} leads nowhere")
        return os.path.relpath(places[goal], places[file].parent) if goal in places else None

    return DRAWN.sub(both_themes, links.rewrite(file, place_of))


def both_themes(picture: re.Match) -> str:
    """A picture, and the one that takes its place on dark pages, if there is one."""
    text, folder, name = picture.groups()
    if not (DOCS / f"{name}-dark.png").is_file():
        return picture[0]
    light, dark = (f"![{text}]({folder}{name}{suffix}.png)" for suffix in ("", "-dark"))
    return f"{light}{{.only-light}}\n{dark}{{.only-dark}}"


def toctrees(index: str) -> str:
    """Tables of contents of the lists of links in docs/index.md, as in its copy."""
    trees = []
    for section in re.split(r"^## ", index, flags=re.M)[1:]:
        entries = re.findall(r"^- \[.+?\]\((.+)\.md\)", section, re.M)
        trees.append(_toctree(*entries, hidden=True, caption=section.splitlines()[0]))
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
        short = [name.replace(f"{module_name}.", "", 1) for name in names.values()]
        table = "\n   ".join([".. autosummary::", ":nosignatures:", "", *short])
        body = f".. automodule:: {module_name}\n\n{table}\n\n{LIST * (group == 'operators')}"
        tree = _toctree(*names.values(), hidden=True)
        texts[f"{group}.md"] = f"# {title}\n\n```{{eval-rst}}\n{body}\n```\n{tree}"
        for name, full in names.items():
            page = f"# {full}\n\n```{{eval-rst}}\n.. autofunction:: {full}\n```\n"
            texts[f"{full}.md"] = _operator_page(name) if group == "operators" else page
    return texts


def _operator_page(name: str) -> str:
    """An operator as a block and as a function."""
    texts = {file: file.read_text() for file in sorted(DOCS.glob("operators/*.md"))}
    found = [file for file, text in texts.items() if re.search(rf"^{name}\(", text, re.M)]
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
    for file in (kernels, *EXPLORER.glob("*.js"), *EXPLORER.glob("*.css")):
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
    places = pages()
    texts = {f"reference/{name}": text for name, text in reference().items()}
    texts |= {str(places[page]): copy_of(page, places) for page in places if page.suffix == ".md"}
    if explorer:
        texts["explorer.md"] = with_explorer(texts["explorer.md"])
    texts["index.md"] += toctrees(texts["index.md"])
    texts["index.md"] += _toctree("reference/index", hidden=True, caption="Reference")
    texts["operators.md"] += _toctree("operators/*", hidden=True)
    for place, text in texts.items():
        (COPIES / place).parent.mkdir(parents=True, exist_ok=True)
        (COPIES / place).write_text(text)
    for picture in DOCS.glob("*.png"):
        shutil.copy(picture, COPIES)


def main() -> None:
    # The package of the repository, not one that is installed.
    sys.path.insert(0, str(ROOT))
    try:
        from sphinx.cmd.build import main as sphinx
    except ImportError as error:
        sys.exit(f"build_docs: {error}; run 'make docs', which needs Python 3.10 or newer")
    kernels = None if "--without-explorer" in sys.argv[1:] else explorer_kernels()
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
        sys.path.insert(0, str(ROOT / "tests"))
        from support import site_check

        site_check.main(SITE)


if __name__ == "__main__":
    main()
