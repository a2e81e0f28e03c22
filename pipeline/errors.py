"""The exception tree. Errors carry fields, and messages say what was given, what is allowed, what to try."""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class PipelineError(Exception):
    """Base of every error this package raises on purpose; `cli` and notebooks show it without a traceback."""

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython shows instead of a traceback: the message only."""
        return [f"{type(self).__name__}: {self}"]


class ConfigError(PipelineError):
    """The request is wrong: a key, a value, or a combination of them. Nothing has been started."""


class PlanError(PipelineError):
    """The configuration is well-formed, but no sound plan follows from it."""


class CycleError(PlanError):
    """The jobs of a plan depend on each other in a circle."""


class DataError(PipelineError):
    """A dataset's files are missing or damaged, or a row lacks what it needs."""


class DeviceError(PipelineError):
    """A device was asked for that does not exist or cannot be used."""


class StoreError(PipelineError):
    """A stored output is missing, incomplete or altered, or could not be written."""


@contextmanager
def explaining(kind: type[PipelineError], what: str, advice: str = "") -> Iterator[None]:
    """Turn an error of the file system inside into one for users: what could not be done, why, and what to try.

    Args:
        kind: Class of the error.
        what: Description of the failure, with the file or folder.
        advice: What to try, as a sentence.

    Raises:
        PipelineError: Of that class.
    """
    try:
        yield
    except OSError as error:
        problem = f"{what}: {error.strerror or error}"
        raise kind(f"{problem}. {advice}" if advice else problem) from error


class DamagedOutput(StoreError):  # noqa: N818 - it names what was found
    """A stored output cannot be used.

    Attributes:
        key: Key of the output.
        problem: Why it cannot be used.
    """

    def __init__(self, key: str, problem: str) -> None:
        again = "Run the same command again: it is made anew."
        super().__init__(f"stored output {key[:12]} cannot be used: {problem}. {again}")
        self.key = key
        self.problem = problem


class WorkerError(PipelineError):
    """Something went wrong with a worker process rather than with a job's own code."""


class JobError(PipelineError):
    """A job could not be completed."""


OUT_OF_MEMORY_TEXTS = (
    "CUDA out of memory",
    "DefaultCPUAllocator: can't allocate memory",
    # What takes memory of the GPU past torch's allocator: a context, the workspaces of libraries.
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)
"""Texts of torch's errors that mean out of memory, whatever their class is."""


class OutOfMemory(JobError):  # noqa: N818 - as torch names it
    """A job's work does not fit into memory, not even one group of sequences at a time.

    Attributes:
        tried: Sequences at once that did not fit, in the order in which they were tried.
        group: Sequences that belong together.
    """

    def __init__(self, what: str, tried: tuple[int, ...], group: int, said: str, remedy: str) -> None:
        sizes = ", ".join(map(str, tried))
        smallest = "a single sequence" if group == 1 else f"a single group of {group} sequences"
        told = f"out of memory with {smallest} at once ({what} sizes tried: {sizes}). {remedy}".rstrip()
        super().__init__(f"{told} The allocator said: {said}")
        self.tried = tried
        self.group = group


class GangError(JobError):
    """One of the processes of a job that needs several devices has failed, which ends the others.

    Attributes:
        rank: Rank of the process.
        kind: Name of the `FailureKind` of the attempt.
        exit_code: Exit code, if the process ended without saying why; negative is a signal number.
        damaged_key: Key of the stored output that it could not use, or "".
    """

    def __init__(
        self, message: str, *, rank: int, kind: str, exit_code: int | None = None, damaged_key: str = ""
    ) -> None:
        super().__init__(message)
        self.rank = rank
        self.kind = kind
        self.exit_code = exit_code
        self.damaged_key = damaged_key


class RanksDisagree(JobError):  # noqa: N818 - it names what was seen
    """Processes that share a model have computed different texts, which no right arithmetic does."""


class JobStopped(PipelineError):  # noqa: N818 - it tells of no error
    """Raised by a job that was asked to stop and has saved what it needs to go on later."""


def describe_exit(exit_code: int | None) -> str:
    """Say in words how a process ended: ``signal 9 (SIGKILL)``, ``exit code 3``."""
    if exit_code is None:
        return "exit code unknown"
    if exit_code >= 0:
        return f"exit code {exit_code}"
    import signal

    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = "unknown signal"
    return f"signal {-exit_code} ({name})"


_TOO_LONG = re.compile(
    r"Exceeds the limit \(\d+ digits\) for integer string conversion(: value has \d+ digits)?"
    r"(; use sys\.set_int_max_str_digits\(\) to increase the limit)?"
)


def without_advice(text: str) -> str:
    """Return what an exception says, of a number with too many digits without Python's advice to programmers."""
    return _TOO_LONG.sub("a number has too many digits", text)


def unknown_name(kind: str, given: str, known: Iterable[str]) -> str:
    """Word the message on an unknown name: the name, the nearest, and all that exist."""
    return f"unknown {kind} '{given}'.{known_names(given, known)}"


def known_names(given: str, known: Iterable[str]) -> str:
    """Word the end of a message that has the unknown name: the nearest one, and all that exist."""
    names = sorted(known)
    same = [name for name in names if name.lower() == given.lower()]
    from difflib import get_close_matches  # which workers import in vain

    near = same or get_close_matches(given, names, n=1, cutoff=0.5)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    listed = ", ".join(names) if names else "(none)"
    return f"{hint} Known: {listed}."


# -- places ------------------------------------------------------------------------------------------------------
# Where code is: the line of the user's own that an exception comes from, and how this package came here.


_PACKAGE = Path(__file__).parent
_PACKAGES = {"site-packages", "dist-packages"}


def own_place(error: BaseException) -> str:
    """Return the innermost line of the user's own code in an error's traceback, as ``my_file.py:12``; else "".

    What was raised for the user to read (`PipelineError`) says by itself what it is about, so it has none.
    """
    if isinstance(error, PipelineError):
        return ""
    import traceback

    own = [frame for frame in traceback.extract_tb(error.__traceback__) if is_own(frame.filename)]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else ""


def told(error: BaseException) -> str:
    """Describe an exception in one line, with its place in the user's code: ``NameError: ... (my_file.py:12)``.

    One of ours is told as it is.
    """
    import traceback

    place = own_place(error)
    if isinstance(error, PipelineError):
        return str(error)
    said = " ".join("".join(traceback.format_exception_only(error)).split())
    return f"{said} ({place})" if place else said


def defined_at(thing: Callable[..., Any]) -> str:
    """Return where an object of the user is defined, as `` (my_file.py:12)``."""
    import inspect

    try:
        return f" ({inspect.getsourcefile(thing)}:{inspect.getsourcelines(thing)[1]})"
    except (OSError, TypeError):
        return ""


def is_own(file: str) -> bool:
    """Return whether a file is neither part of this package nor installed."""
    return not file.startswith("<") and not Path(file).is_relative_to(_PACKAGE) and not is_installed(file)


def is_installed(path: str) -> bool:
    """Return whether a file or folder belongs to Python or to an installed package."""
    import sysconfig

    folders = sysconfig.get_paths()
    known = (folders[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    given = Path(path)
    # An environment may take packages from another one, so their folder goes by its name as well.
    if path.endswith(".zip") or not _PACKAGES.isdisjoint(given.parts):
        return True
    return any(path and given.is_relative_to(folder) for folder in known)


# -- install -----------------------------------------------------------------------------------------------------
# How this package came onto the machine: a checkout and a wheel differ. So does where the groups of the
# configuration are, and what a user types to add to it.


DISTRIBUTION = "posttrain-pipeline"
"""The name on the package index; the import name and the command are `pipeline`."""


def checkout() -> Path | None:
    """Return the folder of the project checkout, or None if the package was installed from a wheel."""
    root = Path(__file__).resolve().parents[1]
    return root if (root / "pyproject.toml").is_file() and (root / "conf").is_dir() else None


def has_package(name: str) -> bool:
    """Return whether a package can be imported, without importing it."""
    import importlib.util

    spec = importlib.util.find_spec(name)
    return spec is not None and spec.origin is not None  # a mere folder of that name has none


def install_command(extra: str = "") -> str:
    """Return the command that installs the package with an extra.

    Args:
        extra: Name of an optional group of dependencies, such as ``math``.
    """
    import shlex

    named = f"[{extra}]" if extra else ""
    root = checkout()
    if root is None:
        return f"pip install {shlex.quote(DISTRIBUTION + named)}"
    place = "." if root == Path.cwd() else str(root)
    return f"pip install -e {shlex.quote(place + named)}"
