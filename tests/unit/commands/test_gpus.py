"""``python -m pipeline gpus`` shows GPUs and says which training fits."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from pipeline.__main__ import app
from pipeline.commands.gpus import gpu_table, gpus_to_fit, of_writing, summary
from pipeline.engine.devices.inventory import find_gpus, read_machine
from pipeline.engine.devices.select import LeaseSet
from pipeline.errors import ConfigError, DeviceError
from pipeline.learning.memory.fit import GB, ModelShape, Workload, fit
from pipeline.terminal.columns import FittedTable
from tests.doubles import fake_nvml
from tests.unit.engine.devices.conftest import UseMachine

SMALL = ModelShape(name="small", parameters=10**9, largest_unit=10**7)


@pytest.fixture(autouse=True)
def two(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PIPELINE_LEASE_DIR", str(tmp_path / "leases"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    fake_nvml.use(monkeypatch, tmp_path, "two")


def tiny_model(folder: Path) -> str:
    config = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 100, "n_positions": 32}
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def test_fit_prints_the_figures_and_what_to_do(tmp_path: Path) -> None:
    model = tiny_model(tmp_path)
    shown = CliRunner().invoke(app, ["gpus", "fit", model, "--batch", "4", "--effective-batch", "32"])
    assert shown.exit_code == 0, shown.output
    assert "ddp on 2 GPUs" in shown.stdout
    assert "single on 1 GPU: accumulate 8 steps: 4 x 1 GPUs x 8 = 32 sequences." in shown.stdout
    assert "Writing 32 texts of 1024 tokens at once takes 0.0 GB of each of 1 GPUs" in shown.stdout


def test_fit_says_why_nothing_fits(tmp_path: Path) -> None:
    wish = ["--strategy", "ddp", "--gpus", "2", "--memory", "1"]
    shown = CliRunner().invoke(app, ["gpus", "fit", tiny_model(tmp_path), *wish])
    assert shown.exit_code == 2
    assert "short" in shown.stdout
    assert "does not fit. Nearest: ddp on 2 GPUs needs" in shown.stderr


def test_fit_says_on_how_many_gpus_a_model_can_write() -> None:
    how = {"cached": 163_840, "vocabulary": 128_256, "widths": (1, 2, 4, 8)}
    llama = ModelShape(name="70B", parameters=70_600_000_000, **how)  # type: ignore[arg-type]
    said = of_writing(llama, 32, Workload(tokens=1024), 8, lambda _: 80 * GB)
    assert "takes 38.1 GB of each of 4 GPUs" in said
    assert "generation.gpus_per_job=4" in said
    said = of_writing(llama, 32, Workload(tokens=1024), 1, lambda _: 80 * GB)
    assert "takes 152.0 GB of each of 1 GPUs" in said
    assert "does not fit" in said
    with pytest.raises(DeviceError, match="--gpus 8 --memory 80"):
        gpus_to_fit(8, None)


def test_the_effective_batch_is_reached_by_accumulation() -> None:
    found = fit(SMALL, Workload(batch=4), [1], lambda _: 80 * 2**30, host_bytes=GB)
    assert "4 sequences a step" in summary(found, None)
    assert "4 x 1 GPUs x 2 = 8 sequences." in summary(found, 8)
    assert "4 x 1 GPUs x 3 = 12 sequences rather than 10" in summary(found, 10)
    with pytest.raises(ConfigError, match="use --batch 3 or fewer GPUs"):
        summary(found, 3)
    with pytest.raises(DeviceError, match="does not fit"):
        summary(fit(SMALL, Workload(), [1], lambda _: 2**30, host_bytes=GB), None)


def test_the_best_gpus_that_are_visible_are_fitted_on(
    machine: UseMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine("mixed")
    available, free_bytes = gpus_to_fit(None, None)
    usage = read_machine().usage
    free = {gpu.index: usage[gpu.uuid or ""].free_bytes for gpu in find_gpus()}
    assert available == len(free)
    assert free_bytes(2) == min(free[1], free[2])  # two of one model
    assert free_bytes(3) == sorted(free.values())[-3]
    machine("busy")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    assert gpus_to_fit(None, None)[0] == 2


# -- test gpu tables ---------------------------------------------------------------------------------------------
# What `python -m pipeline gpus` shows.


def lines(table: FittedTable) -> list[str]:
    console = Console(file=io.StringIO(), width=240)
    console.print(table)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


def line_of(rows: list[str], start: str) -> list[str]:
    (row,) = (row for row in rows if row.split()[:2] == start.split())
    return row.split()


def test_gpus_with_who_uses_them(machine: UseMachine) -> None:
    machine("busy")
    with LeaseSet.acquire(find_gpus()[1:2], experiment="mine") as lease:
        rows = lines(gpu_table())
        assert lease.devices
    busy = line_of(rows, "1 1")
    assert busy[2:9] == ["GPU-00000001", "NVIDIA", "H200", "130.0", "140.0", "GiB", "98%"]
    assert busy[9:11] == ["'mine'", "(pid"]
    assert busy[-3:] == ["101", "(130.0", "GiB)"]
    assert line_of(rows, "3 3")[-1] == "102"
    assert line_of(rows, "2 2")[-1] == "0%"


def test_hidden_and_broken_ones_are_shown_as_such(machine: UseMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine("lost")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    rows = lines(gpu_table())
    assert line_of(rows, "hidden 0")
    assert line_of(rows, "0 2")
    assert any("GPU is lost" in row for row in rows)
    assert "hidden: not in CUDA_VISIBLE_DEVICES" in rows[-1]


def test_a_machine_without_gpus_says_so(machine: UseMachine) -> None:
    machine("no driver")
    assert lines(gpu_table()) == ["no GPU: there is no NVIDIA driver; runs take CPU slots"]
    machine("mismatch")
    with pytest.raises(DeviceError, match="version mismatch"):
        gpu_table()
