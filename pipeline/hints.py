"""What lies beside the outputs of a store and only saves time: read with care, and never a reason to fail.

Such a file may be cut off, altered, of a later version, or no file at all. Then it counts as absent, which the log
says once, and the next measurement replaces it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from pipeline.files import json_text, write_whole
from pipeline.foreign import ForeignDataError, read_json_file

log = logging.getLogger("pipeline")

_T = TypeVar("_T")
_told: set[Path] = set()


def recall(path: Path, kind: type[_T]) -> _T | None:
    """Read a file of JSON as a type; None where there is none that can be used."""
    try:
        return read_json_file(path, kind)
    except FileNotFoundError:
        return None
    except (ForeignDataError, OSError) as error:
        if path not in _told:
            _told.add(path)
            log.warning("%s is passed over, which costs time only: %s", path, error)
        return None


def remember(path: Path, value: Mapping[str, object]) -> None:
    """Write a file whole, if that can be done."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json_text(value, indent=1, sort_keys=True) + "\n")
