# SPDX-License-Identifier: Apache-2.0
"""The check of the site in Chromium, on a small site with one fault of each kind."""

from __future__ import annotations

import re
import shutil

import pytest
from support import site_check
from support.browser import BROWSERS

PAGES = {
    "index.html": """<p id="here"><a href="other.html#there">good</a> <a href="#here">good</a>
        <a href="other.html#gone">1</a> <a href="lost.html">2</a>
        <a href="https://a.example">far</a>
        <img src="dot.png" alt="a dot" width="1" height="1">
        <img src="dot.png" alt=" " width="1" height="1">
        <img src="dot.png" alt="no size">
        <img src="dot.png" alt="another size" width="2" height="1">
        <img src="none.png" alt="no" width="0" height="0">""",
    "other.html": """<p id="there"><script>console.error('five', 5); throw Error('six')</script>
        <p role="alert">seven</p><p role="alert" hidden>no alert</p>""",
    "wide.html": '<pre style="width: 1000px">code</pre>',
    "slow.html": '<p aria-busy="true">',
    "search.html": """<ul id="search-results"></ul><script>
        if (location.search === '?q=Found') document.querySelector('ul').innerHTML =
            '<li><a href="index.html">gluon_roi.Found</a></li>';</script>""",
}
DOT = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c6360000002000001e221bc330000000049454e44ae426082"
)
EXPECTED = [
    "index.html: dot.png has no alternative text",
    "index.html: dot.png has the size 0,0, not that of its file",
    "index.html: dot.png has the size 2,1, not that of its file",
    "index.html: none.png is no picture",
    "index.html: Failed to load resource: net::ERR_FILE_NOT_FOUND",
    "index.html: link to lost.html, which is not there",
    "index.html: link to other.html#gone, which is not there",
    "other.html: five",
    "other.html: Error: six",
    "other.html: seven",
    "slow.html: is still busy after 10 seconds",
    'wide.html: is cut off at 18 widths from 320 to 1000 pixels: pre "code"',
    "search.html: finds no page for Lost",
]


@pytest.mark.night
@pytest.mark.skipif(not any(map(shutil.which, BROWSERS)), reason="no Chromium")
def test_every_fault_is_reported(tmp_path):
    for name, body in PAGES.items():
        text = f"<!doctype html><html><head><title>t</title></head><body>{body}</body></html>"
        (tmp_path / name).write_text(text)
    (tmp_path / "dot.png").write_bytes(DOT)
    faults = site_check.faults(tmp_path, {"Found": "Found", "Lost": "Lost"})
    # The console's own are JSON.
    shown = [re.sub(r': [{[]{1,2}".*(five|Error: six)\b.*', r": \1", fault) for fault in faults]
    assert sorted(shown) == sorted(EXPECTED)
