"""What the engine itself costs: jobs that do nothing, on our pool and on the pools that others use.

    python benchmarks/engine.py
    python benchmarks/engine.py --jobs 5000 --workers 4
    python benchmarks/engine.py --turns 12 --folder /dev/shm

All rows are measured once a turn, one after the other; figures are medians of the turns, and ratios the medians of
those within a turn, with the least and the largest. Nothing is removed before all turns are over: where files were
removed in the last minutes, ext4 without a journal takes longer to make others, so that a run right after another
is slower.

Three rows are ours. `run_plan` is what a user runs: scheduling, journal on disk, a log file and a committed output
per job. `run_plan, no output` leaves out the commit alone, as a job without a key does. `pool` is worker processes
and messages without scheduler and journal, which is what the pools of others are; it still opens a log per job.
concurrent.futures has one more job queued than it has workers.
`files of outputs alone` is that many processes which make and remove the same names in the file system, and do no
more: no run with outputs can be faster there.
Where Ray is installed, `run_plan` on a cluster of this machine comes beside Ray's own tasks.

    first result   from nothing to the result of one job
    jobs/s         a batch of independent jobs
    CPU per job    processor time of that batch, of the engine and its workers together; starts are not counted.
                   Ray's is not known, as its processes come and go
    round trip     one job after the other: from handing one over to knowing its result
    dispatch       from knowing a result to handing over the next job, which waits for it (journal included)
    death seen     from the SIGKILL of a worker to knowing of it, median; others fail = jobs of other workers lost

Peers that are not installed are left out: `pip install -e '.[bench]'` brings loky and pebble, `'.[ray]'` Ray.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import hashlib
import importlib
import importlib.util
import itertools
import logging
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.arguments import positive
from benchmarks.bodies import die, make_files, nap, nothing
from pipeline.config.schema import Backend, ExecutionConfig, RayConfig
from pipeline.engine.devices.inventory import cpu_slots
from pipeline.engine.journal import Journal
from pipeline.engine.run_jobs import make_pool
from pipeline.engine.scheduler.loop import Outside, run_plan
from pipeline.engine.scheduler.outcome import Outcome
from pipeline.engine.scheduler.reactions import DEPTH
from pipeline.engine.store.store import Store
from pipeline.engine.workers.messages import FromWorker, JobFinished, RunJob, WorkerReady
from pipeline.engine.workers.pool import Pool
from pipeline.plan.graph import Job, Plan
from tests.doubles.ray_cluster import environment, ray_cluster

BASE = "concurrent.futures"
# Kept, since `main` hides `__file__` from processes that would run this script again.
ROOT = str(Path(__file__).parents[1])
WIDTH = 220


# -- what is measured ------------------------------------------------------------


@dataclass
class Measured:
    """One row; times in seconds."""

    name: str
    first_s: float = 0.0
    jobs_per_s: float = 0.0
    cpu_s: float = 0.0
    round_trips_s: list[float] = field(default_factory=list)
    dispatch_s: list[float] = field(default_factory=list)
    death_s: list[float] = field(default_factory=list)
    others_fail: str = ""


def measure_run_plan(
    jobs: int, workers: int, folder: Path, *, output: bool, settings: ExecutionConfig | None = None
) -> Measured:
    """Our engine as a whole."""
    settings = settings or ExecutionConfig()
    carry_out = partial(_carried_out, settings=settings)
    on = "" if settings.backend is Backend.local else " on Ray"
    row = Measured(f"pipeline run_plan{on}" + ("" if output else ", no output"))
    start = time.monotonic()
    outcome = carry_out(folder / "first", no_ops(1, output=output), [], workers)
    row.first_s = outcome.attempts[0].ended_s - start
    cpu = [_cpu_s()]
    for name, count in (("few", workers), ("batch", workers + jobs)):
        batch = carry_out(folder / name, no_ops(count, output=output), [], workers)
        cpu.append(_cpu_s())
    row.cpu_s = ((cpu[2] - cpu[1]) - (cpu[1] - cpu[0])) / jobs
    ready_s = max(span.ready_s or 0.0 for span in batch.workers)
    late = [attempt for attempt in batch.attempts if attempt.sent_s >= ready_s]
    row.jobs_per_s = len(late) / (late[-1].ended_s - late[0].sent_s)
    chain = no_ops(jobs, output=output)
    edges = [(one.id, other.id) for one, other in itertools.pairwise(chain)]
    attempts = carry_out(folder / "chain", chain, edges, workers).attempts[10:]
    row.round_trips_s = [attempt.total_s for attempt in attempts]
    row.dispatch_s = [after.sent_s - before.ended_s for before, after in itertools.pairwise(attempts)]
    row.death_s = _our_deaths(folder / "deaths", workers, settings)
    row.others_fail = "0"
    return row


def no_ops(count: int, *, output: bool) -> list[Job]:
    """Jobs that do nothing."""
    # Keys look like those of real jobs; none at all means that nothing is stored.
    return [
        Job(
            id=f"job/{index}",
            key=hashlib.sha256(str(index).encode()).hexdigest()[:40] if output else "",
            entry="benchmarks.bodies:nothing",
            payload={},
        )
        for index in range(count)
    ]


def _carried_out(
    folder: Path, jobs: Sequence[Job], edges: Sequence[tuple[str, str]], workers: int, *, settings: ExecutionConfig
) -> Outcome:
    folder.mkdir(parents=True)
    journal = Journal(folder / "journal.jsonl")
    try:
        outside = Outside(
            store=Store(folder / "store"),
            pool=make_pool(settings, cpu_slots(workers), threads=1, log_dir=folder / "workers"),
            journal=journal,
            run_dir=folder,
        )
        return run_plan(Plan(jobs, edges), outside, stored=(), settings=settings)
    finally:
        journal.close()


def _our_deaths(folder: Path, workers: int, settings: ExecutionConfig, count: int = 7) -> list[float]:
    jobs = [
        Job(
            id=f"die/{index}",
            key="",
            entry="benchmarks.bodies:die_once",
            payload={"where": str(folder / f"died{index}")},
        )
        for index in range(count)
    ]
    outcome = _carried_out(folder, jobs, [], workers, settings=settings)
    lost = [attempt for attempt in outcome.attempts if attempt.outcome == "lost"]
    return [
        attempt.ended_s - float((folder / f"died{attempt.job_id.split('/')[1]}").read_text()) for attempt in lost
    ]


def _cpu_s() -> float:
    """Processor time so far of this process and of all that it has started, those included that have ended."""
    spent = 0.0
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            spent += sum(process.cpu_times()[:4])
    return spent


def measure_pool(jobs: int, workers: int, folder: Path) -> Measured:
    """Our worker processes alone."""
    row = Measured("pipeline pool")
    bare = _BarePool(workers, folder)
    start = time.monotonic()
    try:
        bare.start(1)
        bare.run(1)
        row.first_s = time.monotonic() - start
        bare.start(workers)
        bare.run(workers)
        cpu, start = _cpu_s(), time.monotonic()
        bare.run(jobs)
        row.jobs_per_s = jobs / (time.monotonic() - start)
        row.cpu_s = (_cpu_s() - cpu) / jobs
        for _ in range(jobs):
            start = time.monotonic()
            bare.run(1)
            row.round_trips_s.append(time.monotonic() - start)
    finally:
        bare.stop()
    return row


def measure_files(jobs: int, workers: int, folder: Path) -> Measured:
    """What of a run with outputs is the work of the file system."""
    row = Measured("files of outputs alone")
    for name in ("claims", "jobs", "unfinished", "store", "costs"):
        (folder / name).mkdir(parents=True)
    (folder / "lock").touch()
    ends = [jobs * part // workers for part in range(workers + 1)]
    with futures_pool(workers) as submit:
        for future in [submit(nothing) for _ in range(20 * workers)]:
            future.result()
        start = time.monotonic()
        asked = [submit(make_files, str(folder), begin, end) for begin, end in itertools.pairwise(ends)]
        row.cpu_s = sum(future.result() for future in asked) / jobs
        row.jobs_per_s = jobs / (time.monotonic() - start)
    return row


class _BarePool:
    """Keeps every worker busy, with jobs ahead as the engine gives them; no state, no journal, no store."""

    def __init__(self, workers: int, folder: Path) -> None:
        self._pool: Pool = make_pool(ExecutionConfig(), cpu_slots(workers), threads=1, log_dir=folder / "workers")
        self._folder = folder
        self._given: dict[int, int] = {}
        self._left = self._running = 0
        self._started = False

    def start(self, ready: int) -> None:
        """Wait until so many workers are ready."""
        if not self._started:
            self._pool.start()
            self._started = True
        while len(self._given) < ready:
            self._pool.wait(None, self._take)

    def run(self, jobs: int) -> None:
        self._left = jobs
        for index in sorted(self._given):
            self._send(index)
        while self._running:
            self._pool.wait(None, self._take)

    def _send(self, index: int) -> None:
        """Give a worker a job if it has none; while enough are left for all, the next ones too."""
        while self._given[index] <= DEPTH and self._left > (len(self._given) if self._given[index] else 0):
            self._left -= 1
            self._running += 1
            self._given[index] += 1
            self._pool.send(
                index,
                RunJob(
                    job_id="j",
                    attempt=1,
                    key="",
                    entry="benchmarks.bodies:nothing",
                    payload={},
                    inputs={},
                    store=str(self._folder),
                    scratch=str(self._folder),
                    verified=str(self._folder),
                    log_path=str(self._folder / f"log.{index}.txt"),
                ),
            )

    def _take(self, index: int, message: FromWorker) -> None:
        if isinstance(message, WorkerReady | JobFinished):
            finished = isinstance(message, JobFinished)
            self._running -= finished
            self._given[index] = self._given.get(index, 0) - finished
            self._send(index)

    def stop(self) -> None:
        self._pool.stop(lambda _index, _message: None)


# -- the pools of others ------------------------------------------------------------

Submit = Callable[..., Any]
"""Takes a function and its arguments, returns something with `result()`."""


@contextmanager
def futures_pool(workers: int) -> Iterator[Submit]:
    """The pool of the standard library, spawned processes."""
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(workers, mp_context=spawn) as pool:
        yield pool.submit


@contextmanager
def loky_pool(workers: int) -> Iterator[Submit]:
    """The pool of loky, which starts processes anew as well."""
    loky = importlib.import_module("loky")
    with loky.ProcessPoolExecutor(workers) as pool:
        yield pool.submit


@contextmanager
def pebble_pool(workers: int) -> Iterator[Submit]:
    """The pool of pebble, spawned processes."""
    pebble = importlib.import_module("pebble")
    with pebble.ProcessPool(workers, context=multiprocessing.get_context("spawn")) as pool:
        yield lambda function, *args: pool.schedule(function, args=args)


@contextmanager
def ray_pool(workers: int) -> Iterator[Submit]:
    """Ray tasks on this machine."""
    ray = importlib.import_module("ray")
    ray.init(
        num_cpus=workers,
        include_dashboard=False,
        object_store_memory=100 << 20,
        logging_level=logging.ERROR,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": ROOT}},
    )

    @cache  # a function that is declared again is also sent and stored again
    def declared(function: Callable[..., Any]) -> Any:
        return ray.remote(max_retries=0)(function)

    def submit(function: Callable[..., Any], *args: Any) -> Any:
        return declared(function).remote(*args).future()

    try:
        yield submit
    finally:
        ray.shutdown()


PEERS = {BASE: futures_pool, "loky": loky_pool, "pebble": pebble_pool, "ray": ray_pool}


def measure_peer(name: str, jobs: int, workers: int, folder: Path) -> Measured:
    """The pool of another."""
    row = Measured(name)
    start = time.monotonic()
    with PEERS[name](workers) as submit:
        submit(nothing).result()
        row.first_s = time.monotonic() - start
        for future in [submit(nothing) for _ in range(20 * workers)]:
            future.result()
        cpu, start = _cpu_s(), time.monotonic()
        for future in [submit(nothing) for _ in range(jobs)]:
            future.result()
        row.jobs_per_s = jobs / (time.monotonic() - start)
        row.cpu_s = (_cpu_s() - cpu) / jobs
        for _ in range(min(jobs, 500)):
            start = time.monotonic()
            submit(nothing).result()
            row.round_trips_s.append(time.monotonic() - start)
    for index in range(3):
        _peer_death(row, workers, folder / f"{name}.died{index}")
    return row


def _peer_death(row: Measured, workers: int, where: Path) -> None:
    failed = 0
    with contextlib.suppress(Exception), PEERS[row.name](workers) as submit:  # a broken pool may raise on leaving
        for future in [submit(nothing) for _ in range(4 * workers)]:
            future.result()
        others = [submit(nap) for _ in range(workers - 1)]
        victim = submit(die, str(where))
        with contextlib.suppress(Exception):
            victim.result()
        row.death_s.append(time.monotonic() - float(where.read_text()))
        for other in others:
            try:
                other.result()
            except Exception:
                failed += 1
        row.others_fail = f"{failed} of {len(others)}"


# -- the table ------------------------------------------------------------


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description="No-op jobs on our engine and on the pools of others.")
    parser.add_argument("--jobs", type=positive, default=2000)
    parser.add_argument("--workers", type=positive, default=2)
    parser.add_argument("--turns", type=positive, default=1)
    parser.add_argument(
        "--folder", type=Path, help="in which files are made; that of the system for temporary ones"
    )
    args = parser.parse_args()
    logging.getLogger("pipeline").setLevel(logging.CRITICAL)  # the deaths are meant
    os.environ |= environment()
    os.environ["PYTHONPATH"] = os.pathsep.join([ROOT, *filter(None, [os.environ.get("PYTHONPATH")])])
    # Spawned children of the peers would import this script, with all that it imports; the bodies are elsewhere.
    main_module = sys.modules["__main__"]
    main_module.__spec__ = None
    del main_module.__file__
    with tempfile.TemporaryDirectory(prefix="pipeline-bench-", dir=args.folder) as name:
        turns = [measure_all(args.jobs, args.workers, Path(name) / str(turn)) for turn in range(args.turns)]
    Console(width=max(WIDTH, Console().width)).print(_table(turns, args.jobs, args.workers))


def measure_all(jobs: int, workers: int, folder: Path) -> list[Measured]:
    """One turn: all rows, one after the other."""
    folder.mkdir()
    rows = [
        measure_run_plan(jobs, workers, folder / "output", output=True),
        measure_run_plan(jobs, workers, folder / "no-output", output=False),
        measure_pool(jobs, workers, folder),
        measure_files(jobs, workers, folder / "files"),
    ]
    if importlib.util.find_spec("ray"):
        with ray_cluster(1, num_cpus=workers) as cluster:
            settings = ExecutionConfig(backend=Backend.ray, ray=RayConfig(address=cluster.address))
            rows += [
                measure_run_plan(jobs, workers, folder / f"ray-{output}", output=output, settings=settings)
                for output in (True, False)
            ]
    return rows + [
        measure_peer(peer, jobs, workers, folder)
        for peer in PEERS
        if peer == BASE or importlib.util.find_spec(peer)
    ]


def _table(turns: Sequence[Sequence[Measured]], jobs: int, workers: int) -> Table:
    title = (
        f"{jobs:,} no-op jobs on {workers} workers, {len(turns)} turn{'s' * (len(turns) > 1)}; ratios to {BASE}"
    )
    table = Table(title=title)
    for name in ("", "first result", "ratio", "jobs/s", "ratio", "CPU per job", "round trip p50/p99", "ratio"):
        table.add_column(name, justify="left" if not name else "right")
    for name in ("dispatch p50/p99", "death seen", "others fail"):
        table.add_column(name, justify="right")
    base = next(rows for rows in zip(*turns, strict=True) if rows[0].name == BASE)
    for rows in zip(*turns, strict=True):
        deaths = [second for row in rows for second in row.death_s]

        def ratio(figure: Callable[[Measured], float], rows: Sequence[Measured] = rows) -> str:
            return _ratio([figure(row) / figure(other) for row, other in zip(rows, base, strict=True)])

        table.add_row(
            rows[0].name,
            f"{statistics.median(row.first_s for row in rows) * 1e3:.0f} ms" if rows[0].first_s else "",
            ratio(lambda row: row.first_s) if rows[0].first_s else "",
            f"{statistics.median(row.jobs_per_s for row in rows):,.0f}",
            ratio(lambda row: row.jobs_per_s),
            ""
            if "ray" in rows[0].name.lower()
            else f"{statistics.median(row.cpu_s for row in rows) * 1e6:.0f} us",
            _percentiles([row.round_trips_s for row in rows]),
            ratio(lambda row: statistics.median(row.round_trips_s)) if rows[0].round_trips_s else "",
            _percentiles([row.dispatch_s for row in rows]),
            f"{statistics.median(deaths) * 1e3:.1f} ms" if deaths else "",
            rows[0].others_fail,
        )
    return table


def _ratio(of_turns: Sequence[float]) -> str:
    shown = f"{statistics.median(of_turns):.2f}"
    return shown if len(of_turns) == 1 else f"{shown} ({min(of_turns):.2f}-{max(of_turns):.2f})"


def _percentiles(of_turns: Sequence[Sequence[float]]) -> str:
    """Of all turns together, in words; "" where there is nothing to tell."""
    ordered = sorted(second for seconds in of_turns for second in seconds)
    if not ordered:
        return ""
    p50, p99 = ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)]
    return f"{p50 * 1e3:.2f} / {p99 * 1e3:.2f} ms"


if __name__ == "__main__":
    main()
