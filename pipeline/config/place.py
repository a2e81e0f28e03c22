"""Where code is: the line of the user's own that an exception comes from, and how this package came here.

Light: processes that grade import this too.
"""

from __future__ import annotations

import importlib.util
import inspect
import shlex
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.errors import PipelineError

_PACKAGE = Path(__file__).parent.parent
_PACKAGES = {"site-packages", "dist-packages"}


def place_of(error: BaseException) -> str:
    """The line of the user's code that an error comes from, to begin a message with: ``file:12 (x = y): ``."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno} ({(error.text or '').strip()}): "
    frames = _frames(error)
    own = [frame for frame in frames if is_own(frame.filename)]
    last = next(reversed(own or [frame for frame in frames if not _is_ours(frame.filename)]), None)
    return f"{last.filename}:{last.lineno} ({last.line}): " if last else ""


def own_place(error: BaseException) -> str:
    """The innermost line of the user's own code that an error went through, as ``my_file.py:12``; else "".

    What was raised for the user to read (`PipelineError`) says by itself what it is about, so it has none.
    """
    if isinstance(error, PipelineError):
        return ""
    own = [frame for frame in _frames(error) if is_own(frame.filename)]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else ""


def told(error: BaseException) -> str:
    """An exception in one line, with its place in the user's code: ``NameError: ... (my_file.py:12)``.

    One of ours is told as it is.
    """
    place = own_place(error)
    if isinstance(error, PipelineError):
        return str(error)
    said = " ".join("".join(traceback.format_exception_only(error)).split())
    return f"{said} ({place})" if place else said


def defined_at(thing: Callable[..., Any]) -> str:
    """Where something of the user's is defined, as `` (my_file.py:12)``."""
    try:
        return f" ({inspect.getsourcefile(thing)}:{inspect.getsourcelines(thing)[1]})"
    except (OSError, TypeError):
        return ""


def is_own(file: str) -> bool:
    """Whether a file is neither part of this package nor installed."""
    return not file.startswith("<") and not _is_ours(file) and not is_installed(file)


def is_installed(path: str) -> bool:
    """Whether a file or folder belongs to Python or to an installed package."""
    folders = sysconfig.get_paths()
    known = (folders[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    given = Path(path)
    # An environment may take packages from another one, so their folder goes by its name as well.
    if path.endswith(".zip") or not _PACKAGES.isdisjoint(given.parts):
        return True
    return any(path and given.is_relative_to(folder) for folder in known)


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    found = traceback.extract_tb(error.__traceback__)
    return [frame for frame in found if not frame.filename.startswith("<")]


def _is_ours(file: str) -> bool:
    return Path(file).is_relative_to(_PACKAGE)


# -- install -----------------------------------------------------------------------------------------------------
# How this package came onto the machine: a checkout and a wheel differ. So does where the groups of the
# configuration are, and what a user types to add to it.


DISTRIBUTION = "posttrain-pipeline"
"""The name on the package index; the import name and the command are `pipeline`."""


def checkout() -> Path | None:
    """The folder of the project that the package lies in, or None where it was installed from a wheel."""
    root = Path(__file__).resolve().parents[2]
    return root if (root / "pyproject.toml").is_file() and (root / "conf").is_dir() else None


def has_package(name: str) -> bool:
    """Whether there is a package to import; nothing is imported."""
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.origin is not None  # a mere folder of that name has none


def install_command(extra: str = "") -> str:
    """What to type for the package with all that it needs.

    Args:
        extra: Name of an optional group of dependencies, such as ``math``.
    """
    named = f"[{extra}]" if extra else ""
    root = checkout()
    if root is None:
        return f"pip install {shlex.quote(DISTRIBUTION + named)}"
    place = "." if root == Path.cwd() else str(root)
    return f"pip install -e {shlex.quote(place + named)}"


def conf_dir() -> Path:
    """The folder of configuration groups: beside the package in a checkout, inside it when installed."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"
