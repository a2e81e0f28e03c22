"""What methods take is the mean over the chains that their results rest on."""

from dataclasses import replace
from typing import Any

from pipeline.runs.cost import ComputeRow, CostRow, costs_of
from pipeline.runs.record import ResultRow


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


def test_a_chain_that_failed_counts_for_nothing() -> None:
    """Seed 1 has generated and failed to train, so the result rests on seed 0 alone."""
    compute = [spent(0, "generate", 1), spent(0, "train", 10), spent(1, "generate", 1)]
    found = cost([result(0)], compute)
    assert (found.flops, found.device_s) == (11, 2)


def test_a_chain_counts_in_the_rounds_that_it_has_finished() -> None:
    compute = [
        *(spent(seed, "train", 10 + seed) for seed in (0, 1)),
        spent(0, "train", 100, 2),
        spent(1, "generate", 1, 2),
    ]
    results = [result(0), result(1), result(0, 2)]
    assert [row.flops for row in costs_of(results, compute, {})] == [10.5, 110]


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
