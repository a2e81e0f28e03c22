"""Flags for devices become overrides that win."""

import pytest

from pipeline.commands.device_flags import as_overrides
from pipeline.config.load import load_config
from pipeline.config.schema import DeviceChoice
from pipeline.errors import ConfigError


@pytest.mark.parametrize(
    ("words", "overrides"),
    [
        ("", ""),
        ("a=1 --cfg job", "a=1 --cfg job"),
        ("--num-gpus 2", "device=auto distributed.num_gpus=2 distributed.gpu_ids=null"),
        ("--num-gpus=2", "device=auto distributed.num_gpus=2 distributed.gpu_ids=null"),
        ("--gpu-ids 0 2 3 a=1", "a=1 device=auto distributed.num_gpus=null distributed.gpu_ids=[0,2,3]"),
        ("--gpu-ids 0,2", "device=auto distributed.num_gpus=null distributed.gpu_ids=[0,2]"),
        ("--device cpu a=1", "a=1 device=cpu distributed.num_gpus=null distributed.gpu_ids=null"),
        (
            "a=1 --cfg job --device cuda --num-gpus 1",
            "a=1 device=cuda distributed.num_gpus=1 distributed.gpu_ids=null --cfg job",
        ),
    ],
)
def test_flags(words: str, overrides: str) -> None:
    assert as_overrides(words.split()) == overrides.split()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--num-gpus", "--num-gpus: how many"),
        ("--num-gpus two", "--num-gpus two: how many"),
        ("--num-gpus a=1", "--num-gpus: how many"),
        ("--gpu-ids", "--gpu-ids: ids of GPUs"),
        ("--gpu-ids 0 x", "--gpu-ids 0 x: ids of GPUs"),
        ("--device tpu", "--device tpu: one of auto, cpu, cuda"),
        ("--device", "--device: one of auto, cpu, cuda"),
        ("--device cpu --device cuda", "--device is given twice"),
    ],
)
def test_wrong_flags(words: str, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        as_overrides(words.split())
    assert says in str(refused.value)


def test_they_replace_what_the_configuration_says() -> None:
    config = load_config(
        as_overrides(
            ["experiment.name=a", "--num-gpus", "2", "device=cpu", "distributed.gpu_ids=[0,1,2]"],
        )
    )
    assert config.device is DeviceChoice.auto
    assert (config.distributed.num_gpus, config.distributed.gpu_ids) == (2, None)
