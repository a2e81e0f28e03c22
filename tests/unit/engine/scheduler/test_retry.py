"""What follows from a failed attempt."""

from collections import Counter

import pytest

from pipeline.config.schema import RetryConfig
from pipeline.engine.scheduler.run import Decision, Failure, judge
from pipeline.engine.workers.failure import FailureKind

SETTINGS = RetryConfig(worker_lost=3, hang=2, out_of_memory=2, device=2, transient=4, wait_s=1.0, max_wait_s=3.0)


def verdict(kind: FailureKind, count: int) -> Decision:
    return judge(Failure(kind, "what was seen"), Counter({kind: count}), SETTINGS)


def test_a_bug_is_never_tried_again() -> None:
    assert verdict(FailureKind.bug, 1) == Decision(False, reason="what was seen")


@pytest.mark.parametrize(
    ("kind", "budget"),
    [
        (FailureKind.lost, 3),
        (FailureKind.hang, 2),
        (FailureKind.out_of_memory, 2),
        (FailureKind.device, 2),
        (FailureKind.transient, 4),
        (FailureKind.damaged_input, 5),
    ],
)
def test_every_other_kind_has_a_budget_of_its_own(kind: FailureKind, budget: int) -> None:
    assert [verdict(kind, count).retry for count in range(1, budget + 1)] == [True] * (budget - 1) + [False]


def test_one_kind_does_not_use_up_the_budget_of_another() -> None:
    failures = Counter({FailureKind.transient: 3, FailureKind.hang: 1, FailureKind.lost: 1})
    assert judge(Failure(FailureKind.lost, "x"), failures, SETTINGS).retry


def test_only_a_transient_failure_is_worth_waiting_for() -> None:
    assert [verdict(FailureKind.transient, count).wait_s for count in (1, 2, 3)] == [1.0, 2.0, 3.0]
    assert verdict(FailureKind.lost, 1).wait_s == 0


def test_a_job_that_ends_every_worker_is_named_as_such() -> None:
    assert verdict(FailureKind.lost, 3).reason == "what was seen (set aside after it ended 3 workers)"
    assert verdict(FailureKind.hang, 2).reason == "what was seen (given up after 2 attempts)"
