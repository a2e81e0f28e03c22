"""Arguments of what users call in Python: one of another type is refused by its name, before anything is done."""

from __future__ import annotations

from numbers import Integral, Real
from pathlib import Path

from pipeline.config.values import brief
from pipeline.errors import ConfigError
from pipeline.runs.loaded import LoadedRun
from pipeline.runs.notebook import Run

_KINDS: dict[type | None, tuple[type, str]] = {
    str: (str, "a text"),
    Path: (Path, "a path"),
    int: (Integral, "a whole number"),  # that of numpy too
    float: (Real, "a number"),
    Run: (Run, "a run"),
    LoadedRun: (LoadedRun, "a run"),
    None: (type(None), "None"),
}


def check_types(*kinds: type | None, **given: object) -> None:
    """Refuse arguments that are of none of some types.

    Args:
        kinds: The types; None for None.
        given: The arguments by their names.

    Raises:
        ConfigError: One is of another type; says which it may be.
    """
    for name, value in given.items():
        # Python takes True for 1.
        if isinstance(value, bool) or not isinstance(value, tuple(_KINDS[kind][0] for kind in kinds)):
            words = list(dict.fromkeys(_KINDS[kind][1] for kind in kinds))
            allowed = words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
            raise ConfigError(f"{name}={brief(value)}: must be {allowed}; it is of type {type(value).__name__}")
