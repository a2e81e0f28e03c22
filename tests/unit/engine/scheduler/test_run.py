"""Whatever becomes of workers and jobs, the state of a run holds together and the run comes to its end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config.schema import RetryConfig
from pipeline.engine.devices.select import Layout, Place
from pipeline.engine.scheduler.run import ProcessOrder, Send
from pipeline.engine.scheduler.state import SETTLED, WorkerPhase
from pipeline.engine.workers.messages import FailureKind
from tests.doubles.engine import job
from tests.doubles.on_paper import OnPaper

JOBS = (
    job("a", memory_mb=30), job("b", needs=["a"], memory_mb=60), job("c", memory_mb=90, seconds=3.0),
    job("wide", needs=["a"], devices=2), job("d", needs=["wide", "c"], memory_mb=30), job("e", memory_kind="k"),
)  # fmt: skip
RAISED = [kind for kind in FailureKind if kind not in (FailureKind.lost, FailureKind.hang, FailureKind.storage)]


class Processes:
    """Processes on paper: they end when they are told to, and also when they are not."""

    def __init__(self, paper: OnPaper) -> None:
        self.paper = paper
        self.up = set(range(len(paper.run.state.workers)))
        self.starting: set[int] = set()
        self.ending: set[int] = set()
        self.has: dict[int, str] = {}
        """Process -> the job that it was sent."""

    def obey(self) -> None:
        """Do what was decided, and see that it could be asked for."""
        state = self.paper.run.state
        for effect in self.paper.effects:
            if isinstance(effect, Send):
                assert effect.worker in self.up - self.ending, "a job is sent where nobody is"
                assert state.jobs[effect.order.job_id].workers[0] == effect.worker
                self.has[effect.worker] = effect.order.job_id
            elif isinstance(effect, ProcessOrder):
                self.ending |= {effect.worker} & (self.up | self.starting)

    def end(self, index: int) -> None:
        """Let one end; another follows."""
        for processes in (self.up, self.starting, self.ending):
            processes.discard(index)
        self.has.pop(index, None)  # what it had is nobody's now, unless it is sent anew
        self.paper.ended(index)
        self.obey()
        self.starting.add(index)

    def begin(self, index: int) -> None:
        """Let one come up."""
        self.starting.discard(index)
        self.up.add(index)
        self.paper.ready(index)
        self.obey()

    def able(self) -> list[str]:
        """Jobs whose process could tell of their end."""
        had = self.paper.run.state.workers
        return [name for index, name in self.has.items() if index not in self.ending and had[index].job_id == name]


def check(paper: OnPaper) -> None:
    """What holds between any two events."""
    state, attempts = paper.run.state, paper.run.attempts
    running = [name for name, one in state.jobs.items() if one.status.value == "running"]
    assert len(running) == state.running
    assert sum(one.attempts for one in state.jobs.values()) == len(attempts) + len(running)
    for worker in state.workers:
        assert (worker.index in state.jobs[worker.job_id].workers) if worker.job_id else not worker.lent
        assert worker.phase is not WorkerPhase.gone
    for name in running:
        assert [state.workers[index].job_id for index in state.jobs[name].workers] == [name] * len(
            state.jobs[name].workers
        )
    assert set(paper.run.gathering) <= set(running)
    assert state.unsettled == sum(one.status not in SETTLED for one in state.jobs.values())
    check_view(paper)


def check_view(paper: OnPaper) -> None:
    """Whoever folds what is told knows where everything stands; a job runs from when its code has begun."""
    state, view = paper.run.state, paper.view
    begun = {name for name, one in state.jobs.items() if one.workers and state.workers[one.workers[0]].begun}
    for name, one in state.jobs.items():
        waits = one.status.value in ("pending", "ready", "running")
        assert view.jobs[name].status == ("running" if name in begun else "pending" if waits else one.status.value)
    for worker in state.workers:
        seen, has = view.workers[worker.index], worker.job_id if worker.job_id in begun else ""
        assert (seen.job_id, seen.lent_to) == (("", has) if worker.lent else (has, ""))
        assert (seen.status == "quarantined") == worker.quarantined
    assert sorted(view.running()) == sorted(begun)


@pytest.mark.properties
@given(st.data())
def test_whatever_becomes_of_workers_the_state_holds_together_and_the_run_ends(data: st.DataObject) -> None:
    places = tuple(Place(label=str(at), free_mb=100, usable_mb=100) for at in range(data.draw(st.integers(2, 3))))
    layout = Layout(places=places, slots=data.draw(st.integers(1, 2)), vouched=True)
    retry = RetryConfig(worker_lost=3, device_failures=data.draw(st.integers(1, 3)), wait_s=1.0)
    visible = data.draw(st.sampled_from(["", "GPU-"]))
    paper = OnPaper(*JOBS, layout=layout, retry=retry, visible=visible)
    processes = Processes(paper)
    state = paper.run.state
    for step in range(120):
        if not state.unsettled:
            return
        paper.start()
        processes.obey()
        check(paper)
        able = processes.able()
        events = ["wait"]
        events += [f"end {index}" for index in processes.ending or (processes.up if step < 40 else ())]
        events += [f"begin {index}" for index in processes.starting - processes.ending]
        events += [f"finish {name}" for name in able]
        events += [f"change {name}" for name in able]
        events += [f"raise {name}" for name in able if step < 40]
        event, _, what = data.draw(st.sampled_from(sorted(events))).partition(" ")
        if event == "wait":
            paper.wait(1.0)
        elif event == "end":
            processes.end(int(what))
        elif event == "begin":
            processes.begin(int(what))
        elif event in ("finish", "change"):
            paper.finish(what, held_mb=20, left_changed="all" if event == "change" else "")
        else:
            paper.fail(what, data.draw(st.sampled_from(RAISED)))
        processes.obey()
        check(paper)
    # The rest in calm: what is to end ends, what is to begin begins, and every job finishes.
    for _ in range(100):
        for index in list(processes.ending):
            processes.end(index)
        for index in processes.starting - processes.ending:
            processes.begin(index)
        paper.wait(100.0) if paper.run.delayed else None
        processes.obey()
        paper.start()
        processes.obey()
        while able := processes.able():
            paper.finish(able[0])
            processes.obey()
        check(paper)
    assert not state.unsettled, paper.jobs()
