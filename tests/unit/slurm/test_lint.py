"""Batch scripts are read before they wait a day in a queue."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import ConfigError
from pipeline.slurm.lint import SlurmJob, Starter, check_job, check_script, check_text, slurm_checks
from pipeline.terminal.console import Verdict

RIGHT = """#!/bin/bash
#SBATCH --job-name=x
#SBATCH --gres=gpu:h200:8        # all of them
#SBATCH --ntasks-per-node=1
#SBATCH -c 128

cd /scratch/me
python -m pipeline launch -- train.py \\
    --lr 1
"""
TOLD = """#!/bin/bash
#SBATCH --gres=gpu:8 --ntasks-per-node=1
#SBATCH --time=12:00:00
#SBATCH --signal=USR2@300

srun python -m pipeline run experiment.name=x
"""
PUT_BACK = '[ $? -eq 143 ] && scontrol requeue "$SLURM_JOB_ID"'
ONE, TWO = ("#!/bin/bash\n#SBATCH --gres=gpu:1\n", "#!/bin/bash\n#SBATCH --gres=gpu:8 --nodes=2\n")


def names(text: str, starter: Starter | None = None, given: dict[str, str] | None = None) -> list[str]:
    checks = check_text(text, starter, given)
    return [check.name.removeprefix("Slurm: ") for check in checks if check.verdict is not Verdict.PASS]


@pytest.mark.parametrize(
    ("text", "old", "new", "wrong"),
    [
        (RIGHT, "", "", []),
        (RIGHT, "gpu:h200:8 ", "gpu:h200:1 ", []),
        (RIGHT, "--ntasks-per-node=1", "--ntasks-per-node=8", ["several copies"]),
        (RIGHT, "python -m pipeline launch -- train.py", "python train.py", ["idle GPUs"]),
        (RIGHT, "cd /scratch/me", "export WORLD_SIZE=8", ["ranks by hand"]),
        (RIGHT, "cd /scratch/me", "cd /scratch/me\n#SBATCH --mem=9G", ["not read"]),
        (RIGHT, "-c 128", "-c 128\n#SBATCH --nodes=2", ["no srun"]),
        (RIGHT, "cd /scratch/me", "export CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7", []),
        (RIGHT, "cd /scratch/me", "export CUDA_VISIBLE_DEVICES=0,1", ["mask of its own"]),
        (RIGHT, "#SBATCH --gres", "##SBATCH --gres", ["no GPU"]),
        (TOLD, "", "", []),
        (TOLD, "srun ", "", ["nobody is told"]),
        (TOLD, "USR2@300", "B:USR2@300", ["nobody is told"]),
        (TOLD, "=USR2@300\n\nsrun ", "=B:USR2@300\n\nexec ", []),
        (TOLD, "=USR2@300\n\nsrun ", "=B:SIGUSR2@300\n\ntrap 'kill -USR2 $!' SIGUSR2\n", []),
        (TOLD, "--time", "--requeue --time", ["not put back"]),
        (TOLD, "--time", "--cpus-per-task=64 --time", ["one CPU for a step"]),
        (TOLD, "srun ", "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK\nsrun ", []),
        (TOLD, "--time", "--output=nowhere/%j.out --time", ["no folder for the output"]),
        (TOLD, "--time", "--output=%A_%a.out --array=0-3 --time", []),
        (TOLD, "#SBATCH --time", "# SBATCH --mem=9G\n#SBATCH --time", ["not read"]),
        (TOLD, "#SBATCH --time", " #SBATCH --mem=9G\n#SBATCH --time", ["not read"]),
        (TOLD, "#SBATCH --time", "#SBATCH\t--mem=9G\n#SBATCH\t--time", []),
        (TOLD, "gpu:8", "gpu:a100:4,gpu:h100:4", []),
    ],
)
def test_what_is_wrong_is_named(text: str, old: str, new: str, wrong: list[str]) -> None:
    assert old in text
    assert names(text.replace(old, new) + (PUT_BACK if "requeue" in new and not wrong else "")) == wrong


@pytest.mark.parametrize(
    ("script", "wrong"),
    [
        (TWO + "srun torchrun --nnodes 2 train.py\n", ["nowhere to meet"]),
        (TWO + "srun torchrun --nnodes=2 \\\n    --master-addr $(hostname) train.py\n", []),
        (ONE + "srun torchrun --nnodes 2 train.py\n", []),
        (TWO + "srun accelerate launch --machine_rank $SLURM_PROCID train.py\n", ["one rank for all"]),
        (TWO + "export NODE_RANK=$SLURM_NODEID\nsrun accelerate launch train.py\n", ["one rank for all"]),
        (TWO + "srun bash -c 'accelerate launch --machine_rank $SLURM_PROCID train.py'\n", []),
        (ONE + "srun accelerate launch --machine_rank $SLURM_PROCID train.py\n", []),
        (ONE + "cat <<EOF > other.sh\nexport RANK=0\nEOF\nsrun python train.py\n", []),
        (
            # The script that hung: each row of it that is wrong has a message.
            "#!/bin/bash\n#SBATCH --gres=gpu:h200:1   # Only requests 1 GPU!\n#SBATCH --ntasks-per-node=8\n"
            "export CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7\npython train.py\n",
            ["fewer GPUs than tasks", "no srun", "mask of its own"],
        ),
        (
            ONE.replace("gpu:1", "gpu:4")
            + "for i in 0 1 2 3; do\n  CUDA_VISIBLE_DEVICES=$i python train.py > $i.log 2>&1 &\ndone\nwait\n",
            [],
        ),
    ],
)
def test_what_leaves_ranks_alone_is_told(script: str, wrong: list[str]) -> None:
    assert names(script) == wrong


def test_the_starter_and_options_of_the_command_line_count() -> None:
    plain = RIGHT.replace("python -m pipeline launch -- train.py", "python train.py")
    assert [check.verdict for check in check_text(plain)] == [Verdict.WARN]  # it may well use several
    assert [check.verdict for check in check_text(plain, Starter.slurm)] == [Verdict.FAIL]
    assert names(plain, Starter.itself) == []
    assert names(TOLD, None, {"ntasks-per-node": "8"}) == ["several copies"]


@pytest.mark.properties
@given(st.lists(st.sampled_from([*TOLD, "\\", "\n#SBATCH ", "#", '"', "'", "\x00", "=", "--", "9" * 5000])))
def test_any_text_is_looked_through_to_its_end(parts: list[str]) -> None:
    """Numbers too that nobody means: Python refuses to read 5,000 digits."""
    assert check_text("".join(parts))


def test_what_is_no_batch_script_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "text").write_text("hello")
    for name, said in {"missing": "cannot read", "pipe": "no plain file", "text": "has no #SBATCH line"}.items():
        with pytest.raises(ConfigError, match=said):
            check_script(tmp_path / name)


# -- jobs in numbers ---------------------------------------------------------------------------------------------

ALL = "0,1,2,3,4,5,6,7"
ONE_TASK = SlurmJob(gpus=8, mask=ALL, visible=8)
PER_TASK = replace(ONE_TASK, starter=Starter.slurm, here=8, in_step=True)


@pytest.mark.parametrize(
    ("name", "right", "changed", "remedy"),
    [
        ("fewer GPUs than tasks", ONE_TASK, {"gpus": 1, "here": 8, "mask": "0"}, "--gres=gpu:8"),
        ("several copies", ONE_TASK, {"here": 8, "in_step": True}, "--ntasks-per-node=1"),
        ("idle GPUs", PER_TASK, {"here": 1}, "python -m pipeline launch"),
        ("idle GPUs", PER_TASK, {"here": 4}, "--ntasks-per-node=8"),
        ("no srun", ONE_TASK, {"nodes": 2}, "srun --ntasks-per-node=1 python -m pipeline launch"),
        ("no srun", PER_TASK, {"nodes": 2, "in_step": False}, "`srun` before the program"),
        ("no srun", PER_TASK, {"in_step": False}, "`srun` before the program"),
        ("mask of its own", ONE_TASK, {"gpus": 1}, "--gres=gpu:8"),
        ("mask of its own", ONE_TASK, {"mask": "0,1"}, "leave CUDA_VISIBLE_DEVICES to Slurm"),
        ("GPUs of others", ONE_TASK, {"gpus": 2, "mask": None}, "distributed.num_gpus=2"),
        ("no GPU", ONE_TASK, {"gpus": 0, "visible": 0, "mask": None}, "--gres=gpu:N"),
    ],
)
def test_each_wrong_job_has_its_message(name: str, right: SlurmJob, changed: dict[str, Any], remedy: str) -> None:
    (check,) = check_job(replace(right, **changed))
    assert check.name == f"Slurm: {name}"
    assert check.verdict is not Verdict.PASS
    assert remedy in check.remedy


def test_the_job_of_this_process_is_read_from_its_environment() -> None:
    def faults(visible: int = 8, **environment: str) -> list[str]:
        found = slurm_checks({"SLURM_JOB_ID": "7", **environment}, visible=visible)
        return [check.name.removeprefix("Slurm: ") for check in found if check.verdict is not Verdict.PASS]

    right = {
        "SLURM_NNODES": "2",
        "SLURM_GPUS_ON_NODE": "8",
        "SLURM_NTASKS": "2",
        "SLURM_NTASKS_PER_NODE": "1(x2)",
        "SLURM_STEP_ID": "0",
        "CUDA_VISIBLE_DEVICES": ALL,
    }
    assert faults(**right) == []
    assert faults(**{**right, "SLURM_STEP_ID": ""}) == ["no srun"]
    assert faults(SLURM_JOB_GPUS="4,5") == ["GPUs of others"]
    asked = {"SLURM_GPUS_ON_NODE": "1", "SLURM_NTASKS": "8", "CUDA_VISIBLE_DEVICES": "0"}
    assert faults(1, **asked) == faults(1, **asked, SLURM_NTASKS_PER_NODE="8") == ["fewer GPUs than tasks"]
    assert slurm_checks({"SLURM_CONF": "/etc/slurm.conf"}, visible=8) == []
