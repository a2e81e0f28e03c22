"""A page has the tables of the terminal: the same texts, with what a test tells apart marked."""

import io

from rich.console import Console

from pipeline.runs.cost import Compute, ComputeRow
from pipeline.runs.record import ResultRow, Results
from pipeline.runs.report.page import results as page
from pipeline.runs.report.tables import result_tables
from pipeline.terminal.console import NO_TERMINAL_WIDTH
from tests.doubles.pooled import comparison, pooled_row

RESULTS = Results(
    rows=[
        ResultRow("PITA", "addition", "tiny", seed, 1, "pass@1", 0.5 + seed / 10, 0.4, 0.7, 500, reference=seed)
        for seed in (0, 1)
    ],
    pooled=[
        pooled_row("reference", 0, 0.4),
        pooled_row("reference", 0, 0.9, metric="optimum/pass@1"),
        *(pooled_row("PITA", number, 0.5 + number / 10) for number in (2, 1)),
        pooled_row("DPO", 2, 0.1),
        pooled_row("GRPO", 2, 0.41),
    ],
    comparisons=[
        comparison("PITA", p=0.001, difference=0.3),
        comparison("DPO", p=0.001, difference=-0.3),
        comparison("GRPO", p=0.9),
    ],
)


def test_the_table_says_what_the_terminal_says() -> None:
    (table,) = page.tables_of(RESULTS, Compute())
    console = Console(file=io.StringIO(), width=NO_TERMINAL_WIDTH)
    console.print(result_tables(RESULTS)[0])
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    assert lines[0] == table.title
    for row in (table.headings, *table.rows):
        assert " ".join(" ".join(row).split()) in lines
    assert all(line in lines for line in table.caption.splitlines())


def test_rows_that_differ_from_the_reference_are_marked() -> None:
    (table,) = page.tables_of(RESULTS, Compute())
    marked = {(table.rows[at][0], table.rows[at][1]): mark for at, mark in table.marks.items()}
    assert marked == {("PITA", "2"): "better", ("DPO", "2"): "worse"}


def test_a_series_goes_from_round_to_round_and_chains_have_their_own() -> None:
    series = page.series_of(RESULTS)
    (pita,) = (one for one in series if one.algo == "PITA" and not one.chain)
    assert (pita.rounds, pita.values) == ([1, 2], [0.6, 0.7])
    assert [one.chain for one in series if one.chain] == ["reference 0, seed 0", "reference 1, seed 1"]
    assert page.anchors_of(RESULTS) == {"addition · tiny": {"optimum": {"pass@1": 0.9}}}


def test_what_a_stage_took_is_not_known_where_a_part_of_it_is_not() -> None:
    def row(number: int, device_s: float | None) -> ComputeRow:
        return ComputeRow("addition", "tiny", "PITA", 0, number, "train", 10, device_s, 0.0, flops=1e9)

    (stage,) = page.stages_of(Compute(rows=[row(1, 2.0), row(2, None)]))
    assert (stage.device_s, stage.flops, stage.tokens) == (None, 2e9, 20)
