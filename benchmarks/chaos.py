"""Whether a run that is shot at ends as a calm one does.

    python benchmarks/chaos.py                          the default experiment: 50 workers and the engine 5 times
    python benchmarks/chaos.py experiment KEY=VALUE ... the same with other settings
    python benchmarks/chaos.py crowd --jobs 20000       no-op jobs of which 1 % kill their worker once

`experiment` runs one calm, then one in which a random worker gets SIGKILL every few seconds and the engine does at
random moments, after which the same command is given again. Results must be the same bytes, and no process or
unfinished output may be left. Exit code 1 where that is not so.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.arguments import positive
from pipeline.config.schema import ExecutionConfig, RetryConfig
from pipeline.engine.devices.inventory import cpu_slots
from pipeline.engine.journal import JournalReader
from pipeline.engine.store.store import Store
from pipeline.plan.graph import Job, Plan

ROOT = Path(__file__).parents[1]
FILES = ("results.json", "results.csv", "samples.jsonl")
TOLERANT = [
    # Being shot at is nobody's fault here; and a training must get further than it is thrown back.
    "execution.retry.worker_lost=100000",
    "execution.retry.device_failures=100000",
    "training.checkpoint_every_minutes=0.01",
]
NAME = "chaos"


@dataclass
class Battle:
    """What was done to a run and what came of it.

    Attributes:
        worker_kills: Workers that got SIGKILL.
        engine_kills: Engines that did.
        seconds: From the first start to the last end.
        left: Processes that outlived an engine by more than five seconds.
        digests: File of results -> its SHA-256.
    """

    worker_kills: int = 0
    engine_kills: int = 0
    seconds: float = 0.0
    left: list[str] = field(default_factory=list)
    digests: dict[str, str] = field(default_factory=dict)


def calm_run(output_dir: Path, overrides: list[str]) -> Battle:
    """One run that nobody disturbs."""
    return shoot_at(output_dir, overrides, worker_kills=0, engine_kills=0)


def shoot_at(
    output_dir: Path,
    overrides: list[str],
    *,
    worker_kills: int,
    engine_kills: int,
    pause_s: float = 2.5,
    seed: int = 0,
) -> Battle:
    """Run an experiment to its end while workers and the engine are killed at random moments.

    Args:
        output_dir: Where it leaves its folder.
        overrides: Of its configuration.
        worker_kills: How many at most; the run may end earlier.
        engine_kills: Of these moments the engine is killed instead in so many, spread evenly.
        pause_s: Mean seconds between two kills; each pause is drawn between a half and one and a half times that.
        seed: Of the moments and the victims.
    """
    draw = random.Random(seed)
    battle, start = Battle(), time.monotonic()
    shots = worker_kills + engine_kills
    at_engine = {round((number + 1) * shots / (engine_kills + 1)) for number in range(engine_kills)}
    engine = _start(output_dir, overrides)
    shot = 0
    try:
        while engine.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                engine.wait(pause_s * draw.uniform(0.5, 1.5) if shot < shots else None)
            if engine.returncode is not None or shot >= shots:
                continue
            workers = _workers(engine.pid)
            if shot in at_engine:
                battle.engine_kills += 1
                battle.left += _kill_engine(engine)
                engine = _start(output_dir, overrides)
            elif workers:
                with contextlib.suppress(psutil.NoSuchProcess):
                    draw.choice(workers).kill()
                    battle.worker_kills += 1
            else:
                continue
            shot += 1
    finally:
        if engine.poll() is None:
            engine.kill()
    battle.seconds = time.monotonic() - start
    if engine.returncode:
        raise SystemExit(f"the run ended with exit code {engine.returncode}:\n{_output(output_dir)}")
    latest = output_dir / NAME / "latest"
    battle.digests = {name: hashlib.sha256((latest / name).read_bytes()).hexdigest() for name in FILES}
    return battle


def _start(output_dir: Path, overrides: list[str]) -> subprocess.Popen[bytes]:
    command = [
        sys.executable,
        str(ROOT / "run_parallel.py"),
        f"experiment.name={NAME}",
        f"output_dir={output_dir}",
    ]
    output_dir.mkdir(parents=True, exist_ok=True)
    with (output_dir / "terminal.txt").open("ab") as terminal:
        return subprocess.Popen([*command, *overrides], stdout=terminal, stderr=terminal)


def _output(output_dir: Path) -> str:
    return (output_dir / "terminal.txt").read_text(errors="replace")[-3000:]


def _workers(engine: int) -> list[psutil.Process]:
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(engine).children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if "pipeline.engine.workers.entrypoint" in child.cmdline():
                    found.append(child)
    return found


def _kill_engine(engine: subprocess.Popen[bytes]) -> list[str]:
    """Kill the engine; returns what of its family does not end, for which a busy machine is given a while."""
    family = psutil.Process(engine.pid).children(recursive=True)
    engine.kill()
    engine.wait()
    _, left = psutil.wait_procs(family, timeout=30)
    return [f"{process.pid}" for process in left]


# -- a crowd of jobs -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Crowd:
    """A run of many no-op jobs.

    Attributes:
        jobs: How many.
        crashes: How many of them killed their worker.
        seconds: Of the run.
        peak_mb: Largest resident memory of the engine.
        replay_s: Seconds to read the journal back.
        records: Lines of the journal.
    """

    jobs: int
    crashes: int
    seconds: float
    peak_mb: float
    replay_s: float
    records: int


def crowd(count: int, share: float, workers: int, folder: Path) -> Crowd:
    """Run no-op jobs of which a random share kill their worker in the first attempt."""
    from pipeline.engine.run_jobs import run_jobs

    draw = random.Random(0)
    fatal = {index for index in range(count) if draw.random() < share}
    where = str(folder / "died")
    jobs = [
        Job(
            id=f"crowd/{index:05d}",
            key=hashlib.sha256(str(index).encode()).hexdigest()[:40],
            entry=f"benchmarks.bodies:{'die_once' if index in fatal else 'nothing'}",
            payload={"where": where} if index in fatal else {},
        )
        for index in range(count)
    ]
    execution = ExecutionConfig(retry=RetryConfig(device_failures=10**9))
    run_dir = folder / "run"
    run_dir.mkdir(parents=True)
    start = time.monotonic()
    outcome = run_jobs(
        Plan(jobs, []), Store(folder / "store"), cpu_slots(workers), run_dir, execution=execution, missing=None
    )
    seconds = time.monotonic() - start
    unfinished = [job_id for job_id, status in outcome.jobs.items() if status.value != "done"]
    if unfinished:
        raise SystemExit(f"{len(unfinished)} jobs did not finish, the first is {unfinished[0]}")
    start = time.monotonic()
    records = sum(1 for _ in JournalReader(run_dir / "journal.jsonl").new_events())
    replay_s = time.monotonic() - start
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Crowd(count, len(fatal), seconds, peak_mb, replay_s, records)


# -- command line ----------------------------------------------------------------------------------------------


def main() -> int:
    args, overrides = _arguments()
    console = Console(width=120)
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        if args.part == "crowd":
            _show_crowd(crowd(args.jobs, args.crash_share, args.workers, Path(folder)), console)
            return 0
        return _experiment(args, overrides, Path(folder), console)


def _experiment(args: argparse.Namespace, overrides: list[str], folder: Path, console: Console) -> int:
    calm = calm_run(folder / "calm", overrides)
    console.print(f"calm run: {calm.seconds:.0f} s")
    table = Table(title="runs that were shot at, beside a calm one")
    for column in (
        "run",
        "workers killed",
        "engines killed",
        "seconds",
        "times the calm run",
        "left over",
        "same bytes",
    ):
        table.add_column(column, justify="right")
    same, kills, number = True, 0, 0
    # A run may be over before all shots were fired: then another is started from nothing.
    while kills < args.kills:
        number += 1
        battle = shoot_at(
            folder / f"chaos{number}",
            [*overrides, *TOLERANT],
            worker_kills=args.kills - kills,
            engine_kills=args.engine_kills if number == 1 else 0,
            pause_s=args.pause,
            seed=number,
        )
        kills += battle.worker_kills
        equal = battle.digests == calm.digests and not battle.left
        same = same and equal
        table.add_row(
            str(number),
            str(battle.worker_kills),
            str(battle.engine_kills),
            f"{battle.seconds:.0f}",
            f"{battle.seconds / calm.seconds:.1f}",
            str(len(battle.left)),
            "yes" if equal else "NO",
        )
    console.print(table)
    return 0 if same else 1


def _show_crowd(result: Crowd, console: Console) -> None:
    console.print(json.dumps(vars(result)))
    console.print(
        f"{result.jobs:,} jobs, {result.crashes} crashes: {result.seconds:.1f} s; engine's peak memory "
        f"{result.peak_mb:.0f} MB; {result.records:,} records of the journal read in {result.replay_s:.2f} s"
    )


def _arguments() -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("part", nargs="?", choices=["experiment", "crowd"], default="experiment")
    parser.add_argument("overrides", nargs="*", help="KEY=VALUE of the experiment's configuration")
    parser.add_argument("--kills", type=int, default=50, help="workers to kill")
    parser.add_argument("--engine-kills", type=int, default=5)
    parser.add_argument("--pause", type=float, default=2.5, help="mean seconds between two kills")
    parser.add_argument("--jobs", type=positive, default=20_000)
    parser.add_argument("--crash-share", type=float, default=0.01)
    parser.add_argument("--workers", type=positive, default=2)
    args: Any = parser.parse_intermixed_args()
    return args, args.overrides


if __name__ == "__main__":
    sys.exit(main())
