"""Which way of sharing a training fits."""

from dataclasses import replace

import pytest

from pipeline.config.schema import Optimizer, Sharding, Strategy
from pipeline.errors import DeviceError
from pipeline.learning.memory.fit import (
    GB,
    Fit,
    ModelShape,
    Precision,
    StateLayout,
    Workload,
    activation_bytes,
    bytes_per_parameter,
    fit,
    training_footprint,
)

SMALL = ModelShape(
    name="0.5B",
    parameters=494 * 10**6,
    layers=24,
    hidden=896,
    heads=14,
    vocabulary=151936,
    largest_unit=136 * 10**6,
    lora_width=400_000,
)
SEVEN_B = replace(SMALL, name="7B", parameters=7 * 10**9, layers=32, hidden=4096, largest_unit=262 * 10**6)
SEVENTY_B = replace(SMALL, name="70B", parameters=70 * 10**9, layers=80, hidden=8192, largest_unit=900 * 10**6)


def tried(shape: ModelShape, count: int, gib: int, host_gb: int = 256, **how: object) -> Fit:
    work = how.pop("work", Workload(batch=1, tokens=1024, checkpointing=True))
    return fit(shape, work, count, lambda _: gib * 2**30, host_bytes=host_gb * GB, **how)  # type: ignore[arg-type]


def test_what_fits_on_one_gpu_takes_one() -> None:
    assert tried(SMALL, 8, 80).require().label == "single on 1 GPU"


def test_sharing_takes_as_few_gpus_as_do() -> None:
    """7B: 112 GB and more on one. Of 48 GiB 45 GB are usable: 14 GB of weights and 98 GB / 4 of all else fit."""
    chosen = tried(SEVEN_B, 8, 48).require()
    assert (chosen.layout, chosen.gpus) == (StateLayout.shard_grad_op, 4)
    assert chosen.need.state == 14 * GB + 98 * GB // 4


def test_a_70b_model_does_not_fit_eight_gpus_of_80_gb_without_help() -> None:
    """1.12 TB of state against 8 x 76 GB usable (the reference's own case)."""
    without = tried(SEVENTY_B, 8, 80, host_gb=512)
    assert without.chosen is None
    with pytest.raises(DeviceError) as raised:
        without.require()
    said = str(raised.value)
    assert "70B (70 B parameters) does not fit. Nearest: full_shard on 8 GPUs needs" in said
    first, then = without.changes_that_fit()
    assert first == "32 such GPUs (training.gpus_per_job=32 training.strategy=fsdp)"
    assert then.startswith("--lora-rank 16 (algos.<NAME>.lora.rank=16 ")
    offloaded = tried(SEVENTY_B, 8, 80, host_gb=1500).require()
    assert (offloaded.layout, offloaded.offload) == (StateLayout.full_shard, True)
    adapters = Workload(batch=1, tokens=1024, checkpointing=True, lora_rank=16)
    assert tried(SEVENTY_B, 8, 80, work=adapters).require().layout is StateLayout.full_shard
    eight_h200 = tried(SEVENTY_B, 8, 141, strategy=Strategy.fsdp)
    assert not eight_h200.chosen  # 140 GB of state each against 135 usable
    assert 0 < eight_h200.trials[-1].short < 20 * GB


def test_the_smallest_change_that_fits_comes_first() -> None:
    """What leaves the result as it is, one change before two; adapters last, and none that does not fit."""
    roomy = Workload(batch=32, tokens=1024)
    assert tried(SMALL, 1, 24, work=roomy).changes_that_fit()[:2] == [
        "--batch 16 (training.micro_batch_size=16)",
        "--checkpointing (training.gradient_checkpointing=true)",
    ]
    assert tried(SMALL, 1, 24, work=replace(roomy, batch=16)).chosen
    assert not tried(SMALL, 1, 24, work=roomy).chosen
    assert tried(SMALL, 1, 24, work=replace(roomy, checkpointing=True)).chosen
    (both, *_) = tried(SEVEN_B, 4, 48, work=Workload(batch=16, tokens=16_384)).changes_that_fit()
    assert both.startswith("--batch 1 (")
    assert "--checkpointing" in both
    (spread, *_) = tried(SEVEN_B, 4, 48, strategy=Strategy.ddp).changes_that_fit()
    assert spread.startswith("4 such GPUs (training.gpus_per_job=4 training.strategy=fsdp)")
    assert tried(SEVENTY_B, 1, 16).changes_that_fit() == []


def test_the_fullest_of_the_gpus_decides() -> None:
    """Of three GPUs the third is small: two do, and three together have no more each than it has."""
    free = {1: 48, 2: 48, 3: 16}
    work = Workload(batch=1, tokens=1024, checkpointing=True)
    found = fit(SMALL, work, 3, lambda count: free[count] * 2**30, host_bytes=GB)
    assert {trial.gpus: trial.usable // GB for trial in found.trials} == {1: 45, 2: 45, 3: 14}


def test_every_rejected_strategy_says_what_is_missing() -> None:
    found = tried(SEVEN_B, 2, 64)
    verdicts = {trial.label: trial.verdict for trial in found.shown()}
    assert list(verdicts) == [
        "single on 1 GPU",
        "ddp on 2 GPUs",
        "shard_grad_op on 2 GPUs",
        "full_shard on 2 GPUs",
        "full_shard + cpu offload on 2 GPUs",
    ]
    assert verdicts["single on 1 GPU"].startswith("needs 11")
    assert verdicts["single on 1 GPU"].endswith("GB short")
    assert verdicts["full_shard on 2 GPUs"].startswith("fits: ")
    assert found.require().layout is StateLayout.full_shard


def test_the_machines_memory_is_checked_as_well() -> None:
    how = {"strategy": Strategy.fsdp, "offload": True, "num_gpus": 2}
    assert tried(SEVEN_B, 2, 24, host_gb=200, **how).require().need.host == 56 * GB  # type: ignore[arg-type]
    (trial,) = tried(SEVEN_B, 2, 24, host_gb=100, **how).trials  # type: ignore[arg-type]
    assert trial.verdict == "needs 112.0 GB of the machine's memory: 22.0 GB short"


@pytest.mark.parametrize(
    ("strategy", "sharding", "layout"),
    [
        (Strategy.single, Sharding.full_shard, StateLayout.single),
        (Strategy.ddp, Sharding.full_shard, StateLayout.ddp),
        (Strategy.fsdp, Sharding.full_shard, StateLayout.full_shard),
        (Strategy.fsdp, Sharding.shard_grad_op, StateLayout.shard_grad_op),
        (Strategy.fsdp, Sharding.hybrid_shard, StateLayout.hybrid_shard),
        (Strategy.fsdp, Sharding.no_shard, StateLayout.ddp),
    ],
)
def test_a_strategy_is_kept_to(strategy: Strategy, sharding: Sharding, layout: StateLayout) -> None:
    found = tried(SMALL, 2, 80, strategy=strategy, sharding=sharding)
    assert {trial.layout for trial in found.trials} == {layout}


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(DeviceError, match="no GPU to fit a model on"):
        tried(SMALL, 0, 80)
    with pytest.raises(DeviceError, match="num_gpus=3, but there are 2 GPUs"):
        tried(SMALL, 2, 80, num_gpus=3)
    with pytest.raises(DeviceError, match="strategy=ddp cannot use 1 GPU"):
        tried(SMALL, 1, 80, strategy=Strategy.ddp)
    with pytest.raises(DeviceError, match="strategy=single cannot use num_gpus=2"):
        tried(SMALL, 2, 80, strategy=Strategy.single, num_gpus=2)


# -- training ------------------------------------------------------------


SEVEN_B_TRAINING = ModelShape(
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
    assert activation_bytes(SEVEN_B_TRAINING, work) == 2 * 1024 * 4096 * (2 * 32 + 34)
    assert activation_bytes(ModelShape(name="x", parameters=1), work) == 0


def test_logits_are_there_for_a_part_of_the_tokens_at_a_time_where_the_model_is_whole() -> None:
    every = 2 * 4096 * 32000 * 12
    work = Workload(batch=2, tokens=4096)
    assert training_footprint(SEVEN_B_TRAINING, work, StateLayout.full_shard, 2).logits == every
    assert training_footprint(SEVEN_B_TRAINING, work).logits == (1 << 27) * 12 < every
    assert training_footprint(SEVEN_B_TRAINING, Workload(tokens=1024)).logits == 1024 * 32000 * 12


def test_ddp_does_not_depend_on_the_number_of_gpus_and_copies_gradients_for_its_buckets() -> None:
    two, eight = (training_footprint(SEVEN_B_TRAINING, Workload(), StateLayout.ddp, gpus) for gpus in (2, 8))
    assert two == eight
    assert two.buckets == 14 * GB
    assert training_footprint(SEVEN_B_TRAINING, Workload(), StateLayout.single).buckets == 0


def test_full_shard_gathers_two_units() -> None:
    footprint = training_footprint(SEVEN_B_TRAINING, Workload(), StateLayout.full_shard, 8)
    assert footprint.state == 14 * GB
    assert footprint.gathered == 2 * 262 * 10**6 * 2
    assert footprint.total == footprint.state + footprint.gathered + footprint.activations + footprint.logits


def test_offload_moves_the_state_to_the_machines_memory() -> None:
    kept = training_footprint(SEVEN_B_TRAINING, Workload(), StateLayout.full_shard, 4)
    moved = training_footprint(SEVEN_B_TRAINING, Workload(), StateLayout.full_shard, 4, offload=True)
    assert (moved.state, moved.host) == (0, kept.state)
    assert moved.total == kept.total - kept.state
    partly = training_footprint(SEVEN_B_TRAINING, Workload(), StateLayout.shard_grad_op, 4, offload=True)
    assert (partly.weights, partly.host) == (14 * GB, (2 + 12) * 7 * GB // 4)


def test_adapters_are_all_that_is_trained() -> None:
    footprint = training_footprint(SEVEN_B_TRAINING, Workload(lora_rank=16))
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
