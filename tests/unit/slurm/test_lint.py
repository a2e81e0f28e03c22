"""Batch scripts are read before they wait a day in a queue."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import ConfigError
from pipeline.slurm.header import words_of
from pipeline.slurm.job import SlurmJob, Starter
from pipeline.slurm.lint import check_script, check_text, read_job
from pipeline.slurm.request import widths
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
    assert read_job(RIGHT.splitlines()) == SlurmJob(gpus=8, tasks_per_node=1, cpus_per_task=128)


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ("--nnodes=2", ["nowhere to meet"]),
        ("--nnodes 2 --rdzv_backend=c10d", ["nowhere to meet"]),
        ("--nproc_per_node=8", ["nodes by themselves"]),
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
        ("gpu:h200:8 ", "gpu:h200 ", ["no number"]),
        ("-c 128", "-c 128\n#SBATCH --nodes=2", ["no srun"]),
        ("cd /scratch/me", "export CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7", []),
        ("cd /scratch/me", "export CUDA_VISIBLE_DEVICES=0,1", ["GPUs hidden from the job"]),
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
        ("USR2@300", "B:USR2@300", ["the shell ends"]),
        ("=USR2@300\n\nsrun ", "=B:USR2@300\n\nexec ", []),
        ("=USR2@300\n\nsrun ", "=B:SIGUSR2@300\n\ntrap 'kill -USR2 $!' SIGUSR2\n", []),
        ("12:00:00", "5", ["told at once"]),
        ("12:00:00", "12 hours", ["refused line"]),
        ("12:00:00", "noon", ["no time"]),
        ("--time", "--requeue --time", ["not put back"]),
        ("experiment.name=x", f"experiment.name=x\n{PUT_BACK}", []),
        ("--time", "--cpus-per-task=64 --time", ["one CPU for a step"]),
        ("srun ", "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK\nsrun ", []),
        ("--time", "--output=nowhere/%j.out --time", ["no folder for the output"]),
        ("--time", "--output=one.out --array=0-3 --time", ["one output for all"]),
        ("--time", "--output=%A_%a.out --array=0-3 --time", []),
        ("--time", "--account=$USER --time", ["no shell"]),
        ("--time", "--nodes=1 # $USER is in here\n#SBATCH --time", []),
        ("#SBATCH --time", "# SBATCH --mem=9G\n#SBATCH --time", ["not read"]),
        ("#SBATCH --time", " #SBATCH --mem=9G\n#SBATCH --time", ["not read"]),
        ("#SBATCH --time", "#SBATCH --mem=9G \\\n#SBATCH --time", ["continued line"]),
        ("#SBATCH --time", "#SBATCH\t--mem=9G\n#SBATCH\t--time", []),
        ("--time", "--tiem=1 --time", ["refused line"]),
        ("--time", "--walltime=1 --time", ["unknown option"]),
        ("run exp", "run \\\n  # a remark\n  exp", ["broken command"]),
        ("#!/bin/bash\n", "", ["no interpreter"]),
        ("\n", "\r\n", ["DOS line ends"]),
        ("#SBATCH --time", "#SBATCH hetjob\n#SBATCH --time", ["several components"]),
        ("gpu:8", "gpu:a100:4,gpu:h100:4", []),
        ("--ntasks-per-node=1", "--ntasks-per-gpu=1", ["several copies"]),
    ],
)
def test_what_befalls_a_job_later_is_named_too(old: str, new: str, wrong: list[str], tmp_path: Path) -> None:
    assert old in TOLD
    assert names(tmp_path, TOLD.replace(old, new)) == wrong


WITH_RAY = """#!/bin/bash
#SBATCH --nodes=2 --gres=gpu:8 --ntasks-per-node=1
#SBATCH --time=12:00:00

srun -N 1 -n 1 -w $first ray start --head --port=20041 --block &
srun -N 1 -n 1 -x $first \\
    ray start --address=$first:20041 --block &
srun -N 1 -n 1 -w $first --overlap python -m pipeline run execution.backend=ray generation.gpus_per_job=8
"""


@pytest.mark.parametrize(
    ("old", "new", "wrong"),
    [
        ("", "", []),
        ("--port=20041 --block", "--port=20041", ["Ray ends at once"]),
        ("--port=20041 --block", "--block", ["one port for all"]),
        ("srun -N 1 -n 1 -x $first \\\n    ray start --address=$first:20041 --block &\n", "", ["Ray on one node"]),
        ("--time", "--signal=USR2@300 --time", ["Ray is told too"]),
        ("\nsrun", "\nexport RAY_AUTH_TOKEN=f00\nsrun", ["token for all to read"]),
        ("\nsrun", '\nexport RAY_AUTH_TOKEN="$(od -N32 /dev/urandom)"\nsrun', []),
        ("--time", "--array=0-3 --time", ["a cluster for each task"]),
        ("gpus_per_job=8", "gpus_per_job=12", ["wider than a node"]),
        ("gpus_per_job=8", "gpus_per_job=24", ["wider than a node"]),
        ("gpus_per_job=8", "gpus_per_job=16", []),
        ("gpus_per_job=8", "gpus_per_job=16 device=cpu", []),
        (" ray start", " python -m pipeline slurm ray start", []),
    ],
)
def test_what_becomes_of_a_ray_cluster_is_named(old: str, new: str, wrong: list[str], tmp_path: Path) -> None:
    assert old in WITH_RAY
    assert names(tmp_path, WITH_RAY.replace(old, new)) == wrong


def test_a_job_that_no_nodes_make_up_is_told_which_they_do() -> None:
    text = WITH_RAY.replace("--nodes=2", "--nodes=4").replace("gpus_per_job=8", "gpus_per_job=12")
    [check] = check_text(text)
    assert check.remedy == "up to 8, or 16, 24 or 32 GPUs in a job, or #SBATCH --gres=gpu:12"
    assert widths(8, 1) == "up to 8"
    assert widths(8, 64) == "up to 8, or 16, 24, 32, 40, 48 or so on to 512"


def test_options_of_the_command_line_count(tmp_path: Path) -> None:
    (tmp_path / "job").write_text(TOLD)
    checks = check_script(tmp_path / "job", None, {"ntasks-per-node": "8"})
    assert [check.name for check in checks] == ["Slurm: several copies"]


def test_numbers_that_nobody_means_are_read_to_their_end(tmp_path: Path) -> None:
    """Python refuses to read 5,000 digits, and a text that grows by copies takes a minute for a million."""
    for option in ("gres=gpu:", "gpus=", "time=", "array=0-", "mem=", "nodes=", "signal=USR1@"):
        assert "no GPU" not in names(
            tmp_path, f"{RIGHT.partition('cd')[0]}#SBATCH --{option}{'9' * 5000}\nsrun x\n"
        )
    assert words_of("a" * 1_000_000 + " b") == ["a" * 1_000_000, "b"]


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


@pytest.mark.parametrize(
    ("line", "gpus"),
    [
        ("--gres=gpu:8", 8),
        ("--gres=gpu:a100:4,nvme:1", 4),
        ("--gres nvme:1,gpu:2", 2),
        ("--gres=gpu", 1),
        ("--gpus-per-node=h100:4", 4),
        ("--gpus=8", 4),
        ("-G 8", 4),
        ("--gpus-per-task=1", 3),
        ("--gres=nvme:1", 0),
        ("--gpus-per-node=٣", 0),
    ],
)
def test_gpus_of_a_node(line: str, gpus: int) -> None:
    lines = ["#SBATCH --nodes=2", "#SBATCH --ntasks-per-node=3", f"#SBATCH {line}"]
    assert read_job(lines).gpus == gpus


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
        ("#SBATCH -t 2-12\nsrun python train.py\n", []),
        ("#SBATCH --time=0\nsrun python train.py\n", ["no limit"]),
        ("#SBATCH --mem=64G --mem-per-cpu=4G\nsrun python train.py\n", ["memory twice"]),
        ("#SBATCH --mem=64G\n#SBATCH --mem-per-gpu=4G\nsrun python train.py\n", ["memory twice"]),
        ("#SBATCH --mem=64\nsrun python train.py\n", ["megabytes"]),
        ("#SBATCH --mem-per-gpu=80\nsrun python train.py\n", ["megabytes"]),
        ("#SBATCH --mem=0\nsrun python train.py\n", []),
        ("#SBATCH --mem=64000\nsrun python train.py\n", []),
        ("#SBATCH --gpus=2 --gpus-per-node=1 --nodes=1\nsrun python train.py\n", ["GPUs twice"]),
        ("python train.py > log 2>&1 &\n", ["nobody waits"]),
        ("nohup python train.py &\necho started\nexit 0\n", ["nobody waits"]),
        ("for i in 1 2; do\n  python train.py --seed $i &\ndone\n", ["nobody waits"]),
        ("for i in 1 2; do python train.py --seed $i & done\nwait\n", []),
        ("nohup python train.py &\nsleep 10\n", ["nobody waits"]),
        ('srun bash -c "run --node_rank $SLURM_PROCID --nnodes $SLURM_NNODES"\n', ["one rank for all"]),
        ("nvidia-smi -l 60 > gpus.log &\npython train.py\n", []),
        ("python a.py && python b.py\n", []),
        ("python train.py 2>&1 | tee log\n", ["exit code of tee"]),
        ("set -eo pipefail\npython train.py 2>&1 | tee log\n", []),
        ("conda activate ml\nsrun python train.py\n", ["no environment"]),
        ('eval "$(conda shell.bash hook)"\nconda activate ml\nsrun python train.py\n', []),
        ("source ~/miniconda3/etc/profile.d/conda.sh\nconda activate ml\nsrun python train.py\n", []),
        ("source activate ml\nsrun python train.py\n", []),
        ("cat <<EOF > other.sh\n#SBATCH --mem=1G\npython train.py &\nEOF\nsrun python train.py\n", []),
        ("#SBATCH --array=0-7\nMASTER_PORT=29500 python train.py\n", ["one port for all"]),
        ("#SBATCH --array=0-7\nexport WANDB_RUN_ID=abc\npython train.py\n", ["one run for all"]),
        ("#SBATCH --array=0-7\nexport WANDB_RUN_ID=abc-$SLURM_ARRAY_TASK_ID\npython train.py\n", []),
        ("CUDA_VISIBLE_DEVICES=0 python train.py\n", ["a GPU by its number"]),
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
        ("#SBATCH --container-image=nvcr.io#nvidia/pytorch\nsrun python train.py\n", ["cut off"]),
        ("#SBATCH --container-image=nvcr.io\\#nvidia/pytorch # ours\nsrun python train.py\n", []),
    ],
)
def test_what_loses_a_program_or_its_numbers_is_told(script: str, wrong: list[str], tmp_path: Path) -> None:
    found = names(tmp_path, _HEAD + script)
    assert [name for name in found if name != "one output for all"] == wrong


def test_several_programs_that_share_out_the_gpus_of_a_job_are_right(tmp_path: Path) -> None:
    head = _HEAD.replace("gpu:1", "gpu:4")
    body = (
        "for i in 0 1 2 3; do\n  CUDA_VISIBLE_DEVICES=$i python train.py --seed $i > $i.log 2>&1 &\ndone\nwait\n"
    )
    assert names(tmp_path, head + body) == []


def test_a_program_of_unknown_ways_may_well_use_several_gpus(tmp_path: Path) -> None:
    (tmp_path / "a.sbatch").write_text(_HEAD.replace("gpu:1", "gpu:4") + "python serve.py\n")
    assert [check.verdict for check in check_script(tmp_path / "a.sbatch")] == [Verdict.WARN]
