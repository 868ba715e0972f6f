# SPDX-License-Identifier: Apache-2.0
"""Every example in a docstring or on a page runs and prints the output shown."""

import doctest
import importlib
import importlib.util
import inspect
import io
import operator
import re
import subprocess
import tokenize
from pathlib import Path

import build_docs
import links
import mxnet as mx
import numpy as np
import pytest
from golden import record
from support import site_check
from support.pages import BLOCK, blocks_of

import gluon_roi
from gluon_roi import reference

ROOT = Path(__file__).resolve().parents[2]
SITE = sorted(str(file.relative_to(ROOT)) for file in build_docs.pages() if file.suffix == ".md")
MODULES = [
    *(block.__module__ for block in gluon_roi.OPERATORS),
    *(
        f"gluon_roi.{name}"
        for name in (
            *(
                "library",
                "onnx",
                "onnx.metadata",
                "rois",
                "switch.counting",
                "switch.functions",
                "switch.models",
            ),
            *("nd", "ops.deformable_blocks"),
        )
    ),
    *sorted({getattr(reference, name).__module__ for name in reference.__all__}),
]
PAGES = [page for page in ("README.md", *SITE) if ">>> " in (ROOT / page).read_text()]


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0 and result.failed == 0


@pytest.mark.parametrize("block", gluon_roi.OPERATORS, ids=lambda block: block.__name__)
def test_signatures(block):
    name, file = block.__name__, block.__module__.rpartition(".")[2]
    page = (ROOT / "docs" / "operators" / f"{file}.md").read_text()
    parameters = inspect.signature(getattr(gluon_roi.nd, name)).parameters.values()
    shown = ", ".join(
        each.name if each.default is each.empty else f"{each.name}={each.default!r}"
        for each in parameters
        if each.kind is not each.KEYWORD_ONLY
    )
    assert f"{name}({shown})" in " ".join(page.split())


@pytest.mark.parametrize("page", PAGES)
def test_pages(page):
    text = re.sub("^```.*", "", (ROOT / page).read_text(), flags=re.M)
    test = doctest.DocTestParser().get_doctest(text, {"__name__": "__main__"}, page, page, 0)
    result = doctest.DocTestRunner().run(test)
    assert result.attempted > 0 and result.failed == 0


@pytest.mark.parametrize("page", ["README.md", *SITE])
def test_every_block_of_code_is_accounted_for(page):
    """test_pages runs pycon; a remark names the test that runs other code, or has its calls.

    A remark is the name of a test file, whose folder may change, or a path from tests/.
    """
    text = (ROOT / page).read_text()
    tests = {file.name for file in (ROOT / "tests").rglob("test_*.py")}
    assert not re.search(r"^\n    \S", BLOCK.sub("", text), re.M), "a block without a fence"
    for language, remark, code in blocks_of(page):
        assert language in ("pycon", "python", "c", "sh", "json", "text"), code
        assert (language == "pycon") == code.startswith(">>> "), code
        assert language == "pycon" or ">>> " not in code, code
        if language in ("python", "c") and remark != "signature":  # test_signatures compares it
            assert remark and (remark in tests or (ROOT / "tests" / remark).is_file()), code


#: Pages with tables of measurements.
MEASURED = [page for page in SITE if page.startswith("docs/results/")] + ["benchmarks/RESULTS.md"]
#: What makes a figure.
COMMAND = re.compile(r"python3? (-m )?[\w./]+|make [\w-]+|\.venv/bin/python|tests/[\w/]+\.py")
MACHINE = re.compile(r"Xeon|EPYC|machine|Debian|GCC|[Oo]n GPU|onnxruntime|Python")


def sections(page, mark):
    """Sections of a page, each with its heading; blocks of code may have lines that begin so."""
    text = re.sub(r"^```text\n.*?^```", "```text", (ROOT / page).read_text(), flags=re.M | re.S)
    return re.split(rf"^(?={mark} [A-Z0-9])", text, flags=re.M)


@pytest.mark.parametrize("page", MEASURED)
def test_measurements_have_command_machine_and_date(page):
    for section in sections(page, "##")[1:]:
        if "```text" in section or re.search(r"^\|", section, re.M):
            for needed in (COMMAND, MACHINE, re.compile(r"20\d\d-\d\d-\d\d")):
                assert needed.search(section), f"{section.splitlines()[0]}: {needed.pattern}"


#: Names of MXNet's own tests and of other libraries', in files that also name ours.
OTHERS = {"test_laop", "test_gemm", "test_convolution_"}
#: Files that name only the tests of others.
OF_OTHERS = ("docs/results/compat.md", "tests/scripts/mxnet_tests.py", "test_published_vectors.py")


def prose(file):
    """A file without the code of Python, C++ and CUDA."""
    text = file.read_text()
    if file.suffix == ".py":
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        return " ".join(t.string for t in tokens if t.type in (tokenize.COMMENT, tokenize.STRING))
    if file.suffix in (".cc", ".h", ".cu"):
        return " ".join(re.findall(r"//.*|/\*[\s\S]*?\*/", text))
    return text


def test_tests_that_are_named_exist():
    """In pages, scripts, comments and docstrings: functions, files and paths."""
    if not (ROOT / ".git").exists():
        pytest.skip("a checkout lists its files; this is none")
    listed = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
    suites = [ROOT / name for name in listed if re.fullmatch(r"tests/.*test_\w+\.py", name)]
    functions = {n for s in suites for n in re.findall(r"^ *def (test_\w+)", s.read_text(), re.M)}
    names = functions | {suite.stem for suite in suites} | OTHERS
    for name in listed:
        if re.search(r"\.(md|py|sh|cc|h|cu|js|toml|ya?ml)$|Makefile$|run$", name) and not (
            name.endswith(OF_OTHERS)
        ):
            text = prose(ROOT / name)
            assert {*re.findall(r"\btest_[a-z]\w+", text)} <= names, name
            paths = {*re.findall(r"\btests/[\w/]+\.\w+", text)} - {"tests/operators/my_op.py"}
            assert all((ROOT / path).is_file() for path in paths), (name, paths)


@pytest.mark.parametrize("page", ["README.md", *SITE])
def test_scores_have_a_command(page):
    """A section with a figure in mAP names its command, or links to the page that has it."""
    for section in sections(page, "##"):
        if re.search(r"mAP\S* (of )?\W*\d?\.\d", section):
            has_link = re.search(r"\]\([\w./]*(results/|RESULTS|#)[\w./#-]*\)", section)
            assert has_link or COMMAND.search(section), section[:200]


@pytest.mark.parametrize(
    "page", ["docs/onnx.md", "docs/switch.md", "docs/compat.md", "benchmarks/README.md"]
)
def test_guides_are_short(page):
    """Evidence and references are on other pages."""
    assert len((ROOT / page).read_text().splitlines()) <= 125


@pytest.mark.parametrize("page", ["README.md", *SITE])
def test_commands_exist(page):
    """Targets of make, programs, modules; tests/demo/test_demo_command_line.py has arguments."""
    rules = re.findall(r"^([\w -]+):", (ROOT / "Makefile").read_text(), re.M)
    targets = " ".join(rules).split()
    for block in blocks_of(page):
        for line in block.code.splitlines():
            command = re.match(r"(?:\w+=\S+ )*(?:\S*/)?(make|python3?) (-m )?([\w./-]+)", line)
            if not command or command[3].startswith("-"):
                continue
            program, module, name = command.groups()
            if program == "make":
                assert name in targets, line
            elif module:
                assert importlib.util.find_spec(name), line
            elif name.endswith(".py") and "/" in name:
                assert (ROOT / name).is_file(), line
    for module in re.findall(r"`[^`]*\bpython3? -m ([\w.]+)", (ROOT / page).read_text()):
        assert importlib.util.find_spec(module), module


@pytest.mark.parametrize(
    "library, page", [("torchvision", "from_torchvision.md"), ("paddle", "from_paddle_mmcv.md")]
)
def test_side_by_side(library, page):
    """The numbers of the other library are its own, recorded; ours are new."""
    about, recorded = record.load(library)
    text, rows = (ROOT / "docs" / page).read_text(), 0
    for name, case in about["cases"].items():
        if not name.endswith("-2x3-0.25-float32"):
            continue
        arrays = recorded[name]
        assert arrays["rois"][0].tolist() == [0, 4, 8, 20, 20]
        data, rois = mx.nd.array(arrays["data"] / 8), mx.nd.array(arrays["rois"])
        ours = getattr(gluon_roi.nd, case["operator"])(data, rois, (2, 3), 0.25, **case["ours"])
        calls = [
            f"`{called}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})`"
            for called, arguments in (
                (case["function"], case["theirs"]),
                (case["operator"], case["ours"]),
            )
        ]
        bins = [
            ", ".join(f"{value:.4f}" for value in np.array(out)[0, 0, 0])
            for out in (arrays["out"], ours.asnumpy())
        ]
        row = " | ".join(calls + bins)
        assert f"| {row} |" in text, row
        rows += 1
    assert rows >= 6 and about["versions"][library].partition("+")[0] in text


def test_every_public_name_has_a_page():
    """In the reference of the site."""
    pages = "\n".join(build_docs.reference().values())
    names = {f"gluon_roi.{name}" for name in gluon_roi.__all__}
    names |= {f"gluon_roi.sym.{name}" for name in gluon_roi.sym.__all__}
    for module, _ in build_docs.GROUPS.values():
        public = importlib.import_module(module).__all__
        names |= {build_docs.public_name(module, name) for name in public}
    for name in sorted(names):
        assert re.search(rf"{re.escape(name)}\b", pages), f"{name} has no page"


def public_objects():
    """Every public class and function of the reference, by name."""
    for module, _ in build_docs.GROUPS.values():
        for name in importlib.import_module(module).__all__:
            yield f"{module}.{name}", getattr(importlib.import_module(module), name)
    for name in gluon_roi.__all__:
        if inspect.isclass(getattr(gluon_roi, name)):
            yield f"gluon_roi.{name}", getattr(gluon_roi, name)


@pytest.mark.parametrize("name, documented", list(public_objects()))
def test_docstrings_are_whole(name, documented):
    """Arguments, results, errors, an example; for an operator also its source.

    A function on arrays has each argument once, in the order of its signature; arrays and symbols
    are Tensors.
    """
    docstring = inspect.getdoc(documented) or ""
    needed = {"Examples"}
    signature = inspect.signature(documented)
    if documented in gluon_roi.OPERATORS:  # its function has everything else
        assert docstring.startswith(f"See :func:`gluon_roi.nd.{documented.__name__}`")
    elif inspect.isclass(documented):
        needed |= {"Parameters", "Raises", "Inputs", "Outputs", "References"}
    else:
        if signature.parameters:
            needed |= {"Parameters", "Raises"}
        if signature.return_annotation != "None":
            needed.add("Returns")
    sections = re.split(r"^(\w+)\n-+$", docstring, flags=re.M)
    if name.startswith("gluon_roi.nd."):
        needed.add("References")
        entries = re.findall(r"^(\w[\w, ]*)(?: :|$)", sections[2], re.M)
        documented_names = re.findall(r"\w+", " ".join(entries))
        if name.endswith(".ModulatedDeformableConvolution"):  # what differs comes first
            documented_names.sort(key=list(signature.parameters).index)
        assert documented_names == list(signature.parameters)
        for argument in {"data", "rois", "offset", "rois_num", "out"} & {*signature.parameters}:
            assert "Tensor" in signature.parameters[argument].annotation
    assert not needed - set(sections[1::2]), docstring
    for title, text in zip(sections[1::2], sections[2::2]):
        if title in ("Parameters", "Inputs", "Outputs", "Returns", "Raises"):
            assert "\n\n" not in text.strip(), f"{title}: only entries; Notes are a section"


def test_links_lead_somewhere():
    """And every page is in the table of contents."""
    places = build_docs.pages()
    index = build_docs.copy_of(ROOT / "docs/index.md", places)
    listed = re.findall(r"^[\w/.]+$", build_docs.toctrees(index), re.M)
    for page in SITE:
        build_docs.copy_of(ROOT / page, places)
        place = places[ROOT / page]
        assert place.parts[0] in ("index.md", "operators") or str(place)[:-3] in listed, place


@pytest.mark.parametrize("page", ["README.md", *SITE])
def test_pictures_have_a_text_and_both_themes(page):
    text = (ROOT / page).read_text()
    for source, alt in links.PICTURE.findall(text):
        file = (ROOT / page).parent / source
        assert file.is_file() and file.with_name(f"{file.stem}-dark.png").is_file(), source
        assert len(alt.split()) > 8, f"{source}: a text that says what the picture shows"
    assert text.count("<picture>") == len(links.PICTURE.findall(text))


def test_every_paper_has_an_entry():
    """Papers that pages, docstrings and sources name, and those of the table of operators."""
    bib = (ROOT / "docs/references.bib").read_text()
    keys = re.findall(r"^@\w+\{(\w+),$", bib, re.M)
    assert len({*keys}) == len(keys) == bib.count("\n}\n") and bib.count("{") == bib.count("}")
    entries = {*re.findall(r"(?:eprint|doi) *= \{(.*?)\}", bib)}
    assert len(entries) == len(keys) - 1  # the package has neither
    folders = ("docs", "gluon_roi", "demo_rfcn", "src", "examples")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*")]
    named = set()
    for file in (ROOT / "README.md", *files):
        if file.suffix in (".md", ".py", ".h", ".cc", ".cu"):
            text = file.read_text()
            named |= {*re.findall(r"(?i)arxiv(?:\.org/abs/|:)(\d{4}\.\d{5}|\d{4}\.\d{4})", text)}
            named |= {*re.findall(r"doi\.org/([^)\s]+)", text)}
    assert named - entries == set()
    table = (ROOT / "docs/operators.md").read_text().partition("## Papers")[2]
    rows = re.findall(r"^\| (.*?) \| .* \| `(\w+)` \|$", table, re.M)
    assert {key for _, key in rows} <= {*keys}
    for block in gluon_roi.OPERATORS:
        assert re.search(rf"\b{block.__name__}\b", " ".join(name for name, _ in rows))


def table_of_aims(page):
    """Rows [I have, I want, page, command] of the table at the head of a page; links are files."""
    text = (ROOT / page).read_text()
    (table,) = re.findall(r"^\| I have \| I want \|.*\n\|[-|]+\n((?:\|.*\n)+)", text, re.M)

    def resolve(link):
        path, mark, anchor = link[1].partition("#")
        file = (ROOT / page).parent.joinpath(path).resolve().relative_to(ROOT)
        return f"]({file}{mark}{anchor})"

    table = re.sub(r"\]\((.*?)\)", resolve, table)
    return [line.strip("| ").split(" | ") for line in table.splitlines()]


def test_readme_and_index_begin_with_the_same_table():
    rows = table_of_aims("README.md")
    assert rows == table_of_aims("docs/index.md")
    rules = re.findall(r"^([\w -]+):", (ROOT / "Makefile").read_text(), re.M)
    targets = " ".join(rules).split()
    for *_, pages, command in rows:
        assert links.LINK.search(pages)
        for name in re.findall(r"gluon_roi\.([\w.]+)\(", command):
            assert operator.attrgetter(name)(gluon_roi)
        for module in re.findall(r"python -m (\w+)", command):
            assert importlib.util.find_spec(module)
        for file in re.findall(r"examples/\S+", command.replace("`", "")):
            assert (ROOT / file).exists()
        for target in re.findall(r"make (\w+)", command):
            assert target in targets


def test_words_that_people_search_for():
    """tests/support/site_check.py searches for them in the built site."""
    text = "\n".join((ROOT / page).read_text() for page in SITE)
    for words in site_check.WORDS:
        assert re.search(rf"\b{words}\b", text), words


def test_one_setting_has_the_address_of_the_repository(monkeypatch):
    places = build_docs.pages()
    file = ROOT / "docs/c.md"
    assert "examples/c is a CMake project" in build_docs.copy_of(file, places)
    monkeypatch.setattr(links, "REPOSITORY", "https://host.example/name")
    link = "[examples/c](https://host.example/name/blob/main/examples/c/CMakeLists.txt)"
    assert link in build_docs.copy_of(file, places)
