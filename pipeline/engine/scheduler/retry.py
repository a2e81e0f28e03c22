"""What follows from a failed attempt: a pure rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.config.schema import RetryConfig
from pipeline.engine.workers.failure import FailureKind

MAX_DAMAGED_INPUTS = 5
"""How often a job may find an input damaged before something other than chance must be at work."""


@dataclass(frozen=True)
class Failure:
    """A failed attempt.

    Attributes:
        kind: How it failed.
        message: One line on what was seen.
        traceback: Of the job's own code, where there is one.
        exit_code: Of its worker, where that ended; negative is a signal number.
        damaged_key: Key of the stored output that it could not use, or "".
    """

    kind: FailureKind
    message: str
    traceback: str = ""
    exit_code: int | None = None
    damaged_key: str = ""


@dataclass(frozen=True)
class Decision:
    """What to do about it.

    Attributes:
        retry: Whether to try again.
        wait_s: Seconds to wait before that.
        reason: Why the job is given up, where it is.
    """

    retry: bool
    wait_s: float = 0.0
    reason: str = ""


def judge(failure: Failure, failures: Mapping[FailureKind, int], settings: RetryConfig) -> Decision:
    """Decide about a job whose attempt failed.

    Args:
        failure: What happened.
        failures: How many attempts of the job have failed in each way, this one included.
        settings: Budgets.
    """
    count = failures[failure.kind]
    if failure.kind is FailureKind.bug:
        return Decision(False, reason=failure.message)
    if count < _budget(failure.kind, settings):
        return Decision(True, wait_s=_wait_s(failure.kind, count, settings))
    return Decision(False, reason=f"{failure.message} ({_given_up(failure.kind, count)})")


def _budget(kind: FailureKind, settings: RetryConfig) -> int:
    return {
        FailureKind.lost: settings.worker_lost,
        FailureKind.hang: settings.hang,
        FailureKind.out_of_memory: settings.out_of_memory,
        FailureKind.device: settings.device,
        FailureKind.transient: settings.transient,
        FailureKind.damaged_input: MAX_DAMAGED_INPUTS,
    }[kind]


def _wait_s(kind: FailureKind, count: int, settings: RetryConfig) -> float:
    if kind is not FailureKind.transient:
        return 0.0
    return float(min(settings.max_wait_s, settings.wait_s * 2.0 ** min(count - 1, 64)))


def _given_up(kind: FailureKind, count: int) -> str:
    tries = "1 attempt" if count == 1 else f"{count} attempts"
    if kind is FailureKind.lost and count > 1:
        return f"set aside after it ended {count} workers"
    return f"given up after {tries}"
