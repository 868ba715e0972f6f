# SPDX-License-Identifier: Apache-2.0
"""Opens every page of a site in Chromium, from its files, and returns faults (make docs).

Checks: no error on the console, no alert on a page, and no file that is missing; links and their
anchors exist; pictures are there, and have alternative texts and their sizes, so that text does not
jump; no block of code has to be scrolled on a screen of 1280 pixels; no page is cut off at any
width from 320 to 1920 pixels; nothing is loaded from elsewhere; the search finds each operator and
the words that people search for.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from urllib.parse import quote

from .browser import Page

#: The faults of a page, its links, and the names that links may have.
LOOK = """(async () => {
  const faults = [], pause = (ms) => new Promise((done) => setTimeout(done, ms));
  const complete = document.readyState === 'complete';
  if (!complete) await new Promise((done) => addEventListener('load', done));
  for (let tries = 0; document.querySelector('[aria-busy=true]'); ++tries) {
    if (tries === 100) { faults.push('is still busy after 10 seconds'); break; }
    await pause(100);
  }
  for (const alert of document.querySelectorAll('[role=alert]')) {
    if (alert.offsetParent && alert.textContent.trim()) faults.push(alert.textContent);
  }
  for (const picture of document.images) {
    const name = picture.src.split('/').pop();
    if (!picture.alt.trim()) faults.push(`${name} has no alternative text`);
    picture.loading = 'eager';
    await picture.decode().catch(() => faults.push(`${name} is no picture`));
    const sizes = ['width', 'height'].map((side) => Number(picture.getAttribute(side)));
    if (String(sizes) !== String([picture.naturalWidth, picture.naturalHeight])) {
      faults.push(`${name} has the size ${sizes}, not that of its file`);
    }
  }
  for (const code of document.querySelectorAll('pre')) {
    if (code.scrollWidth > code.clientWidth) {
      faults.push(`a block of code is cut off: ${code.textContent.trim().slice(0, 40)}`);
    }
  }
  for (const { name } of performance.getEntriesByType('resource')) {
    if (/^https?:/.test(name)) faults.push(`loads ${name}`);
  }
  return { faults, links: [...document.querySelectorAll('a[href]')].map((link) => link.href),
           ids: [...document.querySelectorAll('[id]')].map((element) => element.id) };
})()"""

#: From a small phone to a large screen, in pixels.
WIDTHS = range(320, 1921, 40)
#: What lies outside the window at the present width. Blocks of code and tables may scroll inside
#: the page, so their frames are measured.
CUT = """(async () => {
  while (window.innerWidth !== WIDTH) await new Promise((done) => setTimeout(done, 5));
  const page = document.scrollingElement, right = page.clientWidth;
  const parts = document.querySelectorAll('h1, h2, h3, p, li, dt, dd, pre, img, .table-wrapper');
  for (const part of parts) {
    if (part.parentElement.closest('.table-wrapper, .sidebar-drawer, .toc-drawer')) continue;
    const box = part.getBoundingClientRect();
    if (box.width && (box.left < -1 || box.right > right + 1)) {
      return `${part.localName} "${(part.textContent.trim() || part.src || '').slice(0, 40)}"`;
    }
  }
  return page.scrollWidth > right + 1 ? 'the page scrolls sideways' : '';
})()"""

#: What people search for beside names; pages have to use these words.
WORDS = ("padding rows", "mAP", "NaN", "segfault")
#: Whether the search finds a page with that title, within 10 seconds.
SEARCH = """(async () => {
  for (let tries = 0; tries < 100; ++tries) {
    const found = [...document.querySelectorAll('#search-results li a')];
    if (found.some((link) => link.textContent.includes(TITLE))) return true;
    await new Promise((done) => setTimeout(done, 100));
  }
  return false;
})()"""


def faults(site: Path, searches: dict[str, str]) -> list[str]:
    """Faults of all pages, and of searches: words -> a part of the title of a page to find."""
    found, links, ids = [], [], {}
    with tempfile.TemporaryDirectory() as profile:
        page = Page(Path(profile))
        page.size(1280, 900)
        for file in sorted(site.rglob("*.html")):
            page.open(file.as_uri())
            seen = page.run(LOOK)
            place = str(file.relative_to(site))
            found += [f"{place}: {fault}" for fault in (*seen["faults"], *page.problems)]
            found += [f"{place}: {fault}" for fault in cut_off(page)]
            page.problems.clear()
            ids[file.as_uri()] = set(seen["ids"])
            links += [(place, link.partition("#")) for link in seen["links"]]
        for words, title in searches.items():
            page.open(f"{(site / 'search.html').as_uri()}?q={quote(words)}")
            if not page.run(SEARCH.replace("TITLE", json.dumps(title))):
                found.append(f"search.html: finds no page for {words}")
        page.close()
    own = [each for each in links if each[1][0].startswith(site.as_uri())]
    for place, (address, _, anchor) in own:
        goal = address[len(site.as_uri()) + 1 :]
        if not (site / goal).is_file():
            found.append(f"{place}: link to {goal}, which is not there")
        elif anchor and anchor not in ids.get(address, ()):
            found.append(f"{place}: link to {goal}#{anchor}, which is not there")
    print(f"{len(ids)} pages, {len(own)} links, {len(searches)} searches")
    return found


def cut_off(page: Page) -> list[str]:
    """What is cut off at some width of the window, with the widths."""
    widths: dict[str, list[int]] = {}
    for width in WIDTHS:
        page.size(width, 900)
        if what := page.run(CUT.replace("WIDTH", str(width))):
            widths.setdefault(what, []).append(width)
    page.size(1280, 900)
    return [
        f"is cut off at {len(at)} widths from {at[0]} to {at[-1]} pixels: {what}"
        for what, at in widths.items()
    ]


def main(site: Path) -> None:
    """Exit with the faults of the site that `make docs` has built."""
    names = sorted(file.stem.split(".")[-1] for file in site.glob("reference/gluon_roi.nd.*.html"))
    searches = {**{name: name for name in names}, **dict.fromkeys(WORDS, "")}
    sys.exit("\n".join(faults(site, searches)) or None)
