"""How much longer jobs take than was planned."""

from __future__ import annotations

import pytest

from pipeline.runs.live_run import Pace, Seen


def test_what_a_job_that_runs_has_taken_tells_of_other_kinds_too() -> None:
    pace = Pace()
    pace.expect("train", 40.0)
    pace.expect("evaluate", 10.0)
    assert pace.of("evaluate") == 1.0
    pace.running = Seen(planned_s=30.0, took_s=300.0)
    during = pace.of("evaluate")
    assert during == pytest.approx((300 + 25) / (30 + 25))
    pace.running = Seen()
    pace.finished("train", 40.0, 400.0)
    assert pace.of("evaluate") > during, "and all of it once that is done"
