"""A run on a real Ray: a cluster of several nodes that lose what they have.

Each start takes seconds and a gigabyte, so each test looks at as much as it can. None leaves anything: folders are
their own, and nobody else's Ray is touched.
"""

import json
import os
import shlex
import signal
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
from pipeline.engine.journal import JournalReader
from pipeline.engine.run_folder import RunFolder
from pipeline.engine.workers import on_ray
from pipeline.errors import has_package
from pipeline.machine import descendants
from pipeline.runs.loaded import LoadedRun
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
                ["clone", "t", "DPO", "--as", "Two", "algos.Two.epochs=2"],
                ["stop", "t", "QSharp"],  # which would take longest
            ):
                say(output, *words)
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()
    assert small_runs.events(output, "JobStopped") == ["addition/tiny/s0/QSharp/r1/train"]
    line = shlex.split(say(output, "command", "t"))
    without = ("experiment.name=", "output_dir=", "execution.")
    small_runs.run(calm, *[word for word in line[2:] if not word.startswith(without)])
    assert small_runs.results(calm) == small_runs.results(output)


def say(output: Path, *words: str, code: int = 0) -> str:
    said = CliRunner().invoke(app, [*words, "--output-dir", str(output)])
    assert said.exit_code == code, said.output
    return " ".join(said.output.split())


@pytest.fixture
def other(cluster: RayCluster) -> Iterator[Any]:
    """Ray, as another user of the cluster has it."""
    ray = on_ray.library()
    ray.init(address=cluster.address, namespace="other", configure_logging=False, log_to_driver=False)
    yield ray
    ray.shutdown()


def taken_by(ray: Any, **resources: float) -> Any:
    """An actor of another user, once it is there."""

    class Other:
        def answer(self) -> bool:
            return True

    actor = ray.remote(**{"num_cpus": 0, **resources})(Other).remote()
    assert ray.get(actor.answer.remote(), timeout=PATIENCE_S)
    return actor


def free_gpus(ray: Any) -> int:
    return int(ray.available_resources().get("GPU", 0))


def test_devices_go_to_other_users_of_the_cluster_and_come_back_while_a_run_goes_on(
    cluster: RayCluster,
    other: Any,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    output, calm, gate = tmp_path / "ray" / "outputs", tmp_path / "calm" / "outputs", tmp_path / "gate"
    monkeypatch.setenv("GATE", str(gate))  # of the engine as well: keys cover what jobs read
    base = small_runs.with_reference(tmp_path_factory, output)
    small_runs.with_reference(tmp_path_factory, calm)
    base += ["device=cpu", "rounds_of_training=2"]
    gate.mkdir()  # of a file keys would cover the content
    there = [f"execution.ray.address={cluster.address}", "execution.ray.resources={GPU: 2}"]
    there += ["execution.backend=ray", f"execution.ray.runtime_env={{env_vars: {{GATE: {gate}}}}}"]

    def running() -> set[int]:
        """Workers of the jobs that wait for the gate."""
        found = LoadedRun(RunFolder((output / "t" / "latest").resolve())).view.running()
        return {one.worker for job_id, one in found.items() if "/r2/count" in job_id}

    def waiting() -> list[int]:
        return [one["worker"] for one in json.loads(say(output, "status", "t", "--json"))["waiting_devices"]]

    def started(*settings: str) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(small_runs.command(output, *base, *there, *settings), cwd=output.parent)
        wait_for(lambda: (output / "t" / "latest" / "journal.jsonl").exists() and len(running()) == 3, PATIENCE_S)
        return process

    with started("execution.workers=5") as process:  # one more than the cluster has room for
        try:
            wait_for(lambda: len(waiting()) == 1, PATIENCE_S)
            (waits,) = waiting()
            assert "wait for room on the Ray cluster" in say(output, "status", "t")
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_S) == 130
        finally:
            process.kill()
    assert waits not in {int(index) for index in small_runs.events(output, "WorkerStarted", key="worker")}
    wait_for(lambda: free_gpus(other) == 8, PATIENCE_S)

    with started("execution.workers=4") as process:
        try:
            wait_for(lambda: waiting() == [], PATIENCE_S)
            (idle,) = {*range(4)} - running()
            busy = sorted(running())
            assert "room for 4 in all" in say(output, "devices", "t", "+4", code=2)
            assert "names no device" in say(output, "devices", "t", "-7", code=2)
            say(output, "devices", "t", f"-{idle}")
            wait_for(lambda: free_gpus(other) == 2, PATIENCE_S)
            theirs = taken_by(other, num_gpus=2)
            assert process.poll() is None

            say(output, "devices", "t", "+4")
            wait_for(lambda: waiting() == [4], PATIENCE_S)
            all_others = [f"-{index}" for index in busy]
            assert "cpu slot 4 must have room" in say(output, "devices", "t", *all_others, code=2)
            other.kill(theirs)
            wait_for(lambda: waiting() == [], PATIENCE_S)
            say(output, "devices", "t", *all_others)  # once their jobs are over
            say(output, "devices", "t", f"+{idle}")
            wait_for(lambda: waiting() == [idle], PATIENCE_S)
            assert len(running()) == 3
            gate.rmdir()
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()
    events = JournalReader(output / "t" / "latest" / "journal.jsonl").new_events()
    last = [event for event in events if "worker" in event]
    after = [event["worker"] for event in last if event["event"] == "JobStarted"][3:]
    assert {*after[-2:]} <= {4, idle}
    wait_for(lambda: free_gpus(other) == 8, PATIENCE_S)
    wait_for(lambda: not any(cluster.actors(node) for node in cluster.nodes), PATIENCE_S)
    small_runs.run(calm, *base)
    assert small_runs.results(calm) == small_runs.results(output)


def test_devices_that_ray_keeps_on_one_node_are_free_once_all_of_them_are_released(
    cluster: RayCluster, other: Any
) -> None:
    slots = [replace(slot, node=slot.index // 2) for slot in cpu_slots(3)]
    site = on_ray.RaySite(RayConfig(address=cluster.address), {"GPU": 1.0}, slots, together=True)
    with site:
        actors = [site.actor(index, {})[0] for index in range(3)]
        wait_for(lambda: free_gpus(other) == 5, PATIENCE_S)
        site.release(2, actors[2])
        site.release(0, actors[0])
        wait_for(lambda: free_gpus(other) == 6, PATIENCE_S)
        site.release(1, actors[1])
        wait_for(lambda: free_gpus(other) == 8, PATIENCE_S)


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
