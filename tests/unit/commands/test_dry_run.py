"""What a dry run says of a plan."""

import pytest

from pipeline.commands.request import fewer_rows, how_sure, what_rows_add_up_to
from pipeline.plan.durations import PlanRow


@pytest.mark.parametrize(
    ("known", "said"),
    [([False, False], "(a guess, until the first run)"), ([True, False], "(in part a guess"), ([True, True], "")],
)
def test_an_estimate_says_whether_anything_like_it_was_timed(known: list[bool], said: str) -> None:
    assert how_sure(known).strip().startswith(said)
    assert bool(how_sure(known)) == bool(said)


def test_what_the_rows_of_a_plan_add_up_to_is_said() -> None:
    def row(seconds: float) -> PlanRow:
        return PlanRow(round=1, chain="d/m/s0/A", stage="train", jobs=1, missing=1, samples=0, seconds=seconds)

    said = what_rows_add_up_to([row(30.0), row(45.0)], 2)
    assert said == (
        "Estimates are of jobs one after the other, 1 min 15 s in all; 2 workers share that, and load first."
    )
    assert what_rows_add_up_to([row(5.0)], 1).endswith("5.0 s in all; the worker loads first.")
    assert what_rows_add_up_to([row(0.0)], 2) == ""


def test_a_dataset_with_fewer_rows_than_a_round_asks_for_is_told_of() -> None:
    (said,) = fewer_rows({"small": {"train": 100}, "large": {"train": 20_000}, "unknown": {}}, 10_000)
    assert "datasets.small has 100 rows to train on" in said
