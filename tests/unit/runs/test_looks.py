"""The order of methods, by which pages and figures give them their looks; and how time is drawn."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.learning.algos.base import REFERENCE
from pipeline.runs.looks import Bar, bars, drawn_methods
from pipeline.runs.record import Results
from pipeline.runs.run_view import Span
from tests.doubles.pooled import pooled_row

POINTS = ["DPO@beta=0.03", "DPO@beta=0.1", "DPO@beta=1", "DPO@beta=3", "DPO@beta=10"]


def results(*names: str) -> Results:
    return Results(rows=[], pooled=[pooled_row(name, 1, 0.5) for name in sorted(names)])


def test_points_of_a_front_change_the_look_of_no_method() -> None:
    assert drawn_methods(results("QSharp", REFERENCE, "GRPO", *POINTS)) == ["GRPO", "QSharp", *POINTS]


# -- times: nothing of the work is lost, what is idle stays empty, what failed stays visible ---------------------


def span(start: float, end: float | None, worker: int = 0, stage: str = "generate", outcome: str = "done") -> Span:
    place = {"chain": "c", "round": 1, "attempt": 1, "device": "cpu"}
    return Span(job=f"j{start:g}", stage=stage, worker=worker, start=start, end=end, outcome=outcome, **place)  # type: ignore[arg-type]


def drawn(spans: list[Span], most: int) -> list[Bar]:
    return bars(spans, 100, 7100, most)


def test_thousands_of_attempts_are_folded_and_what_was_idle_stays_empty() -> None:
    crowd = [span(100 + at, 100.9 + at) for at in range(2000)]
    crowd += [
        span(5100 + at, 5100.9 + at, stage="evaluate", outcome="failed" if at == 500 else "done")
        for at in range(2000)
    ]
    found = drawn(crowd, 50)
    assert len(found) <= 50
    assert (sum(bar.jobs for bar in found), sum(bar.busy for bar in found)) == (4000, pytest.approx(3600))
    assert not [bar for bar in found if bar.start < 2001 < bar.end]
    assert {bar.stage for bar in found} == {"generate", "evaluate"}
    assert [(bar.first, bar.jobs) for bar in found if bar.outcome == "failed"] == [("j5600", 1)]


@pytest.mark.properties
@given(
    st.lists(
        st.tuples(
            st.floats(100, 1000),
            st.floats(0, 50),
            st.integers(0, 1),
            st.sampled_from(["generate", "train"]),
            st.sampled_from(["done", "failed"]),
        ),
        max_size=60,
    ),
    st.integers(4, 20),
)
def test_folding_keeps_every_attempt_and_every_end(
    given_spans: list[tuple[float, float, int, str, str]], most: int
) -> None:
    every = [span(start, start + long, *rest) for start, long, *rest in given_spans]
    found = drawn(every, most)
    assert sum(bar.jobs for bar in found) == len(every)
    for outcome in ("done", "failed"):
        ends = [one.end - 100 for one in every if one.outcome == outcome and one.end is not None]
        assert max((bar.end for bar in found if bar.outcome == outcome), default=0) == max(ends, default=0)
