"""The order of methods, by which pages and figures give them their looks."""

import pytest

from pipeline.learning.algos.base import REFERENCE
from pipeline.runs.looks import drawn_methods, reading_order
from pipeline.runs.record import Results
from pipeline.runs.report.page.results import series_of
from pipeline.runs.report.tables import result_tables
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
    assert [one.algo for one in series_of(found)] == wanted
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
