"""The tables at the widths of terminals: what matters stays, numbers are whole, and a file gets everything."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console, RenderableType

from pipeline.engine.store.gc import Garbage, GarbageKind, OutputKind, Space, StoreUsage
from pipeline.engine.workers.messages import GpuLoad
from pipeline.plan.summary import PlanRow
from pipeline.runs.cost import CostRow
from pipeline.runs.progress import LiveRun
from pipeline.runs.record import Results
from pipeline.runs.report.plan import plan_table
from pipeline.runs.report.screen import screen, share_lines
from pipeline.runs.report.status import Glance, overview_table
from pipeline.runs.report.store import garbage_table, usage_table
from pipeline.runs.report.tables import result_tables
from pipeline.runs.run_view import AttemptView, JobCounts, WorkerView
from pipeline.terminal.console import NO_TERMINAL_WIDTH
from tests.doubles.live import live_run
from tests.doubles.pooled import comparison, pooled_row
from tests.doubles.runs import START

WIDTHS = (80, 100, 120, 160)
MODEL = "qwen2.5-0.5b-instruct"
LONG = [f"MyOwnMethod_with_a_long_name_beta_{beta}_{'x' * 50}_version_two" for beta in ("0.05", "0.10")]
ALGOS = ["PITA", "QSharp", "QSharp-HF", "DPO", "GRPO", "GRPO-HF", "一个算法的名字"]
DIFFERENCE = ("difference", "difference_low", "difference_high")
EXTRAS = ["FLOPs", "per answer", "tokens", "device s", "KL/token"]


def printed(thing: RenderableType, width: int, *, color: bool = False) -> str:
    console = Console(
        file=io.StringIO(), width=width, color_system="standard" if color else None, force_terminal=color
    )
    console.print(thing)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


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


@pytest.mark.parametrize("share", [0.05, 0.6])
def test_the_share_of_completions_that_are_cut_off_is_shown_where_it_is_large(share: float) -> None:
    found, costs = results(ALGOS)
    where = {"dataset": "gsm8k", "model": MODEL, "n": 1319, "seeds": 1}
    cut = [pooled_row(algo, 1, share, metric="truncated", **where) for algo in ALGOS]
    text = printed(result_tables(replace(found, pooled=[*found.pooled, *cut]), costs)[0], 120)
    assert (" cut off " in text) is (share > 0.1)
    assert ("0.600" in text) is (share > 0.1)


def test_a_wider_terminal_shows_more_of_the_results() -> None:
    shown = [[name for name in EXTRAS if f" {name}" in result_text(width, ALGOS)] for width in WIDTHS]
    assert shown == [[], [], EXTRAS[:2], EXTRAS]
    assert ["98.8 s" in result_text(width, ALGOS) for width in WIDTHS] == ["device s" in names for names in shown]


def test_what_goes_to_a_file_has_every_column_and_every_name_in_full() -> None:
    text = result_text(NO_TERMINAL_WIDTH, [*ALGOS, *LONG])
    assert all(name in text for name in [*EXTRAS, *ALGOS, *LONG])
    assert "…" not in text


@pytest.mark.parametrize("width", WIDTHS)
def test_tables_of_one_run_have_equally_wide_columns(width: int) -> None:
    found, costs = results(["PITA"])
    others = [replace(row, algo=f"{row.algo}-with-a-longer-name", dataset="math", n=7) for row in found.pooled]
    more = [replace(row, algo=f"{row.algo}-with-a-longer-name", dataset="math", device_s=1e6) for row in costs]
    both = [
        printed(table, width).splitlines()[2]
        for table in result_tables(replace(found, pooled=[*found.pooled, *others]), costs + more)
    ]
    assert both[0] == both[1]


def test_a_mean_that_rests_on_fewer_prompts_than_were_evaluated_says_so() -> None:
    rows = [pooled_row("PITA", 1, metric="reward", n=9), pooled_row("PITA", 1, metric="length", n=20)]
    (table,) = result_tables(Results(rows=[], pooled=rows))
    assert "reward: of 9 of the 20 prompts; the others have no score (n in results.json)." in str(table.caption)
    whole = [pooled_row("PITA", 1, metric=name, n=20) for name in ("reward", "length")]
    assert "no score" not in str(result_tables(Results(rows=[], pooled=whole))[0].caption)


def test_a_label_stands_in_the_titles() -> None:
    title = printed(result_tables(*results(ALGOS), "algos.PITA.eta=[0.5]")[0], 120).splitlines()[0]
    assert title == f"gsm8k · {MODEL} · 1 seed · 1,319 prompts · algos.PITA.eta=[0.5]"


# -- the other tables ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("split", "prompts", "where"),
    [
        (None, "1,319 prompts", "on validation prompts, PITA"),
        ("test", "1,319 test prompts", "on validation prompts, PITA"),
        ("validation", "1,319 validation prompts", "on the same prompts, which flatters, PITA"),
    ],
)
def test_a_table_of_prompts_that_were_chosen_by_says_so(split: str | None, prompts: str, where: str) -> None:
    found, _ = results(["PITA"])
    chosen = replace(found.pooled[-1], metric="chosen/eta=0.3", value=1.0)
    (table,) = result_tables(replace(found, pooled=[*found.pooled, chosen], split=split))
    text = " ".join(printed(table, 120).split())
    assert f"· {prompts} " in text
    assert f"evaluation.etas: chosen {where} at eta=0.3." in text


def plan() -> RenderableType:
    chains = [f"a_dataset_of_mine/{MODEL}/s0/{algo}" for algo in (*ALGOS, *LONG)]
    return plan_table(
        PlanRow(
            round=1, chain=chain, stage=stage, jobs=128, missing=100, samples=123_456, seconds=7333, devices=size
        )
        for chain in chains
        for stage, size in (("generate", 1), ("train", 8), ("evaluate", 1))
    )


def usage() -> RenderableType:
    kinds = [OutputKind(("ablation_of_the_rate", "b"), f"math/{MODEL}", algo, "evaluate") for algo in LONG]
    return usage_table(StoreUsage(outputs={kind: Space(1280, 123_456_789) for kind in kinds}))


def garbage() -> RenderableType:
    found = [
        Garbage(kind=kind, path=Path("x"), what=f"math/{MODEL} {algo} generate", size=12_345_678)
        for kind in GarbageKind
        for algo in LONG
    ]
    return garbage_table(found)


def overview() -> RenderableType:
    return overview_table(
        Glance(
            name=name,
            run="2026-01-02_10-00-00",
            state="interrupted",
            started=1.0,
            elapsed_s=45_000,
            jobs=400,
            done=345,
            failed=0 if name == "b" else 17,
            blocked=0,
        )
        for name in ("b", *LONG)
    )


def test_names_of_a_store_are_whole_before_its_outputs_are_counted() -> None:
    names = [f"my_long_experiment_name_{number}" for number in (1, 2)]
    whose = [(names[0],), tuple(names), (names[1],)]
    chains = ["addition/tiny", "addition/tiny", "gsm8k/tiny"]
    kinds = [OutputKind(one, chain, "PITA", "evaluate") for one, chain in zip(whose, chains, strict=True)]
    table = usage_table(StoreUsage(outputs={kind: Space(1280, 123_456_789) for kind in kinds}))
    narrow, wide = printed(table, 80), printed(table, 160)
    for name in (*names, f"{names[0]},", "addition/tiny", "evaluate", "(checkpoints)", "(unfinished)"):
        assert f" {name} " in narrow
    assert "…" not in narrow
    assert "1,280" not in narrow
    assert "No room for number: a wider terminal shows all." in narrow
    assert f" {', '.join(names)} " in wide
    assert "1,280" in wide


def test_what_all_outputs_of_a_store_share_takes_no_room_of_what_tells_them_apart() -> None:
    stages = ("evaluate", "generate", "train")
    kinds = [OutputKind(("my_experiment",), "addition/tiny", "PITA", stage) for stage in stages]
    text = printed(usage_table(StoreUsage(outputs={kind: Space(1280, 123_456_789) for kind in kinds})), 50)
    assert text.splitlines()[0] == "store · my_experiment · addition/tiny"
    assert text.count("my_experiment") == text.count("addition/tiny") == 1
    assert all(f" {name} " in text for name in ("PITA", *stages, "1,280", "(checkpoints)", "total"))
    kinds[0] = OutputKind(("my_experiment",), "gsm8k/tiny", "PITA", "evaluate")
    text = printed(usage_table(StoreUsage(outputs={kind: Space(1280, 123_456_789) for kind in kinds})), 56)
    assert text.splitlines()[0] == "store · my_experiment"
    assert all(f" {name} " in text for name in ("addition/tiny", "gsm8k/tiny", *stages))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    ("table", "essential"),
    [
        (plan, ["128", "28", "2 h 02 min", "generate", "estimate"]),
        (usage, ["123.5 MB", "evaluate", "246.9 MB"]),
        (garbage, ["12.3 MB", "output that no run refers to", "leftover of a run that is gone"]),
        (overview, ["2026-01-02_10-00-00", "interrupted", "345/400", "17", "12 h 30 min"]),
    ],
)
def test_other_tables_cut_names_alone(
    table: Callable[[], RenderableType], essential: list[str], width: int
) -> None:
    lines = printed(table(), width).splitlines()
    assert all(cell_len(line) <= width for line in lines)
    assert all(any(text in line for line in lines) for text in essential)
    assert "…" not in printed(table(), NO_TERMINAL_WIDTH)


@pytest.mark.parametrize("width", [1, 2, 5, 10, 20, 39])
@pytest.mark.parametrize("table", [plan, usage, garbage, overview, lambda: result_tables(*results(LONG))[0]])
def test_a_terminal_as_narrow_as_a_word_is_no_error(table: Callable[[], RenderableType], width: int) -> None:
    assert all(cell_len(line) <= width for line in printed(table(), width).splitlines())


# -- the live view ---------------------------------------------------------------------------------------------


def busy(workers: int, chains: int, rounds: int = 6, *, gpus: bool = True) -> LiveRun:
    names = [f"gsm8k/{MODEL}/s{number}/{algo}" for number in range(chains) for algo in (*ALGOS, *LONG)][:chains]
    cells = {
        (name, turn): JobCounts(total=12, done=12 if turn < 3 else 4 * (turn == 3), running=int(turn == 3))
        for name in names
        for turn in range(1, rounds + 1)
    }
    own = [
        WorkerView(
            index=index,
            device=f"GPU-{index}f3a2c1b-1234-5678-9abc-def012345678 as cuda:0",
            job_id=f"{names[index % chains]}/r3/generate/{index:03}",
            rss_bytes=3 * 2**30,
            gpu=GpuLoad(label=f"GPU {index}", used_bytes=61 * 2**30, total_bytes=140 * 2**30, utilization=97)
            if gpus
            else None,
        )
        for index in range(workers)
    ]
    now = START + 12_345
    attempts = [
        AttemptView(number=1, started=now - 61 - 3600 * index, done=index, total=64) for index in range(workers)
    ]
    return live_run(
        cells,
        own,
        attempts,
        elapsed_s=12_345,
        remaining_s=45_000,
        samples_per_s=1523,
        tokens_per_s=190_000,
    )


@pytest.mark.parametrize("gpus", [True, False])
def test_the_live_view_of_eight_workers_and_many_chains_fits_a_small_terminal(gpus: bool) -> None:
    lines = printed(screen(busy(8, 27, gpus=gpus), 80, 24), 80).splitlines()
    assert len(lines) <= 23
    assert all(cell_len(line) <= 80 for line in lines)
    text = "\n".join(lines)
    assert "about 12 h 30 min left" in text
    assert "round 3" in text
    assert "more chains" in text
    for index in range(8):
        assert f"/{index:03} " in text
        assert "1 min 01 s" if index == 0 else f"{index} h 01 min" in text
    assert text.count("61.0/140.0 GiB") == (8 if gpus else 0)


def test_columns_of_the_live_view_stay_where_they_are_while_a_run_goes_on() -> None:
    """Neither a clock that grows nor a worker that becomes idle moves a column, and devices are named in full."""
    places = set()
    for seconds, rss, states in (
        (1.0, 2**29, "rr"),
        (75.0, 30 * 2**30, "rr"),
        (3599.0, 2**30, "ri"),
        (9e4, 0, "ii"),
    ):
        run = busy(2, 2, gpus=False)
        for worker, state in zip(run.view.workers.values(), states, strict=True):
            run.view.jobs[worker.job_id].attempts[-1].started = run.now - seconds
            worker.device, worker.rss_bytes = f"cpu slot {worker.index}, 1 thread", rss
            worker.job_id = worker.job_id if state == "r" else ""
        lines = printed(screen(run, 80, 24), 80).splitlines()
        (heading,) = [line for line in lines if " worker " in f" {line} "]
        places.add(heading)
        assert [line.split()[1:3] for line in lines[-2:]] == [["cpu", "0"], ["cpu", "1"]]
    assert len(places) == 1, places


def test_the_live_view_uses_the_room_of_a_large_terminal() -> None:
    text = printed(screen(busy(8, 27), 160, 50), 160)
    assert "more chains" not in text
    assert all(f"round {number}" in text for number in range(1, 7))
    assert all(name in text for name in ("device", "memory", "GPU memory", "load", "━"))
    assert "…/s0/PITA/r3/generate/000" in text  # what all chains begin with stands above


@pytest.mark.parametrize(("width", "height"), [(80, 24), (160, 50)])
def test_the_live_view_shows_the_loss_of_what_trains(width: int, height: int) -> None:
    """Rather than the memory of a process; and no column moves while jobs that train come and go."""
    run, headings = busy(3, 3, gpus=False), set()
    told: list[dict[str, float | None]] = [{"loss": 0.41234, "kl": 1.0}, {"loss": None}, {}]
    for numbers, shown in ((told, ["0.412", "nan"]), ([{}] * 3, [])):
        for attempt, found in zip(run.view.running().values(), numbers, strict=True):
            attempt.numbers = found
        heading, *rows = printed(screen(run, width, height), width).splitlines()[-4:]
        headings.add(heading)
        assert [word for row in rows for word in row.split() if word in ("0.412", "nan")] == shown
    (heading,) = headings
    assert all(name in heading for name in ("device", "job", "done", "loss", "time"))
    assert ("memory" in heading) == (width > 80)


@pytest.mark.properties
@given(st.integers(0, 80), st.integers(0, 100), st.integers(0, 100))
def test_chains_and_workers_never_take_more_lines_than_there_are(lines: int, chains: int, workers: int) -> None:
    for_chains, for_workers = share_lines(lines, chains, workers)
    assert 0 <= for_chains <= chains
    assert 0 <= for_workers <= workers
    assert sum(number + 1 for number in (for_chains, for_workers) if number) <= lines
    if lines >= chains + workers + 2:
        assert (for_chains, for_workers) == (chains, workers)
    if lines >= 4 and chains and workers:
        assert for_chains
        assert for_workers


@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 10), (10, 3), (1, 1), (200, 60)])
def test_the_live_view_fits_where_it_is_shown(width: int, height: int) -> None:
    lines = printed(screen(busy(64, 100, rounds=40), width, height), width).splitlines()
    assert len(lines) <= max(1, height - 1)
    assert all(cell_len(line) <= width for line in lines)


# -- colours ---------------------------------------------------------------------------------------------------


def all_tables() -> Iterator[RenderableType]:
    yield from (plan(), usage(), garbage(), overview(), screen(busy(8, 27), 120, 40))
    yield from result_tables(*results(LONG))


def test_nothing_is_told_by_faint_or_yellow_text() -> None:
    faint, yellow = re.compile(r"\x1b\[(?:\d+;)*2(?:;\d+)*m"), re.compile(r"\x1b\[(?:\d+;)*(?:33|93)(?:;\d+)*m")
    for table in all_tables():
        text = printed(table, 120, color=True)
        assert "\x1b[" in text
        assert not faint.search(text)
        assert not yellow.search(text)
