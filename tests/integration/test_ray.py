"""A run on a real Ray: started for it, and a cluster of several nodes that lose what they have.

Each start takes seconds and a gigabyte, so each test looks at as much as it can. None leaves anything: folders are
their own, and nobody else's Ray is touched.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipeline.config.schema import Backend, RayConfig
from pipeline.engine.devices.inventory import cpu_slots
from pipeline.engine.workers.ray import is_installed, site
from pipeline.machine import descendants
from tests.doubles.engine import Engine, job

pytestmark = [
    pytest.mark.skipif(not is_installed(), reason="Ray is not installed: pip install -e '.[ray]'"),
    pytest.mark.filterwarnings("default"),  # Ray has warnings of its own
]
PATIENCE_S = 240.0
JOBS = 6


def jobs() -> list[Any]:
    """Plain ones, one that loses its worker, and one of two devices."""
    plain = [job(f"job{at}") for at in range(JOBS)]
    dies = job("dies", "kill_self_once")
    return [*plain, dies, job("last", needs=["job0", "job1"]), job("wide", devices=2)]


def test_a_run_on_ray_leaves_the_bytes_of_one_without_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(tmp_path / "ray")  # Ray itself leaves descriptors, which the fixture looks for
    home, folders, make = Path.home() / ".ray", [], tempfile.mkdtemp
    had_home = home.exists()
    monkeypatch.setattr(site.tempfile, "mkdtemp", lambda **where: folders.append(make(**where)) or folders[-1])
    outcome = engine.run(*jobs(), backend=Backend.ray)
    assert {status.value for status in outcome.jobs.values()} == {"done"}
    (failed,) = engine.events("AttemptFailed")
    assert (failed["job"], failed["kind"], failed["exit_code"]) == ("dies", "lost", -9)
    assert engine.leftovers() == []
    assert folders
    assert not any(map(os.path.exists, folders))
    assert home.exists() == had_home, "a token was written"
    other = Engine(tmp_path / "other")
    other.run(*jobs())
    assert outputs(engine) == outputs(other)


def outputs(engine: Engine) -> dict[str, bytes]:
    """What is stored of outputs, without notes on how long they took."""
    return {name: data for name, data in engine.files().items() if not name.startswith((".", "durations"))}


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


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Two nodes of four pretended GPUs, beside a head that has none."""
    for name, value in {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_AUTO_CONNECT": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": os.environ.get("RAY_AUTH_TOKEN") or secrets.token_hex(32),
    }.items():
        monkeypatch.setenv(name, value)
    from ray.cluster_utils import Cluster

    folder = tempfile.mkdtemp(prefix="ppl-ray-", dir="/tmp")
    Path("/tmp/ray").mkdir(exist_ok=True)  # where it notes its address
    common = {"object_store_memory": 80 << 20, "temp_dir": folder}
    made = Cluster(True, head_node_args={"num_cpus": 0, "num_gpus": 0, "include_dashboard": False, **common})
    try:
        for _ in range(2):
            made.add_node(num_cpus=4, num_gpus=4, **common)
        yield made
    finally:
        made.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def test_what_a_cluster_loses_costs_attempts_and_an_engine_that_is_killed_frees_it(
    cluster: Any, tmp_path: Path
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
            lost.append(node.all_processes["raylet"][0].process.pid)
            os.kill(lost[0], signal.SIGKILL)

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
    assert all("its node was lost" in reason or "its actor died" in reason for reason in reasons), reasons
    assert engine.events("DeviceQuarantined") == []


def _node_of(cluster: Any, view: Any) -> Any:
    """The node on which workers are."""
    named = next(worker.device for worker in view.workers.values() if worker.device)
    return next(node for node in cluster.worker_nodes if node.node_id[:8] in named)


def _engine_is_killed(cluster: Any, root: Path) -> None:
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
    assert not list((root / "store" / ".tmp").rglob("*"))


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
