"""Share what runs have found: tables of several runs, figures, pages, trackers."""

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pipeline.commands.results import write_report
from pipeline.commands.typed import OUTPUTS, AsJson, Experiment, OutputDir, Stamp, examples, refuse_both
from pipeline.config.schema import Tracker, TrackingConfig
from pipeline.engine.run_folder import RunFolder
from pipeline.engine.store.store import is_store
from pipeline.errors import ConfigError, PipelineError
from pipeline.files import plain_target, write_whole
from pipeline.foreign import ForeignDataError, converted
from pipeline.runs.compare import compare_runs, comparison_csv, comparison_tables, same_settings
from pipeline.runs.equal import LIMITS, Limits, block_data, block_tables, blocks_csv, blocks_of, limits_of
from pipeline.runs.figures import Format, write_figures
from pipeline.runs.frontier import lead_tables, leads_of
from pipeline.runs.loaded import LoadedRun, choose_run, experiments, load, load_planned, runs_of
from pipeline.runs.report.format import count
from pipeline.runs.trackers import Feeders
from pipeline.sweeps.file import SPLIT
from pipeline.sweeps.storage import SweepFolder, sweep_folder
from pipeline.terminal.console import make_console, print_json, say

app = typer.Typer()

# -- targets -----------------------------------------------------------------------------------------------------
# Where commands may write: anywhere but over what runs and stores hold.


_STANDARD_OUTPUT = ("-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")


def is_standard_output(path: Path | None) -> bool:
    """Return whether a user means standard output, by one of its names."""
    return str(path) in _STANDARD_OUTPUT


def write_table(path: Path, text: str, console: Console) -> None:
    """Write a table for other programs: to a file, or to standard output without another word.

    Raises:
        ConfigError: It cannot be written.
    """
    if is_standard_output(path):
        sys.stdout.write(text)
    else:
        written(path, lambda: write_whole(plain_target(path), text), console)


def refuse_records(option: str, path: Path, runs: Iterable[LoadedRun], *, is_page: bool = False) -> None:
    """Refuse a place inside a store or the folder of any run or sweep, also by a link to there.

    Stores are those of the runs, and what looks like one.

    Args:
        option: Option, as it is typed.
        path: Value of the option.
        runs: Runs that the command is about.
        is_page: Whether a report is written, which may take the place of the report of a run or sweep.

    Raises:
        ConfigError: It is, or it is standard output, which is no place.
    """
    if is_standard_output(path):
        raise ConfigError(f"{option} {path}: nothing is written to the output of a command; name a file or folder")
    target, roots = path.resolve(), {run.store.root.resolve() for run in runs}
    for folder in dict.fromkeys((target, *target.parents, *path.absolute().parents)):
        run, sweep = RunFolder(folder), SweepFolder(folder)
        # By its name first: folders of other programs have files of the same names.
        of_run = run.begun and run.holds_run and not (is_page and target == run.report)
        of_sweep = sweep.begun and not (is_page and target == sweep.report)
        if folder in roots or is_store(folder) or of_run or of_sweep:
            raise ConfigError(f"{option} {path}: that is inside {folder}, which is for runs; name a place outside")


def written(path: Path, write: Callable[[], None], console: Console) -> None:
    """Write a file that a user has named, and say where it is.

    Raises:
        ConfigError: It cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write()
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}. Give another file") from error
    say(console, "written:", copy=str(path))


# -- compare -----------------------------------------------------------------------------------------------------


@app.command(
    epilog=examples(
        "pipeline compare first_run second_run",
        "pipeline compare 'eta_*' --csv eta.csv",
        "pipeline compare first_run --at flops=1e10,kl=0.5+flops=1e10",
        "pipeline compare first_run --front",
    )
)
def compare(
    names: Annotated[
        list[str], typer.Argument(help="Experiments, patterns such as 'eta_*', or NAME/TIMESTAMP for one run.")
    ],
    csv: Annotated[
        Path | None,
        typer.Option(help="Write a table for other programs instead; - prints it. Columns: docs/evaluation.md"),
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with their reports instead.")] = None,
    at: Annotated[
        list[str] | None,
        typer.Option(
            help="Compare the methods of one run instead, each after its last round within a limit, and test "
            f"which differ. Limits: {', '.join(LIMITS)}; docs/evaluation.md.",
            metavar="NAME=NUMBER",
        ),
    ] = None,
    front: Annotated[
        bool,
        typer.Option(help="Say which methods of a run have the most within limits of KL and FLOPs an answer."),
    ] = False,
    as_json: AsJson = False,
    output_dir: OutputDir = OUTPUTS,
) -> None:
    """Print runs side by side, or write them as CSV or as the page of a report."""
    console = make_console(stderr=is_standard_output(csv))  # for a word on the page, which is no part of the table
    refuse_both({"--csv": csv, "--json": as_json})
    refuse_both({"--at": at, "--html": html, "--front": front})
    if at or front:
        _compare_methods(output_dir, names, limits_of(at) if at else None, csv, console, as_json=as_json)
        return
    if as_json:
        raise ConfigError("--json goes with --at or --front; of runs side by side --csv has every number")
    runs = runs_named(output_dir, names)
    if csv is not None and not is_standard_output(csv):
        refuse_records("--csv", csv, runs)
    if html is not None:
        refuse_records("--html", html, runs, is_page=True)
        written(html, lambda: write_report(plain_target(html), [run.folder for run in runs]), console)
    comparison = compare_runs(runs)
    if csv is not None:
        write_table(csv, comparison_csv(comparison), console)
    if csv is not None or html is not None:
        return
    for table in comparison_tables(comparison):
        console.print()
        console.print(table)
    if not comparison.rows:
        say(console, f"no results yet: {', '.join(comparison.states)}")


def _compare_methods(
    output_dir: Path,
    names: Sequence[str],
    limits: Sequence[Limits] | None,
    csv: Path | None,
    console: Console,
    *,
    as_json: bool,
) -> None:
    """Compare the methods of one run within limits; None for limits on its whole front."""
    name, _, stamp = names[0].rstrip("/").partition("/")
    if len(names) > 1:
        raise ConfigError("--at and --front compare methods of one run: give one NAME, or NAME/TIMESTAMP")
    run = load(choose_run(output_dir, name, stamp or None))
    if csv is not None and not is_standard_output(csv):
        refuse_records("--csv", csv, [run])
    leads = leads_of(run) if limits is None else []
    if limits is None and not leads:
        raise ConfigError(f"{name}: --front needs the KL and the FLOPs of an answer, and no method has both")
    blocks = [lead.block for lead in leads] if limits is None else blocks_of(run, limits)
    if as_json:
        print_json([block_data(block) for block in blocks])
    elif csv is not None:
        write_table(csv, blocks_csv(blocks), console)
    else:
        whole = lead_tables(leads, run.results)
        for tables in whole if limits is None else (block_tables(block, run.results) for block in blocks):
            console.print()
            console.print(*tables)
        if run.state != "done":
            say(console, f"this run: {run.state}, so rounds may be missing", "yellow")
        if not blocks:
            say(console, "no results yet: no evaluation was finished")


def runs_named(output_dir: Path, names: Sequence[str]) -> list[LoadedRun]:
    """Return the runs that a user means.

    Args:
        output_dir: Folder of all runs.
        names: Each an experiment, a pattern such as ``eta_*``, or ``NAME/TIMESTAMP`` for one run. An experiment
            whose newest run was one of a multirun stands for all runs of that. One experiment alone stands for the
            newest run of each of its settings. Of a sweep these are its trials, without the best one's further run
            on the test split.

    Raises:
        ConfigError: There is no such run.
    """
    every, by_folder = experiments(output_dir), dict[Path, LoadedRun]()
    for name in names:
        experiment, _, stamp = name.rstrip("/").partition("/")
        if stamp:
            runs = [load(choose_run(output_dir, experiment, stamp))]
        elif any(sign in experiment for sign in "*?["):
            fitting = [other for other in every if fnmatchcase(other, experiment)]
            if not fitting:
                raise ConfigError(f"no experiment in {output_dir} fits '{name}'. There are: {', '.join(every)}.")
            alone = len(names) == len(fitting) == 1
            runs = [run for match in fitting for run in _runs_meant(output_dir, match, alone=alone)]
        else:
            runs = _runs_meant(output_dir, experiment, alone=len(names) == 1)
        by_folder |= {run.folder.path: run for run in runs}
    return list(by_folder.values())


def _runs_meant(output_dir: Path, name: str, *, alone: bool) -> list[LoadedRun]:
    """Return the newest run for each combination of settings of an experiment, in order of first appearance."""
    newest = load(choose_run(output_dir, name))
    runs = [load(folder) for folder in runs_of(output_dir, name) if folder.config.is_file()] or [newest]
    if sweep_folder(output_dir, name).begun:
        runs = [run for run in runs if f"{SPLIT}=test" not in run.origin.settings] or runs
    if group := runs[-1].origin.group:
        runs = [run for run in runs if run.origin.group == group]
    elif not alone:
        runs = runs[-1:]
    return list({same_settings(run.config): run for run in runs}.values())


# -- pages and figures -------------------------------------------------------------------------------------------


@app.command(
    epilog=examples(
        "pipeline figures first_run --out figures", "pipeline figures first_run --out figures --format pdf"
    )
)
def figures(
    name: Experiment,
    out: Annotated[Path, typer.Option(help="Folder to write to.")],
    formats: Annotated[
        list[Format] | None, typer.Option("--format", help="Which, once for each; all if left out.")
    ] = None,
    run: Stamp = None,
    output_dir: OutputDir = OUTPUTS,
) -> None:
    """Write the figures of a run."""
    folder, console = choose_run(output_dir, name, run), make_console()
    loaded = load(folder)
    refuse_records("--out", out, [loaded])
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out}: that is a file, and each figure is one of its own; name a folder")
    files = write_figures(loaded, out, [chosen.value for chosen in formats or Format])
    if not files:
        raise ConfigError(f"{folder.path} has nothing to show in a figure yet: no job of it is done.")
    say(console, f"{count(len(files), 'file')} written:", copy=str(out))


@app.command(epilog=examples("pipeline report first_run", "pipeline report first_run second_run --out both.html"))
def report(
    names: Annotated[list[str], typer.Argument(help="Experiments; of each the newest run.", metavar="NAME...")],
    run: Stamp = None,
    out: Annotated[Path | None, typer.Option(help="File to write; report.html of the run if left out.")] = None,
    output_dir: OutputDir = OUTPUTS,
) -> None:
    """Write a page of one run or several, by itself ``report.html`` of the run, or beside the experiments."""
    if run is not None and len(names) > 1:
        raise ConfigError("--run chooses a run of one experiment: give one NAME with it.")
    console, folders = make_console(), [choose_run(output_dir, name, run) for name in dict.fromkeys(names)]
    if out is not None:
        refuse_records("--out", out, map(LoadedRun, folders), is_page=True)
    path = out or (folders[0].report if len(folders) == 1 else output_dir / folders[0].report.name)
    written(path, lambda: write_report(path if out is None else plain_target(path), folders), console)


# -- trackers ----------------------------------------------------------------------------------------------------


@app.command(epilog=examples("pipeline track NAME", "pipeline track NAME --report-to tensorboard"))
def track(
    name: Experiment,
    report_to: Annotated[
        list[Tracker] | None, typer.Option(help="Which tracker, once for each; those of the run if left out.")
    ] = None,
    run: Stamp = None,
    output_dir: OutputDir = OUTPUTS,
) -> int:
    """Bring trackers up to date from what the run left; 1 if one was not told everything."""
    loaded, console = load_planned(choose_run(output_dir.absolute(), name, run)), make_console()
    try:
        tracking = converted(loaded.config.get("tracking") or {}, TrackingConfig)
    except ForeignDataError as error:
        raise PipelineError(f"{loaded.folder.config} cannot be used: tracking: {error}") from error
    tracking = replace(tracking, report_to=report_to or tracking.report_to)
    if not tracking.report_to:
        which = ", ".join(tracker.value for tracker in Tracker)
        raise ConfigError(f"run {loaded.stamp} of {name} asked for no tracker: say which by --report-to {which}")
    warned: list[str] = []
    feeders = Feeders(loaded.folder, tracking, warned.append)
    try:
        feeders.finish(math.inf)
    finally:
        feeders.end()
    for tracker, command in feeders.look_commands.items():
        say(console, f"{tracker} was told everything:", copy=command)
    for text in warned:
        say(console, f"error: {text}", "red")
    return 1 if warned else 0
