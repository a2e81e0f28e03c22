"""The picture of a plan: well-formed whatever names hold, legible however many chains and rounds there are."""

import xml.etree.ElementTree as ET

import pytest

from pipeline.plan.durations import PlanRow
from pipeline.runs.report.plan import plan_svg

SVG = "{http://www.w3.org/2000/svg}"


def row(chain: str = "addition/tiny/s0/PITA", number: int = 1, stage: str = "train", **more: int) -> PlanRow:
    fields = {"jobs": 1, "missing": 1, "samples": 0, "devices": 1} | more
    return PlanRow(round=number, chain=chain, stage=stage, seconds=3.0, **fields)


def texts(svg: str) -> list[str]:
    return [each.text or "" for each in ET.fromstring(svg).iter(f"{SVG}text")]


def place(svg: str, text: str) -> tuple[float, float]:
    each = next(each for each in ET.fromstring(svg).iter(f"{SVG}text") if each.text == text)
    return float(each.attrib["x"]), float(each.attrib["y"])


def test_rounds_are_columns_chains_are_rows_and_shards_are_folded() -> None:
    rows = [
        row("a/m/any/reference", 0),
        row("a/m/s0/PITA", 1, "generate", jobs=10, missing=4, samples=1000),
        row("a/m/s0/PITA", 1, "metrics", missing=0),
        row("a/m/s0/PITA", 2, "generate", jobs=10, missing=10),
    ]
    svg = plan_svg(rows, "Plan of x", "24 jobs")
    assert {"Plan of x", "24 jobs", "round 0", "round 1", "round 2"} < set(texts(svg))
    assert {"train", "generate 6/10", "metrics ✓", "generate x10"} < set(texts(svg))
    assert place(svg, "generate 6/10")[1] == place(svg, "generate x10")[1] > place(svg, "train")[1]
    assert place(svg, "train")[0] < place(svg, "generate 6/10")[0] < place(svg, "generate x10")[0]
    about = [each.text or "" for each in ET.fromstring(svg).iter(f"{SVG}title")]
    assert "a/m/s0/PITA, round 1, generate: 10 jobs, 6 stored, 1,000 samples, about 3.0 s of work" in about


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "a&b\"c'", "line\nfeed\x1b[2J", "\udcff", "]]>"])
def test_names_are_text(name: str) -> None:
    svg = plan_svg([row(chain=name, stage=name)], name, name)
    root = ET.fromstring(svg.encode())
    assert {each.tag for each in root.iter()} <= {
        SVG + tag for tag in ["svg", "style", "title", "rect", "text", "g", "line"]
    }
    assert "\x1b" not in svg
    assert "href" not in svg


def test_a_plan_without_jobs_has_a_picture() -> None:
    assert "Plan of x" in texts(plan_svg([], "Plan of x"))
