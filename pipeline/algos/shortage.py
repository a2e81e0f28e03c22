"""What is said of a training that had next to nothing to learn from: how much it was, and why it was no more."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

LEAST_BATCHES = 1
"""Batches that a training should have at least. With fewer, an epoch is one step, on less than was asked for."""

log = logging.getLogger("pipeline")


@dataclass(frozen=True)
class Tally:
    """What became of the things that a generation drew.

    Attributes:
        what: What is counted, in the plural.
        count: How many there are.
        unscored: Those without any score: the reward failed, or does not apply.
        equal: Those whose completions all scored equal.
        wrong: Those without a correct completion, where a reward says what is correct.
        same: Those whose completions are all the same text.
    """

    what: str
    count: int
    unscored: int = 0
    equal: int = 0
    wrong: int = 0
    same: int = 0

    def __str__(self) -> str:
        said = {
            "scored equal": self.equal,
            "had no score": self.unscored,
            "had no correct completion": self.wrong,
            "had the same completion every time": self.same,
        }
        parts = [f"{number} {text}" for text, number in said.items() if number]
        return (
            f"of {self.count} {self.what} {', '.join(parts)}" if parts else f"{self.count} {self.what} were drawn"
        )


def read_tally(folders: Iterable[Path], file: str) -> Tally | None:
    """The tallies of several generations together; None where one has none.

    Args:
        folders: Outputs of generate stages.
        file: Name of the file that has them, under ``tally``.
    """
    found = [json.loads((folder / file).read_bytes()).get("tally") for folder in folders]
    if not found or None in found:
        return None
    sums = {name: sum(one[name] for one in found) for name in asdict(Tally("", 0)) if name != "what"}
    return Tally(found[0]["what"], **sums)


def shortage(kept: int, batch_size: int, tally: Tally | None, what: str = "trained on") -> str | None:
    """Say that there was little to train on, or None where there was enough.

    Args:
        kept: Sequences that can teach something.
        batch_size: Sequences of an optimizer step.
        tally: What they were taken from.
        what: What was done with them.
    """
    if kept >= LEAST_BATCHES * batch_size:
        return None
    why = "" if tally is None else f"; {tally}"
    if kept == 0:
        return f"{what} nothing (0 sequences){why}"
    return f"{what} {kept} sequence{'' if kept == 1 else 's'}, fewer than one batch of {batch_size}{why}"


def teaching(about: Mapping[str, Any], group_size: int) -> int | None:
    """Sequences that could teach something, by what a method reports of its training; None where it does not say.

    Args:
        about: Its ``training.json``.
        group_size: Completions of a group, where it goes by groups.
    """
    sequences, pairs, groups = (about.get(name) for name in ("sequences", "pairs", "groups"))
    silent = about.get("groups_without_signal", 0)
    if isinstance(sequences, int):
        return sequences
    if isinstance(pairs, int):
        return 2 * pairs
    return (groups - silent) * group_size if isinstance(groups, int) and isinstance(silent, int) else None


def noted(kept: int | None, batch_size: int, tally: Tally | None, what: str = "trained on") -> dict[str, str]:
    """What to add to ``training.json``: a note, said in the job's log as well, or nothing."""
    note = None if kept is None else shortage(kept, batch_size, tally, what)
    if note is None:
        return {}
    log.warning("%s", note)
    return {"note": note}
