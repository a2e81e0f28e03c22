"""What went wrong, on a page."""

from typing import Any

from pipeline.runs.report.page.run import MOST, failures_of
from pipeline.runs.run_view import RunView


def view(*events: dict[str, Any]) -> RunView:
    found = RunView()
    found.feed([{"event": "RunStarted", "time": 1.0, "jobs": 5, "unsettled": 5}, *events])
    return found


def failed(job: str, attempt: int, *, retry: bool, **fields: Any) -> list[dict[str, Any]]:
    began = {"event": "JobStarted", "job": job, "attempt": attempt, "worker": 0, "time": 2.0 + attempt}
    told = {"event": "AttemptFailed", "job": job, "attempt": attempt, "worker": 0, "time": 2.5 + attempt}
    return [began, {**told, "kind": "bug", "reason": "it broke", "retry": retry, **fields}]


def test_attempts_are_told_with_what_came_after_them() -> None:
    done = {"event": "JobFinished", "job": "a", "attempt": 2, "worker": 0, "time": 9.0}
    found = failures_of(
        view(
            *failed("a", 1, retry=True, traceback="Traceback"),
            {"event": "JobStarted", "job": "a", "attempt": 2, "worker": 0, "time": 8.0},
            done,
            *failed("b", 1, retry=False),
            {"event": "JobFailed", "job": "b", "attempts": 1, "kind": "bug", "reason": "it broke", "time": 9.0},
            {"event": "JobBlocked", "job": "c", "root_cause": "b", "time": 9.0},
        )
    )
    assert [(one.job, one.outcome, one.traceback) for one in found.rows] == [
        ("a", "tried again, done by attempt 2", "Traceback"),
        ("b", "given up", ""),
    ]
    assert found.notes == ["1 job cannot run because b failed."]


def test_of_very_many_the_first_are_shown() -> None:
    found = failures_of(
        view(*(event for number in range(MOST + 3) for event in failed(f"j{number}", 1, retry=True)))
    )
    assert (len(found.rows), found.left_out) == (MOST, 3)
