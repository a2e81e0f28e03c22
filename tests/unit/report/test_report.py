"""What is printed: the table of results, the live view, durations."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from pipeline.report.live import PlainLines, make_reporter
from pipeline.report.screen import headline, screen
from pipeline.report.tables import result_tables
from pipeline.report.words import condition, duration, rate
from pipeline.results.record import ResultRow
from pipeline.results.status import CellStatus, RunStatus, WorkerStatus
from pipeline.terminal.console import Terminal


def text_of(renderable: object, width: int = 140) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(renderable)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def row(algo: str, seed: int, number: int, value: float, metric: str = "pass@1") -> ResultRow:
    return ResultRow(algo, "addition", "tiny", seed, number, metric, value, value - 0.02, value + 0.02, 500)


def test_table_puts_the_reference_first_and_rounds_in_order() -> None:
    rows = [row("PITA", 0, 2, 0.9), row("PITA", 0, 1, 0.8), row("reference", 0, 0, 0.4)]
    lines = text_of(result_tables(rows, 0.95)[0]).splitlines()
    body = [line for line in lines if "0." in line]
    assert ["reference" in line for line in body] == [True, False, False]
    assert "0.400   [0.380, 0.420]" in body[0]
    assert "+0.400" in body[1]
    assert "+0.500" in body[2]
    assert "500 prompts" in lines[0]


def test_several_seeds_are_averaged() -> None:
    rows = [row("reference", seed, 0, value) for seed, value in enumerate((0.40, 0.42, 0.44))]
    text = text_of(result_tables(rows, 0.95)[0])
    assert "3 seeds" in text
    assert "0.420   [0.400, 0.440]" in text


def test_the_difference_to_the_reference_is_over_the_seeds_that_have_both() -> None:
    """Seeds differ more than methods do: a mean over others would turn the sign beside the p-value of these."""
    rows = [row("reference", seed, 0, value) for seed, value in enumerate((0.20, 0.60, 0.70))]
    rows.append(row("PITA", 0, 1, 0.30))
    text = text_of(result_tables(rows, 0.95)[0])
    assert "+0.100" in text
    assert "PITA round 1: 1 of 3 seeds" in text
    rows.append(row("PITA", 0, 1, 0.15, "pass@1/vs_reference"))
    assert "+0.150" in text_of(result_tables(rows, 0.95)[0])


def test_nothing_is_said_of_seeds_where_every_row_has_all() -> None:
    rows = [row(algo, seed, number, 0.5) for algo, number in (("reference", 0), ("PITA", 1)) for seed in range(2)]
    assert " of 2 seeds" not in text_of(result_tables(rows, 0.95)[0])


def test_each_dataset_and_model_has_a_table_of_its_own() -> None:
    other = ResultRow("reference", "star", "tiny", 0, 0, "pass@1", 0.2, 0.1, 0.3, 50)
    assert len(result_tables([row("reference", 0, 0, 0.4), other], 0.95)) == 2


def test_numbers_of_one_model_or_reference_are_conditional_on_it() -> None:
    assert condition({None}) == condition(set()) == "conditional on this model"
    assert condition({3}) == "conditional on the reference of seed 3"
    assert condition({0, 3}) == ""


def test_references_are_not_averaged_as_if_they_were_one() -> None:
    rows = [
        replace(row(algo, 0, number, value + 0.1 * reference), reference=reference)
        for reference in (0, 3)
        for algo, number, value in (("reference", 0, 0.2), ("PITA", 1, 0.5))
    ]
    first, second = map(text_of, result_tables(rows, 0.95))
    assert "reference 0" in first
    assert "0.500" in first
    assert "reference 3" in second
    assert "0.800" in second


def test_a_metric_without_a_value_is_a_dash() -> None:
    empty = ResultRow("PITA", "addition", "tiny", 0, 1, "pass@1", None, None, None, 0)
    assert " - " in text_of(result_tables([row("reference", 0, 0, 0.4), empty], 0.95)[0])


def status(elapsed: float = 3.0, **cell: int) -> RunStatus:
    counts = CellStatus(**cell)
    worker = WorkerStatus(
        index=0,
        device="cpu slot 0",
        state="running",
        job_id="addition/tiny/s0/PITA/r1/train",
        running_s=2.0,
        done=5,
        total=10,
        rss_bytes=2**30,
    )
    return RunStatus(
        elapsed_s=elapsed,
        remaining_s=65.0,
        samples_per_s=1500,
        tokens_per_s=18_500,
        total=counts,
        cells={("addition/tiny/s0/PITA", 1): counts},
        workers=(worker,),
    )


def test_headline_has_counts_rates_and_time_left() -> None:
    text = headline(status(total=10, stored=2, done=3, running=1))
    assert "5/10 jobs done, 1 running, 4 left" in text
    assert "1.5k samples/s, 18.5k tokens/s, about 1 min 05 s left" in text


def test_live_view_shows_chains_rounds_and_workers() -> None:
    text = text_of(screen(status(total=10, done=3, running=1), 140, 40))
    assert "round 1" in text
    assert "3/10" in text
    assert "addition/tiny/s0/PITA/r1/train" in text
    assert "1.0 GiB" in text


def test_live_view_fits_a_low_terminal() -> None:
    cells = {(f"chain{index}", 1): CellStatus(total=1) for index in range(100)}
    many = RunStatus(
        elapsed_s=1.0,
        remaining_s=None,
        samples_per_s=0,
        tokens_per_s=0,
        total=CellStatus(total=100),
        cells=cells,
    )
    text = text_of(screen(many, 140, 24))
    assert len(text.splitlines()) <= 24
    assert "more chains" in text


def test_the_cursor_waits_below_the_live_view() -> None:
    """The terminal shows ^C where the cursor is, which must not wrap a line of the view."""
    out = io.StringIO()
    console = Terminal(
        file=out, force_terminal=True, force_interactive=True, color_system=None, width=80, height=24
    )
    with make_reporter(console) as reporter:
        reporter.update(status(total=10, done=3, running=1))
        assert not out.getvalue().split("\n")[-1].strip()
        assert "worker" in out.getvalue()


def test_output_that_is_no_terminal_gets_plain_lines_once_for_each_round() -> None:
    console = Console(file=io.StringIO(), width=80)
    reporter = make_reporter(console)
    assert isinstance(reporter, PlainLines)
    with reporter:
        for _ in range(3):
            reporter.update(status(total=2, done=2))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert text == "[    3.0 s] addition/tiny/s0/PITA round 1: done\n"


def test_a_round_that_failed_says_so_in_plain_lines() -> None:
    console = Console(file=io.StringIO(), width=80)
    PlainLines(console).update(status(total=3, done=1, failed=1, blocked=1))
    assert "2 of 3 jobs not done" in console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("seconds", "words"), [(8.24, "8.2 s"), (185, "3 min 05 s"), (7440, "2 h 04 min"), (59.99, "60.0 s")]
)
def test_durations_read_well(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_rates_read_well() -> None:
    assert [rate(value) for value in (0, 942, 18_500, 1_200_000)] == ["0", "942", "18.5k", "1.2M"]
