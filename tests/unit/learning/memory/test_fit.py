"""What models take in memory, and which way of sharing a training fits."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from pipeline.config.schema import DType, Optimizer, Sharding, Strategy
from pipeline.errors import ConfigError, DeviceError
from pipeline.learning.memory import fit as memory
from pipeline.learning.memory.shape import read_shape
from pipeline.learning.training import distributed
from pipeline.learning.training.loop import computing_in

SMALL = memory.ModelShape(
    name="0.5B",
    parameters=494 * 10**6,
    layers=24,
    hidden=896,
    vocabulary=151936,
    largest_unit=136 * 10**6,
    lora_width=400_000,
)
SEVEN_B = memory.ModelShape(
    name="7B",
    parameters=7 * 10**9,
    layers=32,
    hidden=4096,
    vocabulary=32000,
    largest_unit=262 * 10**6,
    lora_width=10**6,
)
SEVENTY_B = replace(SMALL, name="70B", parameters=70 * 10**9, layers=80, hidden=8192, largest_unit=900 * 10**6)
LEAN = memory.Workload(checkpointing=True)


def tried(
    shape: memory.ModelShape, count: int, gib: int, host_gb: int = 256, work: memory.Workload = LEAN, **how: object
) -> memory.Fit:
    counts, free = range(1, count + 1), lambda _: gib * 2**30
    return memory.fit(shape, work, counts, free, host_bytes=host_gb * memory.GB, **how)  # type: ignore[arg-type]


def test_the_simplest_way_on_the_fewest_gpus_is_taken() -> None:
    """7B: 126 GB and more on one. Of 48 GiB 45 GB are usable: 28 GB of weights and 84 GB / 6 of all else fit."""
    assert tried(SMALL, 8, 80).require().label == "single on 1 GPU"
    chosen = tried(SEVEN_B, 8, 48).require()
    assert (chosen.layout, chosen.gpus) == (memory.StateLayout.shard_grad_op, 6)
    assert chosen.need.state == pytest.approx(42 * memory.GB)


def test_a_70b_model_does_not_fit_eight_gpus_of_80_gb_without_help() -> None:
    """1.12 TB of state against 8 x 76 GB usable (the reference's own case)."""
    without = tried(SEVENTY_B, 8, 80, host_gb=512)
    assert without.chosen is None
    with pytest.raises(DeviceError, match=r"70B \(70 B parameters\) does not fit. Nearest: full_shard on 8 GPUs"):
        without.require()
    offloaded = tried(SEVENTY_B, 8, 80, host_gb=1500).require()
    assert (offloaded.layout, offloaded.offload) == (memory.StateLayout.full_shard, True)
    adapters = tried(SEVENTY_B, 8, 80, work=replace(LEAN, lora_rank=16)).require()
    assert adapters.layout is memory.StateLayout.full_shard
    eight_h200 = tried(SEVENTY_B, 8, 141, strategy=Strategy.fsdp)
    assert 0 < eight_h200.trials[-1].short < 20 * memory.GB  # 140 GB of state each against 135 usable


def test_the_machines_memory_is_checked_as_well() -> None:
    how = {"strategy": Strategy.fsdp, "offload": True}
    assert tried(SEVEN_B, 2, 24, host_gb=200, **how).require().need.host == 56 * memory.GB  # type: ignore[arg-type]
    (trial,) = tried(SEVEN_B, 2, 24, host_gb=100, **how).trials  # type: ignore[arg-type]
    assert trial.verdict == "needs 112.0 GB of the machine's memory: 22.0 GB short"


@pytest.mark.parametrize(
    ("strategy", "sharding", "layout"),
    [
        (Strategy.ddp, Sharding.full_shard, memory.StateLayout.ddp),
        (Strategy.fsdp, Sharding.full_shard, memory.StateLayout.full_shard),
        (Strategy.fsdp, Sharding.shard_grad_op, memory.StateLayout.shard_grad_op),
        (Strategy.fsdp, Sharding.no_shard, memory.StateLayout.ddp),
    ],
)
def test_a_strategy_is_kept_to(strategy: Strategy, sharding: Sharding, layout: memory.StateLayout) -> None:
    found = tried(SMALL, 2, 80, strategy=strategy, sharding=sharding)
    assert {trial.layout for trial in found.trials} == {layout}


@pytest.mark.parametrize(("gpus", "strategy"), [(0, Strategy.auto), (1, Strategy.ddp)])
def test_what_makes_no_sense_is_refused(gpus: int, strategy: Strategy) -> None:
    with pytest.raises(DeviceError, match=f"strategy={strategy.name} cannot use {gpus} GPU"):
        tried(SMALL, gpus, 80, strategy=strategy)


@pytest.mark.parametrize(
    ("layout", "published"),
    [
        (memory.StateLayout.ddp, 120),
        (memory.StateLayout.shard_grad_op, 31.4),
        (memory.StateLayout.full_shard, 1.88),
    ],
)
def test_zero_figure_1(layout: memory.StateLayout, published: float) -> None:
    """ZeRO (arXiv 1910.02054), figure 1: 7.5B parameters, 64 GPUs, GB on each; here weights have 4 bytes."""
    shape, work = memory.ModelShape(name="x", parameters=int(7.5e9)), memory.Workload(dtype=DType.float32)
    assert memory.training_footprint(shape, work, layout, 64).state / memory.GB == pytest.approx(
        published, rel=0.005
    )


@pytest.mark.parametrize(
    ("dtype", "optimizer", "total"),
    [
        (DType.float32, Optimizer.adamw, 16),
        (DType.bfloat16, Optimizer.adamw, 18),  # Hugging Face, "Model training anatomy"
        (DType.float16, Optimizer.adamw, 16),  # which trainings compute as float32
        (DType.float32, Optimizer.adamw_8bit, 10),
    ],
)
def test_bytes_of_a_trained_parameter(dtype: DType, optimizer: Optimizer, total: int) -> None:
    shape = memory.ModelShape(name="x", parameters=1000)
    assert (
        memory.training_footprint(shape, memory.Workload(dtype=dtype, optimizer=optimizer)).state == total * 1000
    )


def test_activations_of_layers() -> None:
    """arXiv 2205.05198, section 4: 34 s b h bytes of a layer, where attention stores no scores."""
    assert memory.activation_bytes(SEVEN_B, memory.Workload(batch=3, tokens=2048)) == 3 * 2048 * 4096 * 34 * 32
    assert memory.activation_bytes(SEVEN_B, memory.Workload(tokens=2048), 4) == 2 * 2048 * 4096 * 34 * 32
    inputs_and_one_layer = 2 * 1024 * 4096 * (2 * 32 + 34)
    assert memory.activation_bytes(SEVEN_B, memory.Workload(batch=2, checkpointing=True)) == inputs_and_one_layer
    assert memory.activation_bytes(memory.ModelShape(name="x", parameters=1), memory.Workload()) == 0


def test_logits_are_there_for_a_part_of_the_tokens_at_a_time_where_the_model_is_whole() -> None:
    every = 2 * 4096 * 32000 * 12
    work = memory.Workload(batch=2, tokens=4096)
    assert memory.training_footprint(SEVEN_B, work, memory.StateLayout.full_shard, 2).logits == every
    assert memory.training_footprint(SEVEN_B, work).logits == (1 << 27) * 12 < every
    assert memory.training_footprint(SEVEN_B, memory.Workload(tokens=1024)).logits == 1024 * 32000 * 12


def test_what_layouts_copy_gather_and_move() -> None:
    two, eight = (memory.training_footprint(SEVEN_B, LEAN, memory.StateLayout.ddp, gpus) for gpus in (2, 8))
    assert two == eight
    assert two.buckets == 28 * memory.GB
    assert memory.training_footprint(SEVEN_B, LEAN).buckets == 0
    kept = memory.training_footprint(SEVEN_B, LEAN, memory.StateLayout.full_shard, 4)
    assert kept.state == 28 * memory.GB
    assert kept.gathered == 2 * 262 * 10**6 * 2
    moved = memory.training_footprint(SEVEN_B, LEAN, memory.StateLayout.full_shard, 4, offload=True)
    assert (moved.state, moved.host) == (0, kept.state)
    assert moved.total == kept.total - kept.state
    partly = memory.training_footprint(SEVEN_B, LEAN, memory.StateLayout.shard_grad_op, 4, offload=True)
    assert (partly.weights, partly.host) == (28 * memory.GB, (4 + 8) * 7 * memory.GB // 4)


def test_adapters_are_all_that_is_trained() -> None:
    footprint = memory.training_footprint(SEVEN_B, memory.Workload(lora_rank=16))
    adapters = 16 * 10**6
    assert footprint.weights == 14 * memory.GB + 6 * adapters
    assert footprint.gradients + footprint.optimizer == 12 * adapters


# -- test shape --------------------------------------------------------------------------------------------------
# The shape of a model from its configuration.


SIZES = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 100}


def test_a_model_that_was_built_has_as_many_parameters(tmp_path: Path) -> None:
    config = LlamaConfig(**SIZES, num_key_value_heads=2, intermediate_size=96, tie_word_embeddings=True)
    config.save_pretrained(tmp_path)
    shape = read_shape(str(tmp_path))
    model = AutoModelForCausalLM.from_config(config)
    assert shape.parameters == model.num_parameters()
    assert (shape.layers, shape.hidden, shape.vocabulary) == (2, 64, 100)
    assert shape.cached == 2 * 2 * 2 * 16  # keys and values of 2 layers with 2 heads for them
    block = sum(parameter.numel() for parameter in model.model.layers[0].parameters())
    assert shape.largest_unit == block
    # q, k, v, o, gate, up, down
    assert shape.lora_width == 2 * (128 + 96 + 96 + 128 + 160 + 160 + 160)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("no-such-model", "cannot read the configuration"),
        ("vit", "is no causal language model"),
        ("t5", "t5 is an encoder with a decoder, and prompts are continued here by decoders alone"),
    ],
)
def test_what_is_no_model_is_refused(tmp_path: Path, kind: str, said: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": kind}))
    with pytest.raises(ConfigError, match=said) as raised:
        read_shape(str(folder))
    assert "\n" not in str(raised.value)


# -- test strategy -----------------------------------------------------------------------------------------------
# `training.strategy=auto`: the simplest way that fits, and why.


GIB = 2**30
WORK = memory.Workload(batch=1, dtype=DType.float32)


@pytest.mark.parametrize(
    ("size", "memory_gib", "host_gib", "strategy", "sharding", "offload"),
    [
        (2, 200, 500, Strategy.ddp, Sharding.full_shard, False),
        (2, 24, 500, Strategy.fsdp, Sharding.full_shard, True),
    ],
)
def test_the_simplest_that_fits_is_taken(
    size: int, memory_gib: int, host_gib: int, strategy: Strategy, sharding: Sharding, offload: bool
) -> None:
    spread, reasons = distributed.choose_spread(
        SEVEN_B, WORK, size, free_bytes=memory_gib * GIB, host_bytes=host_gib * GIB
    )
    assert spread == distributed.Spread(strategy=strategy, sharding=sharding, cpu_offload=offload)
    assert "fits: " in reasons
    assert ("ddp on " in reasons and "short" in reasons) == (strategy is Strategy.fsdp)


def test_a_rank_that_fails_tells_before_anything_can_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL may wait for ever in `destroy_process_group` for peers that are in the middle of a collective."""
    begun: dict[str, Any] = {}
    destroyed: list[bool] = []
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(distributed, "_meet", lambda *_: None)
    monkeypatch.setattr(distributed.torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(distributed.dist, "init_process_group", lambda _, **options: begun.update(options))
    monkeypatch.setattr(distributed.dist, "destroy_process_group", lambda: destroyed.append(True))
    with pytest.raises(ZeroDivisionError), distributed.join(1, 2, "cuda:1", distributed.Spread()):
        raise ZeroDivisionError
    assert not destroyed
    assert begun.get("device_id") == torch.device("cuda:1")
    with distributed.join(0, 2, "cpu", distributed.Spread()):
        assert not destroyed
    assert destroyed == [True]


@pytest.mark.parametrize(
    ("dtype", "sharding", "rounded"),
    [
        (DType.bfloat16, Sharding.full_shard, True),
        (DType.bfloat16, Sharding.no_shard, False),
        (DType.float32, Sharding.full_shard, False),
    ],
)
def test_spread_weights_are_gathered_in_the_type_that_is_computed_in(
    dtype: DType, sharding: Sharding, rounded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """autocast would keep them whole in that type until the backward pass."""
    given: list[dict[str, Any]] = []
    monkeypatch.setattr(distributed, "fully_shard", lambda _, **options: given.append(options))
    monkeypatch.setattr(distributed, "init_device_mesh", lambda *_: None)
    ranks = distributed.Ranks(0, 2, "cpu", distributed.Spread(strategy=Strategy.fsdp, sharding=sharding), dtype)
    ranks._shard(torch.nn.Linear(1, 1))
    policy = given[0].get("mp_policy")
    assert (policy is not None) is rounded
    if policy is not None:
        assert (policy.param_dtype, policy.reduce_dtype) == (torch.bfloat16, torch.float32)
    with computing_in(dtype, "cpu", ranks):
        assert torch.is_autocast_enabled("cpu") is (dtype is DType.bfloat16 and not rounded)
