"""Flags for devices become overrides that win."""

import pytest

from pipeline.commands.multirun import as_overrides
from pipeline.config.checks import check_config
from pipeline.config.schema import DeviceChoice, DistributedConfig
from pipeline.engine.devices.select import choose_devices
from pipeline.errors import ConfigError, DeviceError
from tests.doubles.composing import quick_config


@pytest.mark.parametrize(
    ("words", "overrides"),
    [
        ("", ""),
        ("a=1 --cfg job", "a=1 --cfg job"),
        ("--num-gpus 2", "device=auto distributed.num_gpus=2 distributed.gpu_ids=null distributed.gpu_list=null"),
        ("--num-gpus=2", "device=auto distributed.num_gpus=2 distributed.gpu_ids=null distributed.gpu_list=null"),
        (
            "--gpu-ids 0 2 3 a=1",
            "a=1 device=auto distributed.num_gpus=null distributed.gpu_ids=[0,2,3] distributed.gpu_list=null",
        ),
        (
            "--gpu-ids 0,2",
            "device=auto distributed.num_gpus=null distributed.gpu_ids=[0,2] distributed.gpu_list=null",
        ),
        ("distributed.gpu_list=4,5 a=1,2", "distributed.gpu_list=[4,5] a=1,2"),
        ("distributed.gpu_ids=4", "distributed.gpu_ids=[4]"),
        ("distributed.gpu_list=[4,5]", "distributed.gpu_list=[4,5]"),
        ("distributed.gpu_list=4,x", "distributed.gpu_list=4,x"),
        (
            "--device cpu a=1",
            "a=1 device=cpu distributed.num_gpus=null distributed.gpu_ids=null distributed.gpu_list=null",
        ),
        (
            "a=1 --cfg job --device cuda --num-gpus 1",
            "a=1 device=cuda distributed.num_gpus=1 distributed.gpu_ids=null distributed.gpu_list=null --cfg job",
        ),
    ],
)
def test_flags(words: str, overrides: str) -> None:
    assert as_overrides(words.split()) == overrides.split()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--num-gpus", "--num-gpus"),
        ("--num-gpus two", "--num-gpus two: how many"),
        ("--num-gpus a=1", "--num-gpus"),
        ("--gpu-ids", "--gpu-ids"),
        ("--gpu-ids 0 x", "--gpu-ids 0,x"),
        ("--device tpu", "--device tpu: one of auto, cpu, cuda"),
        ("--device", "one of auto, cpu, cuda"),
        ("--device cpu --device cuda", "--device is given twice"),
    ],
)
def test_wrong_flags(words: str, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        as_overrides(words.split())
    assert says in str(refused.value)


def test_a_list_of_gpus_has_two_names() -> None:
    config = quick_config(as_overrides(["experiment.name=a", "distributed.gpu_list=4,5,6,7"]))
    check_config(config)
    assert (config.distributed.ids, config.distributed.gpu_ids) == ([4, 5, 6, 7], None)
    config.distributed.gpu_ids = [0]
    with pytest.raises(ConfigError, match=r"gpu_ids=\[0\] and distributed.gpu_list=\[4, 5, 6, 7\] are two names"):
        check_config(config)
    with pytest.raises(DeviceError, match=r"distributed.gpu_list=\[9\]"):
        choose_devices(DeviceChoice.auto, None, DistributedConfig(gpu_list=[9]))
