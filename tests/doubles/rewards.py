"""Rewards that misbehave where a completion tells them to. Light imports: grading processes load this module."""

import asyncio
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.learning.rewards.traits import RewardTraits, reward
from tests.doubles.native import hold_the_interpreter

GARBAGE = {
    "garbage": b'{"id": 0, "value": 1.0, "answer": null}\n]',
    "nested": b"[" * 10_000,
    "no-number": b'{"id": 2, "value": NaN, "answer": null}',
    "text": b'"broken"',
    "list": b'{"start": [1]}',
}
"""Answers that no grader gives."""


@reward(RewardTraits(pointwise=True))
def obedient(completions: Sequence[str], **columns: Any) -> list[float | None]:
    """Do what the completion says."""
    return [_obey(text, columns) for text in completions]


def _obey(text: str, columns: dict[str, Any]) -> float | None:
    order, _, rest = text.partition(" ")
    if order == "loop":
        while True:
            time.sleep(0.001)  # and leaves the core to other tests
    if order == "regex":  # in the middle of native code, and of work
        re.match(r"(a+)+$", "a" * 40 + "b")
    if order == "native":  # holds the interpreter: no thread of this process gets to run
        hold_the_interpreter()
    if order == "exit":
        os._exit(3)
    if order == "quit":
        sys.exit("no more")
    if order == "raise":
        raise ValueError(rest)
    if order == "memory":
        return float(len(bytearray(64 << 30)))
    if order == "recurse":
        return _obey(text, columns)
    if order == "none":
        return None
    if order == "nan":
        return float("nan")
    if order == "infinite":
        return float("inf")
    if order == "print":
        print("x" * 100_000)
        return 0.5
    if order == "sleep":
        time.sleep(float(rest))
        return 0.25
    if order == "family":  # children that hide in sessions of their own, then an endless sleep
        for _ in range(2):
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        time.sleep(600)
    if order == "orphan":
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        os._exit(1)
    if order == "fork":  # the copy comes back as well, and first
        if (copy := os.fork()) == 0:
            if rest == "raise":
                raise ValueError(rest)
            return 9.0
        os.waitpid(copy, 0)
        return 0.25
    if order == "thread":  # answers, and leaves something behind that keeps the interpreter busy
        threading.Thread(target=hold_the_interpreter, daemon=True).start()
        return 0.75
    if order in GARBAGE:  # written to every socket that can be found
        for fd in range(3, 1000):
            with suppress(OSError):
                os.write(fd, GARBAGE[order] + b"\n")
        time.sleep(600)
    if order == "victim":  # is killed once, as from outside
        return _killed_once(Path(rest))
    if order in ("fatal", "slow"):
        with (Path(rest) / order).open("a") as file:
            file.write(".")
        os.abort() if order == "fatal" else time.sleep(600)
    if order == "pid":
        return float(os.getpid())
    if order == "torch":
        return float("torch" in sys.modules)
    if order == "devices":
        return float(len(os.environ["CUDA_VISIBLE_DEVICES"]))
    return float(columns["level"][0]) if "level" in columns else 1.0


def _killed_once(folder: Path) -> float:
    """Note the processes of the pool, this one first; the first time, die."""
    import psutil  # the other rewards need no more than the standard library

    def command(process: psutil.Process) -> list[str]:
        try:
            return process.cmdline()
        except psutil.Error:  # it has just ended
            return []

    children = psutil.Process().parent().children()
    graders = [one.pid for one in children if "pipeline.learning.rewards.calling" in command(one)]
    others = [pid for pid in graders if pid != os.getpid()]
    again = (folder / "first").exists()
    (folder / ("second" if again else "first")).write_text(" ".join(map(str, [os.getpid(), *others])))
    if not again:
        os.kill(os.getpid(), signal.SIGKILL)
    return 1.0


@reward(RewardTraits(pointwise=True))
def counted(completions: Sequence[str], log: Sequence[str], **_: Any) -> list[float]:
    """Append a line to a file at every call."""
    with Path(log[0]).open("a") as file:
        file.write("called\n")
    return [float(len(text)) for text in completions]


@reward(RewardTraits(pointwise=True, verifies=False, answer=lambda completion: str(completion)[:1]))
def first_letter(completions: Sequence[str], letter: str = "a", **_: Any) -> list[float]:
    return [float(text.startswith(letter)) for text in completions]


@reward(RewardTraits(pointwise=True))
def halves(completions: Sequence[str], **_: Any) -> list[float]:
    """Fails at texts of odd length, with a message that differs from process to process."""
    if len(completions[0]) % 2:
        raise ValueError(f"no half of {object()}")
    return [len(text) / 2 for text in completions]


def drawn(completions: Sequence[str], **_: Any) -> list[float]:
    return [random.random() + float(np.random.random()) for _ in completions]


async def judge(completions: Sequence[str], **_: Any) -> list[float | None]:
    """Wait for a rendezvous: fulfilled only if others are awaited at the same time."""
    text = completions[0]
    if text == "never":
        await asyncio.sleep(600)
    if text == "block":
        time.sleep(600)
    if text == "raise":
        raise ValueError("no verdict")
    if text.startswith("meet"):
        _waiting.append(text)
        while len(_waiting) < 3:
            await asyncio.sleep(0.01)
    return [float(len(text))]


_waiting: list[str] = []
