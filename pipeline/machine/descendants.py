"""Find and end the descendants of our processes, wherever they went.

    by parents   the chain of parents leads to us. A process that adopts orphans stays in that chain as long as it
                 lives, even where a descendant was forked twice or has emptied its environment.
    by a tag     a word in the environment, which children inherit. It still leads to them when whoever started
                 them is dead, and whatever session or process group they have moved to.

A process is named by its number and the time it began, and compared once more right before it is killed, as its
number may have gone to another meanwhile. Nothing but the standard library is needed, and so not psutil, since the
reaper loads this too, which has no other packages.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

if __name__ == "__main__":  # the reaper, started by its path with nothing but the standard library in sight
    sys.path.append(str(Path(__file__).parents[2]))

from pipeline.files import remove_tree

VARIABLE = "PIPELINE_TAGS"
"""Environment variable with the tags of a process: its own, and before it those of whoever started it."""
_SEPARATOR = ":"
_PATIENCE_S = 5.0
"""After which a process that does not end, or a reaper that takes nothing, is given up."""
_LOOKS = 5
"""Least number of looks of `end`: where others have the processor, one may outlast its patience."""
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_MEMORY, _ENVIRONMENT_ENDS = 20, 48
"""Places of ``vsize`` and ``env_end`` in what `_stat` gives."""


class Process(NamedTuple):
    """A process, as told apart from an earlier or later one of the same number.

    Attributes:
        pid: Process id.
        began: When it started, in the kernel's clock ticks.
        parent: Number of its parent.
        is_over: Whether only its exit code is left of it.
    """

    pid: int
    began: int
    parent: int
    is_over: bool


# -- what is arranged beforehand -------------------------------------------------------------------------------


def new_tag() -> str:
    """Return a tag that no other process has."""
    return os.urandom(8).hex()


def with_tag(environ: Mapping[str, str], tag: str) -> dict[str, str]:
    """Return an environment with one more tag; existing tags stay."""
    return {**environ, VARIABLE: _SEPARATOR.join(filter(None, (environ.get(VARIABLE), tag)))}


def adopt_orphans() -> None:
    """Become the parent of every descendant whose parent ends."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when its parent ends, however that happens.

    The signal is in fact tied to the *thread* that started this process; the engine starts workers from the
    thread that runs the plan, which lives as long.

    Args:
        parent: Process id that the parent itself has told; if it is gone already, this process ends.
        number: The signal.
    """
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # it died before the line above
        os._exit(128 + number)


def _prctl(option: int, value: int) -> None:
    import ctypes  # psutil has no such call; and a process that only looks has no use for it

    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


# -- finding ---------------------------------------------------------------------------------------------------


def tagged(tags: Collection[str], since: int = 0) -> set[Process]:
    """Return the processes that carry one of some tags.

    Args:
        tags: The tags.
        since: When the first of them can have started, as `began` tells it. The environment of older ones is not
            read, which takes ten times as long as all the rest.
    """
    young = (process for process in _all() if process.began >= since and not process.is_over)
    return {process for process in young if not tags_of(process.pid).isdisjoint(tags)}


def below(*roots: int) -> set[Process]:
    """Return the descendants of some processes, without these."""
    children: dict[int, list[Process]] = {}
    for process in _all():
        children.setdefault(process.parent, []).append(process)
    processes: set[Process] = set()
    pending = list(roots)
    while pending:
        new = set(children.get(pending.pop(), ())) - processes
        processes |= new
        pending += [process.pid for process in new]
    return {process for process in processes if not process.is_over and process.pid not in roots}


def alive(processes: Iterable[Process]) -> set[Process]:
    """Return those of some processes that are still alive, in their current state."""
    now = ((process, _look(process.pid)) for process in processes)
    return {state for process, state in now if state and state.began == process.began and not state.is_over}


def began(pid: int) -> int | None:
    """Return when the process of a pid started, as in `Process`; None if there is none."""
    process = _look(pid)
    return None if process is None else process.began


def _all() -> Iterator[Process]:
    try:
        numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - names are enough
    except OSError:
        return
    for number in numbers:
        if process := _look(number):
            yield process


def _look(pid: int) -> Process | None:
    try:
        fields = _stat(pid)
        return Process(pid, began=int(fields[19]), parent=int(fields[1]), is_over=fields[0] in (b"Z", b"X"))
    except (OSError, IndexError, ValueError):
        return None


def _stat(pid: int) -> list[bytes]:
    """Return what the kernel reports on a process, from its state on; see proc(5)."""
    with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - hundreds of times in a row
        # The name, in parentheses, may itself hold parentheses and spaces.
        return file.read().rpartition(b")")[2].split()


def tags_of(pid: int) -> set[str]:
    """Return the tags of a process; empty if they cannot be read."""
    name = f"{VARIABLE}=".encode()
    give_up = time.monotonic() + _PATIENCE_S
    try:
        while True:
            starting = _is_starting(pid)  # asked first, since that may change while the environment is read
            environment = _read_environment(pid)
            if environment or not starting or time.monotonic() > give_up:
                break
            time.sleep(0.001)
    except OSError:  # gone, or of another user
        return set()
    entries = [entry for entry in environment.split(b"\0") if entry.startswith(name)]
    return {tag for entry in entries for tag in entry[len(name) :].decode(errors="replace").split(_SEPARATOR)}


def _read_environment(pid: int) -> bytes:
    with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123 - as above
        return file.read()


def _is_starting(pid: int) -> bool:
    """Return whether a process is about to run another program: it has memory but no environment yet."""
    fields = _stat(pid)
    return len(fields) > _ENVIRONMENT_ENDS and fields[_MEMORY] != b"0" and fields[_ENVIRONMENT_ENDS] == b"0"


# -- ending ----------------------------------------------------------------------------------------------------


def end(find: Callable[[], set[Process]], patience_s: float = _PATIENCE_S) -> set[Process]:
    """Kill processes until none is found any more, so that those which they start meanwhile end too.

    Args:
        find: Looks for them. This process is never killed.
        patience_s: Seconds after which what still lives is given up, if it was looked for a few times by then: the
            kernel itself may hold it.

    Returns:
        Processes that were given up.
    """
    give_up, pause_s, looks = time.monotonic() + patience_s, 0.001, 0
    processes: set[Process] = set()
    # What is being killed has no environment any more, by which it was found, and holds files and devices yet.
    while processes := {process for process in find() | alive(processes) if process.pid != os.getpid()}:
        looks += 1
        if looks > _LOOKS and time.monotonic() >= give_up:
            break
        for process in processes:
            _kill(process)
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.05)
    return processes


def end_own(patience_s: float = _PATIENCE_S) -> set[Process]:
    """Kill every descendant of this process, which adopts orphans; otherwise as `end`."""
    return end(lambda: below(os.getpid()), patience_s)


def _kill(process: Process) -> None:
    handle = None
    with suppress(AttributeError, OSError):  # Linux before 5.3 has none
        handle = os.pidfd_open(process.pid)
    try:
        # The handle stays with the process that has the number now, so nothing can change after this comparison.
        if alive([process]):
            if handle is None:
                os.kill(process.pid, signal.SIGKILL)
            else:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    finally:
        if handle is not None:
            os.close(handle)


# -- begin -------------------------------------------------------------------------------------------------------
# The first act of a process that `children` has started. No worker has to load that module to start.


NOTICES = (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT)
"""Signals that ask a process to save and end. Slurm sends one to every process of a job."""


@contextmanager
def held_back(numbers: Collection[signal.Signals]) -> Iterator[None]:
    """Hold signals back from processes started inside until they `begin` and can take them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def begin(death: signal.Signals = signal.SIGKILL) -> dict[str, Any]:
    """Have this process end with its parent and find modules where that does; how it was started leaves no trace.

    Args:
        death: The signal by which this process is to end.

    Returns:
        The settings that `command` was given, and those of a `Child`.
    """
    # Ray's own processes hold back what tells a job of Slurm to end, and so would what they start.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    settings: dict[str, Any] = json.loads(sys.argv[1])
    die_with_parent(settings.pop("parent_pid"), death)
    sys.path[:] = settings.pop("sys_path")
    if (descriptor := settings.pop("told", None)) is not None:
        with os.fdopen(descriptor, "rb") as file:
            settings |= json.load(file)
    return settings


# -- reaper ------------------------------------------------------------------------------------------------------
# Cleans up after an engine that was killed: the last of the layers that keep orphans from staying behind.
#
#     engine --- pipe ---> reaper (its own session, so a Ctrl-C at the terminal does not reach it)
#
# The engine tells the reaper which process groups, tags of processes and paths are its own. When the pipe ends,
# for whatever reason, those still registered are killed and removed. The reaper runs without site-packages and, of
# this package, with nothing but this file and `files`, so that it starts in milliseconds and takes little memory.


Watched = dict[tuple[str, int | str], int | None]
"""Things to clean up, as kind and name, in the order in which they were registered.

The value of a group is the time at which its leader began, which tells a reused number; else None.
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
        """Return the process id of the reaper."""
        return self._process.pid

    def watch(self, kind: Literal["group", "tag", "path"], what: int | str) -> None:
        """Have something cleaned up if the engine ends without `forget`.

        Args:
            kind: A process group or every process with a tag, which is killed; or a whole path, which is removed.
            what: Number of the group, the tag, or the path.
        """
        self._tell(["watch", kind, what, began(int(what)) if kind == "group" else None])

    def forget(self, kind: Literal["group", "tag", "path"], what: int | str) -> None:
        """Forget a process or group that has ended or should stay; its number may soon be reused."""
        self._tell(["forget", kind, what, None])

    def close(self) -> None:
        """Have what is still registered cleaned up, and wait for that; without it, do it here."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()  # a process that is stopped takes no other signal
            self._process.wait()
        if self._process.returncode:
            clean(self._watched)

    def _tell(self, message: list[Any]) -> None:
        _note(self._watched, message)
        assert self._process.stdin is not None
        # Someone may have killed the reaper; the other layers still stand, so the run goes on. Of one that is
        # stopped the pipe is full at last, and takes nothing more: so short a message goes whole or not at all.
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(message).encode() + b"\n")


def _note(watched: Watched, message: list[Any]) -> None:
    verb, kind, what, since = message
    if verb == "watch":
        watched[kind, what] = since
    else:
        watched.pop((kind, what), None)


def main() -> None:
    """Read registrations until the engine is gone, then clean up."""
    # Slurm sends what it has to say to every process of a job.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    watched: Watched = {}
    for line in sys.stdin.buffer:
        with suppress(ValueError):  # a last line that was cut off
            _note(watched, json.loads(line))
    clean(watched)


def clean(watched: Watched) -> None:
    """End the processes and remove the paths that are still registered."""
    # Processes first: whoever still runs may be writing to the folders.
    for group, since in [(int(what), since) for (kind, what), since in watched.items() if kind == "group"]:
        # A number that no leader has is still the group's, or nobody's.
        if began(group) in (None, since):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
    if tags := {str(what) for kind, what in watched if kind == "tag"}:
        end(lambda: tagged(tags))
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
