"""A request from its plan to its end, where no job needs to run."""

import io
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline import arithmetic
from pipeline.commands import carry_out, request, results
from pipeline.commands.run import run_experiment
from pipeline.config.load import load_config
from pipeline.config.schema import Config
from pipeline.errors import ConfigError
from pipeline.runs.loaded import load
from pipeline.terminal.console import Terminal
from pipeline.terminal.streams import LastingFile, LastingStream

ROOT = Path(__file__).parents[3]


@pytest.fixture
def nothing_to_do(tmp_path: Path) -> Config:
    return load_config(["experiment.name=x", "stage=prepare", "device=cpu", f"output_dir={tmp_path}/outputs"])


def test_a_fault_of_the_program_is_in_the_log_of_the_run(
    nothing_to_do: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("\x1b[2Jboom \udcff")

    monkeypatch.setattr(results, "write_results", broken)
    with pytest.raises(RuntimeError, match="boom"):
        run_experiment(nothing_to_do, Terminal(file=io.StringIO()))
    log = (Path(nothing_to_do.output_dir) / "x/latest/run.log").read_text()
    assert "please report it" in log
    assert "Traceback" in log
    assert r"RuntimeError: \x1b[2Jboom \udcff" in log


def test_where_nobody_reads_a_request_is_carried_out_all_the_same(nothing_to_do: Config) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    stream = LastingStream(LastingFile(writing), "ascii")
    assert run_experiment(nothing_to_do, Terminal(file=stream)) == 0
    os.close(writing)
    assert (Path(nothing_to_do.output_dir) / "x/latest/results.json").is_file()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR2], ids=str)
def test_signals_while_results_are_written_interrupt_nothing(
    nothing_to_do: Config, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """When nothing is left to do the results are finished, and the exit code says so."""
    write, got = results.write_samples, list[int]()

    def signalled(*args: Any) -> None:
        for _ in range(2):
            signal.raise_signal(number)
        write(*args)

    monkeypatch.setattr(results, "write_samples", signalled)
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


def test_a_run_says_from_its_begin_how_it_is_repeated(nothing_to_do: Config) -> None:
    given = ["experiment.name=x", "algos=[PITA]"]
    command = ["python", "run_parallel.py", *given]
    run_experiment(nothing_to_do, Terminal(file=io.StringIO()), given=given, command=command)
    loaded = load(Path(nothing_to_do.output_dir) / "x")
    assert loaded.origin.settings == given
    assert loaded.origin.command_line == "python run_parallel.py experiment.name=x 'algos=[PITA]'"
    assert loaded.origin.folder == str(Path.cwd())
    assert loaded.origin.versions.keys() >= {"pipeline", "python", "torch"}


@pytest.mark.parametrize(("label", "settled"), [("", [0]), ("algos.PITA.eta=1", [])], ids=["only", "one of many"])
def test_only_the_last_run_of_a_command_settles_its_exit_code(
    nothing_to_do: Config, monkeypatch: pytest.MonkeyPatch, label: str, settled: list[int]
) -> None:
    codes: list[int] = []
    monkeypatch.setattr(carry_out, "settle", codes.append)
    assert run_experiment(nothing_to_do, Terminal(file=io.StringIO()), label=label) == 0
    assert codes == settled


@pytest.mark.parametrize("inline", ["execution=inline", "system.use_parallel_execution=false"])
def test_jobs_are_not_run_in_a_process_whose_arithmetic_is_pinned_too_late(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, inline: str
) -> None:
    config = load_config(["experiment.name=t", f"output_dir={tmp_path}", "device=cpu", inline])
    monkeypatch.setattr(arithmetic, "imported_unpinned", lambda: ["numpy", "torch"])
    with pytest.raises(ConfigError, match="this process imported numpy and torch before"):
        run_experiment(config, Terminal(file=io.StringIO()))
    assert not list(tmp_path.glob("t/*"))


def test_the_module_that_brought_torch_too_early_is_named(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("import torch\nfrom pipeline import PITA\n\n\nclass Own(PITA): ...\n")
    (tmp_path / "torch.py").touch()  # takes no seconds
    request = ["experiment.name=t", "device=cpu", "system.use_parallel_execution=false"]
    own = ["algos.Own.class_path=own:Own", "algos.Own.enabled=true"]
    done = subprocess.run(
        [sys.executable, str(ROOT / "run_parallel.py"), *request, *own],
        cwd=tmp_path,
        env={
            **{name: value for name, value in os.environ.items() if name not in arithmetic.PINS["torch"]},
            "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "It was own that imported torch, or something that does: move such imports" in line
    assert not (tmp_path / "outputs").exists()


def test_a_plan_that_takes_its_time_is_announced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    small = ["data_collection.prompts_per_round=10", "evaluation.num_prompts=10", "dry_run=true", "device=cpu"]
    config = load_config(["experiment.name=x", f"output_dir={tmp_path}", *small])
    for large, announced in ((10, True), (10**6, False)):
        monkeypatch.setattr(request, "LARGE", large)
        out = io.StringIO()
        assert run_experiment(config, Terminal(file=out, width=200)) == 0
        assert out.getvalue().startswith("planning some ") == announced
        assert "Not looked at" not in out.getvalue()  # rows are made, and the model is
    hub = ["dataset=hf", "datasets.hf.path=owner/rows", "model=hf", "models.hf.path=owner/model"]
    assert (
        run_experiment(
            load_config(["experiment.name=x", f"output_dir={tmp_path}", *small, *hub]),
            Terminal(file=out, width=200),
        )
        == 0
    )
    assert "Not looked at before the run: the rows of hf, owner/model on the hub." in out.getvalue()
