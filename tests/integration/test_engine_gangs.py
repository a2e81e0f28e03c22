"""Jobs of several devices on real workers: what ranks see, and what is left when one of them fails."""

import json
import signal
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from pipeline.config.schema import RetryConfig
from pipeline.engine.devices.inventory import held_port
from pipeline.engine.scheduler.outcome import Outcome
from pipeline.engine.scheduler.state import JobStatus
from pipeline.errors import JobError
from pipeline.plan.graph import Job
from pipeline.runs.run_view import RunView
from tests.doubles.engine import Engine, job, key


def folder(tmp_path: Path, name: str = "flags") -> str:
    (tmp_path / name).mkdir()
    return str(tmp_path / name)


def test_every_rank_runs_the_job_and_the_first_one_writes(engine: Engine, tmp_path: Path) -> None:
    with held_port(None) as port:
        pass
    payload = {"meeting": folder(tmp_path), "master_port": port}
    seen = list[Mapping[str, float | None]]()

    def watch(view: RunView) -> None:
        seen.extend(attempt.numbers for attempt in view.jobs["gang"].attempts)

    outcome = engine.run(
        job("before", "remember"), job("gang", "rank_facts", ["before"], devices=3, payload=payload),
        job("after", "remember", ["gang"]), workers=3, watcher=watch,
    )  # fmt: skip
    assert set(outcome.jobs.values()) == {JobStatus.done}
    ranks = [json.loads((tmp_path / "flags" / str(rank)).read_text()) for rank in range(3)]
    assert [facts["RANK"] + facts["LOCAL_RANK"] + facts["WORLD_SIZE"] for facts in ranks] == ["003", "113", "223"]
    assert [facts["work"] for facts in ranks] == [[rank, 3, "cpu"] for rank in range(3)]
    assert {facts["MASTER_PORT"] for facts in ranks} == {str(port)}, "the port of the user wins"
    assert {facts["MASTER_ADDR"] for facts in ranks} == {"127.0.0.1"}
    assert {facts["CUDA_VISIBLE_DEVICES"] for facts in ranks} == {""}
    assert len({facts["pid"] for facts in ranks}) == 3
    assert len({facts["group"] for facts in ranks}) == 1  # the leading worker's: whatever ends it ends them
    assert not any(facts["torch"] for facts in ranks)
    assert json.loads((engine.store.path(key("gang")) / "facts.json").read_text()) == ranks[0]
    assert "this is rank 0" in engine.log("gang")
    assert (engine.run_dir / "jobs/gang/log.rank2.txt").read_text().strip() == "this is rank 2"
    (started,) = engine.events("JobStarted", "gang")
    assert sorted([started["worker"], *started["members"]]) == [0, 1, 2]
    (finished,) = engine.events("JobFinished", "gang")
    assert finished["tokens"] == 10  # as rank 0 counted
    assert seen[-1] == {"loss": 0.5, "kl": None}  # likewise, while it ran
    # The worker that ran a job before was replaced, so that nothing of it was left on its device.
    pid, last = (
        engine.store.path(key(name)).joinpath("count.txt").read_text().split() for name in ("before", "after")
    )
    assert last[0] == "1"
    assert pid[1] != last[1]
    assert not engine.events("AttemptFailed")
    assert outcome.makespan is not None
    assert outcome.makespan.work_s > 0


FAILS = {
    "kill_self": ("lost", "rank 1 of 2 was lost (signal 9 (SIGKILL))"),
    "exit_at_once": ("lost", "rank 1 of 2 was lost (exit code 7)"),
    "write_garbage": ("lost", "rank 1 of 2 was lost (it sent what is no message"),
    "leave_odd_counts": ("bug", "rank 1 of 2 raised TypeError: tokens=nan"),
    "raise_error": ("bug", "rank 1 of 2 raised ValueError: this body raises"),
    "raise_out_of_memory": ("out_of_memory", "rank 1 of 2 raised MemoryError: no room"),
}
"""What rank 1 does, what that is called, and what is said of it."""


def gang_that_fails(body: str) -> Job:
    """Rank 1 does that, and rank 0 would wait for ever, ignoring requests to stop."""
    payload = {"rank": 1, "body": body, "ignore": True}
    return job(f"gang/{body}", "one_rank_fails", devices=2, payload=payload)


@pytest.fixture(scope="module")
def after_one_rank_failed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Engine, Outcome]:
    """A run of them all, one after the other."""
    engine = Engine(tmp_path_factory.mktemp("gangs"))
    below = [job(f"below/{body}", "nothing", [f"gang/{body}"]) for body in FAILS]
    retry = RetryConfig(worker_lost=1, out_of_memory=1, device_failures=99)
    outcome = engine.run(*map(gang_that_fails, FAILS), *below, workers=2, retry=retry)
    assert engine.leftovers() == []
    return engine, outcome


@pytest.mark.parametrize("body", FAILS)
def test_one_rank_that_fails_ends_all(after_one_rank_failed: tuple[Engine, Outcome], body: str) -> None:
    engine, outcome = after_one_rank_failed
    (kind, reason), gang = FAILS[body], f"gang/{body}"
    (failed,) = engine.events("AttemptFailed", gang)
    assert failed["kind"] == kind
    assert failed["reason"].startswith(reason)
    assert f"GangError: {reason}" in engine.log(gang)
    assert "Its log, log.rank1.txt, ends:\n" in engine.log(gang)
    assert "rank 1 was here" in (engine.run_dir / "jobs" / gang / "log.rank1.txt").read_text()
    assert (outcome.jobs[gang], outcome.jobs[f"below/{body}"]) == (JobStatus.failed, JobStatus.blocked)


def test_a_leader_that_hangs_is_killed_with_its_ranks(engine: Engine, tmp_path: Path) -> None:
    outcome = engine.run(
        job("gang", "loop_without_progress", devices=2), workers=2, retry=RetryConfig(hang=1), heartbeat_s=0.1,
        heartbeat_timeout_s=60.0, progress_timeout_s=8.0,  # both ranks must have begun
    )  # fmt: skip
    assert "no progress" in outcome.reason("gang")
    # The stacks that are written before are those of the ranks.
    assert "in loop_without_progress" in engine.log("gang")
    assert "in loop_without_progress" in (engine.run_dir / "jobs/gang/log.rank1.txt").read_text()


def test_a_notice_to_the_ranks_alone_stops_the_attempt_and_another_goes_on(engine: Engine, tmp_path: Path) -> None:
    notices = {number: Path(folder(tmp_path, number.name)) for number in (signal.SIGUSR2, signal.SIGTERM)}

    def notify() -> None:
        give_up = time.monotonic() + 200
        told: set[signal.Signals] = set()
        while told != set(notices) and time.monotonic() < give_up:
            for number in notices.keys() - told:
                if len(list(notices[number].iterdir())) == 2:
                    for one in psutil.Process().children(recursive=True):
                        with suppress(psutil.Error):  # others may end meanwhile
                            if "RANK" in one.environ():
                                one.send_signal(number)
                    told.add(number)
            time.sleep(0.01)

    thread = threading.Thread(target=notify)
    thread.start()
    jobs = [
        job(number.name, "ranks_stop_when_asked", devices=2, payload={"flag": str(flags)})
        for number, flags in notices.items()
    ]
    outcome = engine.run(*jobs, workers=2)
    thread.join()
    for number in notices:
        ends = [attempt.outcome for attempt in outcome.attempts if attempt.job_id == number.name]
        assert ends == ["stopped", "done"]


def test_a_port_is_held_until_it_is_used() -> None:
    with held_port(None) as port, socket.socket() as other:
        with pytest.raises(OSError):
            other.bind(("127.0.0.1", port))
        with socket.socket() as store:
            store.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            store.bind(("127.0.0.1", port))
            store.listen()
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        number = taken.getsockname()[1]
        with pytest.raises(JobError, match=f"master_port={number} is taken"), held_port(number):
            pass
