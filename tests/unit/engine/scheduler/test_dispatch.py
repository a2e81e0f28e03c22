"""What it takes to start a job that other runs may compute too."""

from __future__ import annotations

from pipeline.engine.scheduler.run import OnDisk, ReleaseClaim
from tests.doubles.engine import job
from tests.doubles.on_paper import OnPaper


def test_a_job_that_another_run_computes_is_looked_at_again_later() -> None:
    paper = OnPaper(job("a"), workers=1)
    assert paper.start(OnDisk(claimed=False)) == ["JobWaits a"]
    assert "a: another run computes it; waiting for that" in paper.said()
    assert paper.start() == []
    paper.wait(1.0)
    assert paper.start(OnDisk(claimed=False)) == []  # told once
    paper.wait(1.0)
    assert paper.start() == ["send a to 0"]


def test_what_another_run_has_stored_is_taken_as_it_is() -> None:
    paper = OnPaper(job("a"), job("b", needs=["a"]))
    assert paper.start(OnDisk(stored=True)) == ["JobFoundStored a"]
    assert paper.effects[0] == ReleaseClaim("a")
    assert paper.jobs() == {"a": "stored", "b": "ready"}
    assert paper.phases() == ["idle", "idle"]
