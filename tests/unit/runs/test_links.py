"""A run's folder leads to the outputs of all its jobs and to their logs, whichever run made them."""

from pathlib import Path

import pytest

from pipeline.engine.run_folder import RunFolder
from pipeline.engine.store.store import Store
from pipeline.plan.graph import Job
from pipeline.runs.loaded import logs_of
from pipeline.runs.origin import link_all, link_stored


def jobs_of(store: Store, number: int = 3) -> list[Job]:
    jobs = [
        Job(id=f"d/m/s0/A/r1/generate/{shard:03d}", key=f"{shard:040d}", entry="m:f", payload={})
        for shard in range(number)
    ]
    for job in jobs:
        folder = store.begin(store.scratch("run"), job.key, 1)
        (folder / "name.txt").write_text(job.id)
        store.commit(job.key, folder, {"job": job.id})
    return jobs


def a_run(output_dir: Path, number: int) -> RunFolder:
    run = RunFolder(output_dir / "x" / f"2026-01-02_10-00-0{number}")
    run.path.mkdir(parents=True)
    return run


def ran(run: RunFolder, store: Store, job: Job) -> None:
    """As a worker leaves it."""
    folder = run.job(job.id)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "log.txt").write_text(f"made in {run.path.name}")
    (folder / "output").symlink_to(store.path(job.key))


def shows(run: RunFolder, job: Job) -> bool:
    return (run.job(job.id) / "output" / "name.txt").read_text() == job.id


@pytest.mark.parametrize("where", ["inside", "elsewhere", "by a link"])
def test_outputs_and_logs_are_found_from_every_later_run(tmp_path: Path, where: str) -> None:
    output_dir = tmp_path / "deep" / "er" / "outputs"
    output_dir.mkdir(parents=True)
    if where == "by a link":
        (tmp_path / "short").symlink_to(output_dir)
        output_dir = tmp_path / "short"
    store = Store(output_dir / ".store" if where == "inside" else tmp_path / "store")
    jobs = jobs_of(store)
    first, second, third, fourth = (a_run(output_dir, number) for number in range(4))
    for job in jobs[:2]:
        ran(first, store, job)
    link_stored(second, store, jobs[:2], [first])
    ran(second, store, jobs[2])
    link_all(third, store, jobs, [first, second])
    link_all(fourth, store, jobs, [first, second, third])
    for run in (second, third, fourth):
        assert all(shows(run, job) for job in jobs)
    assert (second.job(jobs[0].id) / "made_in" / "log.txt").read_text() == f"made in {first.path.name}"
    assert not (second.job(jobs[2].id) / "made_in").exists()
    assert (fourth.job(jobs[2].id) / "log.txt").read_text() == f"made in {second.path.name}"
    assert fourth.jobs.readlink() == Path("..") / second.path.name / "jobs"  # no chain of links
    assert list(logs_of(second, jobs[2].id)) == [1]
    assert logs_of(fourth, jobs[2].id) == {}  # it has none of its own
    fifth = a_run(output_dir, 5)
    link_stored(fifth, store, jobs[:1], [first, second, third, fourth])
    assert (fifth.job(jobs[0].id) / "made_in" / "log.txt").read_text() == f"made in {first.path.name}"


def test_folders_move_together(tmp_path: Path) -> None:
    store, run = Store(tmp_path / "a" / ".store"), a_run(tmp_path / "a", 0)
    jobs = jobs_of(store)
    link_stored(run, store, jobs)
    (tmp_path / "a").rename(tmp_path / "b")
    assert all(shows(RunFolder(tmp_path / "b" / "x" / run.path.name), job) for job in jobs)


def test_a_link_that_cannot_be_made_is_no_failure(tmp_path: Path) -> None:
    store, run = Store(tmp_path / ".store"), a_run(tmp_path, 0)
    jobs = jobs_of(store)
    run.jobs.write_text("in the way")
    link_all(run, store, jobs)
    assert run.jobs.read_text() == "in the way"
