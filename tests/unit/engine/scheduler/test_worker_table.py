"""Which workers are idle and which devices usable is found without looking at all of them, and is the same."""

import random

from pipeline.engine.devices.layout import Layout, Place
from pipeline.engine.scheduler.ready import Needs
from pipeline.engine.scheduler.state import WorkerPhase, WorkerTable
from pipeline.plan.graph import Job


def table_of(devices: int, slots: int = 1) -> WorkerTable:
    layout = Layout(places=tuple(Place(label=str(index), free_mb=100) for index in range(devices)), slots=slots)
    return WorkerTable(layout, Needs(layout))


def test_whatever_happens_to_workers_the_idle_ones_are_those_whose_phase_says_so() -> None:
    for seed in range(20):
        draw, table = random.Random(seed), table_of(4, slots=2)
        for step in range(200):
            index = draw.randrange(8)
            worker = table.workers[index]
            match draw.randrange(7):
                case 0:
                    table.ready(index, "cpu", "", "")
                case 1 if worker.phase is WorkerPhase.idle:
                    worker.take(str(step), 0.0, lent=draw.random() < 0.3)
                case 2:
                    table.free(index)
                case 3:
                    table.lost(index)
                case 4:
                    table.quarantine(index)
                case 5:
                    table.release(index)
                case 6:
                    worker.ends()
            if draw.random() < 0.5:  # not asked after every change
                idle = [one for one in table.workers if one.phase is WorkerPhase.idle]
                assert table.idle() == idle, seed
                usable = [one.index for one in table.workers if not one.quarantined]
                assert table.usable_devices() == sorted({number % 4 for number in usable})


def test_where_a_job_may_run_follows_what_is_learnt_of_its_needs_and_of_devices() -> None:
    layout = Layout(places=(Place(label="small", free_mb=10), Place(label="large", free_mb=100)))
    needs = Needs(layout)
    table = WorkerTable(layout, needs)
    job = Job(id="a", key="", entry="m:f", payload={}, memory_kind="k")
    assert (table.fitting_devices(job), table.most_devices(job)) == ([0, 1], 2)
    needs.measured(job, 50)
    assert (table.fitting_devices(job), table.most_devices(job)) == ([1], 1)
    table.quarantine(1)
    assert table.fitting_devices(job) == [0]  # a measurement refuses nothing
    table.release(1)
    assert table.fitting_devices(job) == [1]
