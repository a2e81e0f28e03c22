"""What is printed: the table of results, the live view, durations."""

import io
import re
from collections.abc import Sequence
from typing import Any

import pytest
from rich.console import Console

from pipeline.runs.progress import LiveRun
from pipeline.runs.record import Comparison, PooledRow, Results
from pipeline.runs.report.format import duration
from pipeline.runs.report.screen import shown_on
from pipeline.runs.report.tables import result_tables
from pipeline.runs.run_view import AttemptView, JobCounts, WorkerView
from tests.doubles.live import live_run
from tests.doubles.pooled import comparison, pooled_row
from tests.doubles.runs import START


def text_of(renderable: object, width: int = 140) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(renderable)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def shown(*rows: PooledRow, comparisons: Sequence[Comparison] = (), width: int = 140) -> str:
    (table,) = result_tables(
        Results(rows=[], bounded=["BestOfN"], pooled=list(rows), comparisons=list(comparisons))
    )
    return text_of(table, width)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"over": "policies", "seeds": 1}, "noise of evaluating this one policy"),
        ({"over": "policies", "seeds": 2}, "noise of evaluating these policies; 3 seeds or more tell what"),
        (
            {"over": "policies", "seeds": 3},
            "these policies; seeds and prompts that all say the same do not tell what",
        ),
        ({"over": "seeds"}, "hold for other seeds, conditional on this model"),
        ({"over": "seeds", "references": 2}, "hold for other seeds, conditional on these 2 references"),
        ({"over": "references", "references": 3}, "hold for other seeds and other references"),
    ],
)
def test_what_an_interval_holds_for_is_said(fields: dict[str, Any], said: str) -> None:
    assert said in shown(pooled_row("reference", 0, **fields), pooled_row("PITA", **fields))


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        (["kl_per_sequence"], "BestOfN: KL is an upper bound."),
        (["regularized_reward"], "BestOfN: KL is an upper bound, so J is a lower one."),
        (
            ["regularized_reward", "regret"],
            "BestOfN: KL is an upper bound, so J is a lower one and regret is an upper one.",
        ),
    ],
    ids=["KL", "J", "regret"],
)
def test_numbers_that_rest_on_a_bound_are_named(metrics: list[str], said: str) -> None:
    def text(algo: str) -> str:
        rows = [pooled_row("reference", 0), pooled_row(algo, 1)]
        return shown(*rows, *(pooled_row(algo, 1, metric=metric) for metric in metrics))

    for algo in ("BestOfN", "BestOfN@num_generations=4"):
        assert said in [line.strip() for line in text(algo).splitlines()]
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
    lines = text_of(result_tables(anchored())[0]).splitlines()
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
