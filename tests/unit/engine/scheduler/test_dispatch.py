"""What it takes to start a job that other runs may compute too."""

from __future__ import annotations

from pathlib import Path

from pipeline.engine.scheduler.run import OnDisk, ReleaseClaim, Send
from tests.doubles.engine import job, key
from tests.doubles.on_paper import OnPaper


def test_an_order_says_all_that_a_worker_must_know() -> None:
    paper = OnPaper(job("x"), job("a", "body", ["x"], payload={"n": 1}), stored=["x"])
    paper.start()
    (send,) = (effect for effect in paper.effects if isinstance(effect, Send))
    order = send.order
    assert (order.job_id, order.attempt, order.key) == ("a", 1, key("a"))
    assert (order.entry, order.payload) == ("tests.doubles.bodies:body", {"n": 1})
    assert order.inputs == {"needs": [key("x")]}
    assert (order.store, order.scratch, order.verified) == ("/run/store", "/run/scratch", "/run/verified")
    assert order.log_path == str(Path("/run/jobs/a/log.txt"))
    assert (order.gang, order.slots, order.shared, order.keep_models) == ([], 1, False, True)


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
