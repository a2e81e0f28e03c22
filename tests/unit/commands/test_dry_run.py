"""What a dry run says of a plan."""

import pytest

from pipeline.commands.request import fewer_rows, how_sure


@pytest.mark.parametrize(
    ("known", "said"),
    [([False, False], "(a guess, until the first run)"), ([True, False], "(in part a guess"), ([True, True], "")],
)
def test_an_estimate_says_whether_anything_like_it_was_timed(known: list[bool], said: str) -> None:
    assert how_sure(known).strip().startswith(said)
    assert bool(how_sure(known)) == bool(said)


def test_a_dataset_with_fewer_rows_than_a_round_asks_for_is_told_of() -> None:
    (said,) = fewer_rows({"small": {"train": 100}, "large": {"train": 20_000}, "unknown": {}}, 10_000)
    assert "datasets.small has 100 rows to train on" in said
