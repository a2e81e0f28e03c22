"""A run on a real Ray: a cluster of several nodes that lose what they have.

Each start takes seconds and a gigabyte, so each test looks at as much as it can. None leaves anything: folders are
their own, and nobody else's Ray is touched.
"""

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from pipeline.__main__ import app
from pipeline.config.schema import Backend, RayConfig
from pipeline.engine.devices.inventory import cpu_slots
from pipeline.errors import has_package
from pipeline.machine import descendants
from tests.doubles import small_runs
from tests.doubles.engine import Engine, job
from tests.doubles.ray_cluster import RayCluster, environment, ray_cluster, raylet
from tests.doubles.small_runs import wait_for

pytestmark = [
    pytest.mark.skipif(not has_package("ray"), reason="Ray is not installed: pip install -e '.[ray]'"),
    pytest.mark.timeout(600),  # one that hangs fails long before the others' limit
    pytest.mark.filterwarnings("default"),  # Ray has warnings of its own
]
PATIENCE_S = 240.0
JOBS = 6


def jobs() -> list[Any]:
    """Plain ones, one that loses its worker, and one of two devices."""
    plain = [job(f"job{at}") for at in range(JOBS)]
    dies = job("dies", "kill_self_once")
    return [*plain, dies, job("last", needs=["job0", "job1"]), job("wide", devices=2)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    """Two nodes of four pretended GPUs, beside a head that has none."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment().items():
            patch.setenv(name, value)
        with ray_cluster(2, num_cpus=4, num_gpus=4) as made:
            yield made


def test_a_run_on_ray_leaves_the_bytes_of_one_without_and_nothing_else(
    cluster: RayCluster, tmp_path: Path
) -> None:
    engine = Engine(tmp_path / "ray")  # Ray itself leaves descriptors, which the fixture looks for
    outcome = engine.run(*jobs(), backend=Backend.ray, ray=RayConfig(address=cluster.address))
    assert {status.value for status in outcome.jobs.values()} == {"done"}
    (failed,) = engine.events("AttemptFailed")
    assert (failed["job"], failed["kind"], failed["exit_code"]) == ("dies", "lost", -9)
    assert engine.leftovers() == []
    other = Engine(tmp_path / "other")
    other.run(*jobs())
    assert outputs(engine) == outputs(other)


def outputs(engine: Engine) -> dict[str, bytes]:
    """What is stored of outputs, without notes on how long they took."""
    return {name: data for name, data in engine.files().items() if not name.startswith((".", "durations"))}


def test_a_run_on_ray_is_changed_while_it_goes_on_as_one_without(cluster: RayCluster, tmp_path: Path) -> None:
    output, calm = tmp_path / "ray" / "outputs", tmp_path / "calm" / "outputs"
    output.parent.mkdir()
    calm.parent.mkdir()
    base = ["device=cpu", "algos=[QSharp,DPO]", "algos.QSharp.epochs=4000", "algos.DPO.epochs=1"]
    base += ["rounds_of_training=1", "execution.stop_grace_s=1"]
    on_ray = ["execution.backend=ray", f"execution.ray.address={cluster.address}", "execution.workers=2"]
    with subprocess.Popen(small_runs.command(output, *base, *on_ray), cwd=output.parent) as process:
        try:
            journal = output / "t" / "latest" / "journal.jsonl"
            wait_for(
                lambda: (
                    journal.exists()
                    and "addition/tiny/s0/QSharp/r1/train" in small_runs.events(output, "JobStarted")
                ),
                PATIENCE_S,
            )
            for words in (
                ["devices", "t", "-1"],
                ["clone", "t", "DPO", "--as", "Two", "algos.Two.epochs=2"],
                ["stop", "t", "QSharp"],  # which would take longest
            ):
                said = CliRunner().invoke(app, [*words, "--output-dir", str(output)])
                is_refused = "Ray places the workers" in " ".join(said.output.split())
                assert (said.exit_code, is_refused) == ((2, True) if words[0] == "devices" else (0, False)), (
                    said.output
                )
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()
    assert small_runs.events(output, "JobStopped") == ["addition/tiny/s0/QSharp/r1/train"]
    line = shlex.split(CliRunner().invoke(app, ["command", "t", "--output-dir", str(output)]).output)
    without = ("experiment.name=", "output_dir=", "execution.")
    small_runs.run(calm, *[word for word in line[2:] if not word.startswith(without)])
    assert small_runs.results(calm) == small_runs.results(output)


DRIVER = """
import json, sys
from dataclasses import replace
from pathlib import Path
from pipeline.config.schema import Backend, RayConfig
from pipeline.engine.devices.inventory import cpu_slots
from tests.doubles.engine import Engine, job
told = json.loads(sys.argv[1])
if __name__ == "__main__":
    devices = [replace(slot, node=slot.index // 2) for slot in cpu_slots(4)]
    Engine(Path(told["root"])).run(
        *[job(f"long{at}", "sleep", payload={"seconds": 600}) for at in range(2)],
        job("wide", "sleep", payload={"seconds": 600}, devices=2),
        devices=devices, backend=Backend.ray, ray=RayConfig(address=told["address"], resources={"GPU": 1}),
    )
"""


def test_what_a_cluster_loses_costs_attempts_and_an_engine_that_is_killed_frees_it(
    cluster: RayCluster, tmp_path: Path
) -> None:
    engine = Engine(tmp_path / "lost")
    ray = RayConfig(address=cluster.address, resources={"GPU": 1})
    devices = [replace(slot, node=slot.index // 2) for slot in cpu_slots(4)]
    _engine_is_killed(cluster, tmp_path / "killed")

    lost: list[int] = []

    def lose_a_node(view: Any) -> None:
        running = [one for one in view.jobs.values() if one.status == "running"]
        if not lost and len(running) >= 3:
            node = _node_of(cluster, view)
            lost.append(raylet(node))
            cluster.kill_raylet(node)

    outcome = engine.run(
        *[job(f"long{at}", "sleep", payload={"seconds": 25}) for at in range(3)],
        devices=devices,
        backend=Backend.ray,
        ray=ray,
        watcher=lose_a_node,
    )
    assert lost
    assert {status.value for status in outcome.jobs.values()} <= {"done", "stored"}
    reasons = {event["reason"] for event in engine.events("AttemptFailed")}
    assert reasons
    assert all("Ray has lost its actor or node" in reason for reason in reasons), reasons
    assert engine.events("DeviceQuarantined") == []
    _a_node_joins(cluster, Engine(tmp_path / "joins"), ray)


def _a_node_joins(cluster: RayCluster, engine: Engine, ray: RayConfig) -> None:
    """Jobs that end when more of them run than there were devices at the beginning."""
    joined: list[Any] = []
    go = engine.root / "go"

    def join(view: Any) -> None:
        running = [one for one in view.jobs.values() if one.status == "running"]
        if not joined and running:
            joined.append(cluster.add(num_cpus=4, num_gpus=4))
        if len(running) > 4:
            go.touch()

    outcome = engine.run(
        *[job(f"waits{at}", "wait_for_file", payload={"file": str(go)}) for at in range(8)],
        job("reads", "nothing", needs=[f"waits{at}" for at in range(8)]),
        devices=[replace(slot, node=slot.index // 4) for slot in cpu_slots(8)],
        backend=Backend.ray,
        ray=ray,
        watcher=join,
    )
    assert joined
    assert {status.value for status in outcome.jobs.values()} == {"done"}
    assert outcome.makespan is not None


def _node_of(cluster: RayCluster, view: Any) -> Any:
    """A node on which workers are."""
    named = next(worker.device for worker in view.workers.values() if worker.device)
    return next(node for node in cluster.nodes if node.node_id[:8] in named)


def _engine_is_killed(cluster: RayCluster, root: Path) -> None:
    root.mkdir()
    told = json.dumps({"root": str(root), "address": cluster.address})
    tag = descendants.new_tag()
    environment = descendants.with_tag(dict(os.environ), tag)
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, told], env=environment)
    try:
        _wait(
            lambda: _text(root / "run1" / "journal.jsonl").count('"JobStarted"') >= 3 or driver.poll() is not None
        )
        assert driver.poll() is None
        pids = [
            json.loads(line)["pid"]
            for line in _text(root / "run1" / "journal.jsonl").splitlines()
            if '"WorkerStarted"' in line
        ]
    finally:
        driver.kill()
        driver.wait()
    _wait(lambda: not any(map(_lives, pids)))
    _wait(lambda: not list((root / "store" / ".tmp").rglob("*")))  # what removes it outlives the workers


def _wait(until: Any) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while not until():
        assert time.monotonic() < give_up
        time.sleep(0.1)


def _text(path: Path) -> str:
    with suppress(OSError):
        return path.read_text()
    return ""


def _lives(pid: int) -> bool:
    with suppress(psutil.Error):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False
