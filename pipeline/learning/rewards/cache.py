"""Scores that are known already, by everything that determines them: in memory, and in a file if asked for.

Only what a function returned is kept, by all that it was given in that call: a reward model's figures depend a
little on what shares its batch, and a timeout on how busy the machine was.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import sqlite3
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from pipeline.learning.rewards.grading import Graded, Item

FILE = "rewards.sqlite3"
_LOCK_PATIENCE_S = 30.0
_AT_ONCE = 500

log = logging.getLogger("pipeline")


def score_keys(identity: Mapping[str, Any], call: Sequence[Item]) -> list[str]:
    """A key for the score of each item of a call: a hash of the reward and of all that it is given.

    Args:
        identity: Plain data that names the reward, its version and its settings.
        call: What it scores at once.
    """
    given = [
        [item.prompt, item.completion, [int(token) for token in item.ids], dict(item.columns)] for item in call
    ]
    text = json.dumps([identity, given], sort_keys=True, separators=(",", ":"), default=_plain)
    whole = hashlib.sha256(text.encode()).hexdigest()[:40]
    return [f"{whole}/{at}" for at in range(len(call))]


def _sound(value: object, answer: object) -> bool:
    """Whether these can be a score and an answer: SQLite keeps any type in any column."""
    number = value is None or (isinstance(value, float) and math.isfinite(value))
    return number and (answer is None or isinstance(answer, str))


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else repr(value)


class ScoreCache:
    """Keeps the least recently used scores out of memory, and all of them in a file if there is one.

    The file only saves time: whatever goes wrong with it is logged, and scores are computed instead.
    """

    def __init__(self, capacity: int = 100_000, path: Path | None = None) -> None:
        """Make a cache.

        Args:
            capacity: Scores in memory.
            path: SQLite file, shared by any number of processes; None for memory alone.
        """
        self._capacity = capacity
        self._path = path
        self._kept: OrderedDict[str, Graded] = OrderedDict()

    def find(self, keys: Sequence[str]) -> dict[str, Graded]:
        """The scores that are known."""
        found = {key: self._kept[key] for key in keys if key in self._kept}
        for key in found:
            self._kept.move_to_end(key)
        missing = sorted(set(keys) - found.keys())
        stored = self._read(missing) if missing and self._path else {}
        self._keep(stored)
        return found | stored

    def add(self, scores: Mapping[str, Graded]) -> None:
        """Keep scores; those of a reward that failed are left out."""
        sound = {key: graded for key, graded in scores.items() if graded.fault is None}
        self._keep(sound)
        if sound and self._path:
            self._write(sound)

    def _keep(self, scores: Mapping[str, Graded]) -> None:
        self._kept.update(scores)
        while len(self._kept) > self._capacity:
            self._kept.popitem(last=False)

    def _read(self, keys: Sequence[str]) -> dict[str, Graded]:
        found = {}
        try:
            with closing(self._open()) as file:
                for start in range(0, len(keys), _AT_ONCE):
                    part = keys[start : start + _AT_ONCE]
                    marks = ",".join("?" * len(part))
                    query = f"SELECT key, value, answer FROM scores WHERE key IN ({marks})"  # noqa: S608 - only '?'
                    rows = file.execute(query, part)
                    found.update(
                        {key: Graded(value, answer) for key, value, answer in rows if _sound(value, answer)}
                    )
        except (sqlite3.Error, OSError) as error:
            self._give_up(error)
        return found

    def _write(self, scores: Mapping[str, Graded]) -> None:
        rows = [(key, graded.value, graded.answer) for key, graded in scores.items()]
        try:
            with closing(self._open()) as file, file:
                file.executemany("INSERT OR IGNORE INTO scores VALUES (?, ?, ?)", rows)
        except (sqlite3.Error, OSError) as error:
            self._give_up(error)

    def _open(self) -> sqlite3.Connection:
        assert self._path is not None
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # The plain rollback journal, not WAL: the folder may be on a network, where WAL is not safe.
        file = sqlite3.connect(self._path, timeout=_LOCK_PATIENCE_S)
        try:
            file.execute("CREATE TABLE IF NOT EXISTS scores (key TEXT PRIMARY KEY, value REAL, answer TEXT)")
        except BaseException:
            file.close()
            raise
        return file

    def _give_up(self, error: Exception) -> None:
        log.warning("scores are no longer kept in %s: %s", self._path, error)
        self._path = None
