"""``python -m pipeline gpus`` shows GPUs and says which training fits."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipeline.__main__ import app
from pipeline.commands.gpus import gpus_to_fit, of_writing, summary
from pipeline.engine.devices.inventory import find_gpus, read_machine
from pipeline.errors import ConfigError, DeviceError
from pipeline.learning.memory.fit import GB, DecodingLoad, DecodingShape, ModelShape, Workload, fit
from tests.doubles import fake_nvml
from tests.unit.engine.devices.conftest import UseMachine

SMALL = ModelShape(name="small", parameters=10**9, largest_unit=10**7)


@pytest.fixture(autouse=True)
def two(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PIPELINE_LEASE_DIR", str(tmp_path / "leases"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    fake_nvml.use(monkeypatch, tmp_path, "two")


def test_a_broken_driver_is_one_message(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_nvml.use(monkeypatch, tmp_path, "mismatch")
    shown = CliRunner().invoke(app, ["gpus"])
    assert shown.exit_code == 2
    assert "reboot" in shown.stderr
    assert shown.stdout == ""


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
    llama = DecodingShape(parameters=70_600_000_000, cached=163_840, vocabulary=128_256)
    writing = DecodingLoad(policy=llama, rows=32, tokens=1024, number_bytes=2)
    widths = [1, 2, 4, 8]
    said = of_writing(writing, widths, 8, lambda _: 80 * GB)
    assert "takes 38.1 GB of each of 4 GPUs" in said
    assert "generation.gpus_per_job=4" in said
    said = of_writing(writing, widths, 1, lambda _: 80 * GB)
    assert "takes 152.0 GB of each of 1 GPUs" in said
    assert "does not fit into the 71.0 GB that are usable; it can be split over 1 or 2 or 4 or 8" in said


@pytest.mark.parametrize(
    ("wish", "says"),
    [
        (["--gpus", "8"], "give their number and their memory: --gpus 8 --memory 80"),
        (["--num-gpus", "3"], "num_gpus=3, but there are 2 GPUs"),
        (["--strategy", "ddp", "--num-gpus", "1"], "strategy=ddp cannot use num_gpus=1"),
    ],
)
def test_wishes_that_cannot_be(wish: list[str], says: str, tmp_path: Path) -> None:
    shown = CliRunner().invoke(app, ["gpus", "fit", tiny_model(tmp_path), *wish])
    assert shown.exit_code == 2
    assert says in shown.stderr


@pytest.mark.parametrize(
    ("effective", "says"),
    [
        (None, "single on 1 GPU: 4 sequences a step (4 x 1 GPUs), times accumulation."),
        (8, "4 x 1 GPUs x 2 = 8 sequences."),
        (10, "4 x 1 GPUs x 3 = 12 sequences rather than 10, which they do not divide."),
    ],
)
def test_the_effective_batch(effective: int | None, says: str) -> None:
    found = fit(SMALL, Workload(batch=4), 1, lambda _: 80 * 2**30, host_bytes=GB)
    assert summary(found, effective).endswith(says)


def test_an_effective_batch_that_is_too_small() -> None:
    found = fit(SMALL, Workload(batch=4), 1, lambda _: 80 * 2**30, host_bytes=GB)
    with pytest.raises(ConfigError, match="use --batch 3 or fewer GPUs"):
        summary(found, 3)
    with pytest.raises(DeviceError, match="does not fit"):
        summary(fit(SMALL, Workload(), 1, lambda _: 2**30, host_bytes=GB), None)


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
