"""Commands that say where runs stand and what came out of them: table, state, logs, reasons."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.commands.completion import experiments
from pipeline.commands.typed import (
    AsJson,
    Attempt,
    Every,
    Experiment,
    LastLines,
    OutputDir,
    Raw,
    Stamp,
    answering,
    examples,
    refuse_both,
)
from pipeline.errors import PipelineError
from pipeline.terminal.console import make_console, say

Job = Annotated[str, typer.Argument(help="Id of a job, a part of it that no other has, or a pattern with '*'.")]


app = typer.Typer()


@app.command(
    help="Print the table of an experiment's newest run again, or of another.",
    epilog=examples(
        "pipeline show first_run",
        "pipeline show first_run --run 2026-11-27_09",
        "pipeline show first_run --output-dir /data/outputs",
    ),
)
def show(name: Experiment, run: Stamp = None, output_dir: OutputDir = Path("outputs")) -> None:
    """Print results that are on disk."""
    from pipeline.commands.results_shown import print_results, say_where_it_stands
    from pipeline.runs.index import choose_run, runs_of
    from pipeline.runs.record import read_results

    with answering():
        folder, console = choose_run(output_dir, name, run), make_console()
        if not folder.results_json.is_file():
            others = [one.stamp for one in runs_of(output_dir, name) if one.results_json.is_file()]
            older = f"; run {others[-1]} has: show {name} --run {others[-1]}" if others else ""
            raise PipelineError(f"{folder.path} has no results yet{older}")
        print_results(console, read_results(folder.results_json), folder)
        say_where_it_stands(console, folder)


@app.command(
    help="Show where runs stand: the newest of every experiment, or one in detail.",
    epilog=examples(
        "pipeline status",
        "pipeline status first_run --watch",
        "pipeline status first_run --json",
    ),
)
def status(
    name: Annotated[
        str | None, typer.Argument(help="The experiment; all if left out.", autocompletion=experiments)
    ] = None,
    run: Stamp = None,
    as_json: AsJson = False,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch", "-w", help="Show it again and again: one run until it is over, without NAME until Ctrl-C."
        ),
    ] = False,
    every: Every = 2.0,
    output_dir: OutputDir = Path("outputs"),
) -> None:
    """Show the state of runs."""
    from pipeline.commands import status as looking

    with answering():
        if watch:
            refuse_both(watch="--watch", json="--json" if as_json else "")
            looking.watch_status(output_dir, name, run, make_console(), every)
        else:
            looking.status(output_dir, name, run, make_console(), as_json=as_json)


@app.command(
    help="Print the log of a run, or of the last attempt at one of its jobs.",
    epilog=examples(
        "pipeline logs first_run -f",
        "pipeline logs first_run PITA/r1/train",
        "pipeline logs first_run 'PITA/r1/*/003' --attempt 1",
    ),
)
def logs(
    name: Experiment,
    job: Annotated[str | None, typer.Argument(help="A job, see `why`; the engine's own log if left out.")] = None,
    run: Stamp = None,
    attempt: Attempt = None,
    lines: LastLines = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job or run is over.")] = False,
    raw: Raw = False,
    output_dir: OutputDir = Path("outputs"),
) -> None:
    """Print logs."""
    from pipeline.commands.logs import logs as print_logs

    with answering():
        print_logs(output_dir, name, job, run, attempt=attempt, lines=lines, follow=follow, raw=raw)


@app.command(
    help="Explain where a job stands, and why it ran again or would run with other settings.",
    epilog=examples(
        "pipeline why first_run PITA/r2/metrics",
        "pipeline why first_run PITA/r2/metrics algos.PITA.eta=0.5",
    ),
)
def why(
    name: Experiment,
    job: Job,
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Settings of a run that is not started yet: KEY=VALUE ...")
    ] = None,
    against: Annotated[str | None, typer.Option(help="Timestamp of the run to compare with.")] = None,
    output_dir: OutputDir = Path("outputs"),
) -> None:
    """Explain one job."""
    from pipeline.commands.why import why as explained

    with answering():
        console = make_console()
        for line in explained(output_dir, name, job, against, overrides or []):
            say(console, line)
