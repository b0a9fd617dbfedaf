"""A page in headless Chromium, by its DevTools protocol over two pipes: what it logs, requests, and measures."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

PROGRAM = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), "")
# Chromium reads from 3 and writes to 4; the pipes may have these numbers too, so they are moved away first.
START = """
import os, sys
ends = [os.dup(os.dup(os.dup(int(end)))) for end in sys.argv[1:3]]
for end, number in zip(ends, (3, 4)):
    os.dup2(end, number)
os.execv(sys.argv[3], sys.argv[3:])
"""
WAIT = 30.0  # seconds for an answer
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run")


@dataclass
class Visit:
    """What happened on one page."""

    requests: list[str] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)


class Browser:
    def __init__(self, send, receive):
        self._send, self._receive, self._number, self._rest = send, receive, 0, b""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.visit = Visit()
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def open(self, page: Path | str, width: int, *, dark: bool = False, height: int = 900) -> Visit:
        self.visit = Visit()
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=page if isinstance(page, str) else page.as_uri())
        self._until(lambda: self.evaluate("document.readyState") == "complete")
        return self.visit

    def evaluate(self, script: str):
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def screenshot(self, path: Path) -> None:
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))

    def call(self, method: str, **parameters):
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if hasattr(self, "_session"):
            message["sessionId"] = self._session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self._note(answer)

    def _read(self):
        while b"\0" not in self._rest:
            assert select.select([self._receive], [], [], WAIT)[0], "Chromium does not answer"
            some = os.read(self._receive, 1 << 20)
            assert some, "Chromium has ended"
            self._rest += some
        text, self._rest = self._rest.split(b"\0", 1)
        return json.loads(text)

    def _note(self, event):
        method, given = event.get("method", ""), event.get("params", {})
        if method == "Network.requestWillBeSent":
            self.visit.requests.append(given["request"]["url"])
        elif method in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            self.visit.messages.append(json.dumps(given))

    def _until(self, holds):
        end = time.monotonic() + WAIT
        while not holds():
            assert time.monotonic() < end, "the page is not complete"
            time.sleep(0.02)


@contextmanager
def browser(folder: Path):
    """A browser with a profile of its own in ``folder``; skips where there is no Chromium."""
    if not PROGRAM:
        pytest.skip("Chromium is not installed: the page is not looked at in a browser")
    to_read, send = os.pipe()
    receive, to_write = os.pipe()
    flags = [PROGRAM, *FLAGS, f"--user-data-dir={folder / 'profile'}", "--remote-debugging-pipe"]
    command = [sys.executable, "-c", START, str(to_read), str(to_write), *flags]
    process = subprocess.Popen(command, pass_fds=(to_read, to_write), stderr=subprocess.DEVNULL)
    os.close(to_read)
    os.close(to_write)
    try:
        yield Browser(send, receive)
    finally:
        os.close(send)
        os.close(receive)
        process.terminate()
        process.wait(timeout=WAIT)
