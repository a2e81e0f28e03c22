"""What follows from a failed attempt."""

import pytest

from pipeline.scheduler.retry import Failure, FailureKind, Verdict, judge

LOST = Failure(FailureKind.lost, "worker 1 was lost")
RAISED = Failure(FailureKind.raised, "ValueError: no")


@pytest.mark.parametrize(
    ("failure", "attempt", "verdict"),
    [
        (RAISED, 1, Verdict(False, "ValueError: no")),
        (LOST, 1, Verdict(True)),
        (LOST, 2, Verdict(True)),
        (LOST, 3, Verdict(False, "worker 1 was lost (given up after 3 attempts)")),
    ],
)
def test_only_a_lost_worker_is_worth_another_attempt(failure: Failure, attempt: int, verdict: Verdict) -> None:
    assert judge(failure, attempt, max_attempts=3) == verdict


def test_one_attempt_may_be_all() -> None:
    assert judge(LOST, 1, max_attempts=1).reason.endswith("given up after 1 attempt)")
