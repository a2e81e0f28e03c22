"""What `python -m pipeline gpus` shows."""

import io
import os

import pytest
from rich.console import Console

from pipeline.commands.gpus import fit_table, gpu_table
from pipeline.engine.devices.inventory import find_gpus
from pipeline.engine.devices.lease import LeaseSet
from pipeline.errors import DeviceError
from pipeline.learning.memory.fit import GB, ModelShape, Workload, fit
from pipeline.terminal.columns import FittedTable
from tests.unit.engine.devices.conftest import UseMachine


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
        rows = lines(gpu_table({}))
        assert lease.devices
    busy = line_of(rows, "1 1")
    assert busy[2:9] == ["GPU-00000001", "NVIDIA", "H200", "130.0", "140.0", "GiB", "98%"]
    assert busy[9:11] == ["'mine'", "(pid"]
    assert busy[-3:] == ["101", "(130.0", "GiB)"]
    assert line_of(rows, "3 3")[-1] == "102"
    assert line_of(rows, "2 2")[-1] == "0%"


def test_hidden_and_broken_ones_are_shown_as_such(machine: UseMachine) -> None:
    machine("lost")
    rows = lines(gpu_table({"CUDA_VISIBLE_DEVICES": "2"}))
    assert line_of(rows, "hidden 0")
    assert line_of(rows, "0 2")
    assert any("GPU is lost" in row for row in rows)
    assert "hidden: not in CUDA_VISIBLE_DEVICES" in rows[-1]


def test_a_machine_without_gpus_says_so(machine: UseMachine) -> None:
    machine("no driver")
    assert lines(gpu_table({})) == ["no GPU: there is no NVIDIA driver; runs take CPU slots"]
    machine("mismatch")
    with pytest.raises(DeviceError, match="version mismatch"):
        gpu_table({})


def test_a_fit_shows_the_figures_of_every_strategy() -> None:
    shape = ModelShape(name="7B", parameters=7 * 10**9, largest_unit=10**8)
    rows = lines(fit_table(fit(shape, Workload(), 2, lambda _: 64 * 2**30, host_bytes=GB)))
    assert rows[0].strip() == "7B: 7 B parameters, GB on each GPU"
    (taken,) = (row for row in rows if "taken" in row)
    assert taken.split()[:2] == ["full_shard", "on"]
    assert "7.0" in taken
    (single,) = (row for row in rows if row.strip().startswith("single"))
    assert "112.0" in single
    assert "short" in single
    assert "1 x 1024 tokens, mixed, adamw, all weights, checkpointing off" in "\n".join(rows)


def narrow(table: FittedTable, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(table)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    assert all(len(line) <= width for line in text.splitlines())
    return text


def test_a_small_terminal_cuts_the_name_of_a_gpu_rather_than_its_memory(machine: UseMachine) -> None:
    machine("busy")
    with LeaseSet.acquire(find_gpus()[1:2], experiment="an_experiment_with_a_long_name"):
        text = narrow(gpu_table({}))
    (row,) = (line for line in text.splitlines() if line.split()[:1] == ["1"])
    assert row.split()[1:6] == ["NVID…200", "130.0", "140.0", "GiB", "98%"]
    assert row.split()[-1] == "101"
    assert "(130.0 GiB)" in text
    assert f"(pid {os.getpid()}" in text
    assert "'an_exp" in text
