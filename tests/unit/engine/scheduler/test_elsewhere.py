"""Jobs whose outputs are on their way from a store that other machines share."""

from __future__ import annotations

from pipeline.engine.scheduler.dispatch import expect, go_on
from pipeline.engine.scheduler.run import OnDisk, ReleaseClaim
from tests.doubles.engine import job
from tests.doubles.on_paper import OnPaper

HERE, NOT_HERE = OnDisk(stored=True), OnDisk()


def told(paper: OnPaper, job_id: str, on_disk: OnDisk) -> list[str]:
    go_on(paper.run, job_id, on_disk)
    return paper.decided()


def test_no_worker_is_given_what_is_on_its_way_and_its_readers_wait_for_it() -> None:
    paper = OnPaper(job("far"), job("reader", needs=["far"]), job("other"))
    expect(paper.run, ["far"])
    assert paper.start() == ["send other to 0"]
    assert paper.wait(10) == []
    assert paper.start() == []
    assert told(paper, "far", HERE) == ["JobFoundStored far"]
    assert ReleaseClaim("far") in paper.effects
    assert paper.said() == "far: it was fetched from the shared store"
    assert paper.start() == ["send reader to 1"]


def test_what_is_on_its_way_needs_neither_devices_nor_what_it_was_made_of() -> None:
    paper = OnPaper(job("input"), job("wide", needs=["input"], devices=9), job("reader", needs=["wide"]))
    expect(paper.run, ["input", "wide"])
    assert told(paper, "wide", HERE) == ["JobFoundStored wide"]
    assert paper.start() == ["send reader to 0"]
    assert told(paper, "input", HERE) == ["JobFoundStored input"]
    assert paper.jobs() == {"input": "stored", "wide": "stored", "reader": "running"}


def test_what_turns_out_not_to_be_there_is_made_and_before_it_what_it_reads() -> None:
    paper = OnPaper(job("a"), job("b"), job("far", needs=["a", "b"]), job("end", needs=["far"]), stored=["a", "b"])
    expect(paper.run, ["far"])
    assert told(paper, "far", NOT_HERE) == []
    assert paper.start(OnDisk(lost=frozenset(["a"]))) == ["JobReopened a"]
    assert paper.jobs() == {"a": "ready", "b": "stored", "far": "pending", "end": "pending"}
    assert paper.start() == ["send a to 0"]
    paper.finish("a")
    assert paper.start() == ["send far to 0"]


def test_what_comes_while_all_workers_are_busy_needs_none() -> None:
    paper = OnPaper(job("long"), job("a"), job("reader", needs=["a"]), workers=1)
    run = paper.run
    run.state.wait("long")
    assert paper.start(OnDisk(claimed=False, waits="")) == []
    run.state.retry("long")
    assert paper.start() == ["send long to 0"]
    paper.wait(10)  # the job is to be asked about again, and there is no worker for it
    assert told(paper, "a", NOT_HERE) == []
    assert told(paper, "a", HERE) == ["JobFoundStored a"]
    assert paper.jobs() == {"long": "running", "a": "stored", "reader": "ready"}
