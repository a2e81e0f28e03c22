"""Whether an engine with these devices can carry out a plan at all, and in words why not. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence

from pipeline.engine.devices.layout import Layout
from pipeline.engine.scheduler.memory_needs import Needs
from pipeline.engine.scheduler.ready import Kind, kind_of
from pipeline.engine.scheduler.state import RunState
from pipeline.errors import PlanError
from pipeline.plan.graph import Job, Plan


def too_few_devices(job: Job, devices: Sequence[int], layout: Layout, needs: Needs) -> str:
    """Say why a job cannot run on some devices: there are too few of them, or they are too small."""
    usable = layout.most_together(devices)
    if job.devices <= layout.most_together(devices, job.devices):
        return _too_large(job, devices, layout, needs)
    there = "there is 1" if usable == 1 else f"there are {usable}"
    if usable < len(devices):
        there += f" on one machine; a job of more has whole machines of one size{_whole(devices, layout)}"
    return (
        f"{job.id} needs {job.devices} devices at once, and {there}. Ask for fewer (training.gpus_per_job, "
        "generation.gpus_per_job), or run with more (distributed.num_gpus, execution.workers)"
    )


def _whole(devices: Sequence[int], layout: Layout) -> str:
    """How many devices jobs could have that take several machines, in words."""
    one = layout.most_together(devices)
    could = [width for width in range(one + 1, len(devices) + 1) if layout.most_together(devices, width) == width]
    return f", here {' or '.join(map(str, could))}" if could else ""


def _too_large(job: Job, devices: Sequence[int], layout: Layout, needs: Needs) -> str:
    places = [layout.places[device] for device in devices]
    have = ", ".join(f"{place.label} has {_gib(place.free_mb or 0)} free" for place in places)
    fitting = layout.most_together(needs.fitting(job, devices), job.devices)
    each = "" if job.devices == 1 else f" on each of {job.devices} devices"
    found = "no device of this run has so much" if not fitting else f"only {fitting} of this run have so much"
    return (
        f"{job.id} needs {_gib(needs.of(job) or 0)} of device memory{each}, and {found}: {have}. Try a smaller "
        "training.micro_batch_size or generation.batch_size, or share the training by training.gpus_per_job and "
        "training.strategy=fsdp, a model that writes by generation.gpus_per_job; or correct what memory_mb says"
    )


def _gib(mebibytes: int) -> str:
    return f"{mebibytes / 1024:.1f} GiB"


def too_wide(state: RunState) -> list[str]:
    """Jobs that could start now but for needing more devices, or larger ones, than are left."""

    def is_too_wide(name: str) -> bool:
        job = state.jobs[name].job
        return job.devices > state.table.most_devices(job)

    found = [name for name in state.retries if is_too_wide(name)]
    for alike in state.ready.alike.values():
        names = (name for *_, bucket in alike.buckets() for ids in bucket.values() for name in ids)
        first = next(names)
        if is_too_wide(first):
            found += [first, *names]
    return found


def check_runnable(
    plan: Plan, layout: Layout, stored: Collection[str] = (), peaks: Mapping[str, int] | None = None
) -> None:
    """Refuse what this engine cannot carry out.

    Args:
        plan: The plan.
        layout: The devices.
        stored: Ids of the jobs that need not run.
        peaks: Memory that jobs took in earlier runs, by `Job.memory_kind`.

    Raises:
        PlanError: A job needs more devices than there are, or larger ones, its id cannot name a folder, or its
            payload is no plain data.
    """
    needs, devices = Needs(layout, peaks), range(len(layout.places))
    plain: set[int] = set()
    """Parts of payloads that were looked at: thousands of jobs share large ones."""
    fit: set[Kind] = set()
    for job in plan.jobs.values():
        if job.id not in stored and (kind := kind_of(job)) not in fit:
            if job.devices > layout.most_together(needs.fitting(job, devices), job.devices):
                raise PlanError(too_few_devices(job, devices, layout, needs))
            fit.add(kind)
        if any(part in ("", ".", "..") for part in job.id.split("/")) or "\0" in job.id:
            raise PlanError(f"'{job.id}' cannot be the id of a job: its log would leave the run's folder")
        try:
            if new := {name: part for name, part in job.payload.items() if id(part) not in plain}:
                json.dumps(new)
                plain.update(map(id, new.values()))
        except (TypeError, ValueError) as error:
            raise PlanError(
                f"{job.id}: its payload cannot be sent to a worker ({error}); it must be plain data: numbers, "
                "texts, lists and mappings"
            ) from error
