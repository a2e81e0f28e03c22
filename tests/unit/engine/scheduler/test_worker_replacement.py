"""Which processes end for the memory that they hold, and what waits for their end."""

from pipeline.engine.devices.select import Layout, Place
from pipeline.engine.workers.messages import FailureKind, WorkerUnusable
from pipeline.plan.graph import Job
from tests.doubles.engine import job
from tests.doubles.on_paper import OnPaper

PAIR = Layout(places=(Place(label="GPU 0", free_mb=100, usable_mb=100),), slots=2, vouched=False)


def gang(name: str = "gang", needs: tuple[str, ...] = (), width: int = 2) -> Job:
    return job(name, needs=needs, devices=width)


def test_processes_that_have_run_jobs_are_replaced_before_a_gang_is_sent() -> None:
    paper = OnPaper(job("a"), gang(needs=("a",)))
    paper.start()
    paper.finish("a")
    assert paper.start() == ["restart 0"]  # the other one is fresh
    assert "gang" in paper.run.gathering
    assert paper.ended(0) == ["WorkerExited"]
    paper.run.now_s = 5.0
    assert paper.ready(0) == ["WorkerStarted", "send gang to 0"]
    assert not paper.run.gathering
    paper.finish("gang")
    assert paper.run.attempts[-1].sent_s == 5.0


def test_a_job_waits_for_the_end_of_those_whose_memory_it_needs() -> None:
    jobs = [job("a", memory_mb=50), job("b", memory_mb=50), job("c", needs=["a", "b"], memory_mb=100)]
    paper = OnPaper(*jobs, layout=PAIR)
    paper.start()
    paper.finish("a", held_mb=40)
    paper.finish("b", held_mb=30)
    assert paper.start() == ["restart 1"]
    assert paper.phases() == ["running", "starting"]
    assert paper.ended(1) == ["WorkerExited", "send c to 0"]  # and not only when there is another process


def test_on_gpus_the_workers_are_replaced_after_ranks_had_their_devices() -> None:
    paper = OnPaper(gang(), job("after", needs=["gang"]), visible="GPU-")
    paper.start()
    assert paper.finish("gang") == ["JobFinished gang", "restart 0", "restart 1"]
    assert paper.start() == []
    paper.ended(0, 1)
    paper.ready(0)
    assert paper.start() == ["send after to 0"]


def test_the_device_of_the_rank_that_failed_is_the_suspect() -> None:
    paper = OnPaper(gang(), workers=4)
    paper.start()
    paper.fail("gang", FailureKind.device, rank=1)
    assert paper.run.state.blame.failed_on("gang") == {1}
    assert paper.start() == ["send gang to 2"]


def test_a_gang_for_which_too_few_devices_are_left_fails_at_once() -> None:
    paper = OnPaper(job("a"), gang(needs=("a",)))
    paper.hear(1, WorkerUnusable(reason="why"))
    paper.start()
    paper.finish("a")
    assert paper.start() == ["JobFailed gang"]
    assert "gang needs 2 devices at once, and there are 1" in paper.run.state.jobs["gang"].reason
