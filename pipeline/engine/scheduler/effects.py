"""What a run does outside of its own state, as plain data: decided by rules, done in order by `outside.py`.

Several of these are made for every job; of a frozen dataclass each would take ten times as long.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct, field

from pipeline.engine.workers.messages import RunJob


class Record(Struct, frozen=True):
    """Have an event in the journal, and told then. See `Outside.settle` for when."""

    event: str
    fields: Mapping[str, Any]


class Tell(Struct, frozen=True):
    """Tell whoever watches an event that has no place in the journal."""

    event: str
    fields: Mapping[str, Any]


class Say(Struct, frozen=True):
    """Write a line to the run's log."""

    text: str
    level: int


class Send(Struct, frozen=True):
    """Give a worker a job."""

    worker: int
    order: RunJob


class ProcessOrder(Struct, frozen=True):
    """Do something about the process of a worker: what the method of `Pool` does that has this name."""

    action: Literal["restart", "dismiss", "abort", "close", "reopen", "take_back"]
    worker: int


class ReleaseClaim(Struct, frozen=True):
    """Let other runs that share the store compute a job."""

    job_id: str


class SetAside(Struct, frozen=True):
    """Take a damaged output out of the way, and keep it for whoever wants to look."""

    key: str
    problem: str


Effect = Record | Tell | Say | Send | ProcessOrder | ReleaseClaim | SetAside


class OnDisk(Struct, frozen=True, kw_only=True):
    """What the store says about an output, for a decision that hangs on it.

    Attributes:
        claimed: Whether this run may compute it; False while another one does.
        stored: Whether it is there.
        waits: Where it may not: for what, or "" where that is only just being asked.
        lost: Finished jobs that it reads and whose outputs are not here, so that they must be had first.
        problem: Why it cannot be used, or "".
        maker: The job of this run that makes it, or "".
        missing: Finished jobs before that one whose own outputs are not there any more.
        sizes: Bytes of outputs that it reads, where nobody has told yet.
    """

    claimed: bool = True
    stored: bool = False
    waits: str = "another run computes it"
    lost: frozenset[str] = frozenset()
    problem: str = ""
    maker: str = ""
    missing: frozenset[str] = frozenset()
    sizes: Mapping[str, int] = field(default_factory=dict)
