# SPDX-License-Identifier: Apache-2.0
"""Opens every page of build/docs in Chromium, and reports faults.

    python build_tools/check_site.py        # or make docs ARGS=--check

Checks: no error on the console, no alert on a page, and no file that is missing; links and their
anchors exist; pictures are there, and have alternative texts and their sizes, so that text does not
jump; no block of code has to be scrolled; nothing is loaded from elsewhere; the search finds each
operator, also without a server. One Chromium visits all pages in a frame, and sends its findings
back.
"""

from __future__ import annotations

import contextlib
import functools
import http.server
import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

SITE = Path(__file__).resolve().parent.parent / "build/docs"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SECONDS = 300

#: Reports errors of a page to the page around it, before the page's own scripts run.
LISTENER = """<script>
  addEventListener('error', (event) => parent.report(
    event.message || `${event.target.src || event.target.href} cannot be loaded`), true);
  console.error = (...texts) => parent.report(texts.join(' '));
</script>"""

#: Visits the pages one by one. PAGES and NAMES stand for lists.
VISITOR = """<!doctype html><iframe width="1280" height="900"></iframe><script>
const BUSY = 100;  // tenths of a second that a page may take to start
const frame = document.querySelector('iframe'), problems = [], ids = {}, links = [];
let place = '';
window.report = (text) => problems.push(`${place}: ${text}`);
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

async function open(page) {
  place = page;
  const loaded = new Promise((done) => { frame.onload = done; });
  frame.src = '/' + page;
  await loaded;
  return frame.contentDocument;
}

async function visit(page) {
  const text = await open(page);
  for (let tries = 0; text.querySelector('[aria-busy=true]'); ++tries) {
    if (tries === BUSY) return report('is still busy');
    await pause(100);
  }
  for (const alert of text.querySelectorAll('[role=alert]')) {
    if (alert.offsetParent && alert.textContent.trim()) report(alert.textContent);
  }
  ids[page] = new Set([...text.querySelectorAll('[id]')].map((element) => element.id));
  for (const link of text.querySelectorAll('a[href]')) {
    const goal = new URL(link.href);
    if (goal.origin === location.origin) links.push([page, goal]);
  }
  for (const picture of text.images) {
    if (!picture.alt.trim()) report(`${picture.src} has no alternative text`);
    picture.loading = 'eager';
    await picture.decode().catch(() => report(`${picture.src} is no picture`));
    const sizes = ['width', 'height'].map((side) => Number(picture.getAttribute(side)));
    if (String(sizes) !== String([picture.naturalWidth, picture.naturalHeight])) {
      report(`${picture.src} has the size ${sizes}, not that of its file`);
    }
  }
  for (const code of text.querySelectorAll('pre')) {
    if (code.scrollWidth > code.clientWidth) {
      report(`a block of code is cut off: ${code.textContent.trim().slice(0, 40)}`);
    }
  }
  for (const { name } of frame.contentWindow.performance.getEntriesByType('resource')) {
    if (!name.startsWith(location.origin)) report(`loads ${name}`);
  }
}

async function search(name) {
  const text = await open(`search.html?q=${name}`);
  for (let tries = 0; tries < 100; ++tries) {
    const found = [...text.querySelectorAll('#search-results li a')];
    if (found.some((link) => link.textContent.includes(name))) return;
    await pause(100);
  }
  report('finds nothing of that name');
}

async function all() {
  for (const page of PAGES) await visit(page);
  for (const [page, goal] of links) {
    const path = decodeURIComponent(goal.pathname.slice(1)) || 'index.html';
    const anchor = decodeURIComponent(goal.hash.slice(1));
    place = page;
    if (ids[path]) {
      if (anchor && !ids[path].has(anchor)) report(`link to ${path}#${anchor}, which is not there`);
    } else if (!(await fetch(goal, { method: 'HEAD' })).ok) {
      report(`link to ${path}, which is not there`);
    }
  }
  for (const name of NAMES) await search(name);
}

all().catch((error) => report(error.stack)).then(() => fetch('/report', {
  method: 'POST', body: JSON.stringify({ problems, links: links.length }) }));
</script>"""


class Server(http.server.SimpleHTTPRequestHandler):
    """Serves the site with LISTENER in its pages, and takes the visitor's report."""

    visitor = ""
    report: dict = {}
    reported = threading.Event()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        file = Path(self.directory, path.lstrip("/"))
        if path == "/visitor":
            self.answer(self.visitor)
        elif path == "/favicon.ico":
            self.answer("")
        elif file.suffix == ".html" and file.is_file():
            self.answer(file.read_text().replace("<head>", f"<head>{LISTENER}", 1))
        else:
            super().do_GET()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        Server.report = json.loads(body)
        self.answer("")
        self.reported.set()

    def answer(self, text: str) -> None:
        data = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        with contextlib.suppress(BrokenPipeError):  # the browser is at the next page already
            self.wfile.write(data)

    def log_message(self, *arguments: object) -> None:
        pass


def chromium() -> list[str]:
    """The command that starts the browser, without a window."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        sys.exit("check_site: Chromium is not installed; run 'apt-get install chromium'")
    return [found, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]


def check_pages(site: Path, names: list[str]) -> list[str]:
    """Problems of all pages, seen through a server."""
    pages = sorted(str(file.relative_to(site)) for file in site.rglob("*.html"))
    Server.visitor = VISITOR.replace("PAGES", json.dumps(pages)).replace("NAMES", json.dumps(names))
    Server.reported.clear()
    handler = functools.partial(Server, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        profile = tempfile.mkdtemp()
        address = f"http://127.0.0.1:{server.server_port}/visitor"
        # Without a port for debugging, a headless Chromium ends when the page has loaded.
        process = subprocess.Popen(
            [*chromium(), f"--user-data-dir={profile}", "--remote-debugging-port=0", address],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            if not Server.reported.wait(SECONDS):
                sys.exit(f"check_site: no report after {SECONDS} seconds")
        finally:
            process.terminate()
            process.wait()
            shutil.rmtree(profile, ignore_errors=True)
            server.shutdown()
    print(f"{len(pages)} pages, {Server.report['links']} links, {len(names)} searches")
    return Server.report["problems"]


def check_search_without_server(site: Path, name: str) -> list[str]:
    address = f"{(site / 'search.html').as_uri()}?q={name}"
    command = [*chromium(), "--virtual-time-budget=10000", "--dump-dom", address]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    found = re.search(rf'<li.*?<a href="[^"]*{name}[^"]*"', done.stdout, re.S)
    return [] if found else [f"{address}: finds nothing of that name"]


def main() -> None:
    names = sorted(file.stem.split(".")[-1] for file in SITE.glob("reference/gluon_roi.nd.*.html"))
    if not names:
        sys.exit(f"check_site: {SITE} has no site; run 'make docs'")
    problems = check_pages(SITE, names) + check_search_without_server(SITE, names[0])
    sys.exit("\n".join(problems) or None)


if __name__ == "__main__":
    main()
