"""A headless Chromium, driven over its own pipe: opens a page, asks it things, and keeps what it complains of."""

import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
_FLAGS = (
    *(
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--hide-scrollbars",
    ),
    *("--disable-extensions", "--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--remote-debugging-pipe", "--mute-audio", "--disable-default-apps"),
)
_WITH_PIPES = """
import os, sys
os.dup2(int(sys.argv[1]), 3)  # from which it reads
os.dup2(int(sys.argv[2]), 4)  # to which it writes
os.execv(sys.argv[3], sys.argv[3:])
"""
_WAIT_S = 600.0
"""For what would never come."""


class Tab:
    """A page of the browser.

    Attributes:
        complaints: Errors and warnings of its console, exceptions that nothing caught, what its policy refused.
        requests: What it asked for.
    """

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._to, self._from = to_browser, from_browser
        self._left, self._number, self._session = b"", 0, ""
        self._answers: dict[int, dict[str, Any]] = {}
        self._events: set[str] = set()
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Have the browser do something; what it answers."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        number = self._number
        self._read_until(lambda: number in self._answers)
        answer = self._answers.pop(number)
        assert "error" not in answer, answer["error"]
        return dict(answer["result"])

    def open(self, path: Path) -> None:
        """Open a file, and wait until all of it is there."""
        self._events.clear()
        self.requests.clear()
        self.call("Page.navigate", url=path.absolute().as_uri())
        self._read_until(lambda: "Page.loadEventFired" in self._events)

    def ask(self, expression: str) -> Any:
        """The value of an expression in the page, which may be one of a promise."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def _read_until(self, there: Callable[[], bool]) -> None:
        give_up = time.monotonic() + _WAIT_S
        while not there():
            ready, _, _ = select.select([self._from], [], [], max(0.0, give_up - time.monotonic()))
            assert ready, "the browser said nothing for too long"
            found = os.read(self._from, 1 << 20)
            assert found, "the browser is gone"
            *messages, self._left = (self._left + found).split(b"\0")
            for message in messages:
                self._take(json.loads(message))

    def _take(self, message: dict[str, Any]) -> None:
        if "id" in message:
            self._answers[message["id"]] = message
            return
        name, told = message["method"], message.get("params", {})
        self._events.add(name)
        if name == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(told["exceptionDetails"]))
        elif name == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(told["args"]))
        elif name == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.complaints.append(told["entry"]["text"])
        elif name == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])


@contextmanager
def browser(scratch: Path, *flags: str) -> Iterator[Tab]:
    """A browser with one empty page; it is gone afterwards.

    Args:
        scratch: Where it keeps its files.
        flags: Of the command line, besides those that every browser here has.
    """
    assert CHROMIUM is not None
    to_browser, ours_out = os.pipe()
    ours_in, from_browser = os.pipe()
    words = [sys.executable, "-c", _WITH_PIPES, str(to_browser), str(from_browser), CHROMIUM, *_FLAGS]
    process = subprocess.Popen(
        [*words, f"--user-data-dir={scratch}", *flags],
        pass_fds=[to_browser, from_browser],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(to_browser)
    os.close(from_browser)
    try:
        tab = Tab(ours_out, ours_in)
        yield tab
        tab._session = ""
        tab.call("Browser.close")
    finally:
        os.close(ours_out)
        os.close(ours_in)
        if process.poll() is None:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
