"""Whole plans through the real engine: results, logs, journal, order, both kinds of worker."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.schema import Backend
from pipeline.engine.scheduler.outcome import Outcome
from pipeline.engine.scheduler.state import JobStatus
from tests.doubles.engine import HERE, Engine, job, key

DIAMOND = (
    job("make/000", payload={"value": 1}, round=1, samples=1),
    job("make/001", payload={"value": 2}, round=1, samples=1),
    job("join", needs=["make/000", "make/001"], round=2, samples=1),
    job("measure", needs=["join", "make/000"], round=2),
)


Ran = tuple[Engine, Outcome]


def run_diamond(folder: Path, **how: Any) -> Ran:
    engine = Engine(folder)
    outcome = engine.run(*DIAMOND, **how)
    assert engine.leftovers() == []
    return engine, outcome


@pytest.fixture(scope="module")
def by_two_workers(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run_diamond(tmp_path_factory.mktemp("two workers"), workers=2)


@pytest.fixture(scope="module")
def by_one_worker(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run_diamond(tmp_path_factory.mktemp("one worker"), workers=1)


@pytest.fixture(scope="module")
def inline(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run_diamond(tmp_path_factory.mktemp("inline"), workers=1, backend=Backend.inline)


@pytest.mark.parametrize("how", ["by_two_workers", "inline"])
def test_a_plan_runs_to_its_end(request: pytest.FixtureRequest, how: str) -> None:
    engine, outcome = request.getfixturevalue(how)
    assert set(outcome.jobs.values()) == {JobStatus.done}
    assert outcome.interrupted is None
    assert outcome.failures() == []
    assert all(engine.store.has(job.key) for job in DIAMOND)
    stored = json.loads((engine.store.path(key("join")) / "value.json").read_text())
    assert [found["payload"]["value"] for found in stored["inputs"]["needs"]] == [1, 2]


def test_however_a_plan_is_carried_out_the_same_bytes_are_stored(
    by_two_workers: Ran, by_one_worker: Ran, inline: Ran
) -> None:
    """For several jobs on a device `test_engine_packing` sees to it, for real models `test_main_job`."""
    made = by_two_workers[0].files()
    assert len(made) > len(DIAMOND)
    assert [other.files() == made for other, _ in (by_one_worker, inline)] == [True] * 2


def test_stored_jobs_do_not_run_again(engine: Engine) -> None:
    engine.run(*DIAMOND, backend=Backend.inline, workers=1)
    more = (*DIAMOND, job("after", needs=["measure"]))
    outcome = engine.run(*more, workers=1, stored=[job.id for job in DIAMOND])
    assert outcome.jobs["make/000"] is JobStatus.stored
    assert [event["job"] for event in engine.events("JobStarted")] == ["after"]


def test_the_journal_tells_every_change(by_one_worker: Ran) -> None:
    engine, _ = by_one_worker
    order = [(event["event"], event.get("job")) for event in engine.journal]
    assert order[:3] == [("RunStarted", None), ("WorkerStarted", None), ("JobStarted", "make/000")]
    assert order[-2:] == [("WorkerExited", None), ("RunFinished", None)]
    assert [name for name, job_id in order if job_id == "join"] == ["JobStarted", "JobFinished"]
    finished = engine.events("JobFinished", "join")[0]
    assert (finished["samples"], finished["tokens"], finished["attempt"], finished["worker"]) == (1, 3, 1, 0)
    assert engine.journal[-1]["done"] == 4


@pytest.mark.parametrize("backend", HERE)
def test_a_log_has_everything_that_a_job_writes(
    engine: Engine, backend: Backend, capfd: pytest.CaptureFixture[str]
) -> None:
    engine.run(job("talk", "print_everywhere"), backend=backend, workers=1)
    written = engine.log("talk")
    ways = ["print", "print to stderr", "descriptor 1", "descriptor 2", "printf", "a child process"]
    if backend is Backend.local:  # here the test runner takes what goes to `logging`
        ways.append("logging")
    assert [way for way in ways if f"by {way}" not in written] == []
    assert capfd.readouterr() == ("", "")


def test_a_jobs_folder_links_to_its_output(engine: Engine) -> None:
    engine.run(job("a/b", payload={"value": 1}), backend=Backend.inline, workers=1)
    link = engine.run_dir / "jobs" / "a" / "b" / "output"
    assert not link.readlink().is_absolute()
    assert (link / "value.json").is_file()


def test_a_worker_keeps_its_memory_between_jobs(engine: Engine) -> None:
    engine.run(*(job(f"j{index}", "remember") for index in range(3)), workers=1)
    counts = [(engine.store.path(key(f"j{index}")) / "count.txt").read_text().split() for index in range(3)]
    assert [count for count, _ in counts] == ["1", "2", "3"]
    assert {pid for _, pid in counts} != {str(os.getpid())}


def test_the_environment_is_pinned_before_anything_is_imported(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("MASTER_ADDR", "elsewhere")
    monkeypatch.setenv("PYTHONPATH", "/kept")
    engine.run(job("look", "show_environment"), workers=1)
    seen = json.loads((engine.store.path(key("look")) / "environment.json").read_text())
    assert seen["env"]["CUDA_VISIBLE_DEVICES"] == ""
    assert seen["env"]["OMP_NUM_THREADS"] == "1"
    assert seen["env"]["PYTHONHASHSEED"] == "0"
    assert seen["env"]["PYTHONPATH"] == "/kept"
    assert not {"RANK", "MASTER_ADDR"} & set(seen["env"])
    assert not seen["torch"]


def test_whoever_watches_sees_a_job_from_its_begin_to_its_end(engine: Engine) -> None:
    seen: list[tuple[int, str]] = []
    engine.run(
        job("count", "report_much", samples=20_000), workers=1,
        watcher=lambda view: seen.append((view.counts().done, view.workers[0].device)),
    )  # fmt: skip
    assert seen[0] == (0, "")
    assert seen[-1] == (1, "cpu slot 0, 1 thread")
    assert engine.events("JobFinished")[0]["tokens"] == 40_000
