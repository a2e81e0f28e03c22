"""Which workers are idle and which devices usable is found without looking at all of them, and is the same."""

import random

from pipeline.engine.devices.layout import Layout, Place
from pipeline.engine.scheduler.crew import Crew
from pipeline.engine.scheduler.memory_needs import Needs
from pipeline.engine.scheduler.worker_state import WorkerPhase
from pipeline.plan.job import Job


def crew_of(devices: int, slots: int = 1) -> Crew:
    layout = Layout(places=tuple(Place(label=str(index), free_mb=100) for index in range(devices)), slots=slots)
    return Crew(layout, Needs(layout))


def test_whatever_happens_to_workers_the_idle_ones_are_those_whose_phase_says_so() -> None:
    for seed in range(20):
        draw, crew = random.Random(seed), crew_of(4, slots=2)
        for step in range(200):
            index = draw.randrange(8)
            worker = crew.workers[index]
            match draw.randrange(7):
                case 0:
                    crew.ready(index, "cpu", "", "")
                case 1 if worker.phase is WorkerPhase.idle:
                    worker.take(str(step), 0.0, lent=draw.random() < 0.3)
                case 2:
                    crew.free(index)
                case 3:
                    crew.lost(index)
                case 4:
                    crew.quarantine(index)
                case 5:
                    crew.release(index)
                case 6:
                    worker.ends()
            if draw.random() < 0.5:  # not asked after every change
                idle = [one for one in crew.workers if one.phase is WorkerPhase.idle]
                assert crew.idle() == idle, seed
                usable = [one.index for one in crew.workers if not one.quarantined]
                assert crew.usable_devices() == sorted({number % 4 for number in usable})


def test_where_a_job_may_run_follows_what_is_learnt_of_its_needs_and_of_devices() -> None:
    layout = Layout(places=(Place(label="small", free_mb=10), Place(label="large", free_mb=100)))
    needs = Needs(layout)
    crew = Crew(layout, needs)
    job = Job(id="a", key="", entry="m:f", payload={}, memory_kind="k")
    assert (crew.fitting_devices(job), crew.most_devices(job)) == ([0, 1], 2)
    needs.measured(job, 50)
    assert (crew.fitting_devices(job), crew.most_devices(job)) == ([1], 1)
    crew.quarantine(1)
    assert crew.fitting_devices(job) == [0]  # a measurement refuses nothing
    crew.release(1)
    assert crew.fitting_devices(job) == [1]
