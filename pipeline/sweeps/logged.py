"""What a trial has logged of its metrics, a line each: ``{"step": 1, "values": {"loss": 0.5}, "time": 1.7e9}``.

Whoever writes it may be killed in the middle of a line, and is a program of the user's own: what is no such line
costs itself alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pipeline.engine.events import whole_lines
from pipeline.files import open_plain
from pipeline.foreign import ForeignDataError, read_json
from pipeline.outputs.formats import LARGEST
from pipeline.sweeps.reporting import whole_step

_TAIL_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Logged:
    """One line.

    Attributes:
        values: Name of a metric -> its value; None for one that is no finite number, or beyond all use.
        step: As the program counts; None where it does not.
        time: When, in seconds since 1970.
    """

    values: dict[str, float | None]
    step: int | None = None
    time: float | None = None


@dataclass(frozen=True, kw_only=True)
class _Line:
    """As it is written, whatever numbers are in it."""

    values: dict[str, int | float | None]
    step: int | float | None = None
    time: int | float | None = None


def read_line(line: bytes) -> Logged:
    """Read one line.

    Raises:
        ForeignDataError: It is none.
    """
    found = read_json(line, _Line, infinite=True)
    values = {name: _usable(value) for name, value in found.values.items()}
    return Logged(
        values=values, step=None if found.step is None else whole_step(found.step), time=_usable(found.time)
    )


def logged_lines(path: Path) -> list[bytes]:
    """The lines that were written so far; nothing where there is no such file, or it cannot be read."""
    with suppress(OSError), open_plain(path) as file:
        return list(whole_lines(file))
    return []


def latest_values(path: Path) -> dict[str, float | None]:
    """What was logged last of each metric, as far as the end of the file tells."""
    with suppress(OSError), open_plain(path) as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _TAIL_BYTES))
        return last_values(parsed(whole_lines(file)))
    return {}


def naming(lines: Iterable[bytes], metric: str) -> list[bytes]:
    """Those of the lines that may tell of a metric: many are written, and few need to be read."""
    names = {json.dumps(metric, ensure_ascii=escaped).encode(errors="replace") for escaped in (True, False)}
    return [line for line in lines if any(name in line for name in names)]


def parsed(lines: Iterable[bytes]) -> Iterator[Logged]:
    """What lines say, those left out that say nothing."""
    for line in lines:
        with suppress(ForeignDataError):
            yield read_line(line)


def last_values(lines: Iterable[Logged]) -> dict[str, float | None]:
    """What was logged last of each metric."""
    return {name: value for line in lines for name, value in line.values.items()}


def _usable(value: float | None) -> float | None:
    """One number that nothing can be done with must not cost the others of its line."""
    return float(value) if value is not None and abs(value) <= LARGEST else None
