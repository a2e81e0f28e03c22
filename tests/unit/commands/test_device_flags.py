"""Flags of a run: those for devices become settings that win, Hydra's stay, a wrong one is answered."""

import pytest

from pipeline.commands.multirun import for_hydra, read_flags
from pipeline.config.checks import check_config
from pipeline.config.schema import DeviceChoice, DistributedConfig
from pipeline.engine.devices.select import choose_devices
from pipeline.errors import ConfigError, DeviceError
from tests.doubles.composing import quick_config

ALL = "device=auto distributed.num_gpus=null distributed.gpu_ids=null distributed.gpu_list=null"


@pytest.mark.parametrize(
    ("words", "ordered"),
    [
        ("", ""),
        ("--num-gpus 2", ALL.replace("gpus=null", "gpus=2")),
        ("--num-gpus=2", ALL.replace("gpus=null", "gpus=2")),
        ("--gpu-ids 0 2 3 a=1", f"a=1 {ALL.replace('ids=null', 'ids=[0,2,3]')}"),
        ("a=1 --gpu-ids 0,2", f"a=1 {ALL.replace('ids=null', 'ids=[0,2]')}"),
        ("distributed.gpu_list=4,5 a=1,2", "distributed.gpu_list=[4,5] a=1,2"),
        ("distributed.gpu_ids=4", "distributed.gpu_ids=[4]"),
        ("distributed.gpu_list=4,x", "distributed.gpu_list=4,x"),
        (
            "a=1 --cfg hydra --device cuda b=2 --num-gpus 1",
            f"a=1 b=2 {ALL.replace('auto', 'cuda').replace('gpus=null', 'gpus=1')} --cfg hydra",
        ),
        ("a=1 --multirun b=1,2 c=3", "a=1 b=1,2 c=3 --multirun"),
        ("a=1 -cd D b=2 ~c", "a=1 b=2 ~c --config-dir D"),
        ("-p algos a=1 --cfg job b=1", "a=1 b=1 --cfg job --package algos --resolve"),
        ("--info config a=1", "a=1 --info config"),
        ("-h", "--help"),
    ],
)
def test_flags_may_stand_anywhere(words: str, ordered: str) -> None:
    asked = read_flags(words.split())
    assert for_hydra(asked, asked.overrides) == ordered.split()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--num-gpus", "--num-gpus"),
        ("--num-gpus two", "--num-gpus"),
        ("--gpu-ids", "--gpu-ids"),
        ("--gpu-ids a=1", "--gpu-ids"),
        ("--gpu-ids 0 x", "--gpu-ids 0 x"),
        ("--device tpu", "'auto', 'cpu', 'cuda'"),
        ("--seed 3", "experiment.seeds=..."),
        ("--seeds 1 2 experiment.name=x", "experiment.seeds=..."),
        ("--num-gpu 2", "--num-gpus"),
        ("--workers=4", "execution.workers=..."),
        ("--dry-run", "dry_run=..."),
        ("--max_new_tokens 5", "generation.max_new_tokens=..."),
        ("--epochs 3", "algos.<NAME>.epochs=..."),
        ("--multi-run", "--multirun"),
        ("--use_vllm", "generation.backend=..."),
        ("--foo", "--num-gpus"),
        ("-x 3", "unknown flag -x"),
        ("--cfg nothing", "invalid choice: 'nothing'"),
        ("--cfg", "expected one argument"),
    ],
)
def test_a_wrong_flag_is_answered_with_what_was_meant(words: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_flags(words.split())
    assert said in str(refused.value)
    assert "usage:" not in str(refused.value)


def test_a_list_of_gpus_has_two_names() -> None:
    config = quick_config(read_flags(["experiment.name=a", "distributed.gpu_list=4,5,6,7"]).overrides)
    check_config(config)
    assert (config.distributed.ids, config.distributed.gpu_ids) == ([4, 5, 6, 7], None)
    config.distributed.gpu_ids = [0]
    with pytest.raises(ConfigError, match=r"gpu_ids=\[0\] and distributed.gpu_list=\[4, 5, 6, 7\] are two names"):
        check_config(config)
    with pytest.raises(DeviceError, match=r"distributed.gpu_list=\[9\]"):
        choose_devices(DeviceChoice.auto, None, DistributedConfig(gpu_list=[9]))
