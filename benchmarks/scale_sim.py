"""From one to a thousand devices: the engine's own loop, rules and journal, imagined workers and clock.

    python benchmarks/scale_sim.py                          both mixes on 1 to 256 devices, three draws of each
    python benchmarks/scale_sim.py --quick                  a few hundred jobs, in seconds
    python benchmarks/scale_sim.py --mix 8b --devices 256 --jobs 10000 --trainings 200
    python benchmarks/scale_sim.py --mix 8b --devices 256 --jobs 10000 --trainings 200 --spread 0.2
    python benchmarks/scale_sim.py --mix 8b --devices 1000 --jobs 100000 --seeds 1 --json out.json
    python benchmarks/scale_sim.py --profile --devices 1000         where the engine's processor time goes

Two mixes of jobs. `recorded` repeats the chains of a real run (`data/eight_devices.json`, made by `scaling.py
record`) with the seconds that its jobs took, of one device each and of some seconds. `8b` is made up: rounds of
a policy of 8 billion parameters on GPUs, eight to a machine, with trainings on 1 to 8 of them; what is drawn is
drawn from a seed. Estimates are wrong in both: those of the engine's own in the first; in the second what a job
takes differs from what its kind takes on average as in the recording, or as `--spread` says.

What is measured is one process: the engine. What workers do is imagined (`imagined.py`). Keys are claimed, in
memory, nothing is committed, which workers do, and they say no more than that a job begins and that it is done.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import math
import os
import platform
import pstats
import random
import resource
import shlex
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from statistics import mean
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from rich.console import Console
from rich.table import Table

from benchmarks.arguments import positive
from benchmarks.imagined import Clock, ImaginedPool, ImaginedStore, Speeds
from pipeline.config.schema import ExecutionConfig
from pipeline.engine.devices.select import Layout, Place
from pipeline.engine.journal import Journal, Listener
from pipeline.engine.scheduler.loop import Outside, run_plan
from pipeline.engine.scheduler.outcome import Outcome
from pipeline.plan.graph import Job, Plan
from pipeline.runs.run_view import RunView

RECORDING = Path(__file__).parent / "data" / "eight_devices.json"
ROUNDS = 2
DEVICES = (1, 8, 64, 256)
JOBS_EACH = 10
"""Jobs of a device, where nothing else is asked for; 1,000 at least."""
QUICK = ["--devices", "1", "16", "--jobs", "200", "--seeds", "1"]
MEMORY = Path("/dev/shm")
"""No disk is waited for, as none is measured."""
FOREVER_S = 1e6
STAGES = ("generate", "train", "evaluate", "metrics")
WIDTH = 170


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is carried out.

    Attributes:
        name: The mix.
        plan: With the estimates that the engine has.
        seconds: Job id -> what it takes.
        sizes: Job id -> bytes of its output.
        speeds: Of the imagined machines.
        node_size: Devices of a machine.
        visible_mb: Memory of a device; None for a CPU slot.
        models: How many models a worker keeps.
    """

    name: str
    plan: Plan
    seconds: dict[str, float]
    sizes: dict[str, float] = field(default_factory=dict)
    speeds: Speeds = field(default_factory=Speeds)
    node_size: int = 8
    visible_mb: int | None = None
    models: int = 1


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One run.

    Attributes:
        mix: The mix.
        devices: How many.
        nodes: On how many machines.
        seed: Of what is drawn.
        jobs: How many.
        makespan_s: Imagined seconds.
        bound_s: The least that any schedule could take: max(critical path, work / devices), loading left out.
        path_s: The critical path.
        use: Share of the devices' time in which they had a job that ended well, its loading included.
        early: The same in the first nine tenths of the makespan.
        work: As `use`, without loading.
        best: The share that a schedule at the bound would have of `work`.
        cpu_ms: Processor time of the engine for each job.
        busy: Share of the makespan in which the engine would be computing.
        read: Bytes that jobs read.
        moved: Bytes of them that their machine had neither made nor read, or had no room to keep.
        journal: Bytes of the journal.
        turns: Of the loop.
        rss: The most memory of this process so far, in bytes.
    """

    mix: str
    devices: int
    nodes: int
    seed: int
    jobs: int
    makespan_s: float
    bound_s: float
    path_s: float
    use: float
    early: float
    work: float
    best: float
    cpu_ms: float
    busy: float
    read: float
    moved: float
    journal: int
    turns: int
    rss: int


# -- mixes ------------------------------------------------------------------------------------------------------


def recorded(jobs: int, seed: int, path: Path = RECORDING) -> Case:
    """The chains of a recorded run, again and again until there are so many jobs; which ones is drawn."""
    found = json.loads(path.read_text())
    chains: dict[str, list[dict[str, Any]]] = {}
    shared = [job for job in found["jobs"] if _seed_of(job["id"]) is None]
    for job in found["jobs"]:
        if (of := _seed_of(job["id"])) is not None:
            chains.setdefault(of, []).append(job)
    draw, made, edges = random.Random(seed), [], []
    seconds: dict[str, float] = {}
    before: dict[str, list[str]] = {}
    for up, down in found["edges"]:
        before.setdefault(down, []).append(up)
    for copy in range(max(1, math.ceil(jobs / (len(found["jobs"]) / len(chains))))):
        names = list(chains)
        of = names[copy] if copy < len(names) else draw.choice(names)
        for job in [*(shared if copy == 0 else []), *chains[of]]:
            name = _renamed(job["id"], of, copy)
            affinity = job["affinity"] if job in shared else f"{job['affinity']}-{copy}"
            made.append(_job(name, job["estimate"], affinity=affinity, round=job["round"]))
            seconds[name] = float(job["seconds"])
            edges += [(_renamed(up, of, copy), name) for up in before.get(job["id"], ())]
    return Case(name="recorded", plan=Plan(made, edges), seconds=seconds, speeds=Speeds(start_s=0.3))


def _seed_of(name: str) -> str | None:
    return next((part for part in name.split("/") if part[:1] == "s" and part[1:].isdigit()), None)


def _renamed(name: str, of: str, copy: int) -> str:
    return "/".join(f"s{copy}" if part == of else part for part in name.split("/"))


def ratios_to_mean(path: Path = RECORDING) -> dict[str, list[float]]:
    """Of each stage what its recorded jobs took over the mean of those like them, seed and shard apart."""
    kinds: dict[str, list[float]] = {}
    for job in json.loads(path.read_text())["jobs"]:
        parts = [part for part in job["id"].split("/") if part != _seed_of(job["id"]) and not part.isdigit()]
        kinds.setdefault("/".join(parts), []).append(job["seconds"])
    found: dict[str, list[float]] = {stage: [] for stage in STAGES}
    for kind, seconds in kinds.items():
        found[kind.rpartition("/")[2]] += [one / mean(seconds) for one in seconds]
    return found


def made_up_8b(
    jobs: int,
    seed: int,
    *,
    trainings: int | None = None,
    shards: int = 50,
    widest: int = 8,
    spread: float | None = None,
) -> Case:
    """Rounds of a policy of 8 billion parameters. Nothing of this was measured: it is what a user may have.

    A shard of completions takes four minutes on a GPU and a training an hour of GPU time, on 1, 2, 4 or 8 of
    them at 85 % of the speed for each doubling. Evaluations take two minutes, metrics five seconds. What each
    really takes is that times a draw of what jobs of its stage took over the mean of their kind in the recording;
    or has a log-normal distribution around that, of a standard deviation `spread` of the logarithm.
    """
    draw = random.Random(seed)
    recorded_ratios = ratios_to_mean()
    each = shards + 1 + 4 + 1
    chains = max(1, (trainings or round(jobs / each)) // ROUNDS)
    made: list[Job] = []
    edges: list[tuple[str, str]] = []
    seconds: dict[str, float] = {}
    sizes: dict[str, float] = {}

    def add(name: str, mean_s: float, reads: Iterable[str], size: float, **about: Any) -> str:
        made.append(_job(name, mean_s, **about))
        stage = next(stage for stage in STAGES if f"/{stage}" in name)
        ratio = draw.choice(recorded_ratios[stage]) if spread is None else draw.lognormvariate(0.0, spread)
        seconds[name] = mean_s * ratio
        sizes[name] = size
        edges.extend((up, name) for up in reads)
        return name

    for chain in range(chains):
        policy: list[str] = []
        for number in range(1, ROUNDS + 1):
            place, held = f"d/8b/s{chain}/A/r{number}", policy[0] if policy else "8b"
            about = {"round": number, "affinity": held}
            texts = [add(f"{place}/generate/{shard:03d}", 240.0, policy, 20e6, **about) for shard in range(shards)]
            width = draw.choice([width for width in (1, 2, 4, 8) if width <= widest])
            took_s = 3600.0 / width / 0.85 ** math.log2(width)
            policy = [add(f"{place}/train", took_s, [*texts, *policy], 16e9, devices=width, **about)]
            about = {"round": number, "affinity": policy[0]}
            found = [add(f"{place}/evaluate/{shard:03d}", 120.0, policy, 5e6, **about) for shard in range(4)]
            add(f"{place}/metrics", 5.0, found, 1e4, round=number)
    speeds = Speeds(start_s=8.0, import_s=15.0, load_s=10.0, remote=2e9)
    return Case(
        name="8b", plan=Plan(made, edges), seconds=seconds, sizes=sizes, speeds=speeds, visible_mb=80 * 1024
    )


def _job(name: str, estimate_s: float, **about: Any) -> Job:
    return Job(
        id=name,
        key=sha256(name.encode()).hexdigest(),
        entry="imagined:nothing",
        payload={},
        seconds=estimate_s,
        **about,
    )


MIXES = ("recorded", "8b")


# -- one run ----------------------------------------------------------------------------------------------------


def layout_of(devices: int, case: Case) -> Layout:
    """Devices on machines of equal size."""
    memory = case.visible_mb
    places = [
        Place(label=f"device {index}", node=index // case.node_size, free_mb=memory, usable_mb=memory)
        for index in range(devices)
    ]
    return Layout(places=tuple(places))


def measure(case: Case, devices: int, seed: int = 0, *, talking: bool = False) -> Measured:
    """Carry out a case, and measure the engine."""
    layout, clock = layout_of(devices, case), Clock()
    settings = ExecutionConfig(models_in_memory=case.models)
    if not talking:
        settings.heartbeat_timeout_s, settings.progress_timeout_s = FOREVER_S, None
    pool = ImaginedPool(
        case.plan,
        layout,
        case.seconds,
        clock,
        sizes=case.sizes,
        speeds=case.speeds,
        talking=talking,
    )
    with tempfile.TemporaryDirectory(prefix="pipeline-scale-", dir=MEMORY if MEMORY.is_dir() else None) as name:
        folder = Path(name)
        journal = Journal(folder / "journal.jsonl")
        view = RunView(case.plan.jobs.values())
        began_s = time.process_time()
        with closing(journal):
            outside = Outside(
                pool=pool,
                store=ImaginedStore(folder / "store", case.plan, case.sizes),
                journal=journal,
                run_dir=folder / "name" / "run",
                listener=Listener(on_event=view.take),
                clock=clock,
            )
            outcome = run_plan(case.plan, outside, stored=(), settings=settings, layout=layout)
        cpu_s = time.process_time() - began_s - pool.cpu_s
        size = (folder / "journal.jsonl").stat().st_size
    return _measured(case, devices, seed, outcome, pool, cpu_s, size)


def _measured(
    case: Case,
    devices: int,
    seed: int,
    outcome: Outcome,
    pool: ImaginedPool,
    cpu_s: float,
    journal: int,
) -> Measured:
    made = outcome.makespan
    assert made is not None
    assert is_whole(outcome)
    plan, seconds = case.plan, case.seconds
    work_s = sum(seconds[job.id] * job.devices for job in plan.jobs.values())
    held_s = sum(attempt.total_s * attempt.devices for attempt in outcome.attempts if attempt.succeeded)
    most_s = 0.9 * made.actual_s  # the clock begins with the run
    early_s = sum(max(0.0, min(one.ended_s, most_s) - one.sent_s) * one.devices for one in outcome.attempts)
    path_s = max(plan.longest_paths(seconds).values())
    bound_s = max(path_s, work_s / devices)
    return Measured(
        mix=case.name,
        devices=devices,
        nodes=math.ceil(devices / case.node_size),
        seed=seed,
        jobs=len(plan.jobs),
        makespan_s=made.actual_s,
        bound_s=bound_s,
        path_s=path_s,
        use=held_s / (devices * made.actual_s),
        early=early_s / (devices * most_s),
        work=work_s / (devices * made.actual_s),
        best=work_s / (devices * bound_s),
        cpu_ms=1e3 * cpu_s / len(plan.jobs),
        busy=cpu_s / made.actual_s,
        read=pool.caches.read,
        moved=pool.caches.moved,
        journal=journal,
        turns=pool.turns,
        rss=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


def is_whole(outcome: Outcome) -> bool:
    """Whether every job was done, each by one attempt."""
    return len(outcome.attempts) == len(outcome.jobs) and {one.value for one in outcome.jobs.values()} == {"done"}


# -- what is shown ----------------------------------------------------------------------------------------------


def table_of(found: Sequence[Measured]) -> Table:
    """All runs, one a row."""
    table = Table(title="the engine's own scheduler, imagined workers")
    for name in ("mix", "devices", "jobs", "seed"):
        table.add_column(name, justify="left" if name == "mix" else "right")
    for name in ("makespan", "/ bound", "use", "of 90 %", "work", "best", "CPU a job", "engine busy"):
        table.add_column(name, justify="right")
    for name in ("read", "moved", "journal", "turns a job"):
        table.add_column(name, justify="right")
    for one in found:
        table.add_row(
            one.mix,
            f"{one.devices:,}",
            f"{one.jobs:,}",
            str(one.seed),
            f"{one.makespan_s:,.0f} s",
            f"{one.makespan_s / one.bound_s:.3f}",
            f"{one.use:.1%}",
            f"{one.early:.1%}",
            f"{one.work:.1%}",
            f"{one.best:.1%}",
            f"{one.cpu_ms:.2f} ms",
            f"{one.busy:.1%}",
            f"{one.read / 1e12:.2f} TB" if one.read else "",
            f"{one.moved / 1e12:.2f} TB" if one.read else "",
            f"{one.journal / 1e6:.1f} MB",
            f"{one.turns / one.jobs:.1f}",
        )
    return table


def machine() -> str:
    """What it was measured on, in a line."""
    load = os.getloadavg()[0]
    return (
        f"{platform.system()} {platform.machine()}, Python {platform.python_version()}, {os.cpu_count()} cores, "
        f"load {load:.1f} before"
    )


def case_of(
    mix: str,
    devices: int,
    seed: int,
    jobs: int | None = None,
    trainings: int | None = None,
    spread: float | None = None,
) -> Case:
    """A draw of a mix for so many devices."""
    jobs = jobs or max(1000, JOBS_EACH * devices)
    if mix == "recorded":
        return recorded(jobs, seed)
    shards = jobs // trainings if trainings else 50
    return made_up_8b(jobs, seed, trainings=trainings, shards=shards, widest=devices, spread=spread)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """What is asked for on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--mix", choices=MIXES, action="append", help="both where none is named")
    parser.add_argument("--devices", type=positive, nargs="+", default=list(DEVICES))
    parser.add_argument(
        "--jobs", type=positive, help=f"about so many; {JOBS_EACH} a device if not given, 1000 at least"
    )
    parser.add_argument(
        "--trainings", type=positive, help="of the mix 8b: so many, and `--jobs` shards of completions"
    )
    parser.add_argument(
        "--spread",
        type=float,
        help="of the mix 8b: standard deviation of the logarithm of what a job takes over its estimate; as in the "
        "recording if not given",
    )
    parser.add_argument("--seeds", type=positive, default=3, help="so many draws of each")
    parser.add_argument("--first-seed", type=int, default=0, help="the seed of the first of them")
    parser.add_argument("--talking", action="store_true", help="workers send progress and signs of life as well")
    parser.add_argument("--profile", action="store_true", help="where the engine's processor time goes")
    parser.add_argument("--json", type=Path, help="a file for the numbers")
    parser.add_argument("--quick", action="store_true", help=f"as {' '.join(QUICK)}")
    args = parser.parse_args(arguments)
    return parser.parse_args([*QUICK, *(one for one in arguments if one != "--quick")]) if args.quick else args


def main(arguments: Sequence[str]) -> None:
    """Measure, and print the table."""
    args = parse(arguments)
    console = Console(width=max(WIDTH, Console().width))
    console.print(f"python benchmarks/scale_sim.py {shlex.join(arguments)}\n{machine()}", highlight=False)
    settings = {**vars(args), "mix": args.mix or list(MIXES)}
    del settings["quick"]
    console.print(", ".join(f"{name}={value}" for name, value in settings.items()), highlight=False)
    found = []
    profile = cProfile.Profile()
    for mix in settings["mix"]:
        for devices in args.devices:
            for seed in range(args.first_seed, args.first_seed + args.seeds):
                case = case_of(mix, devices, seed, args.jobs, args.trainings, args.spread)
                if args.profile:
                    profile.enable()
                # Where bytes could move, once more as if nobody knew what is where.
                found.append(measure(case, devices, seed, talking=args.talking))
                profile.disable()
    console.print(table_of(found))
    if args.profile:
        pstats.Stats(profile, stream=sys.stdout).sort_stats("tottime").print_stats(35)
    if args.json:
        args.json.write_text(json.dumps([asdict(one) for one in found], indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
