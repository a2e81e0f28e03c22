"""Runs on a Ray cluster that is simulated on this machine: a head and three nodes of four slots.

    python benchmarks/on_ray.py same                   the default experiment: the bytes of a run without Ray?
    python benchmarks/on_ray.py same KEY=VALUE ...     another one
    python benchmarks/on_ray.py driver                 how long until a driver that goes has left nothing there
    python benchmarks/on_ray.py jobs --jobs 10000      jobs that do nothing, and what they cost in processor time

`same` runs the experiment without Ray, on the cluster, where it loses a worker, a raylet, all of a
node, and its driver, which is started again, and with a shared store on an S3 server of which one request in ten
goes wrong: from an engine that is killed and started again, once more where all that is needed is there, and by
the cluster with its losses.
It compares `results.json` and every file of every output. Exit code 1 where something differs, or is left behind.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil
import pytest

from benchmarks.engine import no_ops
from pipeline.config.schema import Backend, ExecutionConfig, RayConfig
from pipeline.engine.devices.inventory import cpu_slots
from pipeline.engine.journal import Event, Listener
from pipeline.engine.run_jobs import run_jobs
from pipeline.engine.store.store import Store
from pipeline.plan.graph import Plan
from tests.doubles.ray_cluster import RayCluster, environment, ray_cluster, raylet
from tests.doubles.s3 import BUCKET, S3, serving

ROOT = Path(__file__).parents[1]
NODES, SLOTS = 3, 4
NAME = "on_ray"
SHARED = f"execution.shared_store=s3://{BUCKET}/on-ray"
_NOTES = {"durations.json", "manifest.json", ".lock"}
"""Files of a store that say how long something took, or when it was made."""


# -- the same bytes --------------------------------------------------------------------------------------------


def same(overrides: Sequence[str], folder: Path, what: Sequence[str]) -> bool:
    """Whether an experiment leaves the same on all."""
    ways: dict[str, Callable[[Path], int]] = {
        "local": lambda where: _start(where, overrides).wait(),
        "cluster": lambda where: _shot_at(where, overrides),
        "s3": lambda where: _killed_once(where, [*overrides, SHARED]),
        "fetched": lambda where: _start(where, [*overrides, SHARED]).wait(),
        "both": lambda where: _shot_at(where, [*overrides, f"{SHARED}-too"]),
    }
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        server = stack.enter_context(serving(patch)) if {"s3", "fetched", "both"} & set(what) else None
        if server:
            server.disturb(0.1, seed=0)
        return _compare(ways, folder, what, server)


def _compare(ways: dict[str, Callable[[Path], int]], folder: Path, what: Sequence[str], server: S3 | None) -> bool:
    found: dict[str, dict[str, str]] = {}
    for name in what:
        start = time.monotonic()
        if ways[name](folder / name):
            print((folder / name / "terminal.txt").read_text()[-3000:])
            return False
        found[name] = digests(folder / name)
        told = f"; S3: {server.disturbed:,} of {server.requests:,} requests went wrong" if server else ""
        ran = _finished(folder / name)
        print(
            f"{name}: {time.monotonic() - start:.0f} s, {ran} jobs run, {len(found[name])} files{told}", flush=True
        )
    first, *others = found.values()
    good = True
    for name, other in zip(list(found)[1:], others, strict=True):
        # What nobody here reads is not fetched.
        wanted = other if name == "fetched" else first
        different = sorted(file for file in {*wanted, *other} if first.get(file) != other.get(file))
        print(f"{name}: {'the same bytes' if not different else f'DIFFERENT: {different}'}")
        good &= not different
    return good


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of the results and of what is stored, by name."""
    store = folder / ".store"
    outputs = [
        path for path in store.glob("[0-9a-f][0-9a-f]/*/**/*") if path.is_file() and path.name not in _NOTES
    ]
    files = {str(path.relative_to(store)): path for path in outputs}
    files["results.json"] = folder / NAME / "latest" / "results.json"
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in sorted(files.items())}


def _start(output_dir: Path, overrides: Sequence[str]) -> subprocess.Popen[bytes]:
    output_dir.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable,
        str(ROOT / "run_parallel.py"),
        f"experiment.name={NAME}",
        f"output_dir={output_dir}",
    ]
    with (output_dir / "terminal.txt").open("ab") as terminal:
        return subprocess.Popen([*command, *overrides], stdout=terminal, stderr=terminal)


def _killed_once(output_dir: Path, overrides: Sequence[str]) -> int:
    engine = _start(output_dir, overrides)
    while engine.poll() is None and _finished(output_dir) < 20:
        time.sleep(0.2)
    if engine.poll() is not None:
        print("the run was over before it was killed")
        return engine.returncode or 1
    engine.kill()
    engine.wait()
    return _start(output_dir, overrides).wait()


def _shot_at(output_dir: Path, overrides: Sequence[str]) -> int:
    draw = random.Random(0)
    with ray_cluster(NODES, num_cpus=SLOTS) as cluster:
        asked = [*overrides, "execution.backend=ray", f"execution.ray.address={cluster.address}", "device=cpu"]
        driver = _start(output_dir, asked)
        a, b, *_ = draw.sample(cluster.nodes, len(cluster.nodes))
        shots: list[tuple[str, Callable[[], None]]] = [
            ("a worker", lambda: draw.choice(_busy(cluster)).kill()),
            ("a raylet", lambda: cluster.kill_raylet(a)),
            ("a node", lambda: cluster.kill_node(b)),
            ("the driver", driver.kill),
        ]
        for done, (victim, shoot) in zip((3, 10, 25, 35), shots, strict=True):
            while driver.poll() is None and _finished(output_dir) < done:
                time.sleep(0.2)
            if driver.poll() is not None:
                print(f"the run was over before {victim} was lost")
                return driver.returncode or 1
            shoot()
            if victim == "a node":
                cluster.add(num_cpus=SLOTS)  # and another joins
            print(f"killed {victim} when {_finished(output_dir)} jobs were done", flush=True)
        driver.wait()
        return _start(output_dir, asked).wait()


def _busy(cluster: RayCluster) -> list[psutil.Process]:
    return [child for node in cluster.nodes for actor in cluster.actors(node) for child in _processes_of(actor)]


def _processes_of(actor: psutil.Process) -> list[psutil.Process]:
    return [child for child in actor.children() if "pipeline.engine.workers.entrypoint" in child.cmdline()]


def _finished(output_dir: Path) -> int:
    journals = [
        path.read_text() for path in output_dir.glob(f"{NAME}/*/journal.jsonl") if not path.parent.is_symlink()
    ]
    return sum(text.count('"JobFinished"') for text in journals)


# -- a driver that goes ----------------------------------------------------------------------------------------

DRIVER = """
import json, sys
from dataclasses import replace
from pathlib import Path
from pipeline.config.schema import Backend, RayConfig
from pipeline.engine.devices.inventory import cpu_slots
from tests.doubles.engine import Engine, job
told = json.loads(sys.argv[1])
if __name__ == "__main__":
    devices = [replace(slot, node=slot.index // told["slots"]) for slot in cpu_slots(told["workers"])]
    outcome = Engine(Path(told["root"])).run(
        *[job(f"long{at}", "sleep", payload={"seconds": 600}) for at in range(len(devices) - 1)],
        job("wide", "sleep", payload={"seconds": 600}, devices=2),  # waits; so places are groups
        devices=devices, backend=Backend.ray, ray=RayConfig(address=told["address"], resources={"CPU": 1}),
    )
    print(outcome.interrupted, flush=True)
"""
GOES = {
    "SIGKILL": [signal.SIGKILL],
    "SIGTERM": [signal.SIGTERM],
    "Ctrl-C": [signal.SIGINT],
    "SIGSTOP": [signal.SIGSTOP],
}


def driver(folder: Path, slots: int) -> bool:
    """Whether the cluster is free within half a minute of whatever happens to a driver."""
    good = True
    with ray_cluster(NODES, num_cpus=slots) as cluster:
        importlib.import_module("ray").init(cluster.address, log_to_driver=False, configure_logging=False)
        nothing = what_is_left(cluster)
        for name, signals in GOES.items():
            root = folder / name
            root.mkdir()
            told = json.dumps(
                {"root": str(root), "address": cluster.address, "slots": slots, "workers": NODES * slots}
            )
            process = subprocess.Popen([sys.executable, "-c", DRIVER, told], cwd=ROOT)
            journal = root / "run1" / "journal.jsonl"
            while not (journal.exists() and journal.read_text().count('"JobStarted"') >= NODES * slots - 1):
                assert process.poll() is None
                time.sleep(0.2)
            for number in signals:
                process.send_signal(number)
            start = time.monotonic()
            devices_s = None
            while (left := _left(cluster, root, process)) != nothing and time.monotonic() < start + 120:
                devices_s = devices_s or (None if left["busy"] else time.monotonic() - start)
                time.sleep(0.2)
            everything_s = time.monotonic() - start
            devices_s = devices_s or everything_s
            print(
                f"{name}: devices free after {devices_s:.1f} s, nothing left after {everything_s:.1f} s",
                flush=True,
            )
            if left != nothing:
                print(f"  left: {left}")
            good &= devices_s <= 30 and left == nothing
            with suppress(ProcessLookupError):
                process.kill()
            process.wait()
    return good


def _left(cluster: RayCluster, root: Path, process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """The same, and unfinished outputs; those of a driver that is only stopped are its own."""
    stopped = psutil.Process(process.pid).status() == psutil.STATUS_STOPPED
    files = [] if stopped else list(map(str, (root / "store" / ".tmp").rglob("*")))
    return what_is_left(cluster) | ({"files": files} if files else {})


def what_is_left(cluster: RayCluster) -> dict[str, Any]:
    """What is on a cluster: processes, actors, placement groups, sockets; and what of its devices is taken."""
    ours = []
    sockets = 0
    for node in cluster.nodes:
        for process in psutil.Process(raylet(node)).children(recursive=True):
            with suppress(psutil.Error):
                words = " ".join(process.cmdline())
                if "ray::Host" in words or "pipeline.engine" in words:
                    ours.append(process.pid)
                    sockets += sum(one.status == psutil.CONN_LISTEN for one in process.net_connections())
    ray: Any = importlib.import_module("ray")
    groups = importlib.import_module("ray.util").placement_group_table()
    total, free = ray.cluster_resources(), ray.available_resources()
    return {
        "processes": ours,
        "sockets": sockets,
        "busy": total.get("CPU", 0.0) - free.get("CPU", 0.0),
        "actors": sum(one["State"] != "DEAD" for one in ray._private.state.actors().values()),
        "groups": sum(one["state"] != "REMOVED" for one in groups.values()),
    }


# -- jobs that do nothing --------------------------------------------------------------------------------------


@dataclass
class Costs:
    """What a run of jobs that do nothing took, once all workers were ready.

    Attributes:
        cluster: Where it runs; None without Ray.
        workers: How many.
        started: Workers that are ready.
        done: Jobs that are done.
        first: Jobs that were done, and processor time by kind of process, when all workers were ready.
        last: The same towards the end.
    """

    cluster: RayCluster | None
    workers: int
    started: int = 0
    done: int = 0
    first: tuple[int, dict[str, float]] | None = None
    last: tuple[int, dict[str, float]] | None = None

    def take(self, event: Event) -> None:
        """Hear of one more event."""
        self.started += event["event"] == "WorkerStarted"
        self.done += event["event"] == "JobFinished"

    def look(self, count: int) -> None:
        """Look at the clocks of processes, if it is time."""
        if self.first is None and self.started >= self.workers:
            self.first = (self.done, self._spent())
        elif self.first and self.last is None and self.done >= 0.9 * count:
            self.last = (self.done, self._spent())

    def _spent(self) -> dict[str, float]:
        found = defaultdict[str, float](float, engine=_cpu_s(psutil.Process()))
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                words = " ".join(process.cmdline())
                kind = "workers" if "workers.entrypoint" in words else "actors" if "ray::Host" in words else "Ray"
                found[kind] += _cpu_s(process)
        return found

    def in_words(self) -> str:
        """Microseconds of processor time for each job, by kind of process."""
        if not self.first or not self.last:
            return "over too soon to tell what it cost"
        jobs = self.last[0] - self.first[0]
        each = {kind: (spent - self.first[1].get(kind, 0.0)) / jobs * 1e6 for kind, spent in self.last[1].items()}
        return f"{sum(each.values()):.0f} us: " + ", ".join(f"{kind} {us:.0f}" for kind, us in each.items())


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def measure_jobs(count: int, folder: Path, slots: int) -> None:
    """Print how fast jobs that do nothing are carried out on the cluster, and without Ray."""
    logging.getLogger("pipeline").setLevel(logging.CRITICAL)
    workers = NODES * slots
    with ray_cluster(NODES, num_cpus=slots) as cluster:
        for output in (False, True):
            rates = {}
            for where in (None, cluster):
                costs = Costs(where, workers)
                name = "cluster" if where else "local"
                rates[name] = _rate(costs, count, folder / f"{name}-{output}", output=output)
                kind = "an output each" if output else "no output"
                print(f"{name}, {kind}: {rates[name]:,.0f} jobs/s; {costs}", flush=True)
            print(f"  {rates['cluster'] / rates['local']:.2f} of the rate without Ray")


def _rate(costs: Costs, count: int, folder: Path, *, output: bool) -> float:
    ray = RayConfig(address=costs.cluster.address, resources={"CPU": 1}) if costs.cluster else RayConfig()
    backend = Backend.ray if costs.cluster else Backend.local
    folder.mkdir()
    devices = [replace(slot, node=slot.index * NODES // costs.workers) for slot in cpu_slots(costs.workers)]
    outcome = run_jobs(
        Plan(no_ops(count, output=output), []),
        Store(folder / "store"),
        devices,
        folder,
        execution=ExecutionConfig(backend=backend, ray=ray),
        listener=Listener(on_event=costs.take, on_tick=lambda: costs.look(count)),
    )
    ready_s = max(span.ready_s or 0.0 for span in outcome.workers)
    late = [attempt for attempt in outcome.attempts if attempt.sent_s >= ready_s]
    return len(late) / (late[-1].ended_s - late[0].sent_s)


# -- command line ----------------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("part", choices=["same", "driver", "jobs"])
    parser.add_argument("overrides", nargs="*", help="KEY=VALUE of the experiment's configuration")
    parser.add_argument(
        "--on",
        default="local,ray,cluster,s3,fetched,both",
        help="where `same` runs, the first is what others are held to",
    )
    parser.add_argument("--folder", type=Path, help="where `same` leaves its runs; else nothing stays")
    parser.add_argument("--slots", type=int, default=SLOTS, help="of each node, for `driver` and `jobs`")
    parser.add_argument("--jobs", type=int, default=10_000)
    args: Any = parser.parse_intermixed_args()
    os.environ |= environment()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    with tempfile.TemporaryDirectory(prefix="on-ray-") as name:
        folder = args.folder or Path(name)
        if args.part == "same":
            return 0 if same(args.overrides, folder, args.on.split(",")) else 1
        if args.part == "jobs":
            measure_jobs(args.jobs, folder, args.slots)
            return 0
        return 0 if driver(folder, args.slots) else 1


if __name__ == "__main__":
    sys.exit(main())
