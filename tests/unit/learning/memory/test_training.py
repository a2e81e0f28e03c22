"""The arithmetic of memory, against published figures."""

from dataclasses import replace

import pytest

from pipeline.config.schema import Optimizer
from pipeline.learning.memory.fit import (
    GB,
    ModelShape,
    Precision,
    StateLayout,
    Workload,
    activation_bytes,
    bytes_per_parameter,
    training_footprint,
)

SEVEN_B = ModelShape(
    name="7B",
    parameters=7 * 10**9,
    layers=32,
    hidden=4096,
    heads=32,
    vocabulary=32000,
    largest_unit=262 * 10**6,
    lora_width=10**6,
)


def state(parameters: float, layout: StateLayout = StateLayout.single, gpus: int = 1, **work: object) -> float:
    shape = ModelShape(name="x", parameters=int(parameters))
    return training_footprint(shape, Workload(**work), layout, gpus).state / GB  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("layout", "published"),
    [(StateLayout.ddp, 120), (StateLayout.shard_grad_op, 16.6), (StateLayout.full_shard, 1.88)],
)
def test_zero_figure_1(layout: StateLayout, published: float) -> None:
    """ZeRO (arXiv 1910.02054), figure 1: 7.5B parameters, K = 12, 64 GPUs; GB on each."""
    assert state(7.5e9, layout, 64) == pytest.approx(published, rel=0.005)


@pytest.mark.parametrize(
    ("precision", "optimizer", "total"),
    [
        (Precision.float32, Optimizer.adamw, 16),
        (Precision.amp, Optimizer.adamw, 18),  # Hugging Face, "Model training anatomy"
        (Precision.mixed, Optimizer.adamw, 16),  # ZeRO, section 3.1
        (Precision.bfloat16, Optimizer.adamw, 8),
        (Precision.float32, Optimizer.adamw_8bit, 10),
        (Precision.bfloat16, Optimizer.adamw_8bit, 6),
        (Precision.float32, Optimizer.muon, 12),
        (Precision.bfloat16, Optimizer.muon, 6),
    ],
)
def test_bytes_of_a_trained_parameter(precision: Precision, optimizer: Optimizer, total: int) -> None:
    assert sum(bytes_per_parameter(precision, optimizer)) == total


def test_muon_remembers_half_of_what_is_not_an_embedding() -> None:
    shape = ModelShape(name="x", parameters=1000, vocabulary=20, hidden=5)
    work = Workload(optimizer=Optimizer.muon, precision=Precision.float32)
    assert training_footprint(shape, work).optimizer == 4 * 800 + 8 * 200
    assert training_footprint(replace(shape, lora_width=30), replace(work, lora_rank=2)).optimizer == 4 * 60


@pytest.mark.parametrize(
    ("heads", "hidden", "scores"),
    [(96, 12288, 80), (128, 20480, 64)],
    ids=["GPT-3 175B", "MT-NLG 530B"],
)
def test_activations_of_a_layer(heads: int, hidden: int, scores: int) -> None:
    """arXiv 2205.05198, section 4: s b h (34 + 5 a s / h) bytes; the second term is 80 and 64 for these models."""
    shape = ModelShape(name="x", parameters=0, layers=1, hidden=hidden, heads=heads)
    unit = 2048 * hidden
    stored = Workload(batch=1, tokens=2048, flash=False)
    assert activation_bytes(shape, stored) == unit * (34 + scores)
    assert activation_bytes(shape, Workload(batch=1, tokens=2048)) == unit * 34
    assert activation_bytes(shape, Workload(batch=3, tokens=2048)) == 3 * unit * 34
    assert activation_bytes(shape, Workload(batch=1, tokens=2048, precision=Precision.float32)) == 2 * unit * 34


def test_checkpointing_keeps_the_inputs_of_layers_and_one_layer() -> None:
    work = Workload(batch=2, tokens=1024, checkpointing=True)
    assert activation_bytes(SEVEN_B, work) == 2 * 1024 * 4096 * (2 * 32 + 34)
    assert activation_bytes(ModelShape(name="x", parameters=1), work) == 0


def test_logits_are_there_for_a_part_of_the_tokens_at_a_time_where_the_model_is_whole() -> None:
    every = 2 * 4096 * 32000 * 12
    work = Workload(batch=2, tokens=4096)
    assert training_footprint(SEVEN_B, work, StateLayout.full_shard, 2).logits == every
    assert training_footprint(SEVEN_B, work).logits == (1 << 27) * 12 < every
    assert training_footprint(SEVEN_B, Workload(tokens=1024)).logits == 1024 * 32000 * 12


def test_ddp_does_not_depend_on_the_number_of_gpus_and_copies_gradients_for_its_buckets() -> None:
    two, eight = (training_footprint(SEVEN_B, Workload(), StateLayout.ddp, gpus) for gpus in (2, 8))
    assert two == eight
    assert two.buckets == 14 * GB
    assert training_footprint(SEVEN_B, Workload(), StateLayout.single).buckets == 0


def test_full_shard_gathers_two_units() -> None:
    footprint = training_footprint(SEVEN_B, Workload(), StateLayout.full_shard, 8)
    assert footprint.state == 14 * GB
    assert footprint.gathered == 2 * 262 * 10**6 * 2
    assert footprint.total == footprint.state + footprint.gathered + footprint.activations + footprint.logits


def test_offload_moves_the_state_to_the_machines_memory() -> None:
    kept = training_footprint(SEVEN_B, Workload(), StateLayout.full_shard, 4)
    moved = training_footprint(SEVEN_B, Workload(), StateLayout.full_shard, 4, offload=True)
    assert (moved.state, moved.host) == (0, kept.state)
    assert moved.total == kept.total - kept.state
    partly = training_footprint(SEVEN_B, Workload(), StateLayout.shard_grad_op, 4, offload=True)
    assert (partly.weights, partly.host) == (14 * GB, (2 + 12) * 7 * GB // 4)


def test_adapters_are_all_that_is_trained() -> None:
    footprint = training_footprint(SEVEN_B, Workload(lora_rank=16))
    adapters = 16 * 10**6
    assert footprint.weights == 14 * GB + 2 * adapters
    assert footprint.gradients + footprint.optimizer == 14 * adapters


@pytest.mark.parametrize(
    ("parameters", "size"),
    [
        (12, "12"),
        (76_128, "76.1 k"),
        (400_000, "400 k"),
        (999_600, "1 M"),
        (134_515_008, "135 M"),
        (999_499_999, "999 M"),
        (999_999_999, "1 B"),
        (1_543_714_304, "1.54 B"),
        (6_738_415_616, "6.74 B"),
    ],
)
def test_a_model_is_as_large_as_people_say(parameters: int, size: str) -> None:
    assert ModelShape(name="m", parameters=parameters).size == size
