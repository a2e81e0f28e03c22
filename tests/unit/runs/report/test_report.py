"""What is printed: the table of results, the live view, durations."""

import io
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console, RenderableType

from pipeline.runs.cost import CostRow
from pipeline.runs.progress import LiveRun
from pipeline.runs.record import Comparison, FrontRow, MatchedRow, PooledRow, Results
from pipeline.runs.report.format import duration
from pipeline.runs.report.screen import shown_on
from pipeline.runs.report.tables import front_tables, result_tables, tables_of_sets
from pipeline.runs.run_view import AttemptView, JobCounts, WorkerView
from tests.doubles.live import live_run
from tests.doubles.pooled import comparison, pooled_row
from tests.doubles.runs import START


def printed(thing: RenderableType, width: int = 140) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(thing)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def shown(*rows: PooledRow, comparisons: Sequence[Comparison] = (), width: int = 140) -> str:
    results = Results(rows=[], bounded=["BestOfN"], pooled=list(rows), comparisons=list(comparisons))
    return "\n".join(printed(table, width) for table in result_tables(results))


def test_numbers_that_rest_on_a_bound_are_named() -> None:
    def text(algo: str) -> str:
        metrics = ("regularized_reward", "regret")
        rows = [pooled_row("reference", 0), pooled_row(algo, 1)]
        return shown(*rows, *(pooled_row(algo, 1, metric=metric) for metric in metrics))

    for algo in ("BestOfN", "BestOfN@num_generations=4"):
        assert "BestOfN: KL is an upper bound" in text(algo)
    assert "bound" not in text("DPO")


def anchored(*, optimum: bool = True) -> Results:
    values = {
        "pass@1": 0.481, "pass@4": 0.9, "pass@16": 0.95, "kl_per_sequence": 0.0, "regularized_reward": 0.481,
        "greedy/pass@1": 0.62, "greedy/kl_per_sequence": 0.5, "greedy/regularized_reward": 0.57,
    }  # fmt: skip
    if optimum:
        best = {"pass@1": 0.999, "kl_per_sequence": 0.9, "regularized_reward": 0.909, "regret": 0.0}
        values |= {f"optimum/{name}": value for name, value in best.items()}
        values |= {f"optimum/{name}/eta=1": 0.7 for name in best}
        values |= {"regret": 0.428, "greedy/regret": 0.339}
    own = {"pass@1": 0.983, "kl_per_sequence": 0.939, "regularized_reward": 0.889, "regret": 0.02}
    rows = [pooled_row("reference", 0, value, metric=name) for name, value in values.items()]
    rows += [pooled_row("PITA", 1, own[name], metric=name) for name in own if name in values]
    return Results(
        rows=[], bounded=["BestOfN"], pooled=rows, comparisons=[comparison("PITA", number=1)], common_eta=0.1
    )


def test_anchors_stand_with_the_reference_and_are_no_methods() -> None:
    lines = printed(result_tables(anchored())[0]).splitlines()
    body = [line.split() for line in lines if re.match(r"  \S+ +([01]|-) +0\.", line)]
    assert [row[0] for row in body] == ["reference", "greedy", "pass@16", "optimum", "PITA"]
    assert [row[1:5] for row in body[1:4]] == [
        ["-", "0.620", "[0.600,", "0.640]"],
        ["-", "0.950", "[0.930,", "0.970]"],
        ["-", "0.999", "[0.979,", "1.019]"],
    ]
    assert [row[-3:] for row in body] == [
        ["0.000", "0.481", "0.428"],
        ["0.500", "0.570", "0.339"],
        ["-", "-", "-"],
        ["0.900", "0.909", "0.000"],
        ["0.939", "0.889", "0.020"],
    ]
    text = "\n".join(lines)
    assert "greedy: the reference's likeliest tokens; pass@16: one of its 16 samples is right." in text
    assert "optimum: the highest J = reward - 0.1 KL; regret: how far J is below it." in text
    assert "corrected for 1 comparison" in text


def test_p_values_of_a_table_are_corrected_for_all_test_sets() -> None:
    places = ("addition", "addition@two", "addition@mean", "other")
    both = [(place, second) for place in places for second in ("reference", "DPO")]
    tested = [comparison("PITA", second, number=1, dataset=place) for place, second in both]
    rows = [pooled_row(algo, dataset=place) for place in places[:2] for algo in ("PITA", "DPO")]
    text = shown(*rows, comparisons=tested)
    assert text.count("corrected for 3 comparisons") == 1  # not below each test set again
    assert text.count("1 of 1 pair of methods differs") == 2


def test_numbers_that_three_decimals_would_hide_have_three_digits() -> None:
    small = {"ci_low": 0.0002, "ci_high": 0.0008}
    text = shown(
        pooled_row("reference", 0, 0.00044, **small),
        pooled_row(
            "PITA", 2, 0.00047, difference=0.00003, difference_low=-0.0001, difference_high=0.0002, **small
        ),
        comparisons=[comparison("PITA", detectable=0.00012)],
    )
    for number in (
        "0.000440",
        "0.000470",
        "[0.000200, 0.000800]",
        "+0.000030",
        "[-0.000100, +0.000200]",
        "0.00012",
    ):
        assert number in text


def test_legends_of_rows_stand_below_each_table_and_what_intervals_are_once() -> None:
    anchors = [pooled_row("reference", 0, 0.3, metric=f"greedy/{name}") for name in ("pass@1", "reward")]
    rows = [pooled_row("reference", 0, 0.4), *anchors, pooled_row("PITA", 2)]
    text = shown(*rows, *(replace(row, dataset="addition@words") for row in rows))
    assert (text.count("greedy:"), text.count("Intervals")) == (2, 1)


def test_the_difference_of_the_mean_has_its_interval_and_p_its_family() -> None:
    apart = {"difference": 0.189, "difference_low": 0.054, "difference_high": 0.322}
    places = [f"addition{name}" for name in ("", "@words", "@mean")]
    rows = [pooled_row("reference", 0, dataset=place) for place in places]
    rows += [pooled_row("PITA", 2, dataset=place, **apart) for place in places]
    tests = [comparison("PITA", dataset=place, p=0.182) for place in places]
    results = Results(rows=[], pooled=rows, comparisons=tests)
    (table,) = tables_of_sets(results)
    text = printed(table)
    assert "[+0.054, +0.322]" in text
    assert "3 comparisons" in text
    assert "comparisons" not in printed(table, 45)  # without room for p


def test_rows_on_fewer_chains_than_others_are_named() -> None:
    text = shown(pooled_row("reference", 0), pooled_row("PITA", 1, seeds=1), pooled_row("DPO", 1))
    assert "PITA round 1: 1 of 3 seeds" in text
    assert "DPO round" not in text
    less = pooled_row("PITA", 1, difference_over="policies", difference_seeds=2, difference_references=1)
    text = shown(pooled_row("reference", 0), less)
    assert "PITA round 1: 2 of 3 seeds" in text  # of which the reference has results too
    assert "hold for other seeds, conditional on this model; some of PITA round 1 for these policies alone" in text
    crossed = shown(pooled_row("reference", 0, references=3), pooled_row("PITA", 1, references=2))
    assert "PITA round 1: 2 of 3 references" in crossed
    assert "3 references · 3 seeds" in crossed


def status(**cell: int) -> LiveRun:
    worker = WorkerView(index=0, device="cpu slot 0", job_id="addition/tiny/s0/PITA/r1/train", rss_bytes=2**30)
    return live_run(
        {("addition/tiny/s0/PITA", 1): JobCounts(**cell)},
        [worker],
        [AttemptView(number=1, started=START + 1, done=5, total=10)],
        part=0.379,
        remaining_s=67.0,
        samples_per_s=1500,
        tokens_per_s=18_500,
    )


def test_output_that_is_no_terminal_gets_plain_lines_once_for_each_round() -> None:
    console = Console(file=io.StringIO(), width=80)
    with shown_on(console) as redraw:
        for _ in range(3):
            redraw(status(total=2, done=2))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert text == "[    3.0 s] addition/tiny/s0/PITA round 1: done\n"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (8.24, "8.2 s"),
        (185, "3 min 05 s"),
        (7440, "2 h 04 min"),
        (59.99, "60.0 s"),
        (99 * 3600 + 1800, "99 h 30 min"),
        (100 * 3600, "4 d 04 h"),
        (2046 * 3600 + 1320, "85 d 06 h"),
    ],
)
def test_durations_read_well(seconds: float, words: str) -> None:
    assert duration(seconds) == words


# -- test fronts -------------------------------------------------------------------------------------------------
# Tables of fronts: what stands beside rewards at equal divergence.


PLACE: dict[str, Any] = {"dataset": "addition", "model": "tiny", "round": 2, "metric": "pass@1"}
ENDS: dict[str, Any] = {"ci_low": 0.58, "ci_high": 0.62}


def front(algo: str) -> Results:
    """Two points of a front, and what it reaches between them and beyond."""
    about = {**PLACE, "front": algo, "split": "test"}
    chains: dict[str, Any] = {"over": "seeds", "references": 1, "seeds": 3, "n": 500}
    points = [
        FrontRow(**about, **ENDS, **chains, point=point, kl=kl, kl_low=kl, kl_high=kl, value=0.6, is_best=best)
        for point, kl, best in (("n=2", 0.5, True), ("n=4", 1.0, False))
    ]
    matched = [
        MatchedRow(**about, **ENDS, kl=0.75, value=0.6),
        MatchedRow(**about, kl=2.0, value=None, ci_low=None, ci_high=None),
    ]
    return Results(rows=[], fronts=points, matched=matched)


def test_a_front_has_its_points_and_what_it_reaches() -> None:
    (table,) = front_tables(front("DPO"))
    lines = [line.split() for line in printed(table, 1000).splitlines()]
    assert lines[0] == ["addition", "·", "tiny", "·", "fronts"]
    assert ["DPO", "n=2", "0.500", "0.600", "test", "[0.580,", "0.620]", "yes", "[0.500,", "0.500]"] in lines
    assert ["DPO", "n=4", "1.000", "0.600", "test", "[0.580,", "0.620]", "[1.000,", "1.000]"] in lines
    assert ["DPO", "(matched)", "0.750", "0.600", "test", "[0.580,", "0.620]"] in lines
    assert ["DPO", "(matched)", "2.000", "-", "test"] in lines


# -- test tables -------------------------------------------------------------------------------------------------
# The tables at the widths of terminals: what matters stays, numbers are whole, and a file gets everything.


WIDTHS = (80, 100, 120, 160)
MODEL = "qwen2.5-0.5b-instruct"
LONG = [f"MyOwnMethod_with_a_long_name_beta_{beta}_{'x' * 50}_version_two" for beta in ("0.05", "0.10")]
ALGOS = ["PITA", "QSharp", "QSharp-HF", "DPO", "GRPO", "GRPO-HF", "一个算法的名字"]
DIFFERENCE = ("difference", "difference_low", "difference_high")


def results(algos: list[str], scale: float = 1.0, primary: str = "pass@1") -> tuple[Results, list[CostRow]]:
    rows, costs, tested = [], [], []
    for number, algo in enumerate(["reference", *algos]):
        for turn in (0,) if algo == "reference" else (1, 2):
            value = scale * (0.1 + 0.05 * number + 0.01 * turn)
            where = {"dataset": "gsm8k", "model": MODEL, "n": 1319, "seeds": 1, "over": "policies"}
            own = {} if algo == "reference" else dict.fromkeys(DIFFERENCE, value)
            bare = {**where, "ci_low": None, "ci_high": None}
            rows += [
                pooled_row(algo, turn, value, metric=primary, **where, **own),
                pooled_row(algo, turn, 1.5 + number, metric="kl_per_sequence", **bare),
                pooled_row(algo, turn, 0.015, metric="kl_per_token", **bare),
                pooled_row(algo, turn, 212.3, metric="length", **bare),
            ]
            at = {"dataset": "gsm8k", "model": MODEL, "algo": algo, "round": turn}
            costs.append(CostRow(**at, flops=1.23e18, answer=4.5e13, device_s=3456.78, load_s=98.76))
        if algo != "reference":
            tested.append(comparison(algo, dataset="gsm8k", model=MODEL))
    return Results(rows=[], pooled=rows, comparisons=tested), costs


def result_text(width: int, algos: list[str], scale: float = 1.0) -> str:
    return printed(result_tables(*results(algos, scale))[0], width)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("algos", [ALGOS, [*ALGOS, *LONG]], ids=["short names", "names of 100 characters"])
@pytest.mark.parametrize("scale", [1.0, -100.0], ids=["accuracies", "rewards"])
def test_results_are_read_whole_at_every_usual_width(width: int, algos: list[str], scale: float) -> None:
    text = result_text(width, algos, scale)
    assert all(cell_len(line) <= width for line in text.splitlines())
    for heading in ("algorithm", "round", "pass@1", "95% interval", "vs ref", "KL/seq"):
        assert f" {heading} " in text
    body = [line for line in text.splitlines() if re.search(r" [012] +-?\d+\.\d{3} ", line)]
    assert len(body) == 1 + 2 * len(algos)
    number, signed = r"-?\d+\.\d{3}", r"[+-]\d+\.\d{3}"
    numbers = (
        rf" [12] +{number} +\[{number}, {number}\] +{signed} +"
        rf"(\[{signed}, {signed}\] +)?(0\.040 +)?{number} "
    )
    assert all(re.search(numbers, line) for line in body[1:])
    names = {line.split("  ")[1].strip() for line in body}
    assert len(names) == 1 + len(algos)
