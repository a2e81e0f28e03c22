"""Keys about trainings on several GPUs reach the jobs of a plan."""

from __future__ import annotations

import pytest

from pipeline.config.schema import devices_per_training, spread
from pipeline.plan.build import build_plan
from tests.doubles.composing import quick_config

NAME = "experiment.name=t"


@pytest.mark.parametrize(
    ("overrides", "devices"),
    [
        ([], 1),
        (["distributed.num_gpus=4"], 1),
        (["training.gpus_per_job=3"], 3),
        (["distributed.enabled=true", "distributed.num_gpus=4"], 4),
        (["distributed.enabled=true", "distributed.gpu_ids=[0,3]"], 2),
        (["distributed.enabled=true", "distributed.num_gpus=4", "training.gpus_per_job=2"], 2),
    ],
)
def test_so_many_devices_share_a_training(overrides: list[str], devices: int) -> None:
    config = quick_config([NAME, *overrides])
    assert devices_per_training(config) == devices
    jobs = build_plan(config).jobs.values()
    trainings = [job for job in jobs if job.stage == "train"]
    assert trainings
    assert {job.devices for job in trainings} == {devices}
    assert {job.devices for job in jobs if job.stage != "train"} == {1}


def test_how_they_share_it_is_in_the_payload() -> None:
    said = [
        "training.gpus_per_job=2",
        "distributed.strategy=ddp",
        "training.strategy=fsdp",
        "distributed.fsdp_sharding_strategy=shard_grad_op",
        "distributed.fsdp_cpu_offload=true",
        "distributed.master_port=29511",
    ]
    config = quick_config([NAME, *said])
    assert spread(config) == {"strategy": "fsdp", "sharding": "shard_grad_op", "cpu_offload": True}
    job = next(job for job in build_plan(config).jobs.values() if job.stage == "train")
    assert job.payload["spread"] == spread(config)
    assert job.payload["master_port"] == 29511
    # The nearer key wins, and the section for all stands where it says nothing.
    assert spread(quick_config([NAME, "distributed.strategy=fsdp"]))["strategy"] == "fsdp"
