"""`pipeline.run` and `pipeline.load_run` in a program of somebody's own, where no job needs to run."""

import logging
import os
import signal
import sys
from pathlib import Path

import pytest

import pipeline
from pipeline.commands import python
from pipeline.errors import ConfigError

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2)


@pytest.fixture
def request_(tmp_path: Path) -> list[str]:
    return ["experiment.name=x", "stage=prepare", "--device", "cpu", f"output_dir={tmp_path}/outputs"]


def process_state() -> tuple[object, ...]:
    logger = logging.getLogger("pipeline")
    streams = (sys.stdin, sys.stdout, sys.stderr)
    return dict(os.environ), [signal.getsignal(one) for one in SIGNALS], streams, logger.handlers[:], Path.cwd()


def test_a_program_stays_as_it_was_and_may_run_again(request_: list[str], tmp_path: Path) -> None:
    before = process_state()
    first, second = pipeline.run(request_), pipeline.run(request_)
    assert process_state() == before
    assert (first.name, first.state, first.exit_code) == ("x", "done", 0)
    assert first.folder != second.folder
    assert first.command.startswith("python -m pipeline run experiment.name=x stage=prepare ")
    loaded = pipeline.load_run("x", first.folder.name, tmp_path / "outputs")
    assert (loaded.folder, loaded.exit_code) == (first.folder, None)
    assert loaded.config["experiment"]["name"] == "x"
    assert repr(loaded) == f"<run of x: done, {first.folder}>"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("experiment.name=x", "settings are a list of texts"),
        (["experiment.name=x", 3], "settings are a list of texts"),
        (["experiment.name=x", "--multirun"], "--multirun is for the command line"),
        (["experiment.name=x", "dry_run=true"], "dry_run=true leaves no run"),
        (["experiment.name=x", "algos=[PITTA]"], "PITA"),
        (["experiment.name=x", "rounds_of_trainin=3"], "rounds_of_training"),
        (["experiment.name=x", "algos.PITA.eta=0.1,0.2"], "several values"),
        (["experiment.name=x", "--num-gpus"], "--num-gpus"),
    ],
)
def test_a_wrong_request_is_refused_before_anything_starts(
    settings: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = process_state()
    with pytest.raises(ConfigError, match=said):
        pipeline.run(settings)
    assert process_state() == before
    assert not list(tmp_path.iterdir())


def test_signals_that_have_ended_a_run_do_then_what_they_do_in_the_program() -> None:
    got: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: got.append(number))
    try:
        python._pass_on("")
        python._pass_on("SIGTERM")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert got == [signal.SIGTERM]
    with pytest.raises(KeyboardInterrupt):
        python._pass_on("SIGINT")


def test_a_process_has_one_run_at_a_time(request_: list[str]) -> None:
    """Streams and signals belong to all of its threads."""
    with python._alone(), pytest.raises(ConfigError, match="is under way in this process"):
        pipeline.run(request_)
    assert pipeline.run(request_).state == "done"


def test_a_run_begins_no_other_when_it_imports_its_script(
    monkeypatch: pytest.MonkeyPatch, request_: list[str]
) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", python.__spec__)
    with pytest.raises(ConfigError, match="__name__"):
        pipeline.run(request_)
