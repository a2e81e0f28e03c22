"""Trials on a terminal: what is told of each, and what has room."""

import io
import json
import math
import shlex
from pathlib import Path

import pytest
from rich.console import Group

from pipeline.sweeps.recorded import RecordedSweep
from pipeline.sweeps.report.best import best_lines
from pipeline.sweeps.report.export import as_csv, export_rows
from pipeline.sweeps.report.measures import measured_of, values_of
from pipeline.sweeps.report.status import print_sweep, sweep_json
from pipeline.sweeps.report.tables import trials_table
from pipeline.sweeps.report.watched import News, watched_sweep
from pipeline.sweeps.trials import SweepView
from pipeline.sweeps.values import in_words, typed
from pipeline.terminal.console import Terminal
from tests.doubles.sweeps import BEGAN, SweepOnPaper, device, hostile, searched


def written_to(console: Terminal) -> str:
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def lines_of(sweep: SweepOnPaper, width: int, height: int) -> list[str]:
    console = Terminal(width=width, height=height, file=io.StringIO())
    console.print(Group(*watched_sweep(RecordedSweep(sweep.folder), BEGAN + 2000, width, height)))
    return written_to(console).splitlines()


@pytest.mark.parametrize("trials", [0, 3, 27, 200])
@pytest.mark.parametrize(("width", "height"), [(80, 24), (160, 50), (40, 8)])
def test_a_sweep_fits_any_terminal(tmp_path: Path, trials: int, width: int, height: int) -> None:
    lines = lines_of(searched(tmp_path, trials), width, height)
    assert len(lines) < height
    assert max(map(len, lines)) <= width
    rows = [line for line in lines if line.strip()[:1].isdigit()]
    if rows and len(rows) < trials:
        assert f"and {trials - len(rows):,} more" in lines


def test_what_runs_comes_first_then_the_best_and_on_80_columns_the_metric_and_parameters_are_there(
    tmp_path: Path,
) -> None:
    sweep = searched(tmp_path, 27)
    with sweep.at_work():
        lines = lines_of(sweep, 80, 24)
    about = next(line for line in lines if "best first" in line)
    assert about.startswith("running first, then best first; no room for ")
    at = next(number for number, line in enumerate(lines) if line.startswith("trial"))
    assert lines[at].split()[:5] == ["trial", "state", "val/loss", "lr", "optimizer"]
    rows = [line.split() for line in lines[at + 1 :] if line.strip()[:1].isdigit()]
    assert [row[1] for row in rows[:3]] == ["running", "running", "done"]
    values = [float(row[2]) for row in rows if row[1] in ("done", "stopped")]
    assert values == sorted(values)
    assert float(rows[0][2]) > 0, "one that runs has what it has logged last"


def test_text_of_strangers_is_shown_and_never_obeyed(tmp_path: Path) -> None:
    text = "\x1b[2J[bold]\r\n\u202e" + "long " * 50
    sweep = RecordedSweep(hostile(tmp_path, text).folder)
    console = Terminal(width=80, markup=False, file=io.StringIO())
    print_sweep(sweep, BEGAN, console)
    assert not set("\x1b\r\u202e") & set(written_to(console))
    assert f"  text={text}" not in written_to(console)
    assert not [line for line, _ in best_lines(sweep) if "\n" in line.partition(": ")[2] and "=" in line]
    watched = Terminal(width=80, height=24, markup=False, file=io.StringIO())
    watched.print(Group(*watched_sweep(sweep, BEGAN, 80, 24)))
    lines = written_to(watched).splitlines()
    assert sum(line.startswith("best: ") for line in lines) == 1
    assert not [line for line in lines if line.startswith("long")], "a text is on the line where it begins"


def test_the_devices_and_effective_batch_of_a_trial_are_told(tmp_path: Path) -> None:
    sweep = SweepOnPaper(tmp_path)
    sweep.create(0, {"batch_size": 8, "num_gpus": 2, "gradient_accumulation_steps": 4}, 2)
    sweep.start(0, devices=[device(0), device(3)])
    view = RecordedSweep(sweep.folder).view
    row = row_of(view, 0)
    assert (row["batch"], row["devices"]) == ("64", "GPU 0, 3")
    assert "agent" not in row, "there is one alone"


@pytest.mark.parametrize(("hosts", "told"), [(["n1", "n1"], ["a1", "a2"]), (["n1", "n2"], ["n1 a1", "n2 a2"])])
def test_agents_are_told_apart_where_there_are_several(tmp_path: Path, hosts: list[str], told: list[str]) -> None:
    sweep = SweepOnPaper(tmp_path)
    for number, (agent, host) in enumerate(zip(["a1", "a2"], hosts, strict=True)):
        sweep.tell("AgentJoined", agent=agent, host=host, pid=1, devices=["cpu slot 0"])
        sweep.create(number, {"lr": number})
        sweep.start(number, agent, devices=["cpu slot 0"])
        sweep.end(number, "done", 0.5)
        sweep.tell("AgentLeft", agent=agent)
    view = RecordedSweep(sweep.folder).view
    assert [row_of(view, number)["agent"] for number in (0, 1)] == told
    trials = list(view.trials.values())
    rows = export_rows(trials, measured_of(sweep.folder, trials, ""), BEGAN, view.hosts)
    assert [(row["agent"], row["host"]) for row in rows] == list(zip(["a1", "a2"], hosts, strict=True))


def row_of(view: SweepView, number: int) -> dict[str, str]:
    table = trials_table(view, [view.trials[number]], BEGAN)
    return dict(zip([column.heading for column in table.columns], table.texts[0], strict=True))


def test_a_heading_is_as_short_as_no_other_parameter_can_be_meant(tmp_path: Path) -> None:
    sweep = SweepOnPaper(tmp_path)
    for number in range(2):
        same = {"b.lr": 1, "model-1.5b": 2}
        sweep.create(number, {"a.lr": number, "c.eta": number, "../../x": number, "at-0.5": number, **same})
    columns = [column.heading for column in trials_table(RecordedSweep(sweep.folder).view, [], BEGAN).columns]
    assert columns[3:7] == ["a.lr", "eta", "../../x", "at-0.5"]


def test_columns_that_have_no_room_are_named_with_where_they_are(tmp_path: Path) -> None:
    sweep = RecordedSweep(searched(tmp_path, 9).folder)
    narrow, wide = (Terminal(width=width, markup=False, file=io.StringIO()) for width in (80, 200))
    print_sweep(sweep, BEGAN, narrow)
    print_sweep(sweep, BEGAN, wide)
    about = " ".join(written_to(narrow).partition("best first; ")[2].partition("trial  ")[0].split())
    named = about.partition("no room for ")[2].partition(":")[0].split(", ")
    headings = next(line for line in written_to(wide).splitlines() if line.startswith("trial  ")).split()
    shown = next(line for line in written_to(narrow).splitlines() if line.startswith("trial  ")).split()
    assert named
    assert {*named, *shown} == {*headings}
    assert f"`python -m pipeline sweep export lr --output-dir {shlex.quote(str(tmp_path))}` has them" in about
    assert "no room for" not in written_to(wide)
    rows = [line.split() for line in written_to(wide).splitlines() if line.strip()[:1].isdigit()]
    values = [float(row[2]) for row in rows if row[1] in ("done", "stopped")]
    assert values == sorted(values), "the order of the live table"


@pytest.mark.parametrize("width", [30, 40, 60, 80])
def test_no_digit_is_cut_and_no_word_broken_on_a_narrow_terminal(tmp_path: Path, width: int) -> None:
    sweep = SweepOnPaper(tmp_path)
    for number, rate in enumerate((0.00011463, 0.00011468)):
        sweep.create(number, {"lr": rate, "momentum": rate * 7, "decay": rate / 100, "of": "a long name" * 3})
        sweep.start(number)
    sweep.end(0, "done", 1.4145e-09)
    sweep.end(1, "failed", reason="RuntimeError: a gradient that is not finite at step 123456789 of 987654321")
    recorded = RecordedSweep(sweep.folder)
    console = Terminal(width=width, markup=False, file=io.StringIO(), force_terminal=True, color_system=None)
    print_sweep(recorded, BEGAN, console)
    whole = Terminal(width=1000, markup=False, file=io.StringIO(), force_terminal=True, color_system=None)
    print_sweep(recorded, BEGAN, whole)
    words = set(written_to(whole).split())
    live = [line for line in lines_of(sweep, width, 30) if "`" not in line]
    shown = {word for line in live for word in line.split()} | set(written_to(console).split())
    numbers = {word for word in shown if any(map(str.isdigit, word))}
    assert numbers <= words
    assert all(max(map(len, line.split("`")[::2])) <= width for line in written_to(console).splitlines())


def test_trials_of_every_state_are_counted_and_add_up(tmp_path: Path) -> None:
    sweep = RecordedSweep(hostile(tmp_path, "x").folder)
    row = json.loads(json.dumps(sweep_json(sweep, BEGAN)))
    states = ("waiting", "running", "done", "failed", "stopped", "cancelled", "lost")
    assert sum(row[state] for state in states) == row["trials"] == 17
    first, _ = next(iter(best_lines(sweep)))
    assert first.endswith("of 17 trials: 12 done, 1 failed, 1 stopped, 1 cancelled, 2 lost)")


def test_a_line_is_told_for_each_trial_that_has_ended_since_the_last_time(tmp_path: Path) -> None:
    sweep, news = SweepOnPaper(tmp_path), News()
    for number in range(3):
        sweep.create(number, {"lr": number})
        sweep.start(number)
    with sweep.at_work():
        recorded = RecordedSweep(sweep.folder)
        assert list(news.of_trials(recorded.view)) == []
        sweep.end(1, "done", 0.5)
        recorded.refresh()
        assert list(news.of_trials(recorded.view)) == ["done: trial 1: val/loss 0.5, lr=1"]
        sweep.end(0, "lost")
        recorded.refresh()
    assert list(news.of_trials(recorded.view)) == ["lost: trial 0: lr=0"]


def test_a_table_for_other_programs_has_every_trial_and_all_digits(tmp_path: Path) -> None:
    sweep = SweepOnPaper(tmp_path)
    sweep.create(0, {"lr": 0.1 + 0.2, "state": "=1+1", "list": [1, 2]})
    sweep.create(1, {"b": True})
    sweep.log(0, [{"val/loss": 0.25, "state": 1.0}])
    recorded = RecordedSweep(sweep.folder)
    trials = list(recorded.view.trials.values())
    header, first, second = as_csv(export_rows(trials, measured_of(sweep.folder, trials, ""), BEGAN)).splitlines()
    assert header.endswith(
        "reason,parameters.lr,parameters.state,parameters.list,parameters.b,metrics.val/loss,metrics.state"
    )
    assert first.endswith(',0.30000000000000004,\'=1+1,"[1, 2]",,0.25,1.0')
    assert second.endswith(",,,,true,,")


def test_a_trial_that_was_begun_again_has_the_numbers_of_its_last_attempt_alone(tmp_path: Path) -> None:
    sweep = SweepOnPaper(tmp_path)
    sweep.create(0, {"lr": 1})
    sweep.start(0)
    sweep.log(0, [{"val/loss": 0.25, "first": 1.0}])
    logged = {"value": None, "best": 0.25, "values": {"val/loss": 0.25, "first": 1.0}}
    sweep.tell("TrialEnded", trial=0, attempt=1, state="failed", exit_code=1, **logged)
    sweep.start(0, attempt=2)
    sweep.log(0, [{"val/loss": 0.75}], attempt=2)
    with sweep.at_work():
        recorded = RecordedSweep(sweep.folder)
    trial = recorded.view.trials[0]
    found = measured_of(sweep.folder, [trial], "val/loss")
    row = export_rows([trial], found, BEGAN)[0]
    assert {name: row[name] for name in row if name.startswith("metrics.")} == {"metrics.val/loss": 0.75}
    assert values_of([trial], found, "val/loss") == [*recorded.so_far().values()] == [0.75]
    assert (trial.best, trial.values) == (None, {})


def test_numbers_that_json_does_not_have_are_said_in_words(tmp_path: Path) -> None:
    sweep = SweepOnPaper(tmp_path)
    sweep.tell("TrialCreated", trial=0, parameters={}, exact='{"eta": Infinity, "in": [NaN]}')
    recorded = RecordedSweep(sweep.folder)
    assert recorded.view.trials[0].parameters["eta"] == math.inf
    told = json.loads(json.dumps(sweep_json(recorded, BEGAN), allow_nan=False))
    assert told["all_trials"][0]["parameters"] == {"eta": "inf", "in": ["nan"]}


def test_parameters_are_said_as_they_are_typed() -> None:
    assert in_words({"lr": 0.00012345678, "flag": True, "none": None, "name": "a b", "list": [1, "x"]}) == (
        'lr=0.0001235 flag=true none=null name=a b list=[1, "x"]'
    )
    assert typed(0.1 + 0.2) == "0.30000000000000004"


def test_of_what_failed_the_reason_and_what_it_said_last_are_told(tmp_path: Path) -> None:
    sweep = searched(tmp_path, 9)
    sweep.folder.trial(5).log(1).write_text("of its first attempt\n")
    of_wandb = "\x1b[1;34mwandb\x1b[0m: \n\x1b[1;34mwandb\x1b[0m: Find logs at: \x1b[1;35mlogs\x1b[0m\n"
    said = f"begin\nTraceback ...\n\x1b[31mRuntimeError: out of luck \x1b[2J\n{of_wandb}"
    sweep.folder.trial(5).log(2).write_text(said)
    sweep.start(5, attempt=2)
    sweep.end(5, "failed", reason="exit code 1: torch.OutOfMemoryError", attempt=2)
    sweep.tell("SweepStopped", reason="preparing failed: exit code 2\n    error: no such disk \x1b[2J")
    console = Terminal(width=200, markup=False, file=io.StringIO())
    with sweep.at_work():
        print_sweep(RecordedSweep(sweep.folder), BEGAN, console)
    told = written_to(console)
    assert " (preparing failed: exit code 2), " in told
    assert "\n    error: no such disk \\x1b[2J\n" in told
    assert "exit code 1: torch.OutOfMemoryError" in told
    assert "it said last: RuntimeError: out of luck \\x1b[2J" in told
    assert f"python -m pipeline sweep logs lr 5 --output-dir {shlex.quote(str(tmp_path))}" in told
