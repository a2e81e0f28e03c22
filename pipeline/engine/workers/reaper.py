"""Cleans up after an engine that was killed: the last of the layers that keep orphans from staying behind.

    engine --- pipe ---> reaper (its own session, so a Ctrl-C at the terminal does not reach it)

The engine tells the reaper which process groups, tags of processes and paths are its own. When the pipe ends, for
whatever reason, those still registered are killed and removed. The reaper runs without site-packages and, of this
package, with nothing but this file, `descendants` and `files`, so that it starts in milliseconds and takes
little memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # started by its path, with nothing but the standard library in sight
    sys.path.append(str(Path(__file__).parents[3]))

from pipeline.files import remove_tree
from pipeline.machine import descendants

PATIENCE_S = 5.0
"""Seconds after which a reaper that takes nothing, or does not end, is taken for stopped."""

Watched = dict[tuple[str, int | str], int | None]
"""What is to be cleaned up, as kind and name, in the order in which it was told.

For a group and a process it says when the leader, or it, began, by which the number is known from another's.
"""


class Reaper:
    """The engine's handle on its reaper process; one that has died or was stopped does not hold up the engine."""

    def __init__(self) -> None:
        self._watched: Watched = {}
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            bufsize=0,
        )
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def watch_group(self, pgid: int) -> None:
        """Kill this process group if the engine ends without `forget_group`."""
        self._tell("watch", "group", pgid, descendants.began(pgid))

    def forget_group(self, pgid: int) -> None:
        """The group is gone; its number may soon belong to someone else."""
        self._tell("forget", "group", pgid)

    def watch_tag(self, tag: str) -> None:
        """Kill every process with this tag, wherever it is, if the engine ends without `forget_tag`."""
        self._tell("watch", "tag", tag)

    def forget_tag(self, tag: str) -> None:
        """No process with this tag is left."""
        self._tell("forget", "tag", tag)

    def watch_path(self, path: Path) -> None:
        """Remove this folder or file if the engine ends without `forget_path`."""
        self._tell("watch", "path", str(path.absolute()))

    def forget_path(self, path: Path) -> None:
        """It was removed, or is to stay."""
        self._tell("forget", "path", str(path.absolute()))

    def close(self) -> None:
        """Have what is still registered cleaned up, and wait for that; without it, do it here."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._give_up()
        if self._process.returncode:
            clean(self._watched)

    def _tell(self, verb: str, kind: str, what: int | str, began: int | None = None) -> None:
        message = [verb, kind, what, began]
        _note(self._watched, message)
        # Someone may have killed the reaper; the other layers still stand, so the run goes on.
        with contextlib.suppress(BrokenPipeError):
            self._write(json.dumps(message).encode() + b"\n")

    def _write(self, data: bytes) -> None:
        pipe, poll = self._process.stdin, select.poll()
        assert pipe is not None
        poll.register(pipe, select.POLLOUT)
        while data:
            # The pipe is full only where nobody has read it for a thousand messages.
            if not poll.poll(PATIENCE_S * 1000):
                self._give_up()
            data = data[pipe.write(data) or 0 :]

    def _give_up(self) -> None:
        self._process.kill()  # a process that is stopped takes no other signal
        self._process.wait()


def _note(watched: Watched, message: list[Any]) -> None:
    verb, kind, what, began = message
    if verb == "watch":
        watched[kind, what] = began
    else:
        watched.pop((kind, what), None)


def main() -> None:
    """Read registrations until the engine is gone, then clean up."""
    # Slurm sends what it has to say to every process of a job.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    watched: Watched = {}
    for line in sys.stdin.buffer:
        with contextlib.suppress(ValueError):  # a last line that was cut off
            _note(watched, json.loads(line))
    clean(watched)


def clean(watched: Watched) -> None:
    """End the processes and remove the paths that are still registered."""
    # Processes first: whoever still runs may be writing to the folders.
    for group, began in [(int(what), began) for (kind, what), began in watched.items() if kind == "group"]:
        # A number that no leader has is still the group's, or nobody's.
        if descendants.began(group) in (None, began):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
    if tags := {str(what) for kind, what in watched if kind == "tag"}:
        descendants.end(lambda: descendants.tagged(tags))
    for path in [what for kind, what in watched if kind == "path"]:
        _remove(Path(str(path)))


def _remove(path: Path) -> None:
    for _ in range(40):
        if remove_tree(path) is None and not os.path.lexists(path):
            return
        # A process of a group that was killed above may need a moment to be gone, and write until then.
        time.sleep(0.05)


if __name__ == "__main__":
    main()
