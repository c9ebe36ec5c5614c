"""A headless Chromium over its debugging pipe: opens a page, keeps what it said and asked for, points, types, takes pictures."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--no-default-browser-check",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions", "--mute-audio",
    "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip
_START_S, _CALL_S, _DRAW_S = 60.0, 60.0, 240.0


def chromium() -> str | None:
    """The installed Chromium; None where there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def needed() -> str:
    """The installed Chromium; the test is skipped, and says so, where there is none."""
    path = chromium()
    if path is None:
        pytest.skip("no Chromium on this machine (Debian: apt-get install chromium)")
    return path


class Browser:
    """A running browser. Messages are JSON, each ended by a NUL byte."""

    def __init__(self, path: str, profile: Path) -> None:
        there, self._out = os.pipe()
        self._in, back = os.pipe()

        def inherit() -> None:  # the browser reads from 3 and writes to 4
            high = [os.dup2(there, 63), os.dup2(back, 64)]
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        self.process = subprocess.Popen(
            [path, *_FLAGS, f"--user-data-dir={profile}", "about:blank"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, preexec_fn=inherit, close_fds=False, start_new_session=True,
        )  # fmt: skip
        os.close(there)
        os.close(back)
        self._buffer = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []
        self.call("Browser.getVersion", timeout_s=_START_S)

    def call(
        self, method: str, session: str | None = None, timeout_s: float = _CALL_S, **parameters: Any
    ) -> dict[str, Any]:
        """A command's result. Raises AssertionError where the browser refuses it or says nothing."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters} | (
            {"sessionId": session} if session else {}
        )
        os.write(self._out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + timeout_s
        while True:
            answer = self._message(deadline, method)
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def _message(self, deadline: float, waiting_for: str) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"the browser does not answer {waiting_for}"
            chunk = os.read(self._in, 1 << 20)
            assert chunk, f"the browser ended during {waiting_for}"
            self._buffer += chunk
        raw, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(raw)
        return message

    def open(
        self, path: Path, *, width: int = 1280, height: int = 900, dark: bool = False, scripts: bool = True
    ) -> Page:
        """The page of a file, loaded; with scripts, its figures are drawn too."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session, target)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        page.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        page.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}],
        )
        page.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        page.call("Page.navigate", url=path.resolve().as_uri())
        page.wait("document.readyState === 'complete' && location.href !== 'about:blank'")
        if scripts:
            page.wait("document.documentElement.dataset.ready !== undefined", timeout_s=_DRAW_S)
        return page

    def close(self) -> None:
        """End the browser and what it started."""
        with contextlib.suppress(AssertionError, OSError):
            self.call("Browser.close", timeout_s=10)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
        os.close(self._in)
        os.close(self._out)


class Page:
    """An open page."""

    def __init__(self, browser: Browser, session: str, target: str) -> None:
        self.browser, self.session, self.target = browser, session, target

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command of this page."""
        return self.browser.call(method, self.session, **parameters)

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, script: str, timeout_s: float = 60.0) -> None:
        """Until an expression holds."""
        deadline = time.monotonic() + timeout_s
        while not self.run(script):
            assert time.monotonic() < deadline, f"still not: {script}"
            time.sleep(0.05)

    def events(self, method: str) -> list[dict[str, Any]]:
        """Parameters of what the page reported so far."""
        self.run("0")  # reads what has come meanwhile
        return [
            item["params"]
            for item in self.browser.events
            if item.get("method") == method and item.get("sessionId") == self.session
        ]

    def complaints(self) -> list[str]:
        """Errors and warnings of the console, uncaught exceptions, violations of the page's policy."""
        console = [
            str(item)
            for item in self.events("Runtime.consoleAPICalled")
            if item["type"] in ("error", "warning", "assert")
        ]
        thrown = [str(item["exceptionDetails"]) for item in self.events("Runtime.exceptionThrown")]
        logged = [
            str(item["entry"])
            for item in self.events("Log.entryAdded")
            if item["entry"]["level"] in ("error", "warning")
        ]
        return console + thrown + logged

    def requests(self) -> list[str]:
        """Addresses the page asked for, itself left out; what it made itself (data:, blob:) is none."""
        asked = [item["request"]["url"] for item in self.events("Network.requestWillBeSent")]
        return [url for url in asked[1:] if not url.startswith(("data:", "blob:"))]

    def centre(self, selector: str) -> list[float]:
        """Where an element is on the screen, scrolled to the middle of it."""
        found: list[float] = self.run(
            f"(() => {{ const item = document.querySelector({selector!r}); item.scrollIntoView({{block: 'center', behavior: 'instant'}});"
            " const box = item.getBoundingClientRect(); return [box.left + box.width / 2, box.top + box.height / 2]; })()"
        )
        return found

    def point(self, x: float, y: float) -> None:
        """Move the mouse there, by way of a place nearby."""
        for step in (3, 0):
            self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x - step, y=y - step)

    def press(self, key: str, code: int) -> None:
        """A key, down and up."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def type(self, text: str) -> None:
        """Text into what has the focus."""
        self.call("Input.insertText", text=text)

    def picture(self, target: Path, selector: str | None = None) -> Path:
        """A picture of the whole page, or of one element."""
        rect = "document.documentElement" if selector is None else f"document.querySelector({selector!r})"
        box = self.run(
            f"(() => {{ const r = {rect}.getBoundingClientRect(); return [r.left + scrollX, r.top + scrollY, r.width, r.height]; }})()"
        )
        clip = {"x": box[0], "y": box[1], "width": max(box[2], 1), "height": max(min(box[3], 16_000), 1), "scale": 1}
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)["data"]
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(base64.b64decode(data))
        return target

    def paper(self, target: Path) -> Path:
        """The page as a PDF."""
        data = self.call("Page.printToPDF", printBackground=True)["data"]
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(base64.b64decode(data))
        return target

    def close(self) -> None:
        """Close the page."""
        self.browser.call("Target.closeTarget", targetId=self.target)


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """A browser with a fresh profile; skips the test where none is installed."""
    path = needed()
    with tempfile.TemporaryDirectory(prefix="stepscope-chromium-", ignore_cleanup_errors=True) as folder:
        running = Browser(path, Path(folder))
        try:
            yield running
        finally:
            running.close()
