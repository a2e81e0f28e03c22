"""Every wrong way of asking Slurm for GPUs has a message of its own; the right ones have none."""

from dataclasses import replace
from typing import Any

import pytest

from pipeline.slurm.job import SlurmJob, Starter, job_of_environment
from pipeline.slurm.rules import RULES, check_slurm, slurm_checks
from pipeline.terminal.check import Verdict

RIGHT = SlurmJob(gpus=8, tasks=1, tasks_per_node=1, cpus_per_task=128, mask="0,1,2,3,4,5,6,7", visible=8)
PER_TASK = replace(RIGHT, starter=Starter.slurm, tasks=8, tasks_per_node=8, cpus_per_task=16, in_step=True)

WRONG: list[tuple[str, SlurmJob, dict[str, Any], str, str]] = [
    # What the job should be, what is changed, the rule that says so, and its remedy.
    (
        "fewer GPUs than tasks",
        RIGHT,
        {"gpus": 1, "tasks": 8, "tasks_per_node": 8, "mask": "0", "cpus_per_task": 16},
        "8 tasks on a node with 1 GPU: each is a process that waits for a GPU of its own, so they hang",
        "--gres=gpu:8 with --ntasks-per-node=1",
    ),
    (
        "several copies",
        RIGHT,
        {"tasks": 8, "tasks_per_node": 8, "in_step": True},
        "srun would start 8 copies",
        "--ntasks-per-node=1",
    ),
    (
        "one GPU of several",
        RIGHT,
        {"starter": Starter.lightning},
        "trains on one GPU without an error",
        "python -m pipeline launch",
    ),
    (
        "tasks and GPUs differ",
        PER_TASK,
        {"tasks": 4, "tasks_per_node": 4},
        "leaves GPUs idle",
        "--ntasks-per-node=8",
    ),
    (
        "tasks not placed",
        PER_TASK,
        {"tasks_per_node": None},
        "does not say how many run on each",
        "--ntasks-per-node=8",
    ),
    ("fewer tasks than per node", PER_TASK, {"tasks": 4}, "contradicts --ntasks-per-node=8", "leave out --ntasks"),
    (
        "more tasks than places",
        RIGHT,
        {"tasks": 8, "tasks_per_node": 1},
        "contradicts --nodes=1",
        "leave out --ntasks",
    ),
    (
        "no srun",
        RIGHT,
        {"nodes": 2, "tasks": 2},
        "'1/16 clients joined'",
        "srun --ntasks-per-node=1 python -m pipeline",
    ),
    ("no srun", PER_TASK, {"nodes": 2, "tasks": 16, "in_step": False}, "'1/16 clients joined'", "`srun` before"),
    ("ranks need srun", PER_TASK, {"in_step": False}, "waits for 7 others", "`srun` before the program"),
    ("srun is missing", PER_TASK, {"srun": False}, "not installed", "load Slurm's module"),
    ("bound GPUs", PER_TASK, {"gpu_bind": "single:1"}, "`cuda:LOCAL_RANK` does not exist", "--gpu-bind=none"),
    ("bound GPUs", PER_TASK, {"gpus_per_task": 1}, "--gpus-per-task=1 shows each task its own", "--gres=gpu:8"),
    ("fewer GPUs in a task", RIGHT, {"gpus_per_task": 1}, "of the 8 GPUs of the node", "without --gpus-per-task"),
    (
        "few CPUs",
        RIGHT,
        {"cpus_per_task": 16, "loaders": 4},
        "16 CPUs for a task with 8 ranks",
        "--cpus-per-task=40",
    ),
    ("mask of its own", RIGHT, {"gpus": 1}, "names 8 GPUs, but the job has 1", "--gres=gpu:8"),
    ("GPUs hidden from the job", RIGHT, {"mask": "0,1"}, "shows 2 of the 8 GPUs", "leave CUDA_VISIBLE_DEVICES to"),
    (
        "GPUs of others",
        RIGHT,
        {"gpus": 2, "mask": None},
        "all 8 of the node can be used",
        "distributed.num_gpus=2",
    ),
    (
        "wider than a node",
        RIGHT,
        {"gpus": 4, "mask": "0,1,2,3", "visible": 4, "widest": 8},
        "takes 8 GPUs of one node",
        "--gres=gpu:8",
    ),
    ("a cluster for each task", RIGHT, {"clusters": True}, "a Ray cluster of its own", "leave out --array"),
    ("no GPU", RIGHT, {"gpus": 0, "visible": 0, "mask": None}, "the job has no GPU", "--gres=gpu:N"),
]


@pytest.mark.parametrize(
    ("name", "right", "changed", "seen", "remedy"),
    WRONG,
    ids=[f"{row[0]}: {', '.join(row[2])}" for row in WRONG],
)
def test_each_wrong_job_has_its_message(
    name: str, right: SlurmJob, changed: dict[str, Any], seen: str, remedy: str
) -> None:
    (check,) = check_slurm(replace(right, **changed))
    assert check.name == f"Slurm: {name}"
    assert check.verdict is not Verdict.PASS
    assert seen in check.detail
    assert remedy in check.remedy


def test_every_rule_has_a_row() -> None:
    assert {rule.name for rule in RULES} == {row[0] for row in WRONG}


@pytest.mark.parametrize(
    "job",
    [
        RIGHT,
        PER_TASK,
        replace(PER_TASK, starter=Starter.lightning),
        replace(RIGHT, gpus=1, mask="0", visible=1),
        replace(RIGHT, nodes=2, tasks=2, in_step=True),
        replace(PER_TASK, nodes=2, tasks=16),
        replace(PER_TASK, gpu_bind="none"),
    ],
    ids=["launch", "srun", "Lightning under srun", "one GPU", "two nodes", "two nodes by srun", "not bound"],
)
def test_right_jobs_pass(job: SlurmJob) -> None:
    (check,) = check_slurm(job)
    assert check.verdict is Verdict.PASS, check


def test_one_task_with_all_gpus_is_right_here_and_wrong_for_lightning() -> None:
    (check,) = check_slurm(RIGHT)
    assert "right for this engine" in check.detail
    assert "Lightning by itself would train on one GPU" in check.detail


def test_a_job_as_slurm_describes_it() -> None:
    environment = {
        "SLURM_JOB_ID": "7",
        "SLURM_NNODES": "2",
        "SLURM_GPUS_ON_NODE": "4",
        "SLURM_NTASKS": "2",
        "SLURM_NTASKS_PER_NODE": "1",
        "SLURM_CPUS_PER_TASK": "32",
        "SLURM_STEP_ID": "0",
        "CUDA_VISIBLE_DEVICES": "0,1,2,3",
    }
    assert job_of_environment(environment) == SlurmJob(
        nodes=2, gpus=4, tasks=2, tasks_per_node=1, cpus_per_task=32, in_step=True, mask="0,1,2,3"
    )
    assert job_of_environment({"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "4,5"}) == SlurmJob(gpus=2)


def test_outside_of_slurm_there_is_nothing_to_check() -> None:
    assert list(slurm_checks({"SLURM_CONF": "/etc/slurm.conf"}, srun=True, visible=8)) == []


def test_the_wrong_job_of_a_user_who_asked_for_one_gpu_and_eight_tasks() -> None:
    environment = {
        "SLURM_JOB_ID": "7",
        "SLURM_GPUS_ON_NODE": "1",
        "SLURM_NTASKS": "8",
        "SLURM_NTASKS_PER_NODE": "8",
    }
    (check,) = slurm_checks({**environment, "CUDA_VISIBLE_DEVICES": "0"}, srun=True, visible=1)
    assert check.name == "Slurm: fewer GPUs than tasks"
