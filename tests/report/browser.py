"""A headless Chromium, spoken to through its debugging pipe: what a page says, measures and looks like."""

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


def chromium() -> str | None:
    """Return the browser on this machine, if there is one."""
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


class Browser:
    """One page of a browser. `complaints` holds errors and warnings of the console, and requests to the network."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = os.fdopen(to_browser, "wb", buffering=0), os.fdopen(from_browser, "rb", buffering=0)
        self._number, self._rest, self._session = 0, b"", ""
        self.complaints: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        """Send a command and return its result."""
        self._number += 1
        command = {"id": self._number, "method": method, "params": params}
        if self._session:
            command["sessionId"] = self._session
        self._to.write(json.dumps(command).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def open(self, page: Path, *, width: int, dark: bool = False) -> None:
        """Show a page at a width in CSS pixels and wait until its figures are drawn."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        self.call("Page.navigate", url=page.absolute().as_uri())
        self.run(
            "new Promise((done) => { const look = () => document.readyState === 'complete' && "
            "[...document.querySelectorAll('.plot')].every((plot) => plot.dataset.drawn || plot.textContent) "
            "? done(1) : setTimeout(look, 20); look(); })"
        )

    def run(self, script: str) -> Any:
        """Return the value of a script, awaited if it is a promise."""
        found = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def picture(self, path: Path) -> None:
        """Write a PNG of the whole page."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = self._from.read(1 << 20)
            assert more, "the browser has gone"
            self._rest += more
        message, _, self._rest = self._rest.partition(b"\0")
        event: dict[str, Any] = json.loads(message)
        self._listen(event.get("method", ""), event.get("params", {}))
        return event

    def _listen(self, method: str, params: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(json.dumps(params["entry"]))
        elif method == "Network.requestWillBeSent":
            url = params["request"]["url"]
            if not url.startswith(("file:", "data:", "blob:", "about:")):
                self.complaints.append(url)


@contextmanager
def browser(program: str, profile: Path) -> Iterator[Browser]:
    """Start a browser with a fresh profile, and end it."""
    inbox, to_browser = os.pipe()
    from_browser, outbox = os.pipe()

    def wire() -> None:  # the browser reads commands from 3 and writes answers to 4
        commands, answers = os.dup(inbox), os.dup(outbox)  # which may be 3 or 4 themselves
        os.dup2(commands, 3)
        os.dup2(answers, 4)

    words = [
        program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
        "--remote-debugging-pipe", "--no-first-run", "--disable-extensions", f"--user-data-dir={profile}",
    ]  # fmt: skip
    process = subprocess.Popen(
        words, preexec_fn=wire, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    os.close(inbox)
    os.close(outbox)
    try:
        yield Browser(to_browser, from_browser)
    finally:
        process.kill()
        process.wait()
