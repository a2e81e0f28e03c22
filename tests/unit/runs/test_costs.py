"""What methods take is the mean over the chains that their results rest on."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from pipeline.runs.cost import ComputeRow, CostRow, at_budgets, costs_of
from pipeline.runs.pooling import fronts
from pipeline.runs.record import PooledRow, ResultRow
from tests.doubles.pooled import pooled_row


def result(seed: int, number: int = 1, reference: int | None = None) -> ResultRow:
    where = ("PITA", "addition", "tiny", seed, number, "pass@1")
    return ResultRow(*where, 0.5, None, None, 10, reference=reference)


def spent(
    seed: int | None,
    stage: str,
    flops: float | None,
    number: int = 1,
    *,
    device_s: float | None = 1.0,
    load_s: float = 0.0,
    **more: Any,
) -> ComputeRow:
    return ComputeRow("addition", "tiny", "PITA", seed, number, stage, 1, device_s, load_s, flops=flops, **more)


def cost(results: list[ResultRow], compute: list[ComputeRow], number: int = 1) -> CostRow:
    (found,) = [row for row in costs_of(results, compute, {}) if row.round == number]
    return found


def test_costs_are_the_mean_over_chains_without_evaluation() -> None:
    compute = [
        row
        for reference in (0, 1)
        for seed in range(3)
        for row in (
            spent(seed, "generate", 5, device_s=4.0, answers=9, reference=reference),
            spent(seed, "train", 10 + 10 * seed, device_s=5.0, load_s=2.0, reference=reference),
            spent(seed, "sweep", 90, answers=10, flops_by_purpose={"decoding": 90}, reference=reference),
            spent(
                seed,
                "evaluate",
                90,
                answers=10,
                flops_by_purpose={"decoding": 10, "guidance": 20, "scoring": 60},
                reference=reference,
            ),
        )
    ]
    found = cost([result(seed, reference=reference) for reference in (0, 1) for seed in range(3)], compute)
    assert (found.flops, found.answer, found.device_s, found.load_s) == (25, 3, 9, 2)


def test_work_that_seeds_share_is_part_of_what_each_chain_takes() -> None:
    compute = [spent(None, "prepare_prompts", 4), spent(0, "train", 10), spent(1, "train", 12)]
    assert cost([result(0)], compute).flops == 14
    assert cost([result(0), result(1)], compute).flops == 15


def test_what_a_method_begins_with_counts_whole_but_for_its_evaluation() -> None:
    began = [
        replace(spent(seed, stage, flops, number), algo="SFT")
        for seed in (0, 1)
        for stage, flops, number in (("train", 3, 1), ("evaluate", 90, 1), ("train", 4, 2))
    ]
    compute = [*began, spent(0, "train", 10), spent(0, "train", 100, 2), spent(1, "train", 10)]
    starts = {"PITA": "SFT"}
    assert [row.flops for row in costs_of([result(0), result(0, 2)], compute, starts)] == [17, 117]


def test_what_is_not_known_of_a_stage_is_not_known_of_its_method() -> None:
    known = [spent(0, "train", 10), spent(1, "train", 12), spent(0, "evaluate", 6, answers=2)]
    lost = [spent(1, "generate", None, device_s=None), spent(1, "evaluate", 6, answers=None)]
    found = cost([result(0), result(1)], [*known, *lost])
    assert (found.flops, found.answer, found.device_s) == (None, None, None)
    assert cost([result(0)], [*known, *lost]).flops == 10  # that chain is none of those it rests on


# -- what methods reach at equal divergence, and at equal training budgets ---


def point(algo: str, kl: float, value: float, number: int = 2, suffix: str = "") -> Iterator[PooledRow]:
    """A result whose interval is 0.02 to either side, and its KL."""
    yield pooled_row(algo, number, value, metric=f"pass@1{suffix}")
    yield pooled_row(algo, number, kl, metric=f"kl_per_sequence{suffix}")


REFERENCE = list(point("reference", 0.0, 0.4, 0))
DPO = [
    *point("DPO@beta=1", 0.5, 0.6),
    *point("DPO@beta=0.3", 1.0, 0.5),  # further away for less
    *point("DPO@beta=0.1", 2.0, 0.8),
    *point("DPO@beta=0.1", 9.0, 0.1, number=1),  # an earlier round
]
QSHARP = [
    *point("QSharp", 1.5, 0.9),
    *point("QSharp", 0.0, 0.4, suffix="/eta=inf"),
    *point("QSharp", 1.0, 0.9, suffix="/eta=0.1"),
]


def test_points_of_a_front_are_told_by_what_makes_them() -> None:
    points, _ = fronts([*REFERENCE, *DPO, *QSHARP, *point("RAFT", 1.0, 0.7)], [], "test")
    assert [(row.front, row.point, row.split, row.kl, row.value, row.is_best) for row in points] == [
        ("DPO", "reference", "test", 0.0, 0.4, True),
        ("DPO", "beta=1", "test", 0.5, 0.6, True),
        ("DPO", "beta=0.3", "test", 1.0, 0.5, False),
        ("DPO", "beta=0.1", "test", 2.0, 0.8, True),
        ("QSharp", "eta=inf", "validation", 0.0, 0.4, True),
        ("QSharp", "eta=0.1", "validation", 1.0, 0.9, True),
    ]
    assert {row.metric for row in points} == {"pass@1"}


def test_rewards_are_compared_where_all_fronts_reach() -> None:
    _, matched = fronts([*REFERENCE, *DPO, *QSHARP], [], "test")
    found = {(row.front, row.kl): row.value for row in matched}
    assert found == {
        ("DPO", 0.25): 0.5,
        ("DPO", 0.5): 0.6,
        ("DPO", 1.0): pytest.approx(0.6 + 0.2 / 3),  # over the point that is beaten
        ("QSharp", 0.25): 0.525,
        ("QSharp", 0.5): 0.65,
        ("QSharp", 1.0): 0.9,
    }
    for row in matched:
        assert row.value is not None
        assert (row.ci_low, row.ci_high) == pytest.approx((row.value - 0.02, row.value + 0.02))


def taken(algo: str, number: int, flops: float | None) -> CostRow:
    where = {"dataset": "addition", "model": "tiny"}
    return CostRow(**where, algo=algo, round=number, flops=flops, answer=None, device_s=1.0)


def test_methods_are_compared_after_the_last_round_within_a_budget() -> None:
    pooled = [*REFERENCE, *point("DPO", 0.5, 0.6, 1), *point("DPO", 1.0, 0.7), *point("RAFT", 0.2, 0.5, 1)]
    costs = [taken("DPO", 1, 150), taken("DPO", 2, 250), taken("RAFT", 1, 300), taken("reference", 0, 1)]
    rows = at_budgets(pooled, costs, [400, 200, 10])
    assert [(row.budget, row.algo, row.round, row.flops, row.value, row.kl) for row in rows] == [
        (10, "DPO", None, None, None, None),
        (10, "RAFT", None, None, None, None),
        (200, "DPO", 1, 150, 0.6, 0.5),  # both rounds take 250
        (200, "RAFT", None, None, None, None),
        (400, "DPO", 2, 250, 0.7, 1.0),
        (400, "RAFT", 1, 300, 0.5, 0.2),
    ]


def test_a_round_whose_flops_are_not_known_is_not_passed_over_for_an_earlier_one() -> None:
    pooled = [*REFERENCE, *point("DPO", 0.5, 0.6, 1), *point("DPO", 1.0, 0.7), *point("RAFT", 0.2, 0.5, 1)]
    costs = [taken("DPO", 1, 150), taken("DPO", 2, None)]
    found = [(row.algo, row.is_known, row.round, row.flops, row.value) for row in at_budgets(pooled, costs, [200])]
    assert found == [("DPO", False, None, None, None), ("RAFT", False, None, None, None)]
