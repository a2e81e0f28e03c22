"""The order of methods, by which pages and figures give them their looks; and how time is drawn."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.learning.algos.base import REFERENCE
from pipeline.runs.looks import SEVERAL, Bar, bars, drawn_methods, reading_order
from pipeline.runs.record import Results
from pipeline.runs.report.page.run import series_of
from pipeline.runs.report.tables import result_tables
from pipeline.runs.run_view import Span
from tests.doubles.pooled import pooled_row

POINTS = ["DPO@beta=0.03", "DPO@beta=0.1", "DPO@beta=1", "DPO@beta=3", "DPO@beta=10"]


def results(*names: str) -> Results:
    return Results(rows=[], pooled=[pooled_row(name, 1, 0.5) for name in sorted(names)])


def test_points_of_a_front_change_the_look_of_no_method() -> None:
    assert drawn_methods(results("QSharp", REFERENCE, "GRPO", *POINTS)) == ["GRPO", "QSharp", *POINTS]


def test_points_are_read_in_the_order_of_their_numbers() -> None:
    found = results("QSharp", REFERENCE, "BestOfN", *POINTS)
    wanted = [REFERENCE, "BestOfN", *POINTS, "QSharp"]
    assert sorted((row.algo for row in found.pooled), key=reading_order) == wanted
    assert [one["algo"] for one in series_of(found)] == wanted
    (table,) = result_tables(found)
    assert [row[0] for row in table.texts] == wanted


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        (["A@lr=1e-5", "A@lr=0.001", "A@lr=3e-4"], ["A@lr=1e-5", "A@lr=3e-4", "A@lr=0.001"]),
        (["A@n=10,k=2", "A@n=9,k=1", "A@n=10,k=1"], ["A@n=9,k=1", "A@n=10,k=1", "A@n=10,k=2"]),
        (["A@eta=inf", "A@eta=nan", "A@eta=2", "A@eta=up"], ["A@eta=2", "A@eta=inf", "A@eta=nan", "A@eta=up"]),
    ],
    ids=["exponents", "two settings", "no numbers"],
)
def test_numbers_are_sorted_by_their_size_and_words_follow(names: list[str], wanted: list[str]) -> None:
    assert sorted(names, key=reading_order) == wanted


# -- times: nothing of the work is lost, what is idle stays empty, what failed stays visible ---------------------


def span(start: float, end: float | None, worker: int = 0, stage: str = "generate", outcome: str = "done") -> Span:
    place = {"chain": "c", "round": 1, "attempt": 1, "device": "cpu"}
    return Span(job=f"j{start:g}", stage=stage, worker=worker, start=start, end=end, outcome=outcome, **place)  # type: ignore[arg-type]


def drawn(spans: list[Span], most: int, *, across: bool = True) -> list[Bar]:
    return bars(spans, 100, 7100, most, across=across)


def test_few_attempts_are_drawn_as_they_were_and_those_that_go_on_end_now() -> None:
    found = drawn([span(101, 102), span(103, None, worker=1)], 10)
    assert [(bar.worker, bar.start, bar.end, bar.first) for bar in found] == [
        (0, 1, 2, "j101"),
        (1, 3, 7000, "j103"),
    ]


@pytest.mark.parametrize("across", [True, False])
def test_thousands_of_attempts_are_folded_and_what_was_idle_stays_empty(across: bool) -> None:
    crowd = [span(100 + at, 100.9 + at) for at in range(2000)]
    crowd += [
        span(5100 + at, 5100.9 + at, stage="evaluate", outcome="failed" if at == 500 else "done")
        for at in range(2000)
    ]
    found = drawn(crowd, 50, across=across)
    assert len(found) <= 50
    assert (sum(bar.jobs for bar in found), sum(bar.busy for bar in found)) == (4000, pytest.approx(3600))
    assert not [bar for bar in found if bar.start < 2001 < bar.end]
    assert {bar.stage for bar in found} == {"generate", "evaluate"}
    assert [(bar.first, bar.jobs) for bar in found if bar.outcome == "failed"] == [("j5600", 1)]


def test_stages_that_take_turns_too_fast_become_one_bar_of_several() -> None:
    crowd = [span(100 + at, 101 + at, stage=["generate", "train"][at % 2]) for at in range(1000)]
    found = drawn(crowd, 10)
    assert {bar.stage for bar in found} == {SEVERAL}
    assert sum(bar.jobs for bar in found) == 1000
    assert {bar.stage for bar in drawn(crowd, 10, across=False)} == {"generate", "train"}


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
