"""What outputs took to make: a line each, appended to files beside the outputs.

    <root>/.costs/ab.jsonl          {"key": "abcdef...", "cost": {"run_s": 1.2, "tokens": 340, ...}}
    <root>/.costs/ab/<key>.json     one file an output, as earlier versions wrote them; still read

Beside the outputs rather than in a manifest, which is to be the same bytes whenever it is made. For people only: a
failure costs nothing but a blank in a table, and of a line that is torn nothing is known, as of one that is not
there. Lines, since making files is most of what the commit of a short job takes. Each begins with the line break,
so that one that was cut off, by a full disk or a SIGKILL, takes no other with it; on a file system of the network
two machines may overwrite or splice one another's.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from pipeline.files import in_folder, json_text, write
from pipeline.foreign import ForeignDataError, read_json, read_plain
from pipeline.hints import recall

COSTS = ".costs"
ANSWERS = "answers"
"""Completions that an evaluation gives."""
FLOPS = "flops"
"""Each purpose of theirs has a part of its own, as in ``flops/training``."""
_HOW = os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
_Amount = Annotated[float, Meta(ge=0, le=1e30)]

log = logging.getLogger("pipeline")

_told: set[Path] = set()


class _Line(Struct):
    key: str
    cost: dict[str, _Amount]


class Costs:
    """Those of one store."""

    def __init__(self, root: Path) -> None:
        self._folder = f"{root}/{COSTS}"

    def note(self, key: str, cost: Mapping[str, float]) -> None:
        """Remember what an output took."""
        with suppress(OSError):
            line = b"\n" + json_text({"key": key, "cost": dict(cost)}).encode()
            in_folder(self._folder, lambda: write(f"{self._folder}/{key[:2]}.jsonl", line, _HOW))

    def of(self, key: str) -> dict[str, float]:
        """What was noted last; empty where nothing is known."""
        path = Path(f"{self._folder}/{key[:2]}.jsonl")
        try:
            noted = read_plain(path)
        except FileNotFoundError:
            noted = b""
        except (ForeignDataError, OSError) as error:
            noted = b""
            if path not in _told:
                _told.add(path)
                log.warning("%s is passed over, which costs figures of what was spent only: %s", path, error)
        sought, begin = key.encode(), len(noted)
        while key and (at := noted.rfind(sought, 0, begin)) >= 0:
            begin, end = noted.rfind(b"\n", 0, at) + 1, noted.find(b"\n", at)
            with suppress(ForeignDataError):
                line = read_json(noted[begin : None if end < 0 else end], _Line)
                if line.key == key:
                    return line.cost
        return recall(Path(f"{self._folder}/{key[:2]}/{key}.json"), dict[str, _Amount]) or {}
