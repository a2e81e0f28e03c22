"""What follows from a failed attempt: a pure rule."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class FailureKind(Enum):
    """How an attempt failed."""

    raised = "raised"  # the job's own code raised: it would again
    lost = "lost"  # its worker ended under it: another may live


@dataclass(frozen=True)
class Failure:
    """A failed attempt.

    Attributes:
        kind: How it failed.
        message: One line on what was seen.
    """

    kind: FailureKind
    message: str


@dataclass(frozen=True)
class Verdict:
    """What to do about it.

    Attributes:
        retry: Whether to try again.
        reason: Why the job is given up, where it is.
    """

    retry: bool
    reason: str = ""


def judge(failure: Failure, attempt: int, max_attempts: int) -> Verdict:
    """Decide about a job whose attempt failed.

    Args:
        failure: What happened.
        attempt: Number of the attempt, from 1.
        max_attempts: Attempts that a job is given where its worker was lost.
    """
    if failure.kind is FailureKind.raised:
        return Verdict(False, failure.message)
    if attempt < max_attempts:
        return Verdict(True)
    tries = "1 attempt" if attempt == 1 else f"{attempt} attempts"
    return Verdict(False, f"{failure.message} (given up after {tries})")
