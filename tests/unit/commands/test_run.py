"""A request from its plan to its end, where no job needs to run."""

import io
import json
import logging
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from pipeline import arithmetic
from pipeline.commands import run as carry_out
from pipeline.commands import start
from pipeline.commands.run import log, logged_to, run_experiment
from pipeline.config.schema import Config
from pipeline.errors import ConfigError
from pipeline.runs import record
from pipeline.terminal.console import Terminal
from tests.doubles.composing import quick_config
from tests.doubles.small_runs import run_here, with_reference


@pytest.fixture
def nothing_to_do(tmp_path: Path) -> Config:
    return quick_config(["experiment.name=x", "stage=prepare", "device=cpu", f"output_dir={tmp_path}/outputs"])


def test_a_fault_of_the_program_is_in_the_log_of_the_run(
    nothing_to_do: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("\x1b[2Jboom \udcff")

    monkeypatch.setattr(record, "write_results", broken)
    with pytest.raises(RuntimeError, match="boom"):
        run_experiment(nothing_to_do, Terminal(file=io.StringIO()))
    log = (Path(nothing_to_do.output_dir) / "x/latest/run.log").read_text()
    assert "please report it" in log
    assert "Traceback" in log
    assert r"RuntimeError: \x1b[2Jboom \udcff" in log


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR2], ids=str)
def test_signals_while_results_are_written_interrupt_nothing(
    nothing_to_do: Config, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """When nothing is left to do the results are finished, and the exit code says so."""
    write, got = record.write_samples, list[int]()

    def signalled(*args: Any) -> None:
        for _ in range(2):
            signal.raise_signal(number)
        write(*args)

    monkeypatch.setattr(record, "write_samples", signalled)
    before = signal.signal(number, lambda number, _: got.append(number))
    try:
        assert run_experiment(nothing_to_do, Terminal(file=io.StringIO())) == 0
        assert not got
        signal.raise_signal(number)
        assert got == [number]
    finally:
        signal.signal(number, before)
    names = {path.name for path in (Path(nothing_to_do.output_dir) / "x/latest/").iterdir()}
    assert {"results.json", "results.csv", "samples.jsonl", "compute.json"} <= names
    assert not [name for name in names if name.startswith(".")]


@pytest.mark.parametrize(("label", "settled"), [("", [0]), ("algos.PITA.eta=1", [])], ids=["only", "one of many"])
def test_only_the_last_run_of_a_command_settles_its_exit_code(
    nothing_to_do: Config, monkeypatch: pytest.MonkeyPatch, label: str, settled: list[int]
) -> None:
    codes: list[int] = []
    monkeypatch.setattr(start, "settle", codes.append)
    assert run_experiment(nothing_to_do, Terminal(file=io.StringIO()), label=label) == 0
    assert codes == settled


@pytest.mark.parametrize("inline", ["execution=inline", "system.use_parallel_execution=false"])
def test_jobs_are_not_run_in_a_process_whose_arithmetic_is_pinned_too_late(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, inline: str
) -> None:
    config = quick_config(["experiment.name=t", f"output_dir={tmp_path}", "device=cpu", inline])
    monkeypatch.setattr(arithmetic, "imported_unpinned", lambda: ["numpy", "torch"])
    with pytest.raises(ConfigError, match="this process imported numpy and torch before"):
        run_experiment(config, Terminal(file=io.StringIO()))
    assert not list(tmp_path.glob("t/*"))


# -- test carry out ----------------------------------------------------------------------------------------------
# What becomes of a run whose surroundings change or fill up while it goes on.


def alter(metrics: Path) -> None:
    """Another number in the same place."""
    text = (metrics / "metrics.json").read_text()
    (metrics / "metrics.json").write_text(text.replace('"value": ', '"value": 7', 1))


def test_results_that_change_before_they_are_printed_are_no_results(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = with_reference(tmp_path_factory, tmp_path / "outputs")
    folder = tmp_path / "outputs" / "t" / "latest"

    def spoiled(*_: object) -> None:
        for name, spoil in {"reference": alter, "Counted/r2": shutil.rmtree}.items():
            (place,) = (folder / "jobs").glob(f"*/*/*/{name}/metrics/output")
            spoil(place.resolve())

    with monkeypatch.context() as patched:
        patched.setattr(carry_out, "update_peaks", spoiled)
        output = " ".join(run_here(tmp_path / "outputs", *request, code=1).split())
    for chain, last, said in (("reference", 0, "metrics.json"), ("Counted", 2, "not stored")):
        assert re.search(rf"s0/{chain}: round {last}: its stored output cannot be used: \S*{said}", output)
    rows = json.loads((folder / "results.json").read_text())["rows"]
    assert {(row["algo"], row["round"]) for row in rows} == {("Counted", 1)}
    run_here(tmp_path / "outputs", *request)
    rows = json.loads((folder / "results.json").read_text())["rows"]
    assert {(row["algo"], row["round"]) for row in rows} == {("Counted", 1), ("Counted", 2), ("reference", 0)}


def test_a_log_that_cannot_be_written_ends_without_a_word_of_its_own() -> None:
    before = log.level, log.propagate
    with logged_to(Path("/dev/full")):
        log.warning("what nobody will read")
        assert not log.propagate
    assert (log.level, log.propagate) == before
    assert not [handler for handler in log.handlers if isinstance(handler, logging.FileHandler)]
