"""How well more devices are used: the default plan on one and two workers, a recorded plan on eight devices.

    python benchmarks/scaling.py                     all parts
    python benchmarks/scaling.py replay --speed 4    the recorded plan: sleeping jobs, with and without the barrier
    python benchmarks/scaling.py gangs               the recorded plan on paper, trainings on 1 to 8 devices
    python benchmarks/scaling.py workers experiment.seeds=[0]       run_parallel.py, keys as on its command line
    python benchmarks/scaling.py record RUN_FOLDER data/plan.json   make a recording of a finished run

A recording keeps the jobs, edges and durations of a real run, loading left out, and what the engine had estimated
for each job, which is not the same. `record --seeds 8` repeats its seeds to make work enough for eight devices.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from rich.console import Console
from rich.table import Table

from benchmarks.arguments import positive
from pipeline.config.schema import Barrier, ExecutionConfig
from pipeline.engine.devices.inventory import cpu_slots
from pipeline.engine.journal import Journal, JournalReader
from pipeline.engine.run_jobs import make_pool
from pipeline.engine.scheduler.loop import Outside, run_plan
from pipeline.engine.scheduler.outcome import Outcome, account
from pipeline.engine.scheduler.state import RunState
from pipeline.engine.store.store import Store
from pipeline.plan.graph import Job, Plan
from tests.doubles.simulate import simulate

ROOT = Path(__file__).parents[1]
RECORDING = Path(__file__).parent / "data" / "eight_devices.json"
NAME = "scaling"
LITTLE = ["rounds_of_training=1", "data_collection.prompts_per_round=8", "algos.QSharp.enabled=false"]
WIDTH = 120


# -- a recorded plan on imagined devices ------------------------------------------------------------


def replay(path: Path, devices: int, speed: float) -> Table:
    """Carry out a recorded plan with sleeping jobs, without and with the barrier."""
    recorded = json.loads(path.read_text())
    plan = recorded_plan(recorded, speed)
    seconds = {job.id: float(job.payload["seconds"]) for job in plan.jobs.values()}
    path_s, work_s = max(plan.longest_paths(seconds).values()), sum(seconds.values())
    bound_s = max(path_s, work_s / devices)
    table = Table(
        title=f"{len(plan.jobs)} recorded jobs on {devices} imagined devices, {speed:g} times as fast; "
        f"lower bound {bound_s:.2f} s (critical path {path_s:.2f} s, work / devices {work_s / devices:.2f} s)"
    )
    table.add_column("barrier")
    for name in ("makespan", "/ lower bound", "lost: load", "dependency", "tail"):
        table.add_column(name, justify="right")
    for barrier in Barrier:
        made = _carry_out(plan, devices, barrier).makespan
        assert made is not None
        table.add_row(
            barrier.value,
            f"{made.actual_s:.2f} s",
            f"{made.actual_s / bound_s:.3f}",
            *(f"{lost:.2f} s" for lost in (made.load_s, made.dependency_s, made.tail_s)),
        )
    return table


def recorded_plan(recorded: dict[str, Any], speed: float) -> Plan:
    """The plan of a recording, its jobs replaced by sleep."""
    jobs = [
        Job(
            id=job["id"],
            key="",
            entry="benchmarks.bodies:sleep",
            payload={"seconds": job["seconds"] / speed},
            round=job["round"],
            affinity=job["affinity"],
            seconds=job["estimate"] / speed,
        )
        for job in recorded["jobs"]
    ]
    return Plan(jobs, [tuple(edge) for edge in recorded["edges"]])


def _carry_out(plan: Plan, devices: int, barrier: Barrier) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="pipeline-bench-") as name:
        folder = Path(name)
        settings = ExecutionConfig(barrier=barrier)
        journal = Journal(folder / "journal.jsonl")
        try:
            outside = Outside(
                store=Store(folder / "store"),
                pool=make_pool(settings, cpu_slots(devices), threads=1, log_dir=folder / "workers"),
                journal=journal,
                run_dir=folder,
            )
            return run_plan(plan, outside, stored=(), settings=settings)
        finally:
            journal.close()


# -- trainings on several imagined devices ------------------------------------------------------------


WIDTHS = ((1, 2, 4, 8), (1, 1, 2, 4, 8), (2, 4), (1, 2, 4))


def gangs(path: Path, devices: int, draws: int) -> Table:
    """Schedule a recorded plan whose trainings need several devices: the real policy, an imagined clock."""
    recorded = json.loads(path.read_text())
    table = Table(
        title=f"{len(recorded['jobs'])} recorded jobs on {devices} imagined devices, {draws} draws of widths"
    )
    table.add_column("devices of a training")
    for name in ("makespan / lower bound: mean", "worst", "latest start of a gang after its promise"):
        table.add_column(name, justify="right")
    for widths in WIDTHS:
        made = [_scheduled(recorded, devices, widths, seed) for seed in range(draws)]
        ratios = [ratio for ratio, _ in made]
        table.add_row(
            ", ".join(map(str, widths)),
            f"{statistics.mean(ratios):.3f}",
            f"{max(ratios):.3f}",
            f"{max(late for _, late in made):.2f} s",
        )
    return table


def _scheduled(recorded: dict[str, Any], devices: int, widths: tuple[int, ...], seed: int) -> tuple[float, float]:
    """Makespan over lower bound, and by how much a gang began later than was estimated when it was promised."""
    draw = random.Random(seed)
    plan = recorded_plan(recorded, 1.0)
    jobs = [
        replace(job, devices=draw.choice(widths)) if "/train" in job.id and "/reference/" not in job.id else job
        for job in plan.jobs.values()
    ]
    plan = Plan(jobs, plan.edges())
    took = {job.id: float(job.payload["seconds"]) for job in jobs}
    promised: dict[str, float] = {}

    def watch(state: RunState, now_s: float) -> None:
        for name in state.reserved.keys() - promised.keys():
            ends = [
                state.jobs[one.job_id].sent_s + plan.jobs[one.job_id].seconds
                for one in state.workers
                if one.job_id
            ]
            promised[name] = max(now_s, *ends)

    attempts = simulate(plan, devices, took, watch=watch)
    made = account(plan, attempts, [], devices, 0.0)
    assert made is not None
    sent_s = {attempt.job_id: attempt.sent_s for attempt in attempts}
    return made.ratio, max((sent_s[name] - at for name, at in promised.items()), default=0.0)


# -- making a recording ------------------------------------------------------------


def record(run: Path, seeds: int) -> dict[str, Any]:
    """Jobs, edges and durations of a finished run, its seeds repeated until there are so many."""
    planned = json.loads((run / "plan.json").read_text())
    took = {
        event["job"]: event["run_s"] - event["load_s"]
        for event in JournalReader(run / "journal.jsonl").new_events()
        if event["event"] == "JobFinished"
    }
    ran = {job["id"]: job for job in planned["jobs"] if job["id"] in took}
    # The engine estimates by algorithm and stage: from the mean over seeds and rounds, per sample.
    rates: dict[tuple[str, str], list[float]] = defaultdict(list)
    for name, job in ran.items():
        rates[job["algo"], job["stage"]].append(took[name] / max(1, job["samples"]))
    there = sorted({job["seed"] for job in ran.values() if job["seed"] is not None})
    copies = [(there[index % len(there)], index) for index in range(seeds)]
    jobs: dict[str, dict[str, Any]] = {}
    edges: set[tuple[str, str]] = set()
    for old, new in copies:
        names = {name: _renamed(name, old, new) for name, job in ran.items() if job["seed"] in (None, old)}
        for name, copy in names.items():
            job = ran[name]
            estimate = statistics.mean(rates[job["algo"], job["stage"]]) * max(1, job["samples"])
            jobs[copy] = {
                "id": copy,
                "round": job["round"],
                "affinity": f"{job['affinity'][:8]}{'' if job['seed'] is None else f'-s{new}'}",
                "estimate": round(estimate, 4),
                "seconds": round(took[name], 4),
            }
        edges |= {(names[up], names[down]) for up, down in planned["edges"] if up in names and down in names}
    return {"recorded": len(ran), "seeds": seeds, "jobs": list(jobs.values()), "edges": sorted(edges)}


def _one_job_a_line(recorded: dict[str, Any]) -> str:
    parts = (
        f'"{name}": '
        + ("[\n" + ",\n".join(map(json.dumps, value)) + "\n]" if name == "jobs" else json.dumps(value))
        for name, value in recorded.items()
    )
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _renamed(name: str, old: int, new: int) -> str:
    return "/".join(f"s{new}" if part == f"s{old}" else part for part in name.split("/"))


# -- the default plan on real workers ------------------------------------------------------------


def compare_workers(overrides: list[str]) -> Table:
    """Run the default plan on one and on two workers, the reference already stored."""
    table = Table(title=f"run_parallel.py {' '.join(overrides)}, reference stored beforehand")
    table.add_column("workers")
    for name in ("others' load", "wall time", "speed-up", "equal results"):
        table.add_column(name, justify="right")
    table.add_column("where the time went")
    with tempfile.TemporaryDirectory(prefix="pipeline-bench-") as name:
        folder = Path(name)
        seed = folder / "reference"
        # As little as can be asked for that needs the reference, trained and evaluated.
        _run_parallel(seed, [*overrides, *LITTLE])
        (seed / ".store" / "durations.json").unlink()  # of so little work it would mislead the order of the rest
        measured = {workers: _timed(seed, folder / str(workers), workers, overrides) for workers in (1, 2)}
    for workers, run in measured.items():
        equal = "" if workers == 1 else ("yes" if run.results == measured[1].results else "NO")
        speedup = f"{measured[1].wall_s / run.wall_s:.2f}"
        table.add_row(str(workers), f"{run.load:.1f}", f"{run.wall_s:.1f} s", speedup, equal, run.makespan)
    return table


@dataclass(frozen=True)
class Timed:
    """One run of the default plan.

    Attributes:
        load: Load average of the machine before it: what other programs take is missing here.
        wall_s: Of the whole command.
        makespan: The engine's own account.
        results: The bytes of its results.
    """

    load: float
    wall_s: float
    makespan: str
    results: bytes


def _timed(seed: Path, output: Path, workers: int, overrides: list[str]) -> Timed:
    shutil.copytree(seed / ".store", output / ".store")
    load, start = os.getloadavg()[0], time.monotonic()
    _run_parallel(output, [*overrides, f"execution.workers={workers}"])
    wall_s = time.monotonic() - start
    run = output / NAME / "latest"
    line = next(line for line in (run / "run.log").read_text().splitlines() if " makespan " in line)
    return Timed(load, wall_s, line[line.index("makespan ") :], (run / "results.json").read_bytes())


def _run_parallel(output: Path, overrides: list[str]) -> None:
    command = [sys.executable, str(ROOT / "run_parallel.py"), f"experiment.name={NAME}", f"output_dir={output}"]
    done = subprocess.run([*command, *overrides], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"run_parallel.py ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description="How well more devices are used.")
    parts = parser.add_subparsers(dest="part")
    replaying = parts.add_parser("replay", help="a recorded plan with sleeping jobs")
    replaying.add_argument("--recording", type=Path, default=RECORDING)
    replaying.add_argument("--devices", type=positive, default=8)
    replaying.add_argument("--speed", type=float, default=4.0)
    ganging = parts.add_parser("gangs", help="a recorded plan on paper, with trainings on several devices")
    ganging.add_argument("--recording", type=Path, default=RECORDING)
    ganging.add_argument("--devices", type=positive, default=8)
    ganging.add_argument("--draws", type=positive, default=20)
    workers = parts.add_parser("workers", help="the default plan on one and two workers")
    workers.add_argument("overrides", nargs="*")
    recording = parts.add_parser("record", help="make a recording of a finished run")
    recording.add_argument("run", type=Path)
    recording.add_argument("out", type=Path)
    recording.add_argument("--seeds", type=positive, default=8)
    args = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    console = Console(width=max(WIDTH, Console().width))
    if args.part == "record":
        args.out.write_text(_one_job_a_line(record(args.run, args.seeds)))
    if args.part == "replay":
        console.print(replay(args.recording, args.devices, args.speed))
    if args.part == "gangs":
        console.print(gangs(args.recording, args.devices, args.draws))
    if args.part == "workers":
        console.print(compare_workers(args.overrides or ["experiment.seeds=[0,1,2]"]))
    if args.part is None:
        console.print(replay(RECORDING, 8, 4.0))
        console.print(gangs(RECORDING, 8, 20))
        console.print(compare_workers(["experiment.seeds=[0,1,2]"]))


if __name__ == "__main__":
    main()
