# SPDX-License-Identifier: Apache-2.0
"""The explorer of the site, in headless Chromium and without a server: its numbers, mouse, keys."""

from __future__ import annotations

import re
import shutil

import build_docs
import mxnet as mx
import numpy as np
import presets
import pytest
from mxnet import autograd
from operators import OPERATORS
from support.browser import BROWSERS, Page

import gluon_roi

COMPILER = build_docs.EMXX
pytestmark = [
    pytest.mark.night,
    pytest.mark.skipif(not shutil.which(COMPILER.split()[0]), reason=f"no {COMPILER}"),
    pytest.mark.skipif(not any(map(shutil.which, BROWSERS)), reason="no Chromium"),
]

#: Operators that pool boxes of one map.
CHOICES = [op for op in OPERATORS if not op.several_maps]
#: Views, as the page's address has them: every operator, argument and convention, awkward boxes.
VIEWS = [
    *(f"op={op.name}" for op in CHOICES),
    *(
        f"op={op.name}&box=-0.75,1.25,3.6,14.5&pooled_size=1,2"
        for op in CHOICES
        if op.coordinates == 4
    ),
    "op=ROIPool&box=2.5,1.5,9.5,7.5&pattern=ramp&bin=2,1",
    "op=ROIPool&box=-3,-2,30,40&spatial_scale=1/2&pooled_size=2,5",
    "op=ROIAlign&aligned=true",
    "op=ROIAlign&aligned=true&sampling_ratio=0&box=1,1,10,4&bin=0,0",
    "op=ROIAlign&sampling_ratio=-1&box=2.3,1.6,11.3,7.6&pattern=ramp",
    "op=ROIAlign&sampling_ratio=3&box=-2,-2,3,20&bin=0,0",
    "op=ROIAlign&box=5,5,5.2,5.2&pooled_size=1,2",
    "op=ROIAlign&spatial_scale=1/16&box=36.8,25.6,182.4,163.2&aligned=true&pattern=checks",
    "op=ROIAlign&spatial_scale=0.3&box=3,4,50,33",
    "op=ROIAlign&aligned=true&box=9,9,3,4&bin=1,0",
    "op=ROIAlign&mode=max",
    "op=ROIAlign&mode=max&aligned=true&sampling_ratio=0&box=-3,-2,14,12.5&pattern=ramp&bin=0,0",
    "op=ROIAlign&mode=max&sampling_ratio=3&box=9.5,7.5,30,20&pooled_size=2,4&pattern=checks",
    "op=PSROIPool&convention=torchvision&box=4,3,16,12",
    "op=PSROIPool&group_size=2,3&pooled_size=4,6&pattern=ramp",
    "op=PSROIAlign&aligned=false&sampling_ratio=-1&pooled_size=2,3",
    "op=RotatedROIAlign&box=7.5,6,10,5.5,-63.5&aligned=true&sampling_ratio=0&pooled_size=2,4",
    "op=RotatedROIAlign&box=1,1,0.2,9,90&sampling_ratio=4",
    "op=DeformablePSROIPool&trans=1,1,0.7,-1.3&trans=0,2,2.5,-0.4&trans_std=0.2&sample_per_part=3",
    "op=DeformablePSROIPool&pooled_size=4,5&part_size=2,3&group_size=1,1&trans=1,2,-1.1,0.3&bin=3,4",
    "op=DeformablePSROIPool&spatial_scale=1/16&box=-20.5,2.5,190,170&bin=0,0",
    "op=DeformableROIAlign&offset=1,1,0.7,-1.3&offset=0,2,2.5,-0.4&gamma=0.2&sampling_ratio=3",
    "op=DeformableROIAlign&aligned=false&sampling_ratio=0&pooled_size=2,4&offset=1,3,-2,1&bin=1,3",
    "op=DeformableROIAlign&mask=1,1,0.5&mask=0,0,0&offset=0,1,-3,0&mask=9,9,2&pattern=ramp",
]
#: Runs in the page: what it shows.
SHOWN = """(() => {
  const find = (name) => document.getElementById('explorer-' + name);
  const all = (name, selector, attributes) => [...find(name).querySelectorAll(selector)].map(
    (one) => attributes.map((attribute) => one.getAttribute(attribute)));
  return {
    error: find('error').hidden ? '' : find('error').textContent,
    about: find('about').textContent,
    python: find('python').querySelector('pre').textContent,
    values: all('output', 'td', ['data-value']).flat().map(Number),
    chosen: all('output', '[aria-selected=true]', ['data-bin']).flat(),
    samples: all('samples', 'circle', ['data-bin', 'cx', 'cy', 'class']),
    cells: all('weights', 'rect', ['x', 'y', 'data-weight']).map((one) => one.map(Number)),
    box: [...find('numbers').querySelectorAll('input')].map((input) => input.valueAsNumber),
    trans: all('arguments', '[data-axis]', []).length,
    operator: find('operator').value,
    wide: document.scrollingElement.scrollWidth,
  };
})()"""
TICK = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


class Explorer(Page):
    """The page of the explorer."""

    def show(self, view: str) -> dict:
        self.run(
            "new Promise((done) => { addEventListener('hashchange', done, { once: true });"
            f" location.hash = '{view}&n=' + Math.random(); }})"
        )
        return self.shown()

    def shown(self) -> dict:
        self.run(TICK)
        return self.run(SHOWN)

    def place(self, x: float, y: float, drawing: str = "explorer-map") -> tuple[float, float]:
        """On the screen, of a place on a drawing: on the map in cells."""
        left, top, cell = self.run(
            f"(() => {{ const map = document.getElementById('{drawing}');"
            "map.scrollIntoView({ block: 'start', behavior: 'instant' });"
            "const { left, top, width } = map.getBoundingClientRect();"
            "const { x, y, width: cells } = map.viewBox.baseVal;"
            "return [left - x * width / cells, top - y * width / cells, width / cells]; })()"
        )
        return left + x * cell, top + y * cell


@pytest.fixture(scope="module")
def explorer(tmp_path_factory):
    """The page as build_docs makes it, without the theme around it."""
    folder = tmp_path_factory.mktemp("explorer")
    text = build_docs.with_explorer((build_docs.DOCS / "explorer.md").read_text())
    body = re.findall(r"```\{raw\} html\n(.*?)```", text, re.S)
    head = '<!doctype html><meta charset="utf-8"><title>Explorer</title>'
    head += '<meta name="viewport" content="width=device-width">'
    (folder / "explorer.html").write_text(head + body[0])
    build_docs.add_explorer(presets.build("wasm") / "gluon_roi.js", folder)
    page = Explorer(folder / "profile")
    page.size(1280, 1000)
    page.open((folder / "explorer.html").as_uri())
    page.run(
        "new Promise((done) => { const timer = setInterval(() => {"
        "const body = document.getElementById('explorer-body');"
        "if (body && !body.hidden) { clearInterval(timer); done(); } }, 20); })"
    )
    yield page
    page.close()


@pytest.fixture(autouse=True)
def no_error_on_the_console(explorer):
    explorer.problems.clear()
    yield
    assert not explorer.problems


def program_of(shown):
    """The names that a program of the page defines, and its last line, the call."""
    *lines, call = shown["python"].splitlines()
    names: dict = {}
    exec("\n".join(lines), names)
    return names, call


def sample(values, x, y, reach):
    """The map at a sample; None if it lies outside."""
    lows, shares = [], []
    for at, size in zip((y, x), values.shape):
        if at < -reach or at > size - 1 + reach:
            return None
        at = min(max(at, 0), size - 1)
        low = min(int(at), size - 2)
        lows.append(low)
        shares.append(np.array([1 - (at - low), at - low]))
    (row, column), (down, across) = lows, shares
    return down @ values[row : row + 2, column : column + 2] @ across


@pytest.mark.parametrize("view", VIEWS)
def test_page_equals_library(explorer, view):
    shown = explorer.show(view)
    assert shown["error"] == ""
    names, call = program_of(shown)
    names["data"].attach_grad()
    with autograd.record():
        out = eval(call, names)
    assert np.float32(shown["values"]).tobytes() == out.asnumpy().tobytes()
    name, bins = shown["operator"], out.shape[2:]
    assert view.startswith(f"op={name}")

    is_maximum = name == "ROIPool" or "mode=max" in view
    # The weights of the chosen bin are its gradient, of one map. A maximum reads others as well.
    p, q = map(int, shown["chosen"][0].split(","))
    assert f"&bin={p},{q}" in view or [p, q] == [min(1, count - 1) for count in bins]
    slope = np.zeros(out.shape)
    slope[0, 0, p, q] = 1
    out.backward(mx.nd.array(slope))
    gradient = names["data"].grad.asnumpy()[0]
    weights = np.zeros_like(gradient[0])
    for x, y, weight in shown["cells"]:
        weights[y, x] = weight
    assert gradient.any(axis=(1, 2)).sum() <= 1
    assert weights.tobytes() == gradient.sum(axis=0).tobytes()
    read = len(shown["cells"])
    assert is_maximum or read == np.count_nonzero(weights)
    assert f"{read} cell" in shown["about"] or "no cell" in shown["about"] and not read

    # The mean or the maximum of the samples is the value.
    data, reach = names["data"].asnumpy()[0], 0.5 if name == "DeformablePSROIPool" else 1
    groups = (1, 1) if len(data) == 1 else (4, 6) if len(data) == 24 else bins
    groups = (2, 3) if len(data) == 6 and "group_size" in view else groups
    for index, (p, q) in enumerate(np.ndindex(*bins)):
        places = [one for one in shown["samples"] if one[0] == f"{p},{q}"]
        if not places:
            assert "Pool" in name and not name.startswith("Deform")
            continue
        channel = p * groups[0] // bins[0] * groups[1] + q * groups[1] // bins[1]
        found = [
            sample(data[channel], float(x) - 0.5, float(y) - 0.5, reach) for _, x, y, _ in places
        ]
        for (*_, drawn), one in zip(places, found):
            assert ("explorer-outside" in drawn) == (one is None)
        there = [one for one in found if one is not None]
        count = len(there) if name == "DeformablePSROIPool" else len(found)
        value = sum(there) / max(count, 1)
        if "mask" in names:
            value *= names["mask"][0, 0, p, q].asscalar()
        if "mode=max" in view:
            value = max(0 if one is None else one for one in found)
            largest = [one for (*_, drawn), one in zip(places, found) if "largest" in drawn]
            assert largest == [pytest.approx(value, abs=3e-3)] * bool(there)
        assert value == pytest.approx(shown["values"][index], abs=3e-3)


def test_mouse(explorer):
    explorer.show("op=ROIAlign&box=3,3,9,8&bin=0,0")
    drags: list[tuple[list[tuple[float, float]], list[float]]] = [
        ([(6, 5.5), (7, 6), (8, 6.5)], [5, 4, 11, 9]),  # the box
        ([(11, 9), (12, 10)], [5, 4, 12, 10]),  # a corner
        ([(5, 4), (13, 2)], [12, 2, 13, 10]),  # a corner, past another
        ([(14, 0.5), (15, 2), (15.5, 3)], [14, 0.5, 15.5, 3]),  # a new one
    ]
    for places, expected in drags:
        explorer.drag(*(explorer.place(*place) for place in places))
        assert explorer.shown()["box"] == expected
    explorer.show("op=ROIAlign&aligned=true&box=3,3,9,9&bin=0,0")
    explorer.drag(explorer.place(8, 6))
    assert explorer.shown()["chosen"] == ["1,2"]

    explorer.show("op=RotatedROIAlign&box=8,6,6,4,0")
    explorer.drag(*(explorer.place(*place) for place in [(8, 2.9), (7, 3), (4, 6)]))
    assert explorer.shown()["box"] == [8, 6, 6, 4, 90]
    explorer.drag(*(explorer.place(*place) for place in [(6, 3), (5, 2)]))
    assert explorer.shown()["box"] == [7.5, 5.5, 7, 5, 90]


@pytest.mark.parametrize(
    "name, centre", [("DeformablePSROIPool", (7.5, 6)), ("DeformableROIAlign", (7, 5.5))]
)
def test_offset_of_a_bin(explorer, name, centre):
    before = explorer.show(f"op={name}&box=3,3,11,8&bin=1,1")
    assert before["trans"] == 2
    places = np.add(centre, [(0, 0), (0.5, 0.2), (1.1, 0.4)])
    explorer.drag(*(explorer.place(*place) for place in places))
    after = explorer.shown()
    for (bin_before, *begin, _), (_, *end, _) in zip(before["samples"], after["samples"]):
        moved = np.float64(end) - np.float64(begin)
        expected = (1.1, 0.4) if bin_before == "1,1" else (0, 0)
        np.testing.assert_allclose(moved, expected, atol=0.01)
    assert after["box"] == [3, 3, 11, 8]
    names, call = program_of(after)
    assert np.float32(after["values"]).tobytes() == eval(call, names).asnumpy().tobytes()


def test_mask_of_a_bin(explorer):
    before = explorer.show("op=DeformableROIAlign&box=3,3,11,8&bin=1,1")
    assert "mask" not in before["python"]
    explorer.run("document.querySelector('[data-mask]').focus()")
    for _ in range(5):
        explorer.press("ArrowLeft", 37)
    after = explorer.shown()
    names, call = program_of(after)
    assert names["mask"][0, 0, 1, 1].asscalar() == 0.5 and names["mask"].sum().asscalar() == 8.5
    assert np.float32(after["values"]).tobytes() == eval(call, names).asnumpy().tobytes()
    assert after["values"][4] == before["values"][4] / 2 and ", times 0.5" in after["about"]


def test_keyboard(explorer):
    """Everything can be reached with Tab; arrow keys do what the mouse does."""
    explorer.show("op=RotatedROIAlign&box=8,6,6,4,0&bin=0,0")
    explorer.run("document.getElementById('explorer-map').focus()")
    for key, shift in [("ArrowRight", False), ("ArrowRight", False), ("ArrowUp", False)]:
        explorer.press(key, shift=shift)
    explorer.press("ArrowDown", shift=True)
    explorer.press("+")
    assert explorer.shown()["box"] == [8.2, 5.9, 6, 4.1, 5]

    explorer.run("document.querySelector('#explorer-output [tabindex=\"0\"]').focus()")
    for key in ("ArrowRight", "ArrowRight", "ArrowRight", "ArrowDown"):
        explorer.press(key)
        explorer.run(TICK)
    assert explorer.shown()["chosen"] == ["1,2"]

    reached = set()
    explorer.run("document.activeElement.blur()")
    for _ in range(40):
        explorer.press("Tab", 9)
        reached.add(
            explorer.run(
                "(() => { const at = document.activeElement, row = at.closest('[data-name]');"
                "return row ? row.dataset.name : at.id || at.dataset.index || at.tagName; })()"
            )
        )
    arguments = {"pooled_size", "spatial_scale", "sampling_ratio", "aligned"}
    assert reached >= {"explorer-map", "explorer-operator", "explorer-pattern"}
    assert reached >= {*"01234"} | arguments

    before = explorer.shown()["values"]
    explorer.run("document.querySelector('[data-name=sampling_ratio] input').focus()")
    explorer.press("ArrowUp", 38)
    after = explorer.shown()
    assert "sampling_ratio=3" in after["python"] and after["values"] != before


def test_phone(explorer):
    explorer.size(375, 800, mobile=True)
    try:
        for block in gluon_roi.OPERATORS:
            shown = explorer.show(f"op={block.__name__}&box=3,3,9,8&pooled_size=7,7")
            assert shown["wide"] <= 375
        explorer.show("op=ROIAlign&box=3,3,9,8")
        explorer.swipe(*(explorer.place(*place) for place in [(6, 5.5), (7, 6), (8, 6.5)]))
        assert explorer.shown()["box"] == [5, 4, 11, 9]
    finally:
        explorer.size(1280, 1000)


#: Runs in the page: its two rotated boxes.
OVERLAP = """(() => {
  const find = (name) => document.getElementById('overlap-' + name);
  const polygon = find('common').querySelector('polygon');
  return {
    overlaps: ['iou', 'of_lhs', 'of_rhs'].map((name) => Number(find(name).dataset.value)),
    polygon: polygon ? polygon.getAttribute('points').split(/[ ,]/).map(Number) : [],
    boxes: [...find('numbers').querySelectorAll('input')].map((input) => input.valueAsNumber),
    error: find('error').hidden ? '' : find('error').textContent,
    about: find('about').textContent,
    python: find('python').querySelector('pre').textContent,
  };
})()"""
#: Pairs of rotated boxes, and whether they intersect.
PAIRS = {
    "3,4,5,2,0|3,4,5,2,90": True,
    "6,5.5,8,4,20|9.5,6.5,7,3.5,-40": True,
    "8,6,8,8,0|8,6,8,8,45": True,
    "8,6,8,6,30|8.5,6,2,1,-75": True,  # one inside the other
    "8,6,8,6,30|8,6,6,8,-60": True,  # the same box
    "3,3,4,2,10|12,9,4,2,10": False,
    "3,3,4,2,0|7,3,4,2,0": False,  # they touch
    "3,3,4,-2,0|3,3,4,2,0": False,
    "3,3,4,0,0|3,3,4,2,0": False,
}


@pytest.mark.parametrize("pair", PAIRS)
def test_overlap_equals_library(explorer, pair):
    lhs, rhs = pair.split("|")
    explorer.show(f"op=ROIAlign&lhs={lhs}&rhs={rhs}")
    shown = explorer.run(OVERLAP)
    assert shown["boxes"] == [float(value) for value in f"{lhs},{rhs}".split(",")]
    names, call = program_of(shown)
    overlap = eval(call, names)
    one, other = names["lhs"], names["rhs"]
    first, second = (
        gluon_roi.nd.BoxIoU(*boxes, format="rotated", mode="iof").asscalar()
        for boxes in ((one, other), (other, one))
    )
    assert np.float32(shown["overlaps"]).tolist() == [overlap.asscalar(), first, second]
    corners = np.reshape(shown["polygon"], (-1, 2))
    assert bool(len(corners)) == PAIRS[pair]
    if PAIRS[pair]:
        x, y = corners.T
        area = abs(x @ np.roll(y, 1) - y @ np.roll(x, 1)) / 2
        sides = one.asnumpy()[0, 2:4]
        assert area / sides.prod() == pytest.approx(first, abs=1e-3)
        assert f"= {shown['overlaps'][0]:.4g}"[:5] in shown["about"]
    else:
        assert shown["about"] == "The boxes do not intersect."


def test_overlap_mouse_and_keys(explorer):
    explorer.show("op=ROIAlign&lhs=5,6,6,4,0&rhs=11,6,4,4,0")

    def drag(*places):
        explorer.drag(*(explorer.place(*place, "overlap-map") for place in places))
        explorer.run(TICK)
        return explorer.run(OVERLAP)["boxes"]

    assert drag((5, 6), (5.5, 6), (6, 7)) == [6, 7, 6, 4, 0, 11, 6, 4, 4, 0]  # lhs
    assert drag((9, 9), (9.5, 9.5), (10, 10))[:5] == [6.5, 7.5, 7, 5, 0]  # its corner
    assert drag((6.5, 3.9), (5, 4), (2, 7.5))[:5] == [6.5, 7.5, 7, 5, 90]  # turned
    assert drag((12, 5), (11, 5), (10, 5))[5:] == [9, 6, 4, 4, 0]  # rhs
    assert explorer.run(OVERLAP)["overlaps"][0] > 0
    for key, shift in [("ArrowLeft", False), ("ArrowDown", True), ("+", False)]:
        explorer.press(key, shift=shift)
    explorer.run(TICK)
    assert explorer.run(OVERLAP)["boxes"][5:] == [8.9, 6, 4, 4.1, 5]
    explorer.run("new Promise((done) => setTimeout(done, 500))")  # the address follows
    assert "rhs=8.9,6,4,4.1,5" in explorer.run("location.hash")
    assert explorer.show("op=ROIPool")["operator"] == "ROIPool"
    assert explorer.run(OVERLAP)["boxes"][:2] == [6, 5.5]  # those of the start


def test_overlap_of_an_emptied_input(explorer):
    explorer.show("op=ROIAlign")
    for value, error in (("", "width of lhs: expected a number"), ("2", "")):
        explorer.run(
            "(() => { const input = document.querySelector('[aria-label=\"width of lhs\"]');"
            f"input.value = '{value}'; input.dispatchEvent(new Event('input')); }})()"
        )
        explorer.run(TICK)
        assert explorer.run(OVERLAP)["error"] == error


@pytest.mark.parametrize(
    "view, sentence",
    [
        ("pooled_size=0,3", "ROIPool: argument pooled_size: expected"),
        ("pooled_size=17,3", "pooled_size: this page draws up to 16, got 17"),
        ("pooled_size=2.5,3", "pooled_size: expected a whole number, got 2.5"),
        ("spatial_scale=-1", "ROIPool: argument spatial_scale: expected"),
        ("spatial_scale=x", "ROIPool: argument spatial_scale: expected"),
    ],
)
def test_errors_are_sentences(explorer, view, sentence):
    shown = explorer.show(f"op=ROIPool&box=3,3,9,8&{view}")
    assert shown["error"].startswith(sentence) and not shown["values"]
    assert explorer.show("op=ROIPool&pooled_size=3,3&spatial_scale=1")["error"] == ""


@pytest.mark.parametrize("name", ["pooled_size, height", "x1"])
def test_emptied_inputs(explorer, name):
    explorer.show("op=ROIAlign&box=3,3,9,8")
    for value, sentence in [("", f"{name.partition(',')[0]}: expected a"), ("2", "")]:
        explorer.run(
            f"(() => {{ const input = document.querySelector('[aria-label=\"{name}\"]');"
            f"input.value = '{value}'; input.dispatchEvent(new Event('input')); }})()"
        )
        error = explorer.shown()["error"]
        assert error.startswith(sentence) and bool(error) == bool(sentence)


def test_all_operators_of_one_map(explorer):
    listed = explorer.run(
        "[...document.getElementById('explorer-operator').options].map((one) => one.value)"
    )
    assert set(listed) == {op.name for op in CHOICES}


def test_without_the_compiler(monkeypatch, capsys):
    monkeypatch.setattr(build_docs, "EMXX", "no-such-compiler")
    assert build_docs.explorer_kernels() is None
    expected = "the explorer is left out, because 'no-such-compiler' was not found; run 'apt-get"
    assert expected in capsys.readouterr().out
