"""What is printed: the table of results, the live view, durations."""

import io
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from pipeline.runs.cost import CostRow
from pipeline.runs.progress import LiveRun
from pipeline.runs.record import Comparison, PooledRow, Results
from pipeline.runs.report.format import decimal, duration, interval, rate, roughly, si
from pipeline.runs.report.screen import PlainLines, headline, screen, shown_on
from pipeline.runs.report.tables import result_tables
from pipeline.runs.run_view import AttemptView, JobCounts, WorkerView
from pipeline.terminal.console import Terminal
from tests.doubles.live import live_run
from tests.doubles.pooled import comparison, pooled_row
from tests.doubles.runs import START


def text_of(renderable: object, width: int = 140) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(renderable)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def shown(*rows: PooledRow, comparisons: Sequence[Comparison] = (), width: int = 140) -> str:
    (table,) = result_tables(Results(rows=[], pooled=list(rows), comparisons=list(comparisons)))
    return text_of(table, width)


def test_table_puts_the_reference_first_and_rounds_in_order() -> None:
    rows = [
        pooled_row("PITA", 2, 0.9, difference=0.5, difference_low=0.4, difference_high=0.6),
        pooled_row("PITA", 1, 0.8, difference=0.4),
        pooled_row("reference", 0, 0.4),
    ]
    lines = shown(*rows).splitlines()
    body = [line for line in lines if re.search(r" [012] +0\.", line)]
    assert ["reference" in line for line in body] == [True, False, False]
    assert "0.400   [0.380, 0.420]" in body[0]
    assert "+0.400" in body[1]
    assert "+0.500   [+0.400, +0.600]" in body[2]
    assert lines[0] == "addition · tiny · 3 seeds · 500 prompts"


def test_p_values_stand_in_the_last_round_alone() -> None:
    rows = [pooled_row("reference", 0), *(pooled_row(algo, number) for algo in "AB" for number in (1, 2))]
    tested = [comparison("A", p=0.0004), comparison("B", p=0.5), comparison("A", "B", p=0.02)]
    lines = shown(*rows, comparisons=tested).splitlines()
    (first, last), (_, other) = ([line for line in lines if f" {algo} " in line[:5]] for algo in "AB")
    assert "<0.001" in last
    assert "0.500   0.500" in " ".join(other.split("  ")) or other.count("0.500") == 2
    assert "0.001" not in first
    text = " ".join(lines)
    assert "p: with the reference, corrected for 2 comparisons (Holm)" in text
    assert "a difference of 0.047 is about what such a run can find" in text
    assert "1 of 1 pair of methods differs at the level of 0.05" in text
    alone = shown(*rows, comparisons=[comparison("A", "B", p=0.02, over="policies", seeds=2)])
    assert "1 of 1 pair of these policies differs" in " ".join(alone.split())


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


def test_methods_whose_difference_says_nothing_of_other_seeds_are_named() -> None:
    rows = [pooled_row("reference", 0), pooled_row("DPO", 2), pooled_row("RAFT", 2, difference_over="policies")]
    tested = [comparison("DPO"), comparison("RAFT", over="policies", test="mcnemar")]
    lines = [line.strip() for line in shown(*rows, comparisons=tested, width=1000).splitlines()]
    assert (
        "Intervals hold for other seeds, conditional on this model; some of RAFT round 2 for these policies alone."
    ) in lines
    assert any(line.endswith("can find. Of RAFT these policies alone are compared.") for line in lines)
    alone = shown(*rows, comparisons=[replace(one, over="policies") for one in tested], width=1000)
    assert "can find. These policies alone are compared." in alone


def test_the_title_counts_the_prompts_that_results_are_reported_of() -> None:
    tried = [
        pooled_row("QSharp", 1, 0.5, metric=f"{metric}/eta=1", n=500) for metric in ("pass@1", "kl_per_sequence")
    ]
    own = [pooled_row(algo, number, n=200) for algo, number in (("reference", 0), ("QSharp", 1))]
    assert shown(*own, *tried).startswith("addition · tiny · 3 seeds · 200 prompts\n")


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


def test_a_bound_is_named_by_what_results_say_and_by_no_name() -> None:
    algos = ("reference", "BestOfN", "Mine@n=2", "Yours")
    rows = [pooled_row(algo, 1, metric=name) for algo in algos for name in ("pass@1", "kl_per_sequence")]

    def lines(bounded: list[str]) -> list[str]:
        (table,) = result_tables(Results(rows=[], pooled=rows, bounded=bounded))
        return [line.strip() for line in text_of(table).splitlines()]

    assert "Mine, Yours: KL is an upper bound." in lines(["Elsewhere", "Mine", "Yours"])
    assert not any("bound" in line for line in lines([]))


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
    return Results(rows=[], pooled=rows, comparisons=[comparison("PITA", number=1)], common_eta=0.1)


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


def test_a_narrow_table_keeps_the_rows_of_anchors_and_leaves_out_j_and_then_regret() -> None:
    (table,) = result_tables(anchored())
    narrow, wide = text_of(table, 80), text_of(table, 100)
    assert all(f"  {name} " in narrow for name in ("greedy", "pass@16", "optimum"))
    assert not re.search(r" J |regret ", narrow.splitlines()[2])
    assert re.search(r" KL/seq +J +regret ", wide.splitlines()[2])


def test_columns_that_have_no_room_are_not_explained() -> None:
    (table,) = result_tables(replace(anchored(), bounded=["PITA"]))
    texts = {width: text_of(table, width).splitlines() for width in (30, 60, 80, 100)}
    said = {width: "\n".join(lines[-6:]) for width, lines in texts.items()}
    assert "regret: how far J is below it." in said[100]
    assert "PITA: KL is an upper bound, so J is a lower one and regret is an upper one." in said[100]
    assert "optimum: the highest J = reward - 0.1 KL.\nPITA: KL is an upper bound.\n" in f"{said[80]}\n"
    assert "regret" not in said[80]
    assert "corrected for 1 comparison" in said[80]
    for heading, told in (("KL/seq", "upper bound"), (" p ", "p: with the reference"), (" interval", "Intervals")):
        shown = [heading in texts[width][2] for width in texts]
        assert shown == [told in text_of(table, width) for width in texts]
        assert {True, False} <= {*shown}
    assert "regret: how far" in table.caption


def test_without_a_known_optimum_there_is_j_alone() -> None:
    text = text_of(result_tables(anchored(optimum=False))[0])
    assert "\nJ = reward - 0.1 KL.\n" in text
    assert "optimum" not in text
    assert "regret" not in text


def test_one_sample_a_prompt_makes_no_row_of_its_own() -> None:
    few = [row for row in anchored().pooled if row.metric not in ("pass@4", "pass@16")]
    (table,) = result_tables(replace(anchored(), pooled=few))
    assert not re.search(r"pass@\d+ +-", text_of(table))


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


def test_nothing_is_said_of_what_can_be_found_where_that_is_not_known() -> None:
    def text(*least: float | None) -> str:
        tested = [comparison(f"M{at}", detectable=one) for at, one in enumerate(least)]
        rows = [pooled_row("reference", 0), pooled_row("M0", 2), pooled_row("M1", 2)]
        (table,) = result_tables(Results(rows=[], pooled=rows, comparisons=tested))
        return " ".join(text_of(table).split())

    assert "corrected for 2 comparisons (Holm)." in text(None, None)
    assert "(Holm); a difference of 0.012 is about what such a run can find." in text(None, 0.012)


def test_nothing_is_said_of_seeds_where_every_row_has_all() -> None:
    assert " of 3 seeds" not in shown(pooled_row("reference", 0), pooled_row("PITA", 1))


def test_the_mean_reward_comes_first_where_nothing_says_what_is_correct() -> None:
    """Not pass@1 of what somebody else has judged, nor one that no result of the table shares."""
    graded = [pooled_row("reference", 0, 0.4, metric="reward"), pooled_row("PITA", 1, 0.6, metric="reward")]
    table = shown(*graded)
    assert "0.600   [0.580, 0.620]" in table
    assert "pass@1" not in table
    assert "0.600   [0.580, 0.620]" in shown(pooled_row("reference", 0, 0.1), *graded)


def test_each_dataset_and_model_has_a_table_of_its_own() -> None:
    rows = [pooled_row("reference", 0), pooled_row("reference", 0, dataset="star")]
    assert len(result_tables(Results(rows=[], pooled=rows))) == 2


def test_what_a_method_takes_stands_beside_its_results() -> None:
    where = {"dataset": "addition", "model": "tiny", "algo": "PITA", "round": 1}
    costs = [CostRow(**where, flops=2.5e9, answer=3e8, device_s=9.0)]
    (table,) = result_tables(Results(rows=[], pooled=[pooled_row("PITA", 1)]), costs)
    assert re.search(r" 2.50 G +300 M .* 9.0 ", text_of(table))


def test_what_is_not_known_of_costs_is_left_out() -> None:
    where = {"dataset": "addition", "model": "tiny", "algo": "PITA", "round": 1}
    costs = [CostRow(**where, flops=None, answer=None, device_s=None)]
    (table,) = result_tables(Results(rows=[], pooled=[pooled_row("PITA", 1)]), costs)
    assert "FLOPs" in text_of(table)
    assert "None" not in text_of(table)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (7, "7"),
        (942, "942"),
        (999.6, "1.00 k"),
        (18_540, "18.5 k"),
        (999_600, "1.00 M"),
        (1.2e12, "1.20 T"),
        (3.4e24, "3.40 Y"),
        (5e32, "500 Q"),
        (5e35, "500000 Q"),
    ],
)
def test_numbers_with_prefixes(number: float, text: str) -> None:
    assert si(number) == text


@pytest.mark.parametrize(
    ("number", "sign", "text"),
    [
        (0.4, "", "0.400"),
        (0.4, "+", "+0.400"),
        (-0.0001, "+", "+0.000"),
        (-0.0001, "", "0.000"),
        (9_999_999.0, "", "9999999.000"),
        (1e30, "", "1.0e+30"),
        (-1e30, "+", "-1.0e+30"),
    ],
)
def test_numbers_of_a_table(number: float, sign: str, text: str) -> None:
    assert decimal(number, sign) == text
    assert interval(number, number, sign) == f"[{text}, {text}]"


def test_no_difference_is_below_nothing() -> None:
    text = shown(pooled_row("reference", 0), pooled_row("PITA", 1, difference=-0.0001), pooled_row("DPO", 1, 1e30))
    assert "+0.000" in text
    assert "-0.000" not in text
    assert "1.0e+30" in text


def test_a_metric_without_a_value_is_a_dash() -> None:
    assert " - " in shown(pooled_row("reference", 0), pooled_row("PITA", 1, None))


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


def test_headline_has_counts_rates_and_time_left() -> None:
    run = status(total=10, stored=2, done=3, running=1)
    text = headline(run.view, run.progress)
    assert text == (
        "37 %, about 1 min 05 s left, 5/10 jobs done, 1 running, 4 to come, 1.5k samples/s, 18.5k tokens/s"
    )


def test_the_headline_names_what_is_made_and_no_time_before_there_is_something_to_go_by() -> None:
    run = status(total=10, running=1)
    run.samples_per_s = 0.25
    assert headline(run.view, run.progress).endswith("to come, 0.25 samples/s, 18.5k tokens/s")
    run.samples_per_s = 0.0
    assert headline(run.view, run.progress).endswith("to come, 18.5k tokens/s")
    run.tokens_per_s = 0.0
    run.has_worked = False
    assert headline(run.view, run.progress) == "37 %, 0/10 jobs done, 1 running, 9 to come"
    run.stopping = "stopping on Ctrl-C"
    assert headline(run.view, run.progress).startswith("37 %, stopping, 0/10")


def test_where_chains_have_no_room_those_that_failed_are_shown() -> None:
    cells = {(f"chain{index:02}", 1): JobCounts(total=1, done=index % 2) for index in range(50)}
    cells["chain49", 1] = JobCounts(total=1, failed=1)
    cells["chain48", 1] = JobCounts(total=2, running=1)
    lines = text_of(screen(live_run(cells), 80, 12)).splitlines()
    names = [line.split()[0] for line in lines if line.startswith("chain") and "round" not in line]
    assert names[:4] == ["chain48", "chain49", "chain00", "chain02"]


def test_ids_of_jobs_are_told_apart_where_there_is_no_room_for_all_of_them() -> None:
    ids = [f"addition/tiny/s0/{algo}/r{number}/generate/003" for algo in ("PITA", "QSharp") for number in (1, 2)]
    workers = [WorkerView(index=at, device=f"cpu slot {at}", job_id=job_id) for at, job_id in enumerate(ids)]
    attempts = [AttemptView(number=1, started=START + 1, done=5, total=10) for _ in ids]
    chains = {(f"addition/tiny/s0/{algo}", 1): JobCounts(total=4, running=2) for algo in ("PITA", "QSharp")}
    run = live_run(chains, workers, attempts)
    wide, usual = text_of(screen(run, 140, 24)), text_of(screen(run, 80, 24))
    assert all(job_id in wide for job_id in ids)
    assert all(f"…/{job_id.removeprefix('addition/tiny/')}" in usual for job_id in ids)
    assert "addition/tiny/s0/PITA" in usual  # the chain, whole
    other = live_run({**chains, ("math/big/s0/PITA", 1): JobCounts(total=1)}, workers, attempts)
    shown = [line.split()[3] for line in text_of(screen(other, 80, 24)).splitlines() if "cpu" in line]
    assert len(set(shown)) == len(ids)


def test_a_run_that_stops_says_what_it_waits_for_and_what_helps() -> None:
    run = status(total=10, done=3, running=1)
    run.stopping = "stopping on Ctrl-C: waiting up to 10 s for 1 job to finish or save; Ctrl-C again ends now"
    for width, height in ((140, 40), (80, 24), (40, 12)):
        text = " ".join(text_of(screen(run, width, height)).split())
        assert run.stopping in text
        assert "addition" in text
    assert len(text_of(screen(run, 40, 3)).splitlines()) < 3


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.3, "5 s"),
        (67, "1 min 05 s"),
        (257, "4 min 20 s"),
        (2040, "34 min"),
        (3600, "1 h 00 min"),
        (9033, "2 h 31 min"),
    ],
)
def test_what_is_an_estimate_is_told_roughly(seconds: float, words: str) -> None:
    assert roughly(seconds) == words


def test_live_view_shows_chains_rounds_and_workers() -> None:
    text = text_of(screen(status(total=10, done=3, running=1), 140, 40))
    assert "round 1" in text
    assert "3/10" in text
    assert "addition/tiny/s0/PITA/r1/train" in text
    assert "1.0 GiB" in text


def test_live_view_fits_a_low_terminal() -> None:
    many = live_run({(f"chain{index}", 1): JobCounts(total=1) for index in range(100)})
    text = text_of(screen(many, 140, 24))
    assert len(text.splitlines()) <= 24
    assert "more chains" in text


def test_the_cursor_waits_below_the_live_view() -> None:
    """The terminal shows ^C where the cursor is, which must not wrap a line of the view."""
    out = io.StringIO()
    console = Terminal(
        file=out, force_terminal=True, force_interactive=True, color_system=None, width=80, height=24
    )
    with shown_on(console) as redraw:
        redraw(status(total=10, done=3, running=1))
        assert not out.getvalue().split("\n")[-1].strip()
        assert "worker" in out.getvalue()


def test_output_that_is_no_terminal_gets_plain_lines_once_for_each_round() -> None:
    console = Console(file=io.StringIO(), width=80)
    with shown_on(console) as redraw:
        for _ in range(3):
            redraw(status(total=2, done=2))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert text == "[    3.0 s] addition/tiny/s0/PITA round 1: done\n"


def test_a_round_that_failed_says_so_in_plain_lines() -> None:
    console = Console(file=io.StringIO(), width=80)
    PlainLines(console).update(status(total=3, done=1, failed=1, blocked=1))
    assert "2 of 3 jobs not done" in console.file.getvalue()  # type: ignore[attr-defined]


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


@pytest.mark.parametrize(
    ("ends", "sign", "text"),
    [
        ((-0.0001, 0.5), "", "[0.000, 0.500]"),
        ((-0.0001, 0.5), "+", "[+0.000, +0.500]"),
        ((-0.25, 0.5), "+", "[-0.250, +0.500]"),
        ((None, 0.5), "", ""),
    ],
)
def test_ends_of_intervals_have_no_negative_zero(
    ends: tuple[float | None, float | None], sign: str, text: str
) -> None:
    assert interval(*ends, sign) == text


def test_rates_read_well() -> None:
    assert [rate(value) for value in (0, 942, 18_500, 1_200_000)] == ["0", "942", "18.5k", "1.2M"]
