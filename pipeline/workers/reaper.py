"""Cleans up after an engine that was killed: the last of the layers that keep orphans from staying behind.

    engine --- pipe ---> reaper (its own session, so a Ctrl-C at the terminal does not reach it)

The engine tells the reaper which process groups, tags of processes and paths are its own. When the pipe ends, for
whatever reason, those still registered are killed and removed. The reaper runs without site-packages and, of this
package, with nothing but this file, `descendants` and `removal`, so that it starts in milliseconds and takes
little memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

if __name__ == "__main__":  # started by its path, with nothing but the standard library in sight
    sys.path.append(str(Path(__file__).parents[2]))

from pipeline import descendants, removal


class Reaper:
    """The engine's handle on its reaper process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def watch_group(self, pgid: int) -> None:
        """Kill this process group if the engine ends without `forget_group`."""
        self._tell("watch", "group", pgid)

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
        """Let it clean up what is still registered, and wait for its end."""
        with contextlib.suppress(OSError):
            if self._process.stdin:
                self._process.stdin.close()
        self._process.wait()

    def _tell(self, verb: str, kind: str, what: int | str) -> None:
        assert self._process.stdin is not None
        # Someone may have killed the reaper; the other layers still stand, so the run goes on.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps([verb, kind, what]).encode() + b"\n")
            self._process.stdin.flush()


def main() -> None:
    """Read registrations until the engine is gone, then clean up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    watched: dict[tuple[str, int | str], None] = {}
    for line in sys.stdin.buffer:
        with contextlib.suppress(ValueError):  # a last line that was cut off
            verb, kind, what = json.loads(line)
            if verb == "watch":
                watched[kind, what] = None
            else:
                watched.pop((kind, what), None)
    # Processes first: whoever still runs may be writing to the folders.
    for group in [what for kind, what in watched if kind == "group"]:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(int(group), signal.SIGKILL)
    if tags := {str(what) for kind, what in watched if kind == "tag"}:
        descendants.end(lambda: descendants.tagged(tags))
    for path in [what for kind, what in watched if kind == "path"]:
        _remove(Path(str(path)))


def _remove(path: Path) -> None:
    for _ in range(40):
        if removal.remove(path) is None and not os.path.lexists(path):
            return
        # A process of a group that was killed above may need a moment to be gone, and write until then.
        time.sleep(0.05)


if __name__ == "__main__":
    main()
