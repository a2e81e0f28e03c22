"""The timeline folds: nothing of the work is lost, what is idle stays empty, what failed stays visible."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.runs.report.page.timeline import SEVERAL, Stretch, timeline_of


def attempt(lane: str, start: float, end: float, stage: str = "train", outcome: str = "done") -> Stretch:
    return Stretch(lane=lane, start=start, end=end, stage=stage, outcome=outcome, first=f"{stage}/{start:g}")


def test_few_attempts_are_drawn_as_they_were() -> None:
    found = timeline_of([attempt("b", 0, 4), attempt("a", 1, 2, "generate")], ["a", "b", "idle"], 10)
    assert found.lanes == ["a", "b", "idle"]
    assert (found.jobs, found.busy, found.attempts) == ([1, 1, 0], [1.0, 4.0, 0.0], 2)
    assert list(zip(found.bars.lane, found.bars.stage, found.bars.jobs, strict=True)) == [
        (0, "generate", 1),
        (1, "train", 1),
    ]


def test_thousands_of_attempts_are_folded_and_what_was_idle_stays_empty() -> None:
    crowd = [attempt("gpu", at, at + 0.9) for at in range(2000)]
    crowd += [attempt("gpu", 5000 + at, 5000 + at + 0.9, "evaluate") for at in range(2000)]
    found = timeline_of(crowd, ["gpu"], 7000, most=50)
    bars = found.bars
    assert len(bars.lane) <= 50
    assert sum(bars.jobs) == found.attempts == 4000
    assert found.busy == pytest.approx([3600])
    assert not [end for start, end in zip(bars.start, bars.end, strict=True) if start < 2001 and end > 2001]
    assert set(bars.stage) == {"train", "evaluate"}
    assert bars.name[0].startswith("train/0 … train/")


def test_attempts_that_failed_are_not_folded_into_those_that_did_not() -> None:
    crowd = [attempt("gpu", at, at + 1, outcome="failed" if at == 500 else "done") for at in range(1000)]
    found = timeline_of(crowd, ["gpu"], 1000, most=10).bars
    failed = [at for at, outcome in enumerate(found.outcome) if outcome == "failed"]
    assert [(found.start[at], found.end[at], found.jobs[at]) for at in failed] == [(500, 501, 1)]


def test_stages_that_take_turns_too_fast_become_one_bar_of_several() -> None:
    stages = ["generate", "train"]
    crowd = [attempt("gpu", at, at + 1, stages[at % 2]) for at in range(1000)]
    found = timeline_of(crowd, ["gpu"], 1000, most=10).bars
    assert set(found.stage) == {SEVERAL}
    assert sum(found.jobs) == 1000


@pytest.mark.properties
@given(
    st.lists(
        st.tuples(
            st.sampled_from("ab"),
            st.floats(0, 1000),
            st.floats(0, 50),
            st.sampled_from(["generate", "train"]),
            st.sampled_from(["done", "failed"]),
        ),
        max_size=60,
    ),
    st.integers(4, 20),
)
def test_folding_keeps_every_attempt_and_every_end(
    drawn: list[tuple[str, float, float, str, str]], most: int
) -> None:
    every = [attempt(lane, start, start + long, stage, outcome) for lane, start, long, stage, outcome in drawn]
    found = timeline_of(every, ["a", "b"], 1000, most=most)
    assert sum(found.bars.jobs) == len(every)
    for outcome in ("done", "failed"):
        ends = [one.end for one in every if one.outcome == outcome]
        drawn_ends = [end for end, told in zip(found.bars.end, found.bars.outcome, strict=True) if told == outcome]
        assert max(drawn_ends, default=0) == pytest.approx(max(ends, default=0), abs=1e-3)
