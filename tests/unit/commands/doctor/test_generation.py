"""What the doctor says of a generation that did not end."""

from typing import Any

import pytest

from pipeline.commands.doctor import proof
from pipeline.engine.scheduler.outcome import Outcome
from pipeline.engine.scheduler.state import JobStatus
from pipeline.terminal.console import Check, Verdict


@pytest.mark.parametrize(
    ("outcome", "detail", "remedy"),
    [
        ({"interrupted": "SIGTERM"}, "SIGTERM came before it was done", "run this again"),
        (
            {"reasons": {"probe/0": "no memory"}},
            "1 of 1 workers failed: no memory",
            "the reason above says what to repair",
        ),
    ],
    ids=["interrupted", "failed"],
)
def test_a_check_that_was_interrupted_blames_no_worker(
    outcome: dict[str, Any], detail: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = Outcome(jobs={"probe/0": JobStatus.failed}, **outcome)
    monkeypatch.setattr(proof, "run_jobs", lambda *_, **__: ended)
    (said,) = proof.check_generation(workers=1)
    assert said == Check("parallel generation", Verdict.FAIL, detail, remedy)
