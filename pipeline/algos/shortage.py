"""What is said of a training that had next to nothing to learn from: how much it was, and why it was no more."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from pipeline.results.outputs import Tally

LEAST_BATCHES = 1
"""Batches that a training should have at least. With fewer, an epoch is one step, on less than was asked for."""

log = logging.getLogger("pipeline")


def added(tallies: Iterable[Tally | None]) -> Tally | None:
    """The tallies of several generations together; None where one has none."""
    found = list(tallies)
    known = [tally for tally in found if tally is not None]
    if not found or len(known) < len(found):
        return None
    sums = {item.name: sum(getattr(tally, item.name) for tally in known) for item in fields(Tally)[1:]}
    return Tally(known[0].what, **sums)


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
