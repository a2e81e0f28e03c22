"""The doctor on this machine as it would be under Slurm or with other GPUs, and the diagnostic one-liners."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipeline.__main__ import app
from pipeline.commands import check
from tests.doubles import fake_nvml

ROOT = Path(__file__).parents[2]


def test_a_machine_on_which_much_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch sees no GPU, NVML two; the job has one task too many for each."""
    # What these checks say, which take seconds, `test_setup_script` has.
    monkeypatch.setattr(check, "check_generation", lambda: iter(()))
    monkeypatch.setattr(check, "ask_torch", lambda: {"failure": "nobody asked"})
    fake_nvml.use(monkeypatch, tmp_path, "two")
    monkeypatch.chdir(tmp_path)
    wrong = {
        "PIPELINE_LEASE_DIR": str(tmp_path / "leases"),
        "CUDA_VISIBLE_DEVICES": "0,1,1",
        "SLURM_JOB_ID": "7",
        "SLURM_GPUS_ON_NODE": "1",
        "SLURM_NTASKS": "8",
        "SLURM_NTASKS_PER_NODE": "8",
    }
    for variable, value in wrong.items():
        monkeypatch.setenv(variable, value)
    done = CliRunner().invoke(app, ["check"])
    assert done.exit_code == 1
    for line in ("FAIL  CUDA_VISIBLE_DEVICES: ", "FAIL  Slurm: fewer GPUs than tasks", "PASS  store"):
        assert line in done.stdout
    assert "Repair what failed" in done.stdout
    assert done.stderr == ""


ONE_LINERS = {
    "import pipeline.learning.algos; import pipeline.learning.datasets; print('Imports OK')": "Imports OK",
    "from omegaconf import OmegaConf; from hydra import compose, initialize; "
    "initialize(config_path='conf', version_base=None); cfg = compose(config_name='config'); "
    "d = OmegaConf.to_container(cfg, resolve=True); print('Serialization OK')": "Serialization OK",
    "from pipeline.gpus import get_available_gpus; print(get_available_gpus())": "[]",
    "from pipeline.gpus import print_gpu_info; print_gpu_info()": "No CUDA GPUs available",
}


def test_diagnostic_one_liners() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "\n".join(ONE_LINERS)],
        cwd=ROOT,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines() == [*ONE_LINERS.values()], done.stderr
