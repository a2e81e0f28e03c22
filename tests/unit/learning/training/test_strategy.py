"""`training.strategy=auto`: the simplest way that fits, and why."""

from __future__ import annotations

import pytest

from pipeline.config.schema import Sharding, Strategy
from pipeline.learning.memory.training import ModelShape, Precision, Workload
from pipeline.learning.training.distributed import Ranks, Spread
from pipeline.learning.training.strategy import choose_spread, settle

GIB = 2**30
LLAMA_7B = ModelShape(
    name="7B",
    parameters=6_738_415_616,
    layers=32,
    hidden=4096,
    heads=32,
    vocabulary=32000,
    largest_unit=262_000_000,
    lora_width=300_000,
)
WORK = Workload(batch=1, precision=Precision.float32)


@pytest.mark.parametrize(
    ("size", "memory_gib", "host_gib", "strategy", "sharding", "offload"),
    [
        (2, 200, 500, Strategy.ddp, Sharding.full_shard, False),
        (2, 100, 500, Strategy.fsdp, Sharding.shard_grad_op, False),
        (8, 30, 500, Strategy.fsdp, Sharding.full_shard, False),
        (2, 24, 500, Strategy.fsdp, Sharding.full_shard, True),
    ],
)
def test_the_simplest_that_fits_is_taken(
    size: int, memory_gib: int, host_gib: int, strategy: Strategy, sharding: Sharding, offload: bool
) -> None:
    spread, reasons = choose_spread(LLAMA_7B, WORK, size, free_bytes=memory_gib * GIB, host_bytes=host_gib * GIB)
    assert spread == Spread(strategy=strategy, sharding=sharding, cpu_offload=offload)
    assert "fits: " in reasons
    assert ("ddp on " in reasons and "short" in reasons) == (strategy is Strategy.fsdp)


def test_where_nothing_fits_the_nearest_is_tried() -> None:
    spread, reasons = choose_spread(LLAMA_7B, WORK, 2, free_bytes=8 * GIB, host_bytes=500 * GIB)
    assert spread.is_sharded
    assert spread.cpu_offload
    assert "fits: " not in reasons


def test_on_the_cpu_every_rank_has_the_model() -> None:
    def never() -> tuple[ModelShape, Workload]:
        raise AssertionError("the shape was read")

    ranks = Ranks(0, 2, "cpu", Spread(strategy=Strategy.auto))
    settle(ranks, never)
    assert ranks.spread == Spread(strategy=Strategy.ddp)
    asked = Ranks(0, 2, "cuda:0", Spread(strategy=Strategy.fsdp))
    settle(asked, never)
    assert asked.spread == Spread(strategy=Strategy.fsdp)
