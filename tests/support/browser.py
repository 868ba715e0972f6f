# SPDX-License-Identifier: Apache-2.0
"""A page in headless Chromium: real mouse, keys and fingers, over the browser's debugging pipe."""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SECONDS = 60


def chromium() -> list[str]:
    """The command that starts the browser, without a window."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        sys.exit("Chromium is not installed; run 'apt-get install chromium'")
    return [found, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]


class Page:
    """One page of one browser. `problems` collects errors of its console and its scripts."""

    def __init__(self, profile: Path) -> None:
        self.problems: list[str] = []
        self.number, self.buffer, self.session = 0, b"", ""
        to_browser, from_browser = os.pipe(), os.pipe()
        # Chromium reads from file descriptor 3 and writes to 4; the shell puts the pipes there.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 20) for end in (to_browser[0], from_browser[1])]
        command = [
            *chromium(),
            *("--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"),
        ]
        self.process = subprocess.Popen(
            ["/bin/bash", "-c", f'exec "$@" 3<&{ends[0]} 4>&{ends[1]}', "chromium", *command],
            pass_fds=ends,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (*ends, to_browser[0], from_browser[1]):
            os.close(end)
        self.input, self.output = to_browser[1], from_browser[0]
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Runtime", "Log", "Page"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()
        os.close(self.input)
        os.close(self.output)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of a command of the DevTools protocol."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.input, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.read()
            if answer.get("id") == self.number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def read(self) -> dict[str, Any]:
        """The next message. Errors are kept."""
        deadline = time.monotonic() + SECONDS
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.output], [], [], deadline - time.monotonic())
            assert ready, f"no answer of Chromium in {SECONDS} seconds"
            received = os.read(self.output, 1 << 20)
            assert received, "Chromium has ended"
            self.buffer += received
        text, _, self.buffer = self.buffer.partition(b"\0")
        message = json.loads(text)
        method, about = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(about["exceptionDetails"]))
        elif method == "Log.entryAdded" and about["entry"]["level"] in ("error", "warning"):
            self.problems.append(about["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning"):
            self.problems.append(json.dumps(about["args"]))
        return message

    def open(self, address: str) -> None:
        self.call("Page.navigate", url=address)

    def run(self, script: str) -> Any:
        """The value of an expression in the page; promises are awaited."""
        done = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def size(self, width: int, height: int, mobile: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            **{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile},
        )
        self.call("Emulation.setTouchEmulationEnabled", enabled=mobile)

    def drag(self, *places: tuple[float, float]) -> None:
        """Press the mouse at the first place, and release it at the last."""
        for kind, (x, y) in [
            ("mouseMoved", places[0]),
            ("mousePressed", places[0]),
            *(("mouseMoved", place) for place in places[1:]),
            ("mouseReleased", places[-1]),
        ]:
            self.call(
                "Input.dispatchMouseEvent",
                **{"type": kind, "x": x, "y": y, "button": "left", "buttons": 1, "clickCount": 1},
            )

    def swipe(self, *places: tuple[float, float]) -> None:
        """The same with a finger."""
        for index, (x, y) in enumerate(places):
            kind = "touchMove" if index else "touchStart"
            self.call("Input.dispatchTouchEvent", type=kind, touchPoints=[{"x": x, "y": y}])
        self.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def press(self, key: str, code: int = 0, shift: bool = False) -> None:
        """A key such as ArrowLeft, or a character."""
        about = {"key": key, "modifiers": 8 if shift else 0, "windowsVirtualKeyCode": code}
        if len(key) == 1:
            about["text"] = key
        self.call("Input.dispatchKeyEvent", type="keyDown", **about)
        self.call("Input.dispatchKeyEvent", type="keyUp", **about)
