"""Tables of fronts: what stands beside rewards at equal divergence."""

import io
from typing import Any

from rich.console import Console, RenderableType

from pipeline.runs.record import FrontRow, MatchedRow, Results
from pipeline.runs.report.tables import front_tables

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
