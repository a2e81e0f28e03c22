"""What a page of runs shows: the tables of the terminal, completions, rewards and what went wrong."""

import base64
import hashlib
import io
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from pipeline.learning.algos.base import REFERENCE
from pipeline.outputs.formats import Sample
from pipeline.plan.graph import Job
from pipeline.runs.cost import Compute
from pipeline.runs.record import ResultRow, Results
from pipeline.runs.report import html
from pipeline.runs.report import page as report_page
from pipeline.runs.report.format import drawn_methods
from pipeline.runs.report.tables import result_tables
from pipeline.runs.run_view import RunView, Span
from pipeline.terminal.console import NO_TERMINAL_WIDTH
from pipeline.terminal.streams import printable
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


def test_the_table_says_what_the_terminal_says_and_marks_what_a_test_tells_apart() -> None:
    (table,) = report_page.tables_of(RESULTS, Compute())
    console = Console(file=io.StringIO(), width=NO_TERMINAL_WIDTH)
    console.print(result_tables(RESULTS)[0])
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    assert lines[0] == table["title"]
    rows = table["rows"]
    for row in (table["headings"], *rows):
        assert " ".join(" ".join(row).split()) in lines
    assert all(line in lines for line in table["caption"].splitlines())
    marked = {(rows[at][0], rows[at][1]): mark for at, mark in table["marks"].items()}
    assert marked == {("PITA", "2"): "better", ("DPO", "2"): "worse"}


POINTS = ["DPO@beta=0.03", "DPO@beta=0.1", "DPO@beta=1", "DPO@beta=3", "DPO@beta=10"]


def named(*names: str) -> Results:
    return Results(rows=[], pooled=[pooled_row(name, 1, 0.5) for name in sorted(names)])


def test_points_of_a_front_change_the_look_of_no_method() -> None:
    assert drawn_methods(named("QSharp", REFERENCE, "GRPO", *POINTS)) == ["GRPO", "QSharp", *POINTS]


# -- completions -----------------------------------------------------------------------------------------------


def evaluated(
    row: int, algo: str = "PITA", text: str = "x" * 60, dataset: str = "d", solution: str | None = None
) -> tuple[Job, Sample]:
    place = {"dataset": dataset, "model": "m", "algo": algo, "round": 1, "seed": 0, "stage": "evaluate"}
    job = Job(id=f"{dataset}/{algo}", key="k", entry="m:f", payload={}, **place)  # type: ignore[arg-type]
    told: dict[str, Any] = {"row": row, "prompt": f"prompt {row}", "completion": text, "solution": solution}
    return job, Sample(**told, sample=0, tokens=3, truncated=False, kl=0.0, reward=1.0, correct=None)


def shown(found: dict[str, Any]) -> list[int]:
    """Completions of each policy to each prompt."""
    return [len(policy["answers"]) for prompt in found["prompts"] for policy in prompt["policies"]]


def test_every_policy_has_its_completions_to_the_prompts_that_are_kept() -> None:
    algos = ["reference", "PITA", "QSharp"]
    every = [evaluated(at, algo) for algo in algos for at in range(100) for _ in range(16)]
    found = report_page.samples_of(every, there=9000, most=30_000)
    assert set(shown(found)) == {report_page.MOST_EACH}, "no more of one policy, however many there are"
    assert len(shown(found)) == 3 * len(found["prompts"])
    assert 60 * sum(shown(found)) <= 30_000
    assert found["about"].startswith(f"{sum(shown(found)):,} of the 9,000 completions")


def test_a_text_without_end_is_cut_and_the_right_answer_is_there() -> None:
    found = report_page.samples_of([evaluated(0, text="y" * 1_000_000, solution="42"), evaluated(1)], there=2)
    [text, reward, correct] = found["prompts"][0]["policies"][0]["answers"][0]
    assert text.startswith("y" * report_page.LONGEST_TEXT)
    assert text.endswith("(the first 4,000 of 1,000,000 characters)")
    assert (reward, correct) == (1.0, None)
    assert [prompt["solution"] for prompt in found["prompts"]] == ["42", None]


# -- failures --------------------------------------------------------------------------------------------------


def view(*events: dict[str, Any]) -> RunView:
    found = RunView()
    found.feed([{"event": "RunStarted", "time": 1.0, "jobs": 5, "unsettled": 5}, *events])
    return found


def failed(job: str, attempt: int, *, retry: bool, **fields: Any) -> list[dict[str, Any]]:
    began = {"event": "JobStarted", "job": job, "attempt": attempt, "worker": 0, "time": 2.0 + attempt}
    told = {"event": "AttemptFailed", "job": job, "attempt": attempt, "worker": 0, "time": 2.5 + attempt}
    return [began, {**told, "kind": "bug", "reason": "it broke", "retry": retry, **fields}]


def test_attempts_are_told_with_what_came_after_them() -> None:
    done = {"event": "JobFinished", "job": "a", "attempt": 2, "worker": 0, "time": 9.0}
    found = report_page.failures_of(
        view(
            *failed("a", 1, retry=True, traceback="Traceback"),
            {"event": "JobStarted", "job": "a", "attempt": 2, "worker": 0, "time": 8.0},
            done,
            *failed("b", 1, retry=False),
            {"event": "JobFailed", "job": "b", "attempts": 1, "kind": "bug", "reason": "it broke", "time": 9.0},
            {"event": "JobBlocked", "job": "c", "root_cause": "b", "time": 9.0},
        )
    )
    assert [(one["job"], one["outcome"], one["traceback"]) for one in found["rows"]] == [
        ("a", "tried again, done by attempt 2", "Traceback"),
        ("b", "given up", ""),
    ]
    assert found["notes"] == ["1 job cannot run because b failed."]


# -- times: nothing of the work is lost, what is idle stays empty, what failed stays visible ---------------------


def span(start: float, end: float | None, worker: int = 0, stage: str = "generate", outcome: str = "done") -> Span:
    place = {"chain": "c", "round": 1, "attempt": 1, "device": "cpu"}
    return Span(job=f"j{start:g}", stage=stage, worker=worker, start=start, end=end, outcome=outcome, **place)  # type: ignore[arg-type]


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
    every = [span(start, start + long, *rest) for start, long, *rest in sorted(given_spans)]
    found = report_page.bars(every, 100, 7100, most)
    assert sum(bar["jobs"] for bar in found) == len(every)
    assert len(found) <= most + 8
    for outcome in ("done", "failed"):
        ends = [round(one.end - 100, 3) for one in every if one.outcome == outcome and one.end is not None]
        assert max((bar["end"] for bar in found if bar["outcome"] == outcome), default=0) == max(ends, default=0)


# -- test html ---------------------------------------------------------------------------------------------------
# The page around the data: foreign text is never markup, and nothing but the page's own scripts may run.


HOSTILE = "</script><script>alert(1)</script><!-- </td> \x1b[2J \u2028 \u202e \udcff & \x00"


def page(text: str) -> dict[str, Any]:
    return {"title": text, "made": "now", "version": "0", "runs": [], "comparison": [{"rows": [[text]]}]}


def data_of(written: str) -> str:
    return written.split('<script type="application/json" id="data">')[1].split("</script>")[0]


def shell() -> str:
    """The page without what differs from page to page."""
    written = html.page_html(page("x"))
    return written.replace(data_of(written), "")


def test_no_text_of_others_is_markup() -> None:
    written = html.page_html(page(HOSTILE))
    data = data_of(written)
    assert written.replace(data, "") == shell()
    assert not re.search("[<>&\u2028\u2029\x00-\x1f]", data)
    assert json.loads(data)["title"] == printable(HOSTILE)


@pytest.mark.properties
@given(st.text(st.characters(), max_size=50))
def test_every_text_comes_back_as_it_may_be_shown(text: str) -> None:
    data = html._data(page(text))
    assert not re.search("[<>&\u2028\u2029]", data)
    assert json.loads(data)["comparison"][0]["rows"] == [[printable(text)]]


def test_the_policy_allows_the_scripts_of_the_page_and_nothing_else() -> None:
    found = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', shell())
    assert found is not None
    policy = dict(part.strip().split(" ", 1) for part in found[1].split(";"))
    scripts = re.findall(r"<script>(.*?)</script>", shell(), flags=re.DOTALL)
    styles = re.findall(r"<style[^>]*>(.*?)</style>", shell(), flags=re.DOTALL)
    assert len(scripts) == 2
    for name, parts in (("script-src", scripts), ("style-src", styles)):
        hashes = [base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() for part in parts]
        assert policy.pop(name).split() == [f"'sha256-{one}'" for one in hashes]
    assert policy == {"default-src": "'none'", "base-uri": "'none'", "form-action": "'none'"}


def test_charts_come_with_their_licence_and_without_a_way_out() -> None:
    assert "MIT License" in (html.ASSETS / "plotly-LICENSE.txt").read_text()
    ours = "".join(path.read_text() for path in (*html.FRAME, *html.OF_RUNS))
    assert "showSendToCloud: false" in ours
    assert 'plotlyServerURL: ""' in ours
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|fetch\(|https?:", ours)
