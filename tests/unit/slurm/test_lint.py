"""Batch scripts are read before they wait a day in a queue."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import ConfigError
from pipeline.slurm.script import check_script, check_text, slurm_checks
from pipeline.terminal.console import Check, Verdict

RIGHT = """#!/bin/bash
#SBATCH --job-name=x
#SBATCH --gres=gpu:h200:8        # all of them
#SBATCH --ntasks-per-node=1
#SBATCH -c 128

cd /scratch/me
python -m pipeline launch -- train.py \\
    --lr 1
"""
ONE = "#!/bin/bash\n#SBATCH --gres=gpu:1\n"
PER_TASK = "#!/bin/bash\n#SBATCH --gres=gpu:8 --ntasks-per-node=8\nsrun python train.py\n"
ALL = "0,1,2,3,4,5,6,7"


def names(checks: list[Check]) -> list[str]:
    return [check.name.removeprefix("Slurm: ") for check in checks if check.verdict is not Verdict.PASS]


@pytest.mark.parametrize(
    ("text", "old", "new", "wrong"),
    [
        (RIGHT, "", "", []),
        (RIGHT, "gpu:h200:8 ", "gpu:h200:1 ", []),
        (RIGHT, "gpu:h200:8", "gpu:a100:4,gpu:h100:4", []),
        (RIGHT, "--ntasks-per-node=1", "--ntasks-per-node=8", ["several copies"]),
        (RIGHT, "python -m pipeline launch -- train.py", "python train.py", ["idle GPUs"]),
        (RIGHT, "cd /scratch/me", "cd /scratch/me\n#SBATCH --mem=9G", ["not read"]),
        (RIGHT, "#SBATCH -c", "# SBATCH --mem=9G\n#SBATCH -c", ["not read"]),
        (RIGHT, "#SBATCH -c", " #SBATCH --mem=9G\n#SBATCH\t-c", ["not read"]),
        (RIGHT, "-c 128", "-c 128\n#SBATCH --nodes=2", ["no srun"]),
        (RIGHT, "cd /scratch/me", f"export CUDA_VISIBLE_DEVICES={ALL}", []),
        (RIGHT, "cd /scratch/me", "export CUDA_VISIBLE_DEVICES=0,1", ["mask of its own"]),
        (RIGHT, "-c 128", "--output=nowhere/%j.out", ["no folder for the output"]),
        (RIGHT, "-c 128", "--output=%A_%a.out --array=0-3", []),
        (PER_TASK, "", "", []),
        (PER_TASK, "gpu:8", "gpu:1", ["fewer GPUs than tasks"]),
        (PER_TASK, "node=8", "node=4", ["idle GPUs"]),
        (PER_TASK, "srun ", "", ["no srun"]),
    ],
)
def test_what_is_wrong_is_named(text: str, old: str, new: str, wrong: list[str]) -> None:
    assert old in text
    assert names(check_text(text.replace(old, new))) == wrong


@pytest.mark.parametrize(
    ("script", "wrong"),
    [
        (ONE + "cat <<EOF > other.sh\n#SBATCH --mem=9G\nEOF\nsrun python train.py\n", []),
        (
            # The script that hung: each row of it that is wrong has a message.
            "#!/bin/bash\n#SBATCH --gres=gpu:h200:1   # Only requests 1 GPU!\n#SBATCH --ntasks-per-node=8\n"
            f"export CUDA_VISIBLE_DEVICES={ALL}\npython train.py\n",
            ["fewer GPUs than tasks", "no srun", "mask of its own"],
        ),
        (
            ONE.replace("gpu:1", "gpu:4")
            + "for i in 0 1 2 3; do\n  CUDA_VISIBLE_DEVICES=$i python train.py > $i.log 2>&1 &\ndone\nwait\n",
            [],
        ),
    ],
)
def test_scripts_as_people_write_them_are_understood(script: str, wrong: list[str]) -> None:
    assert names(check_text(script)) == wrong


@pytest.mark.properties
@given(st.lists(st.sampled_from([*PER_TASK, "\\", "\n#SBATCH ", "#", '"', "'", "\x00", "=", "--", "9" * 5000])))
def test_any_text_is_looked_through_to_its_end(parts: list[str]) -> None:
    """Numbers too that nobody means: Python refuses to read 5,000 digits."""
    assert check_text("".join(parts))


def test_what_is_no_batch_script_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "text").write_text("hello")
    (tmp_path / "right").write_text(RIGHT)
    assert names(check_script(tmp_path / "right")) == []
    for name in ("missing", "pipe", "text"):
        with pytest.raises(ConfigError, match=name):
            check_script(tmp_path / name)


def test_the_job_of_this_process_is_read_from_its_environment() -> None:
    def faults(**environment: str) -> list[str]:
        return names(slurm_checks({"SLURM_JOB_ID": "7", **environment}))

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
    assert faults(SLURM_JOB_GPUS="4,5", CUDA_VISIBLE_DEVICES="4") == ["mask of its own"]
    asked = {"SLURM_GPUS_ON_NODE": "1", "SLURM_NTASKS": "8", "CUDA_VISIBLE_DEVICES": "0"}
    assert faults(**asked) == faults(**asked, SLURM_NTASKS_PER_NODE="8") == ["fewer GPUs than tasks"]
    assert slurm_checks({"SLURM_CONF": "/etc/slurm.conf"}) == []
