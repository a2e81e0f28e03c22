"""What a dry run says of a plan."""

import pytest

from pipeline.commands.dry_run import how_sure


@pytest.mark.parametrize(
    ("known", "said"),
    [([False, False], "(a guess, until the first run)"), ([True, False], "(in part a guess"), ([True, True], "")],
)
def test_an_estimate_says_whether_anything_like_it_was_timed(known: list[bool], said: str) -> None:
    assert how_sure(known).strip().startswith(said)
    assert bool(how_sure(known)) == bool(said)
