"""Several programs side by side: devices, ends, signals. Real processes on GPUs that a fake driver tells of."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pipeline.__main__ import app
from pipeline.engine.devices.inventory import find_gpus
from pipeline.engine.devices.select import LeaseSet
from pipeline.engine.scheduler.signals import StopSignals
from pipeline.sweeps.trial_process import Handle, Order, side_by_side
from tests.doubles import fake_nvml

ROOT = Path(__file__).parents[2]


def order(folder: Path, name: str, code: str, **options: Any) -> Order:
    places = {"log": str(folder / f"{name}.txt"), "start": str(folder / f"{name}.json")}
    return Order(words=[sys.executable, "-c", code], holder=name, **places, **options)


def carry_out(orders: list[Order], slots: int, say: Callable[[str], None]) -> tuple[str, list[Handle]]:
    ended: list[Handle] = []

    def note(_slot: int, one: Handle) -> float:
        ended.append(one)
        if one.result.busy:
            orders.append(one.order)
            say(one.result.busy)
        return 0.0

    with StopSignals() as signals:
        return side_by_side(slots, signals, lambda _: orders.pop(0) if orders else None, note, say), ended


def test_each_has_its_devices_log_and_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvml.use(monkeypatch, tmp_path, "eight")
    monkeypatch.setenv("PIPELINE_LEASE_DIR", str(tmp_path / "leases"))
    monkeypatch.setenv("RANK", "3")
    show = "import os; print(os.environ.get('CUDA_VISIBLE_DEVICES'), os.environ.get('RANK'))"
    lease = LeaseSet.acquire(find_gpus()[3:4], experiment="somebody")
    said: list[str] = []

    def hear(text: str) -> None:
        said.append(text)
        lease.release()

    interrupted, ended = carry_out(
        [
            order(tmp_path, "a", show, gpus=[1]),
            order(tmp_path, "b", show + "; raise SystemExit(7)", gpus=[2]),
            order(tmp_path, "waits", show, gpus=[3]),
            order(tmp_path, "lost", "import os; os.kill(os.getpid(), 9)", gpus=[4]),
            order(tmp_path, "takes its own", show, gpus=[5], leases=True),
        ],
        slots=3,
        say=hear,
    )
    assert interrupted == ""
    assert {one.order.holder: one.result.exit_code for one in ended if not one.result.busy} == {
        "a": 0,
        "b": 7,
        "waits": 0,
        "lost": 137,
        "takes its own": 0,
    }
    assert len(said) == 1
    assert "'somebody'" in said[0]
    uuids = [str(each.uuid) for each in find_gpus()]
    assert (tmp_path / "a.txt").read_text() == f"{uuids[1]} None\n"
    assert (tmp_path / "waits.txt").read_text() == f"{uuids[3]} None\n"
    # Its ids are positions in the mask of this process, which has none.
    assert (tmp_path / "takes its own.txt").read_text() == "None None\n"
    assert json.loads((tmp_path / "b.json").read_text())["exit_code"] == 7


def test_a_run_of_several_has_gpus_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvml.use(monkeypatch, tmp_path, "eight")
    monkeypatch.setenv("PIPELINE_LEASE_DIR", str(tmp_path / "leases"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)
    words = ["sweep", "multi", "my", "2", "1"]
    given = ["--output-dir", "it's out", "dry_run=true", "algos=[DPO]"]
    command = [sys.executable, "-m", "pipeline", *words, "2", *given]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "my.run1  on GPU 0, GPU 1" in done.stdout
    assert "1 of 1 run done" in done.stdout
    folder = tmp_path / "it's out" / "my.run1"
    command = json.loads((folder / "start.json").read_text())["command"]
    assert {"distributed.gpu_list=[0,1]", "experiment.seeds=[0]", "algos=[DPO]"} <= set(command)
    assert "to run on 2 workers" in (folder / "output.txt").read_text()
    with LeaseSet.acquire(find_gpus()[1:2], experiment="other"):
        refused = CliRunner().invoke(app, [*words, *given])
    assert refused.exit_code == 2
    assert "GPU 1 by 'other'" in refused.stderr
