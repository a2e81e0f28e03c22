"""Jobs that a worker is given before it is done with the present one."""

import pytest

from pipeline.config.schema import Backend
from pipeline.engine.scheduler import reactions
from pipeline.engine.scheduler.reactions import SHORT_S
from pipeline.engine.scheduler.run import OnDisk, ReleaseClaim
from pipeline.engine.workers.messages import AttemptStopped, FailureKind, JobStarted
from tests.doubles.engine import job
from tests.doubles.on_paper import OnPaper

SHORT = SHORT_S / 10
DEPTH = 4


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """So few jobs ahead that they can be counted; no rule rests on the number."""
    monkeypatch.setattr(reactions, "DEPTH", DEPTH)


def crowd(count: int = 12, workers: int = 1, **settings: object) -> OnPaper:
    """A run of many equal jobs, the first of each worker done, so that they are known to be short."""
    paper = OnPaper(*(job(f"j{number:02}") for number in range(count)), workers=workers, **settings)
    paper.start()
    for number in range(workers):
        paper.finish(f"j{number:02}", run_s=SHORT)
    paper.start()
    return paper


def ahead(paper: OnPaper, worker: int = 0) -> list[str]:
    return paper.run.state.workers[worker].ahead


def test_a_worker_of_short_jobs_has_the_next_ones_and_goes_on_to_them_by_itself() -> None:
    paper = crowd(job_timeout_s=5.0)
    assert paper.start() == [f"send j{number:02} to 0" for number in range(2, 2 + DEPTH)]
    assert paper.start() == [], "it has enough"
    paper.begin("j01")
    paper.wait(4.0)
    paper.finish("j01", run_s=SHORT)
    assert paper.begin("j02") == ["JobStarted j02"]
    assert paper.start() == [], "several at a time"
    assert paper.wait(4.0) == [], "its own five seconds"
    assert paper.wait(1.0) == ["abort 0"]
    assert paper.start() == [], "none to a worker that is being killed"
    paper.ended(0)
    attempts = {attempt.job_id: attempt for attempt in paper.run.attempts}
    assert attempts["j02"].sent_s == attempts["j01"].ended_s, "no time is counted twice"
    assert {name: attempts[name].outcome for name in attempts} == {"j00": "done", "j01": "done", "j02": "hang"}


@pytest.mark.parametrize("how", ["lost", "stopped", "changed", "damaged"])
def test_what_a_process_does_not_begin_any_more_is_as_if_it_had_not_been_given_to_it(how: str) -> None:
    paper = crowd()
    paper.start()
    paper.begin("j01")
    handed = list(ahead(paper))
    match how:
        case "lost":
            paper.ended(0)
        case "stopped":
            paper.hear(0, AttemptStopped(job_id="j01", attempt=1))
        case "changed":
            paper.finish("j01", run_s=SHORT, left_changed="the umask")
        case "damaged":
            paper.fail("j01", FailureKind.damaged_input)
    assert not ahead(paper)
    released = {effect.job_id for effect in paper.effects if isinstance(effect, ReleaseClaim)}
    assert set(handed) <= released
    jobs = paper.run.state.jobs
    assert [(jobs[name].status.value, jobs[name].attempts) for name in handed] == [("ready", 0)] * DEPTH
    assert not any(jobs[name].failures for name in handed), "nobody blames them"
    assert paper.run.state.running == 0
    assert paper.hear(0, JobStarted(job_id=handed[0], attempt=1)) == []


def test_no_worker_has_ahead_what_others_could_begin_at_once() -> None:
    paper = crowd(count=7, workers=2)
    assert paper.start() == ["send j04 to 0"], "of three that wait two are left for whoever is done first"
    assert crowd(backend=Backend.inline).start() == []


def test_a_job_that_another_run_computes_or_has_stored_is_not_handed_ahead() -> None:
    assert not any(words.startswith("send") for words in crowd().start(OnDisk(claimed=False)))
    paper = crowd()
    assert paper.start(OnDisk(stored=True))[0] == "JobFoundStored j02"
    assert not ahead(paper)
