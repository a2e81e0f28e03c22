"""Tables of fronts: what stands beside rewards at equal divergence."""

import io
from dataclasses import replace
from typing import Any

from rich.console import Console, RenderableType

from pipeline.runs.cost import BudgetRow
from pipeline.runs.record import FrontRow, MatchedRow, Results
from pipeline.runs.report.tables import budget_tables, front_tables
from tests.doubles.pooled import pooled_row

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


def printed(table: RenderableType, width: int = 1000) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(table)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def lines_of(results: Results) -> list[str]:
    (table,) = front_tables(results)
    return printed(table).splitlines()


def test_a_front_has_its_points_and_what_it_reaches() -> None:
    lines = [line.split() for line in lines_of(front("DPO"))]
    assert lines[0] == ["addition", "·", "tiny", "·", "fronts"]
    assert ["DPO", "n=2", "0.500", "0.600", "test", "[0.580,", "0.620]", "yes", "[0.500,", "0.500]"] in lines
    assert ["DPO", "n=4", "1.000", "0.600", "test", "[0.580,", "0.620]", "[1.000,", "1.000]"] in lines
    assert ["DPO", "(matched)", "0.750", "0.600", "test", "[0.580,", "0.620]"] in lines
    assert ["DPO", "(matched)", "2.000", "-", "test"] in lines


def test_divergences_that_differ_little_are_told_apart() -> None:
    results = front("DPO")
    (first, second), (own, beyond) = results.fronts, results.matched
    near = [replace(own, kl=0.000117), replace(own, kl=0.000234), replace(beyond, kl=0.000469)]
    points = [replace(first, kl=0.0, kl_low=0.0, kl_high=0.0), replace(second, kl=1e-12)]
    lines = lines_of(replace(results, fronts=[points[0]], matched=near))
    assert [line.split()[2] for line in lines if "(matched)" in line][:3] == ["0.0001", "0.0002", "0.0005"]
    endless = lines_of(replace(results, fronts=points, matched=[]))
    assert [line.split()[2] for line in endless if "DPO" in line] == ["0.000000", "0.000000"]


def test_fronts_of_one_table_have_equal_decimal_places() -> None:
    near, far = front("DPO"), front("PITA")
    first, second = near.fronts
    points = [replace(first, kl=0.91621), replace(second, kl=0.91643), *far.fronts]
    lines = lines_of(replace(near, fronts=points, matched=[replace(far.matched[0], kl=0.929)]))
    shown = [line.split()[2] for line in lines if line.split()[:1] in (["DPO"], ["PITA"])]
    assert shown == ["0.9162", "0.9164", "0.5000", "1.0000", "0.9290"]


def test_narrow_terminals_show_what_a_method_reaches() -> None:
    row = BudgetRow(**{**PLACE, **ENDS}, algo="a-method-of-a-long-name", budget=1e9, flops=5e8, value=0.6, kl=0.5)
    assert "0.600" in printed(budget_tables([row], Results(rows=[]))[0], width=40)
    assert "0.600" in printed(front_tables(front("a-method-of-a-long-name"))[0], width=40)


def test_columns_of_a_front_that_have_no_room_are_not_explained() -> None:
    (table,) = front_tables(front("DPO"))
    wide, narrow = printed(table), printed(table, width=60)
    for said, heading in (("best: no other", "best"), ("Compare points of the same split.", "split")):
        assert said in wide
        assert (said in narrow) is (heading in table.shown(60))
    assert "best" not in table.shown(60)
    assert "(matched): on the line" in narrow


def test_that_more_points_flatter_a_front_is_said_below() -> None:
    said = "It picks the best points on these prompts, which flatters fronts of more points."
    assert any(said in line for line in lines_of(front("DPO")))


def test_rewards_at_a_divergence_that_is_a_bound_are_named() -> None:
    said = "Mine: KL is an upper bound, so (matched) is a lower one."
    assert said in [line.strip() for line in lines_of(replace(front("Mine"), bounded=["Mine"]))]
    assert not any("bound" in line for line in lines_of(replace(front("BestOfN"), bounded=["Mine"])))


def test_points_that_rest_on_fewer_chains_are_named() -> None:
    results = front("DPO")
    first, second = results.fronts
    assert not any("seeds" in line for line in lines_of(results))
    less = replace(results, fronts=[replace(first, seeds=2), second])
    assert "DPO n=2: 2 of 3 seeds" in [line.strip() for line in lines_of(less)]
    alone = replace(results, pooled=[pooled_row("RAFT", seeds=5), pooled_row("RAFT", model="other", seeds=9)])
    assert "DPO n=2: 3 of 5 seeds; DPO n=4: 3 of 5 seeds" in [line.strip() for line in lines_of(alone)]


def test_methods_at_a_budget_that_rest_on_fewer_chains_are_named() -> None:
    at = {**PLACE, **ENDS, "flops": 5e8, "value": 0.6, "kl": 0.5}
    flaky = BudgetRow(**at, algo="Flaky", budget=1e9, references=1, seeds=2, n=500)
    rows = [
        flaky,
        BudgetRow(**at, algo="DPO", budget=1e9, references=1, seeds=3, n=500),
        replace(flaky, budget=2e9),
    ]
    (table,) = budget_tables(rows, Results(rows=[]))
    assert printed(table).splitlines()[-1] == "Flaky round 2: 2 of 3 seeds"


def test_divergences_at_a_budget_that_are_bounds_are_named() -> None:
    def text(algo: str) -> str:
        (table,) = budget_tables(
            [BudgetRow(**{**PLACE, **ENDS}, algo=algo, budget=1e9, flops=5e8, value=0.6, kl=0.5)],
            Results(rows=[], bounded=["Mine"]),
        )
        return printed(table)

    assert "Mine: KL is an upper bound." in text("Mine")
    assert "bound" not in text("BestOfN")


def test_methods_whose_costs_are_lost_are_named_below_the_table() -> None:
    known = BudgetRow(**{**PLACE, **ENDS}, algo="DPO", budget=1e9, flops=5e8, value=0.6, kl=0.5)
    lost = BudgetRow(dataset="addition", model="tiny", algo="RAFT", budget=1e9, is_known=False)
    lines = printed(budget_tables([known, lost], Results(rows=[]))[0]).splitlines()
    assert ["1.00", "G", "RAFT", "-", "-"] in [line.split() for line in lines]
    assert any(line.startswith("RAFT: what some of their rounds took is not known") for line in lines)
    assert "not known" not in printed(budget_tables([known], Results(rows=[]))[0])
