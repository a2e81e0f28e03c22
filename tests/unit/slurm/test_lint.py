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
from pipeline.terminal.check import Verdict

RIGHT = """#!/bin/bash
#SBATCH --job-name=x
#SBATCH --gres=gpu:h200:8        # all of them
#SBATCH --ntasks-per-node=1
#SBATCH -c 128

cd /scratch/me
python -m pipeline launch -- train.py \\
    --lr 1
"""


def names(folder: Path, text: str, starter: Starter | None = None) -> list[str]:
    (folder / "job.slurm").write_text(text)
    checks = list(check_script(folder / "job.slurm", starter))
    return [check.name.removeprefix("Slurm: ") for check in checks if check.verdict is not Verdict.PASS]


def test_a_right_script_passes(tmp_path: Path) -> None:
    assert names(tmp_path, RIGHT) == []


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ("--nnodes=2", ["nowhere to meet"]),
        ("--nnodes 2 --rdzv_backend=c10d", ["nowhere to meet"]),
        ("--nproc_per_node=8", ["nowhere to meet"]),
        ("--nnodes=2 --rdzv_endpoint=$first:29500", []),
        ("--nnodes=2 \\\n    --master-addr $(hostname)", []),
    ],
)
def test_the_torchruns_of_several_nodes_have_to_meet(options: str, wrong: list[str], tmp_path: Path) -> None:
    text = RIGHT.replace("-c 128", "--nodes=2").replace("python -m pipeline launch --", f"srun torchrun {options}")
    assert names(tmp_path, text) == wrong
    assert names(tmp_path, text.replace("--nodes=2", "--nodes=1")) == []


@pytest.mark.parametrize(
    ("old", "new", "wrong"),
    [
        ("gpu:h200:8 ", "gpu:h200:1 ", []),
        ("--ntasks-per-node=1", "--ntasks-per-node=8", ["several copies"]),
        ("python -m pipeline launch -- train.py", "python train.py", ["one GPU of several"]),
        ("train.py \\", "train.py \\    # a remark", ["broken command"]),
        ("train.py \\", "train.py \\ ", ["broken command"]),
        ("cd /scratch/me", "export WORLD_SIZE=8", ["ranks by hand"]),
        ("cd /scratch/me", "cd /scratch/me\n#SBATCH --mem=9G", ["late line"]),
        ("-c 128", "-c 128\n#SBATCH --nodes=2", ["no srun"]),
        ("cd /scratch/me", "export CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7", []),
        ("cd /scratch/me", "export CUDA_VISIBLE_DEVICES=0,1", ["mask of its own"]),
        ("--lr 1", "data.num_workers=16", ["few CPUs"]),
        ("#SBATCH --gres", "##SBATCH --gres", ["no GPU"]),
    ],
)
def test_what_is_wrong_is_named(old: str, new: str, wrong: list[str], tmp_path: Path) -> None:
    assert old in RIGHT
    assert names(tmp_path, RIGHT.replace(old, new)) == wrong


TOLD = """#!/bin/bash
#SBATCH --gres=gpu:8 --ntasks-per-node=1
#SBATCH --time=12:00:00
#SBATCH --signal=USR2@300

srun python -m pipeline run experiment.name=x
"""
PUT_BACK = '[ $? -eq 143 ] && scontrol requeue "$SLURM_JOB_ID"'


@pytest.mark.parametrize(
    ("old", "new", "wrong"),
    [
        ("", "", []),
        ("srun ", "", ["nobody is told"]),
        ("srun ", "trap 'kill -USR2 $!' USR2; ", ["nobody is told"]),
        ("USR2@300", "B:USR2@300", ["nobody is told"]),
        ("=USR2@300\n\nsrun ", "=B:USR2@300\n\nexec ", []),
        ("=USR2@300\n\nsrun ", "=B:SIGUSR2@300\n\ntrap 'kill -USR2 $!' SIGUSR2\n", []),
        ("12:00:00", "12 hours", ["refused line"]),
        ("--time", "--requeue --time", ["not put back"]),
        ("experiment.name=x", f"experiment.name=x\n{PUT_BACK}", []),
        ("--time", "--cpus-per-task=64 --time", ["one CPU for a step"]),
        ("srun ", "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK\nsrun ", []),
        ("--time", "--output=nowhere/%j.out --time", ["no folder for the output"]),
        ("--time", "--output=%A_%a.out --array=0-3 --time", []),
        ("--time", "--account=$USER --time", ["no shell"]),
        ("--time", "--nodes=1 # $USER is in here\n#SBATCH --time", []),
        ("#SBATCH --time", "# SBATCH --mem=9G\n#SBATCH --time", ["not read"]),
        ("#SBATCH --time", " #SBATCH --mem=9G\n#SBATCH --time", ["not read"]),
        ("#SBATCH --time", "#SBATCH\t--mem=9G\n#SBATCH\t--time", []),
        ("--time", "--tiem 1 --time", ["refused line"]),
        ("--time", "--walltime=1 --time", ["unknown option"]),
        ("run exp", "run \\\n  # a remark\n  exp", ["broken command"]),
        ("#SBATCH --time", "#SBATCH hetjob\n#SBATCH --time", ["refused line"]),
        ("gpu:8", "gpu:a100:4,gpu:h100:4", []),
        ("--ntasks-per-node=1", "--ntasks-per-gpu=1", ["several copies"]),
    ],
)
def test_what_befalls_a_job_later_is_named_too(old: str, new: str, wrong: list[str], tmp_path: Path) -> None:
    assert old in TOLD
    assert names(tmp_path, TOLD.replace(old, new)) == wrong


def test_options_of_the_command_line_count(tmp_path: Path) -> None:
    (tmp_path / "job").write_text(TOLD)
    checks = check_script(tmp_path / "job", None, {"ntasks-per-node": "8"})
    assert [check.name for check in checks] == ["Slurm: several copies"]


def test_numbers_that_nobody_means_are_read_to_their_end(tmp_path: Path) -> None:
    """Python refuses to read 5,000 digits."""
    for option in ("gres=gpu:", "gpus=", "time=", "array=0-", "mem=", "nodes=", "signal=USR1@"):
        names(tmp_path, f"{RIGHT.partition('cd')[0]}#SBATCH --{option}{'9' * 5000}\nsrun x\n")


@pytest.mark.properties
@given(st.lists(st.sampled_from([*TOLD, "\\", "\n#SBATCH ", "#", '"', "'", "\x00", "=", "--"])))
def test_any_text_is_looked_through_to_its_end(parts: list[str]) -> None:
    assert check_text("".join(parts))


def test_one_gpu_for_eight_tasks(tmp_path: Path) -> None:
    """The script that hung: every row of it that is wrong has a message."""
    script = (
        "#!/bin/bash\n#SBATCH --gres=gpu:h200:1   # Only requests 1 GPU!\n#SBATCH --ntasks-per-node=8\n"
        "#SBATCH --cpus-per-task=16\nexport CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7\npython train.py\n"
    )
    assert names(tmp_path, script) == ["fewer GPUs than tasks", "ranks need srun", "mask of its own"]


def test_the_starter_may_be_said(tmp_path: Path) -> None:
    plain = RIGHT.replace("python -m pipeline launch -- train.py", "python train.py")
    assert names(tmp_path, plain) == ["one GPU of several"]
    assert names(tmp_path, plain, Starter.itself) == []


def test_what_is_no_batch_script_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        list(check_script(tmp_path / "missing"))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="no plain file"):
        list(check_script(tmp_path / "pipe"))
    (tmp_path / "text").write_text("hello")
    with pytest.raises(ConfigError, match="has no #SBATCH line"):
        list(check_script(tmp_path / "text"))


_HEAD = "#!/bin/bash\n#SBATCH --time=1:00:00\n#SBATCH --gres=gpu:1\n"


@pytest.mark.parametrize(
    ("script", "wrong"),
    [
        ("#SBATCH -t 24:00\nsrun python train.py\n", ["minutes"]),
        ("#SBATCH -t 00:30\nsrun python train.py\n", []),
        ("#SBATCH --mem=64\nsrun python train.py\n", ["megabytes"]),
        ("#SBATCH --mem-per-gpu=80\nsrun python train.py\n", ["megabytes"]),
        ("#SBATCH --mem=0\nsrun python train.py\n", []),
        ("#SBATCH --mem=64000\nsrun python train.py\n", []),
        ("python train.py > log 2>&1 &\n", ["nobody waits"]),
        ("nohup python train.py &\necho started\nexit 0\n", ["nobody waits"]),
        ("for i in 1 2; do\n  python train.py --seed $i &\ndone\n", ["nobody waits"]),
        ("for i in 1 2; do python train.py --seed $i & done\nwait\n", []),
        ("nohup python train.py &\nsleep 10\n", ["nobody waits"]),
        ('srun bash -c "run --node_rank $SLURM_PROCID --nnodes $SLURM_NNODES"\n', ["one rank for all"]),
        ("nvidia-smi -l 60 > gpus.log &\npython train.py\n", []),
        ("python a.py && python b.py\n", []),
        ("conda activate ml\nsrun python train.py\n", ["no environment"]),
        ('eval "$(conda shell.bash hook)"\nconda activate ml\nsrun python train.py\n', []),
        ("source ~/miniconda3/etc/profile.d/conda.sh\nconda activate ml\nsrun python train.py\n", []),
        ("source activate ml\nsrun python train.py\n", []),
        ("cat <<EOF > other.sh\n#SBATCH --mem=1G\npython train.py &\nEOF\nsrun python train.py\n", []),
        ("#SBATCH --array=0-7\nexport WANDB_RUN_ID=abc\npython train.py\n", ["one run for all"]),
        ("#SBATCH --array=0-7\nexport WANDB_RUN_ID=abc-$SLURM_ARRAY_TASK_ID\npython train.py\n", []),
        (
            "#SBATCH --nodes=2\nsrun accelerate launch --machine_rank $SLURM_PROCID train.py\n",
            ["one rank for all"],
        ),
        (
            "#SBATCH --nodes=2\nexport NODE_RANK=$SLURM_NODEID\nsrun accelerate launch train.py\n",
            ["one rank for all"],
        ),
        (
            "#SBATCH --nodes=2\nsrun bash -c 'accelerate launch --machine_rank $SLURM_PROCID train.py'\n",
            [],
        ),
        ("srun accelerate launch --machine_rank $SLURM_PROCID train.py\n", []),
        ("#SBATCH --container-image=nvcr.io\\#nvidia/pytorch # ours\nsrun python train.py\n", []),
    ],
)
def test_what_loses_a_program_or_its_numbers_is_told(script: str, wrong: list[str], tmp_path: Path) -> None:
    assert names(tmp_path, _HEAD + script) == wrong
    if wrong == ["no environment"]:
        assert names(tmp_path, _HEAD.replace("bash", "bash -l") + script) == []


def test_several_programs_that_share_out_the_gpus_of_a_job_are_right(tmp_path: Path) -> None:
    head = _HEAD.replace("gpu:1", "gpu:4")
    body = (
        "for i in 0 1 2 3; do\n  CUDA_VISIBLE_DEVICES=$i python train.py --seed $i > $i.log 2>&1 &\ndone\nwait\n"
    )
    assert names(tmp_path, head + body) == []


def test_a_program_of_unknown_ways_may_well_use_several_gpus(tmp_path: Path) -> None:
    (tmp_path / "a.sbatch").write_text(_HEAD.replace("gpu:1", "gpu:4") + "python serve.py\n")
    assert [check.verdict for check in check_script(tmp_path / "a.sbatch")] == [Verdict.WARN]


# -- jobs in numbers ---------------------------------------------------------------------------------------------

ALL = "0,1,2,3,4,5,6,7"
ONE_TASK = SlurmJob(gpus=8, cpus=128, mask=ALL, visible=8)
PER_TASK = replace(ONE_TASK, starter=Starter.slurm, here=8, cpus=16, in_step=True)


@pytest.mark.parametrize(
    ("name", "right", "changed", "remedy"),
    [
        ("fewer GPUs than tasks", ONE_TASK, {"gpus": 1, "here": 8, "mask": "0"}, "--gres=gpu:8"),
        ("several copies", ONE_TASK, {"here": 8, "in_step": True}, "--ntasks-per-node=1"),
        ("one GPU of several", ONE_TASK, {"starter": Starter.lightning}, "python -m pipeline launch"),
        ("tasks and GPUs differ", PER_TASK, {"here": 4}, "--ntasks-per-node=8"),
        ("no srun", ONE_TASK, {"nodes": 2}, "srun --ntasks-per-node=1 python -m pipeline launch"),
        ("no srun", PER_TASK, {"nodes": 2, "in_step": False}, "`srun` before the program"),
        ("ranks need srun", PER_TASK, {"in_step": False}, "`srun` before the program"),
        ("bound GPUs", PER_TASK, {"bound": "--gpu-bind=single:1"}, "--gpu-bind=none"),
        ("few CPUs", ONE_TASK, {"cpus": 16, "loaders": 4}, "--cpus-per-task=40"),
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


@pytest.mark.parametrize(
    "job",
    [
        ONE_TASK,
        PER_TASK,
        replace(PER_TASK, starter=Starter.lightning),
        replace(ONE_TASK, gpus=1, mask="0", visible=1),
        replace(ONE_TASK, nodes=2, in_step=True),
        replace(PER_TASK, nodes=2),
    ],
    ids=["launch", "srun", "Lightning under srun", "one GPU", "two nodes", "two nodes by srun"],
)
def test_right_jobs_pass(job: SlurmJob) -> None:
    (check,) = check_job(job)
    assert check.verdict is Verdict.PASS, check


def test_the_job_of_this_process_is_read_from_its_environment() -> None:
    def faults(visible: int = 8, **environment: str) -> list[str]:
        found = slurm_checks({"SLURM_JOB_ID": "7", **environment}, visible=visible)
        return [check.name.removeprefix("Slurm: ") for check in found if check.verdict is not Verdict.PASS]

    right = {
        "SLURM_NNODES": "2",
        "SLURM_GPUS_ON_NODE": "8",
        "SLURM_NTASKS": "2",
        "SLURM_NTASKS_PER_NODE": "1(x2)",
        "SLURM_CPUS_PER_TASK": "32",
        "SLURM_STEP_ID": "0",
        "CUDA_VISIBLE_DEVICES": ALL,
    }
    assert faults(**right) == []
    assert faults(**{**right, "SLURM_STEP_ID": ""}) == ["no srun"]
    assert faults(**{**right, "SLURM_CPUS_PER_TASK": "4"}) == ["few CPUs"]
    assert faults(SLURM_JOB_GPUS="4,5") == ["GPUs of others"]
    asked = {"SLURM_GPUS_ON_NODE": "1", "SLURM_NTASKS": "8", "CUDA_VISIBLE_DEVICES": "0"}
    assert faults(1, **asked) == faults(1, **asked, SLURM_NTASKS_PER_NODE="8") == ["fewer GPUs than tasks"]
    assert slurm_checks({"SLURM_CONF": "/etc/slurm.conf"}, visible=8) == []
