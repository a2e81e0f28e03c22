"""Job bodies that behave and misbehave, for workers to import by path. Each is an entry: ``body(work)``."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from pipeline.workers.work import Work

ENVIRONMENT_AT_IMPORT = dict(os.environ)


def nothing(work: Work) -> None:
    """Write nothing; the output is a manifest alone."""


def write(work: Work) -> None:
    """Write the payload and the payloads of all inputs."""
    found = {
        name: [json.loads((folder / "value.json").read_text()) for folder in folders]
        for name, folders in work.inputs.items()
    }
    (work.out / "value.json").write_text(
        json.dumps({"payload": dict(work.payload), "inputs": found}, sort_keys=True)
    )
    work.progress(1, 1, tokens=3)


def sleep(work: Work) -> None:
    time.sleep(float(work.payload["seconds"]))


def raise_error(work: Work) -> None:
    raise ValueError(work.payload.get("message", "this body raises"))


def raise_system_exit(work: Work) -> None:
    sys.exit(3)


def exit_at_once(work: Work) -> None:
    os._exit(int(work.payload.get("code", 7)))


def segfault(work: Work) -> None:
    ctypes.string_at(0)


def kill_self(work: Work) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_self_once(work: Work) -> None:
    """Die in the first attempt, succeed in the second."""
    if work.attempt == 1:
        kill_self(work)
    write(work)


def stop_self(work: Work) -> None:
    """Stand still: no thread of the process runs on, and nothing but SIGKILL ends it."""
    os.kill(os.getpid(), signal.SIGSTOP)


def ignore_requests_to_stop(work: Work) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Path(work.payload["flag"]).write_text(str(os.getpid()))
    while True:
        with suppress(KeyboardInterrupt):
            time.sleep(3600)


def unwind_when_stopped(work: Work) -> None:
    """Tell by a file that the body was left by an exception rather than cut off."""
    Path(work.payload["flag"]).write_text(str(os.getpid()))
    try:
        time.sleep(3600)
    finally:
        Path(work.payload["unwound"]).touch()


def hang_up(work: Work) -> None:
    """Close every descriptor, the pipe to the engine included, and live on."""
    os.closerange(3, 256)
    time.sleep(3600)


def write_garbage(work: Work) -> None:
    """Write bytes that are no message to whatever the process has open: one of them is its pipe."""
    for descriptor in range(3, 64):
        with suppress(OSError):
            if str(Path(f"/proc/self/fd/{descriptor}").readlink()).startswith("socket:"):
                os.write(descriptor, b"\xff\x00 no message\n")
    time.sleep(3600)


def print_everywhere(work: Work) -> None:
    """Write to standard output and error in every way there is."""
    print("by print")
    print("by print to stderr", file=sys.stderr)
    logging.getLogger("some.library").warning("by logging")
    os.write(1, b"by descriptor 1\n")
    os.write(2, b"by descriptor 2\n")
    # No newline: the C library keeps this in its own buffer until someone flushes it.
    ctypes.CDLL(None).printf(b"by printf")
    subprocess.run(["sh", "-c", "echo by a child process"], check=True)


def leave_grandchild(work: Work) -> None:
    """Start a process that would outlive the job, and then sleep."""
    child = subprocess.Popen(["sleep", "3600"])
    Path(work.payload["flag"]).write_text(json.dumps([os.getpid(), child.pid]))
    if work.payload.get("die"):
        kill_self(work)
    time.sleep(float(work.payload.get("seconds", 3600)))


def report_much(work: Work) -> None:
    for step in range(20_000):
        work.progress(step + 1, 20_000, tokens=2 * (step + 1))


def show_environment(work: Work) -> None:
    """Write what the environment was when this module was imported, and whether torch had been by then."""
    (work.out / "environment.json").write_text(
        json.dumps({"env": ENVIRONMENT_AT_IMPORT, "torch": "torch" in sys.modules, "path": sys.path})
    )


def remember(work: Work) -> None:
    """Count the jobs that this worker has run."""
    work.memory["count"] = work.memory.get("count", 0) + 1
    (work.out / "count.txt").write_text(f"{work.memory['count']} {os.getpid()}")


def load_slowly(work: Work) -> None:
    with work.loading():
        time.sleep(0.05)


no_function = "not callable"


def report_slowly(work: Work) -> None:
    for step in range(5):
        work.progress(step + 1, 5)
        time.sleep(0.3)


def raise_keyboard_interrupt(work: Work) -> None:
    raise KeyboardInterrupt


def write_over_a_folder(work: Work) -> None:
    work.out.write_text("this is a folder")
