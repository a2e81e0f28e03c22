"""What a run is told of a key by a shared store, and how long it is waited for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from pipeline.engine.store.shared.claims import LEASE_S


class Answer(Enum):
    """What is known of a key."""

    wait = "it is being asked"
    mine = "this run may make it"
    there = "it is in the local store by now"
    held = "another machine makes it"


@dataclass(frozen=True, kw_only=True)
class Timeouts:
    """How long things are waited for, in seconds.

    Attributes:
        lease_s: See `claims`. Renewed four times in that.
        poll_s: How often to look after what another machine makes.
        asked_s: For how long a question is asked again that got no answer.
        fetched_s: Likewise, to fetch what was there.
        silent_s: At the end: how long after the last sign of the store its uploads are given up.
        released_s: Likewise, at the end, to give claims back.
        backoff_s: Between the first two attempts; doubled each time, up to `longest_s`.
        longest_s: Between two attempts at most.
    """

    lease_s: float = LEASE_S
    poll_s: float = 2.0
    asked_s: float = 10.0
    fetched_s: float = 120.0
    silent_s: float = 60.0
    released_s: float = 5.0
    backoff_s: float = 0.25
    longest_s: float = 15.0


@dataclass
class Asked:
    """A key that was asked for, or is expected, and what is known of it."""

    job_id: str
    answer: Answer = Answer.wait
    host: str = ""
    again_s: float = 0.0
    is_expected: bool = False


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What a run has had from the shared store, and brought there.

    Attributes:
        fetched: Outputs that came, whole and good.
        fetched_bytes: Of their files.
        uploaded: Outputs that were sent.
        uploaded_bytes: Of their files.
        left: Outputs that are yet to be sent.
    """

    fetched: int = 0
    fetched_bytes: int = 0
    uploaded: int = 0
    uploaded_bytes: int = 0
    left: int = 0

    def fetching(self, size: int) -> Traffic:
        """With one more output that came, of so many bytes."""
        return replace(self, fetched=self.fetched + 1, fetched_bytes=self.fetched_bytes + size)

    def uploading(self, size: int) -> Traffic:
        """With one more that was sent."""
        return replace(self, uploaded=self.uploaded + 1, uploaded_bytes=self.uploaded_bytes + size)


def not_uploaded(names: Sequence[str], why: str) -> str:
    """What to say of outputs that a run could not upload; "" where there is none."""
    if not names:
        return ""
    outputs = f"{names[0]} is" if len(names) == 1 else f"{len(names):,} outputs are"
    because = f" ({why})" if why else ""
    return f"{outputs} not in the shared store yet{because}. The next run of the same command goes on with it"
