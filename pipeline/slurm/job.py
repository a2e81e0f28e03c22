"""A job of Slurm in numbers: what a script asks for, or what this process was given."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from pipeline.engine.devices.mask import VISIBLE


class Starter(Enum):
    """Who starts the ranks of a program."""

    itself = "itself"  # this engine, torchrun, accelerate, `python -m pipeline launch`
    lightning = "lightning"  # PyTorch Lightning's Trainer, which takes SLURM_NTASKS for ranks that exist
    slurm = "slurm"  # one rank a task, started by srun


@dataclass(frozen=True, kw_only=True)
class SlurmJob:
    """What a job asked for or was given; None where it does not say.

    Attributes:
        starter: Who starts the ranks.
        guessed: Whether that is a guess of ours.
        nodes: Machines.
        gpus: GPUs on each node.
        tasks: Tasks in all.
        tasks_per_node: Tasks on each node.
        cpus_per_task: CPUs of each task.
        gpus_per_task: Given by --gpus-per-task.
        gpu_bind: Given by --gpu-bind.
        mask: CUDA_VISIBLE_DEVICES.
        in_step: Whether srun has started this process, or is going to start the program.
        srun: Whether there is such a program.
        visible: GPUs that NVML lists on this node.
        loaders: Data-loader processes of each rank.
        widest: GPUs of one node that the widest job of a run takes.
        clusters: Whether each task of an array brings up a Ray cluster.
        ray: Whether it brings up a Ray cluster on its nodes.
        on_cpu: Whether its program says that it runs on CPUs.
    """

    starter: Starter = Starter.itself
    guessed: bool = False
    nodes: int = 1
    gpus: int | None = None
    tasks: int | None = None
    tasks_per_node: int | None = None
    cpus_per_task: int | None = None
    gpus_per_task: int | None = None
    gpu_bind: str | None = None
    mask: str | None = None
    in_step: bool = False
    srun: bool = True
    visible: int | None = None
    loaders: int = 0
    widest: int = 1
    clusters: bool = False
    ray: bool = False
    on_cpu: bool = False

    @property
    def here(self) -> int:
        """Tasks on one node, as far as it is said."""
        if self.tasks_per_node is not None:
            return self.tasks_per_node
        return -(-(self.tasks or self.nodes) // self.nodes)


def job_of_environment(environment: Mapping[str, str]) -> SlurmJob | None:
    """The job that this process runs in; None outside of Slurm."""
    if "SLURM_JOB_ID" not in environment:
        return None

    def number(*names: str) -> int | None:
        for name in names:
            if match := re.match(r"\d+", environment.get(name, "")):
                return int(match.group())
        return None

    in_step = environment.get("SLURM_STEP_ID", "").isdigit()
    listed = environment.get("SLURM_JOB_GPUS") or environment.get("SLURM_STEP_GPUS")
    gpus = number("SLURM_GPUS_ON_NODE")
    return SlurmJob(
        nodes=number("SLURM_NNODES", "SLURM_JOB_NUM_NODES") or 1,
        gpus=gpus if gpus is not None else len(listed.split(",")) if listed else None,
        tasks=number("SLURM_NTASKS", "SLURM_NPROCS"),
        # As in "8(x2)"; a job that said nothing has it for the tasks of this node.
        tasks_per_node=number("SLURM_NTASKS_PER_NODE"),
        cpus_per_task=number("SLURM_CPUS_PER_TASK"),
        gpus_per_task=number("SLURM_GPUS_PER_TASK"),
        gpu_bind=environment.get("SLURM_GPU_BIND"),
        mask=environment.get(VISIBLE),
        in_step=in_step,
    )
