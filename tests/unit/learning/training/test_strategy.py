"""`training.strategy=auto`: the simplest way that fits, and why."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pipeline.config.schema import DType, Sharding, Strategy
from pipeline.learning.memory.fit import ModelShape, Workload
from pipeline.learning.training import distributed
from pipeline.learning.training.distributed import Ranks, Spread, choose_spread
from pipeline.learning.training.loop import computing_in

GIB = 2**30
LLAMA_7B = ModelShape(
    name="7B",
    parameters=6_738_415_616,
    layers=32,
    hidden=4096,
    vocabulary=32000,
    largest_unit=262_000_000,
    lora_width=300_000,
)
WORK = Workload(batch=1, dtype=DType.float32)


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


def test_a_rank_that_fails_tells_before_anything_can_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL may wait for ever in `destroy_process_group` for peers that are in the middle of a collective."""
    begun: dict[str, Any] = {}
    destroyed: list[bool] = []
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(distributed, "_meet", lambda *_: None)
    monkeypatch.setattr(distributed.torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(distributed.dist, "init_process_group", lambda _, **options: begun.update(options))
    monkeypatch.setattr(distributed.dist, "destroy_process_group", lambda: destroyed.append(True))
    with pytest.raises(ZeroDivisionError), distributed.join(1, 2, "cuda:1", Spread()):
        raise ZeroDivisionError
    assert not destroyed
    assert begun.get("device_id") == torch.device("cuda:1")
    with distributed.join(0, 2, "cpu", Spread()):
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
    ranks = Ranks(0, 2, "cpu", Spread(strategy=Strategy.fsdp, sharding=sharding), dtype)
    ranks._shard(torch.nn.Linear(1, 1))
    policy = given[0].get("mp_policy")
    assert (policy is not None) is rounded
    if policy is not None:
        assert (policy.param_dtype, policy.reduce_dtype) == (torch.bfloat16, torch.float32)
    with computing_in(dtype, "cpu", ranks):
        assert torch.is_autocast_enabled("cpu") is (dtype is DType.bfloat16 and not rounded)
