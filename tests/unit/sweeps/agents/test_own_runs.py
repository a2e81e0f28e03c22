"""Trials that are runs of this package: what the sweep decides of them."""

import sys
from pathlib import Path

import pytest

from pipeline.engine.devices.inventory import Device
from pipeline.sweeps.agents.own_runs import is_own, own_command
from pipeline.sweeps.folder import sweep_folder
from pipeline.sweeps.reading.parameters import RESERVED, SPLIT
from pipeline.sweeps.spec import Method, Sweep

SWEEP = Sweep(
    name="eta",
    method=Method.random,
    metric=None,
    parameters={},
    program="./run_parallel.py",
    command=("${program}",),
)
CUDA = Device(kind="cuda", index=5, uuid="GPU-b", name="GPU", memory_total_bytes=1)
CPU = Device(kind="cpu", index=0, uuid=None, name="CPU", memory_total_bytes=1)


def words(device: Device, **parameters: object) -> list[str]:
    """The settings of a run, without those that are its parameters."""
    python, program, *settings = own_command(
        SWEEP,
        sweep_folder(Path("/outputs"), "eta"),
        parameters,
        [device],
        {"GPU-a": 0, "GPU-b": 1},
        workers=3,
        more=[f"{SPLIT}=validation", "stage=prepare"],
    )
    assert (python, program) == (sys.executable, "./run_parallel.py")
    return settings


def test_a_run_has_its_parameters_and_what_the_sweep_decides() -> None:
    assert is_own(SWEEP)
    assert words(CUDA, num_gpus=1, dataset="addition") == [
        "dataset=addition",
        "experiment.name=eta",
        "output_dir=/outputs",
        "distributed.gpu_ids=[1]",
        "evaluation.split=validation",
        "stage=prepare",
    ]
    assert words(CPU)[2:4] == ["device=cpu", "execution.workers=3"]
    assert words(CPU, **{"execution.workers": 1}).count("execution.workers=3") == 0


@pytest.mark.parametrize("device", [CUDA, CPU])
def test_what_the_sweep_decides_is_what_parameters_may_not_be(device: Device) -> None:
    """So that no parameter is overruled in silence."""
    decided = {setting.partition("=")[0] for setting in words(device)}
    assert decided <= {*RESERVED, SPLIT, "execution.workers"}
