"""Tell the sweep that runs a program what it has reached, by lines in a file that its environment names.

    import pipeline.sweeps
    pipeline.sweeps.log(loss=0.5, step=3)

Needs nothing but the standard library, so that a program may load it before anything else, in any environment.
"""

import logging
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import SupportsFloat

from pipeline.files import json_text

TRIALS = "trials"
"""The folder of all trials."""
VARIABLE = "PIPELINE_TRIAL"
"""Environment variable: the file to which the program of a trial adds what it logs. Not set outside of a sweep."""

log_ = logging.getLogger("pipeline")
_LAST_STEP = 2**53
"""Up to here a number of JSON is a whole number for every reader."""
_warned: set[str] = set()
_steps: dict[str, int] = {}


def log(
    values: Mapping[str, SupportsFloat] | None = None,
    /,
    *,
    step: SupportsFloat | None = None,
    **named: SupportsFloat,
) -> None:
    """Tell the sweep that runs this program what it has reached: ``log(loss=0.5, step=3)``.

    The metric of the sweep file is judged by its last value, and compared while the trial runs where trials may be
    stopped early. Of several ranks the first alone is heard. Outside of a sweep nothing happens.

    Args:
        values: Name -> number, for names that are no words of Python: ``log({"val/loss": 0.5})``.
        step: Step, as the program counts; one more than the last time if left out, or if no whole number.
        named: Further names and numbers.

    Raises:
        TypeError: A value or the step is no number.
    """
    # Half of a surrogate pair cannot be written as UTF-8.
    numbers = {
        str(name).encode(errors="replace").decode(): _number(name, value)
        for name, value in {**(values or {}), **named}.items()
    }
    number = None if step is None else _number("step", step)
    counted = None if number is None else whole_step(number)
    path = os.environ.get(VARIABLE)
    if not path:
        _tell_once(
            logging.DEBUG, "there is no sweep that this program is a trial of, so what it logs goes nowhere"
        )
        return
    if os.environ.get("RANK", "0") not in ("", "0"):
        return
    if step is not None and counted is None:
        text = "log(step=%s): a step is a whole number, so such calls are counted instead"
        _tell_once(logging.WARNING, text, step)
    _steps[path] = counted if counted is not None else _steps.get(path, 0) + 1
    line = {"step": _steps[path], "values": numbers, "time": round(time.time(), 3)}
    data = json_text(line, separators=(",", ":")).encode() + b"\n"
    try:
        # One write at the end of the file is never mixed with that of another process.
        how = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        with os.fdopen(os.open(path, how, 0o666), "ab", buffering=0) as file:
            file.write(data)
    except OSError as error:  # a program that has computed for hours must not fail for it
        _tell_once(logging.WARNING, "what is logged for the sweep cannot be written: %s", error)


def own_trial() -> Path | None:
    """Return the folder of the trial whose program this process is; None outside of a sweep."""
    path = os.environ.get(VARIABLE)
    return Path(path).parent if path else None


def whole_step(number: float) -> int | None:
    """Return a step as an integer; None if it is none, or too large to be exact."""
    return int(number) if abs(number) <= _LAST_STEP and number == int(number) else None


def _number(name: str, value: SupportsFloat) -> float | None:
    """Return a finite number; None for others, which JSON does not have."""
    try:
        number = float(value)
    except OverflowError:
        return None
    except (TypeError, ValueError) as error:
        raise TypeError(f"log({name}={value!r}): a number is needed") from error
    return number if math.isfinite(number) else None


def _tell_once(level: int, text: str, *arguments: object) -> None:
    if text not in _warned:
        _warned.add(text)
        log_.log(level, text, *arguments)
