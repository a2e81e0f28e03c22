"""What users are told of a signal: which jobs are waited for, for how long, and what they can do."""

import pytest

from pipeline.engine.scheduler.loop import no_further_job, stopping


@pytest.mark.parametrize(
    ("running", "said"),
    [(["a/r1/train", "b/r1/train"], "waiting for a/r1/train, b/r1/train"), ([], "waiting for none")],
)
def test_the_log_names_the_jobs_that_are_waited_for(running: list[str], said: str) -> None:
    assert no_further_job("SIGTERM", running) == f"SIGTERM: no further job is started; {said}"


@pytest.mark.parametrize(
    ("running", "ended", "said"),
    [
        (2, False, "waiting up to 10 s for 2 jobs to finish or save; Ctrl-C again ends now"),
        (1, False, "waiting up to 10 s for 1 job to finish or save; Ctrl-C again ends now"),
        (0, True, "no job is running any more"),
        (0, False, "no job is running"),
    ],
)
def test_the_terminal_says_for_how_long(running: int, ended: bool, said: str) -> None:
    assert stopping("SIGINT", running, 10.0, ended=ended) == f"stopping on Ctrl-C: {said}"
