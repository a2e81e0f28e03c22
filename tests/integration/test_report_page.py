"""The pages of a real run and of sweeps in a real browser: they work, ask for nothing, run nothing of others."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pipeline.runs.figures import looks
from pipeline.runs.loaded import load
from pipeline.runs.report.format import MARKS, drawn_methods
from pipeline.runs.report.html import write_page
from pipeline.runs.report.page import page_of
from pipeline.sweeps.report import write_sweep_page
from pipeline.sweeps.storage import Record
from tests.doubles.browser import CHROMIUM, Tab, browser
from tests.doubles.small_runs import calm_run
from tests.doubles.sweeps import SweepOnPaper, searched
from tests.doubles.sweeps import hostile as hostile_sweep

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")

HOSTILE = (
    "<script>alert(1)</script></script></td><img src=x onerror=alert(2)><b>b</b><a href='https://h'>a</a> "
    "\x1b[2J\u2028 %{x} &lt;b&gt;"
)
SEEN = HOSTILE.replace("\x1b", "\\x1b").replace("\u2028", "\\u2028")
WATCH = """
    window.hooked = [];
    window.alert = (text) => window.hooked.push(text);
    document.addEventListener("securitypolicyviolation", (event) => window.hooked.push(event.violatedDirective));
"""
LOOK_AT_ALL = """(async () => {
    for (const chart of document.querySelectorAll(".chart")) {
        chart.scrollIntoView();
        while (!chart.hidden && !chart.querySelector("svg")) await new Promise((done) => setTimeout(done, 20));
    }
    for (const box of document.querySelectorAll("details")) box.open = true;
    await new Promise((done) => setTimeout(done, 100));
    return document.querySelectorAll(".chart svg.main-svg").length;
})()"""
CHOOSE = """(select, value) => { select.value = value; select.dispatchEvent(new Event("change")); }"""


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with browser(tmp_path_factory.mktemp("browser")) as found:
        found.call("Page.addScriptToEvaluateOnNewDocument", source=WATCH)
        yield found


@pytest.fixture
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return calm_run(tmp_path_factory) / "t" / "latest"


def nothing_happened(tab: Tab, path: Path) -> None:
    assert tab.complaints == []
    assert tab.requests == [path.as_uri()]
    assert tab.ask("window.hooked") == []


def test_the_report_of_a_run_can_be_read_searched_and_switched(tab: Tab, run: Path) -> None:
    path = run.resolve() / "report.html"
    tab.open(path)
    assert tab.ask(LOOK_AT_ALL) >= 5
    table = tab.ask("[...document.querySelectorAll('.results tbody tr')].map((row) => row.innerText.split('\\t'))")
    rows = page_of([load(run)], ["t"])["runs"][0]["tables"][0]["rows"]
    assert [[cell.rstrip(" ▲▼") for cell in row] for row in table] == rows
    # methods look as in figures
    drawn = "document.querySelector('#curves .chart').data.filter((one) => one.marker)"
    shown = tab.ask(f"{drawn}.map((one) => [one.name, one.line.color, one.marker.symbol])")
    known = looks(drawn_methods(load(run).results))
    assert shown
    assert {name: (colour, MARKS[mark]) for name, colour, mark in shown} == {
        name: (known[name]["color"], known[name]["marker"]) for name, *_ in shown
    }
    # a chart with another metric
    axis = "document.querySelector('#curves .chart').layout.yaxis.title.text"
    assert tab.ask(axis) == "pass@1"
    tab.ask(f"({CHOOSE})(document.querySelector('#curves select'), 'kl_per_sequence')")
    assert tab.ask(axis) == "KL/seq"
    # completions that are searched, and filtered
    status, prompts = "document.querySelector('#samples [role=status]').innerText", "#samples .asked"
    everything = tab.ask(status)
    sought = tab.ask(f"document.querySelector('{prompts}').innerText")
    search = "document.querySelector('#samples input[type=search]')"
    tab.ask(f"{search}.value = {sought!r}; {search}.dispatchEvent(new Event('input'))")
    assert tab.ask(f"[...document.querySelectorAll('{prompts}')].map((one) => one.innerText)") == [sought]
    assert everything.startswith("20 of 20 prompts")
    assert tab.ask(status).startswith("1 of 20 prompts")
    choose_wrong = f"({CHOOSE})([...document.querySelectorAll('#samples select')].at(-1), 'wrong')"
    tab.ask(f"{search}.value = ''; {search}.dispatchEvent(new Event('input')); {choose_wrong}")
    verdicts = tab.ask("[...document.querySelectorAll('#samples .answer')].map((one) => one.className)")
    assert set(verdicts) == {"answer wrong"}
    nothing_happened(tab, path)


OURS = {"metrics", "metric", "looks", "outcome"}
"""Fields in which the page has words of its own to choose by; and what is trained, as a text."""


def hostile(value: Any) -> Any:
    """The data of a page with text of strangers wherever any can be; keys of it are names of fields and places."""
    if isinstance(value, str):
        return value if value in ("reference", "") else HOSTILE
    if isinstance(value, dict):
        named = {HOSTILE if " · " in key else key: own for key, own in value.items()}
        is_ours = {key: key in OURS or (key == "training" and isinstance(own, str)) for key, own in named.items()}
        return {key: own if is_ours[key] else hostile(own) for key, own in named.items()}
    return list(map(hostile, value)) if isinstance(value, list | tuple) else value


def with_failure(page: dict[str, Any]) -> dict[str, Any]:
    told = dict.fromkeys(("job", "device", "kind", "reason", "outcome", "traceback", "log"), "x")
    page["runs"][0]["failures"] = {"rows": [{**told, "attempt": 1}], "notes": ["x"], "left_out": 0}
    page["runs"][0]["unfinished"] = ["x"]
    page["runs"][0]["race"] = a_race("x")
    return page


def a_race(*others: str) -> dict[str, Any]:
    """PITA and others after two looks, each shown worse than it."""
    looks = {"prompts": [50, 100], "difference": [0.2, 0.3], "low": [-0.1, 0.1], "high": [0.5, 0.5]}
    pair = {"place": "addition/tiny/s0", "round": 1, "first": "PITA", "better": "PITA", **looks}
    stopped = [f"stopped, not shown worse at the end: {pair['place']}/{other}" for other in others]
    return {"said": ["race: pass@1", *stopped], "pairs": [{**pair, "second": other} for other in others]}


def test_text_of_strangers_is_shown_and_never_obeyed(tab: Tab, run: Path, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    plain = msgspec.to_builtins(with_failure(page_of([load(run)], ["t"])))
    write_page(path, hostile(plain))
    tab.open(path)
    assert tab.ask(LOOK_AT_ALL) >= 5
    assert tab.ask("document.querySelectorAll('main img, main script, header script').length") == 0
    assert tab.ask("document.title") == SEEN.replace("  ", " ")
    for place in (
        "h1",
        "#results tbody tr:last-child td",
        "#samples .asked",
        "#samples .answer .text",
        "#failures td",
        "#about pre",
    ):
        assert tab.ask(f"document.querySelector('{place}').textContent").rstrip(" ▲▼") == SEEN, place
    # In a chart too, where plotly would take some of it for markup.
    legend = tab.ask("document.querySelector('#timeline .legendtext').textContent")
    assert legend == SEEN
    nothing_happened(tab, path)


@pytest.mark.parametrize(
    "others", [["QSharp"], [f"a_method_with_a_name_of_forty_characters{at}" for at in range(11)]]
)
def test_the_race_of_a_page_says_who_is_below_whom_and_is_no_wider(
    others: list[str], tab: Tab, run: Path, tmp_path: Path
) -> None:
    path, width = tmp_path / "report.html", 390
    page: Any = msgspec.to_builtins(page_of([load(run)], ["t"]))
    page["runs"][0]["race"] = a_race(*others)
    write_page(path, page)
    tab.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=True)
    tab.open(path)
    assert tab.ask(LOOK_AT_ALL) >= 6
    assert tab.ask("document.documentElement.scrollWidth") == width
    legend = "[...document.querySelectorAll('#race .legendtext')].map((one) => one.textContent)"
    assert [name.endswith("(below)") for name in tab.ask(legend)] == [True] * len(others)
    tab.ask(f"({CHOOSE})([...document.querySelectorAll('#race select')].at(-1), {others[0]!r})")
    assert [name.partition(" ")[::2] for name in tab.ask(legend)] == [("PITA", "(above)")]
    assert tab.ask("document.querySelector('#race .chart').data[0].y") == [-0.2, -0.3]
    nothing_happened(tab, path)
    tab.call("Emulation.clearDeviceMetricsOverride")


def test_a_page_of_several_runs_has_all_of_them(tab: Tab, run: Path, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    page = page_of([load(run), load(run)], ["t", "other"])
    write_page(path, page)
    tab.open(path)
    assert tab.ask(LOOK_AT_ALL) >= 5
    names = tab.ask("document.querySelector('#curves .chart').data.map((one) => one.name)")
    assert {"t · PITA", "other · PITA", "t · QSharp", "other · QSharp"} <= set(names)
    assert tab.ask("document.querySelectorAll('#results .results').length") == 2
    bars = tab.ask("document.querySelector('#cost .chart').data.map((one) => one.y)")
    assert all(len(set(names)) == len(names) for names in bars)  # the work of two runs is never one bar
    assert {"t · PITA", "other · PITA"} <= {name for names in bars for name in names}
    nothing_happened(tab, path)


def test_a_checkpoint_from_outside_does_not_begin_at_the_reference(tab: Tab, run: Path, tmp_path: Path) -> None:
    loaded = load(run)
    loaded.config["evaluation"]["also"] = {"PITA": "/m"}
    write_page(path := tmp_path / "report.html", page_of([loaded], ["t"]))
    tab.open(path)
    assert tab.ask(LOOK_AT_ALL) >= 5
    first = {one["name"]: one["x"][0] for one in traces(tab, "curves") if "name" in one}
    assert (first["PITA"], first["QSharp"]) == (1, 0)
    nothing_happened(tab, path)


# -- sweeps ----------------------------------------------------------------------------------------------------


def opened(tab: Tab, sweep: SweepOnPaper, width: int = 1280) -> Path:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    tab.call("Emulation.setDeviceMetricsOverride", **size)
    path = sweep.folder.report
    write_sweep_page(path, Record(sweep.folder))
    tab.open(path)
    return path


def traces(tab: Tab, part: str) -> list[dict[str, Any]]:
    found = tab.ask(f"document.querySelector('#{part} .chart').data.map(({{name, x, y}}) => ({{name, x, y}}))")
    return list(found)


def test_the_page_of_a_sweep_can_be_read_sorted_and_switched(tab: Tab, tmp_path: Path) -> None:
    path = opened(tab, searched(tmp_path, 60), width := 390)
    assert tab.ask(LOOK_AT_ALL) >= 6
    assert tab.ask("document.documentElement.scrollWidth") == width, "nothing is wider than the page"
    # the table, best first, and by number and state
    first = "document.querySelector('#trials tbody tr').innerText.split('\\t')"
    values = tab.ask("[...document.querySelectorAll('#trials tbody tr')].map((row) => row.cells[2].innerText)")
    states = tab.ask("[...document.querySelectorAll('#trials tbody tr')].map((row) => row.cells[1].innerText)")
    valued = [float(value) for value, state in zip(values, states, strict=True) if state in ("done", "stopped")]
    assert tab.ask(first)[1] == "done"
    assert valued == sorted(valued)
    tab.ask(f"({CHOOSE})(document.querySelector('#trials select'), 'number')")
    assert tab.ask(first)[:1] == ["0"]
    tab.ask(f"({CHOOSE})([...document.querySelectorAll('#trials select')].at(-1), 'failed')")
    assert set(
        tab.ask("[...document.querySelectorAll('#trials tbody tr')].map((row) => row.cells[1].innerText)")
    ) == {"failed"}
    # the best so far never gets worse
    line = next(one for one in traces(tab, "history") if one["name"] == "best so far")
    assert line["y"] == sorted(line["y"], reverse=True)
    # every trial that came to its end has a line through all axes, one of which is the metric
    lines = traces(tab, "parallel")
    assert {one["name"].split(":")[0] for one in lines} >= {"best tenth", "last quarter"}
    assert sum(one["x"].count(None) for one in lines) == states.count("done")
    # a front of two measures, one of which is chosen
    shown = tab.ask("[...document.querySelectorAll('#front .controls label')].map((one) => one.firstChild.data)")
    assert shown == ["Up", "better is", "Across", "better is"]
    assert tab.ask("document.querySelector('#front .chart').data.length") == 2, (
        "neither one trial nor all are best"
    )
    tab.ask(f"({CHOOSE})([...document.querySelectorAll('#front select')].at(2), 'seconds')")
    assert "seconds" in tab.ask("document.querySelector('#front .chart').layout.xaxis.title.text")
    # every chart has its numbers beside it
    assert tab.ask("document.querySelectorAll('.plot + div summary').length") == 6
    nothing_happened(tab, path)


def test_all_of_equal_trials_are_on_the_front_and_none_that_is_worse_in_one(tab: Tab, tmp_path: Path) -> None:
    sweep = SweepOnPaper(tmp_path)
    for number, (loss, kl) in enumerate([(3, 1), (1, 3), (3, 1), (2, 2), (3, 2), (4, 1), (2, 2)]):
        sweep.create(number, {"lr": number})
        sweep.start(number)
        sweep.log(number, [{"val/loss": loss, "kl": kl}])
        sweep.end(number, "done", loss)
    path = opened(tab, sweep)
    tab.ask(LOOK_AT_ALL)
    front = next(one for one in traces(tab, "front") if one["name"] == "front")
    assert list(zip(front["x"], front["y"], strict=True)) == [(1, 3), (1, 3), (2, 2), (2, 2), (3, 1)]
    nothing_happened(tab, path)


def test_text_of_strangers_on_the_page_of_a_sweep_is_shown_and_never_obeyed(tab: Tab, tmp_path: Path) -> None:
    path = opened(tab, hostile_sweep(tmp_path, HOSTILE))
    assert tab.ask(LOOK_AT_ALL) >= 5
    assert tab.ask("document.querySelectorAll('main img, main script, header script').length") == 0
    for place in ("#failures td.wrap", "#about > pre"):
        assert SEEN in tab.ask(f"document.querySelector('{place}').textContent"), place
    assert SEEN in tab.ask("[...document.querySelectorAll('#trials td')].map((one) => one.textContent)")
    nothing_happened(tab, path)
