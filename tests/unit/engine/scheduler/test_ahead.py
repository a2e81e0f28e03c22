"""Jobs that a worker is given before it is done with the present one."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.config.schema import Backend, RetryConfig
from pipeline.engine.scheduler import dispatch
from pipeline.engine.scheduler.dispatch import LATE_S, LEAST_DEPTH, MOST, SHORT_S, recall
from pipeline.engine.scheduler.reactions import objection
from pipeline.engine.scheduler.run import OnDisk, ReleaseClaim, Send
from pipeline.engine.workers.failure import FailureKind
from pipeline.engine.workers.messages import AttemptStopped, JobStarted, OrdersDropped
from tests.doubles.engine import job
from tests.doubles.on_paper import OnPaper

SHORT = SHORT_S / 10
DEPTH = 4


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """So few orders ahead that they can be counted; no rule rests on the number."""
    monkeypatch.setattr(dispatch, "DEPTH", DEPTH)


def crowd(count: int = 12, workers: int = 1, **settings: Any) -> OnPaper:
    """A run of many equal jobs, the first of each worker done, so that they are known to be short."""
    paper = OnPaper(*(job(f"j{number:02}") for number in range(count)), workers=workers, **settings)
    paper.start()
    for number in range(workers):
        paper.finish(f"j{number:02}", run_s=SHORT)
    paper.start()
    return paper


def ahead(paper: OnPaper, worker: int = 0) -> list[str]:
    return paper.run.state.workers[worker].ahead


def test_where_jobs_are_short_the_next_ones_are_handed_ahead_each_after_the_one_before_it() -> None:
    paper = crowd()
    assert paper.hand_ahead() == [f"send j{number:02} to 0" for number in range(2, 2 + DEPTH)]
    orders = [effect.order for effect in paper.effects if isinstance(effect, Send)]
    assert [order.after for order in orders] == [f"j{number:02}" for number in range(1, 1 + DEPTH)]
    assert [order.attempt for order in orders] == [1] * DEPTH
    assert paper.hand_ahead() == [], "it has enough"
    paper.finish("j01", run_s=SHORT)
    assert paper.hand_ahead() == [], "several at a time"
    paper.finish("j02", run_s=SHORT)
    assert paper.hand_ahead() == ["send j06 to 0", "send j07 to 0"]


def test_a_job_that_was_tried_before_is_given_to_no_worker_ahead() -> None:
    paper = crowd(count=7, retry=RetryConfig(wait_s=1.0))
    for failing, following in (("j01", "j02"), ("j02", "j03")):
        paper.fail(failing, FailureKind.transient)
        assert paper.start() == [f"send {following} to 0"]
    paper.wait(100.0)
    paper.finish("j03", run_s=SHORT)
    assert paper.start() == ["send j04 to 0"]
    ((_, _, bucket),) = paper.run.state.ready.buckets()
    assert list(bucket[""]) == ["j05", "j06", "j01", "j02"]
    assert paper.hand_ahead() == ["send j05 to 0", "send j06 to 0"], "and not one more, for which there is room"


def test_where_workers_are_many_each_has_fewer_ahead_so_that_more_of_them_have_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatch, "DEPTH", 16)
    alone, some, many = crowd(count=99), crowd(count=300, workers=20), crowd(count=700, workers=100)
    for paper in (alone, some, many):
        paper.hand_ahead()
    assert len(ahead(alone)) == 16
    assert [len(worker.ahead) for worker in some.run.state.workers] == [MOST // 20] * 20
    assert len(ahead(many)) == LEAST_DEPTH


def test_a_job_that_ends_well_is_followed_by_the_next_whose_time_begins_then() -> None:
    paper = crowd(job_timeout_s=5.0)
    paper.hand_ahead()
    paper.begin("j01")
    assert paper.wait(4.0) == []
    paper.finish("j01", run_s=SHORT)
    assert paper.run.state.workers[0].job_id == "j02"
    assert paper.begin("j02") == ["JobStarted j02"]
    assert paper.wait(4.0) == [], "its own five seconds"
    assert paper.wait(1.0) == ["abort 0"]
    paper.ended(0)
    attempts = {attempt.job_id: attempt for attempt in paper.run.ledger.attempts}
    assert attempts["j02"].sent_s == attempts["j01"].ended_s, "no time is counted twice"
    assert attempts["j02"].outcome == "hang"
    assert set(attempts) == {"j00", "j01", "j02"}


def end(paper: OnPaper, how: str) -> None:
    match how:
        case "raised":
            paper.fail("j01", FailureKind.bug)
        case "lost":
            paper.ended(0)
        case "stopped":
            paper.hear(0, AttemptStopped(job_id="j01", attempt=1))
        case "changed":
            paper.finish("j01", run_s=SHORT, changed="the umask")


@pytest.mark.parametrize("how", ["raised", "lost", "stopped", "changed"])
def test_after_any_other_end_of_a_job_the_engine_has_back_what_its_worker_has_dropped(how: str) -> None:
    paper = crowd()
    paper.hand_ahead()
    paper.begin("j01")
    handed = list(ahead(paper))
    end(paper, how)
    assert not ahead(paper)
    assert {ReleaseClaim(name) for name in handed} <= set(released(paper))
    jobs = paper.run.state.jobs
    assert [(jobs[name].status.value, jobs[name].attempts) for name in handed] == [("ready", 0)] * DEPTH
    assert not any(jobs[name].failures for name in handed), "nobody blames them"
    assert paper.run.state.running == 0
    if how == "raised":
        assert paper.hear(0, JobStarted(job_id=handed[0], attempt=1)) == [], "it was never given to it"


def released(paper: OnPaper) -> list[ReleaseClaim]:
    return [effect for effect in paper.effects if isinstance(effect, ReleaseClaim)]


def test_a_worker_that_dies_between_two_jobs_costs_neither_an_attempt() -> None:
    paper = crowd()
    paper.hand_ahead()
    paper.finish("j01", run_s=SHORT)
    assert paper.ended(0) == ["WorkerExited"], "what has not begun is not told to have stopped"
    assert paper.jobs()["j02"] == "ready"
    assert not paper.run.state.jobs["j02"].failures
    assert not ahead(paper)


@pytest.mark.parametrize(
    ("run_s", "body", "fields", "why"),
    [
        (2 * SHORT_S, "write", {}, "they are long"),
        (SHORT, "write", {"affinity": "model"}, "workers may hold what they need"),
        (SHORT, "other", {}, "nobody knows how long they take"),
    ],
)
def test_jobs_that_are_not_known_to_be_short_and_plain_wait_in_the_engine(
    run_s: float, body: str, fields: dict[str, str], why: str
) -> None:
    paper = OnPaper(job("a"), *(job(f"j{number}", body, **fields) for number in range(9)), workers=1)
    paper.start()
    paper.finish("a", run_s=run_s)
    paper.start()
    assert paper.hand_ahead() == [], why


def test_what_is_not_ready_holds_no_order_up_and_orders_are_taken_back_once_it_is() -> None:
    jobs = [job(f"j{number:02}") for number in range(12)]
    paper = OnPaper(job("a", priority=1.0), job("row", needs=["a"], priority=1.0), *jobs, workers=2)
    paper.start()
    other = next(worker.index for worker in paper.run.state.workers if worker.job_id == "j00")
    paper.finish("j00", run_s=SHORT)
    paper.start()
    assert paper.hand_ahead(), "'row' could not start yet, whatever was kept for it"
    handed = [name for index in (0, 1) for name in ahead(paper, index)]
    assert len(handed) > 2
    paper.finish("a", run_s=SHORT)
    assert paper.start() == []
    assert paper.hand_ahead() == ["take_back 0", "take_back 1"], "'row' comes before them, and not behind them"
    begun = paper.run.state.workers[1 - other].job_id
    paper.hear(1 - other, OrdersDropped(jobs=ahead(paper, 1 - other)))
    paper.finish(begun, run_s=SHORT)
    assert paper.start() == [f"send row to {1 - other}"]


def test_no_worker_takes_ahead_what_others_could_begin_at_once() -> None:
    paper = crowd(count=7, workers=2)
    assert paper.hand_ahead() == ["send j04 to 0"], "of three that wait two are left for whoever is done first"
    assert crowd(backend=Backend.inline).hand_ahead() == []
    many = crowd(count=700, workers=100)
    assert len(many.hand_ahead()) == MOST, "each takes a descriptor"
    assert many.hand_ahead() == []


def test_orders_are_taken_back_where_a_worker_has_nothing_to_do() -> None:
    paper = crowd(count=10, workers=2)
    paper.hand_ahead()
    assert ahead(paper) == ["j04", "j05", "j06", "j07"]
    for name in ("j03", "j08", "j09"):
        paper.finish(name, run_s=SHORT)
        paper.start()
    assert paper.hand_ahead() == ["take_back 0"]
    assert paper.hand_ahead() == [], "asked once"
    paper.hear(0, OrdersDropped(jobs=["j05", "j06", "j07"]))
    assert ahead(paper) == ["j04"], "that it had taken up meanwhile"
    assert paper.start() == ["send j05 to 1"]
    paper.finish("j02", run_s=SHORT)
    assert paper.run.state.workers[0].job_id == "j04"


def test_all_orders_are_taken_back_where_what_they_hold_is_needed_now() -> None:
    paper = crowd(workers=2)
    paper.hand_ahead()
    assert ahead(paper, 0)
    assert ahead(paper, 1)
    recall(paper.run, everything=True)
    assert paper.decided() == ["take_back 0", "take_back 1"]
    recall(paper.run, everything=True)
    assert paper.decided() == [], "asked once"


def test_a_worker_may_be_done_before_it_hears_that_orders_are_taken_back_and_say_so_first() -> None:
    paper = crowd(count=20, workers=2)
    paper.hand_ahead()
    paper.run.now_s += 2 * LATE_S
    assert "take_back 0" in paper.hand_ahead()
    handed = list(ahead(paper))
    paper.finish("j02", run_s=SHORT)
    paper.hear(0, OrdersDropped(jobs=handed))
    assert paper.phases()[0] == "idle"
    assert {paper.jobs()[name] for name in handed} == {"ready"}
    assert paper.start()[0].endswith("to 0")


def test_an_answer_about_orders_that_were_taken_back_meanwhile_counts_no_more() -> None:
    paper = crowd()
    paper.hand_ahead()
    paper.run.now_s += 2 * LATE_S
    assert paper.hand_ahead() == ["take_back 0"]
    first = list(ahead(paper))
    paper.fail("j01", FailureKind.bug)
    paper.start()
    again = paper.hand_ahead()
    assert again
    handed = list(ahead(paper))
    paper.hear(0, OrdersDropped(jobs=first))
    assert ahead(paper) == handed, "the worker has the new orders still"


def test_a_worker_that_hangs_is_handed_nothing_ahead() -> None:
    paper = crowd(job_timeout_s=LATE_S / 2)
    assert "abort 0" in paper.wait(LATE_S / 2)
    assert paper.hand_ahead() == []


@pytest.mark.parametrize(
    ("jobs", "said"),
    [
        (["j04", "j05"], ""),
        (["j03", "j04", "j05"], ""),
        ([], ""),
        (["j03"], "of other jobs"),
        (["j05", "j04"], "of other jobs"),
        (["j01", "j02", "j03", "j04", "j05"], "of other jobs"),
        (["j09"], "of other jobs"),
        (["no job of this run"], "of other jobs"),
    ],
)
def test_a_worker_drops_no_other_jobs_than_those_it_was_given_last(jobs: list[str], said: str) -> None:
    paper = crowd()
    paper.hand_ahead()
    message = OrdersDropped(jobs=jobs)
    assert "was not asked" in objection(paper.run.state, (), 0, message)
    paper.begin("j01")
    paper.run.now_s += 2 * LATE_S
    assert "take_back 0" in paper.hand_ahead()
    objected = objection(paper.run.state, (), 0, message)
    assert (said in objected) if said else not objected
    paper.hear(0, message)
    assert bool(said) == (0 in paper.run.doomed)
    paper.hear(0, message)
    assert 0 in paper.run.doomed, "it answers once"
    paper.ended(0)
    assert {job_id for job_id, status in paper.jobs().items() if status == "running"} == set()


def test_orders_are_taken_back_from_behind_a_long_job_and_before_one_that_is_tried_again() -> None:
    paper = crowd(count=20, workers=2)
    paper.hand_ahead()
    paper.run.now_s += LATE_S / 2
    assert paper.hand_ahead() == []
    paper.run.now_s += LATE_S
    assert paper.hand_ahead() == ["take_back 0", "take_back 1"]
    for worker in (0, 1):
        paper.hear(worker, OrdersDropped(jobs=list(ahead(paper, worker))))
    assert paper.hand_ahead() == [], "they would be taken back again at once"
    paper.finish("j02", run_s=SHORT)
    paper.start()
    assert paper.hand_ahead()[0].endswith("to 0"), "it is at a short one again"
    paper = crowd(count=20, workers=2)
    paper.hand_ahead()
    paper.fail("j03", FailureKind.lost)
    assert paper.hand_ahead() == ["take_back 0"]
    paper.hear(0, OrdersDropped(jobs=list(ahead(paper))))
    assert paper.jobs()["j04"] == "ready"


def test_a_job_that_another_run_computes_or_has_stored_is_not_handed_ahead() -> None:
    paper = crowd()
    assert not any(words.startswith("send") for words in paper.hand_ahead(OnDisk(claimed=False)))
    paper = crowd()
    assert paper.hand_ahead(OnDisk(stored=True))[0] == "JobFoundStored j02"
    assert not ahead(paper)
