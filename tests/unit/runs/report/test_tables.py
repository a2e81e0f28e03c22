"""The tables at the widths of terminals: what matters stays, numbers are whole, and a file gets everything."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType

from pipeline.engine.workers.messages import GpuLoad
from pipeline.runs.cost import CostRow
from pipeline.runs.progress import LiveRun
from pipeline.runs.record import Results
from pipeline.runs.report.screen import live_screen, share_lines
from pipeline.runs.report.tables import result_tables
from pipeline.runs.run_view import AttemptView, JobCounts, WorkerView
from tests.doubles.live import live_run
from tests.doubles.pooled import comparison, pooled_row
from tests.doubles.runs import START

WIDTHS = (80, 100, 120, 160)
MODEL = "qwen2.5-0.5b-instruct"
LONG = [f"MyOwnMethod_with_a_long_name_beta_{beta}_{'x' * 50}_version_two" for beta in ("0.05", "0.10")]
ALGOS = ["PITA", "QSharp", "QSharp-HF", "DPO", "GRPO", "GRPO-HF", "一个算法的名字"]
DIFFERENCE = ("difference", "difference_low", "difference_high")


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


# -- the other tables ------------------------------------------------------------------------------------------


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
    lines = printed(Group(*live_screen(busy(64, 100, rounds=40), width, height)), width).splitlines()
    assert len(lines) <= max(1, height - 1)
    assert all(cell_len(line) <= width for line in lines)


# -- colours ---------------------------------------------------------------------------------------------------
