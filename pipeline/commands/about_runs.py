"""Commands about what runs left, and the doctor: each imports what it does when it is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.commands.typed import (
    AsJson,
    Attempt,
    Every,
    Experiment,
    LastLines,
    OutputDir,
    Raw,
    Stamp,
    examples,
    experiments,
    keys,
    refuse_both,
)
from pipeline.config.schema import Tracker
from pipeline.errors import PipelineError
from pipeline.runs.figures import Format
from pipeline.slurm.lint import Starter
from pipeline.terminal.console import make_console, say

app = typer.Typer()
Job = Annotated[str, typer.Argument(help="Id of a job, a part of it that no other has, or a pattern with '*'.")]


@app.command(
    help="Check this machine and prove parallel generation on it.",
    epilog=examples(
        "pipeline check",
        "pipeline check --sbatch job.sh",
    ),
)
def check(
    output_dir: OutputDir = Path("outputs"),
    sbatch: Annotated[Path | None, typer.Option(help="Check this batch script for Slurm instead.")] = None,
    ranks: Annotated[
        Starter | None, typer.Option(help="Who starts the ranks of the script's program; guessed if left out.")
    ] = None,
) -> int:
    """Run every check; exit code 1 if one fails."""
    from pipeline.commands import check as preflight
    from pipeline.slurm.lint import check_script

    if sbatch is not None:
        return preflight.print_checks(check_script(sbatch, ranks), "sbatch may have it.")
    return preflight.main(output_dir)


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
    from pipeline.commands.looking import print_results, say_where_it_stands
    from pipeline.runs.index import choose_run, runs_of
    from pipeline.runs.record import read_results

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
    from pipeline.commands import looking as looking

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
    from pipeline.commands.looking import logs as print_logs

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

    console = make_console()
    for line in explained(output_dir, name, job, against, overrides or []):
        say(console, line)


@app.command(
    "compare",
    help="Show runs side by side: settings that differ, and what each method has reached.",
    epilog=examples("pipeline compare first_run second_run", "pipeline compare 'eta_*' --csv eta.csv"),
)
def compare_command(
    names: Annotated[
        list[str], typer.Argument(help="Experiments, patterns such as 'eta_*', or NAME/TIMESTAMP for one run.")
    ],
    csv: Annotated[
        Path | None,
        typer.Option(help="Write a table for other programs instead; - prints it. Columns: docs/evaluation.md"),
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with their reports instead.")] = None,
    output_dir: OutputDir = Path("outputs"),
) -> None:
    """Compare runs."""
    from pipeline.commands.compare import compare

    compare(output_dir, names, csv, html, make_console())


@app.command(
    "figures",
    help="Write the figures of a run for papers: PDF, SVG and PNG.",
    epilog=examples(
        "pipeline figures first_run --out figures", "pipeline figures first_run --out figures --format pdf"
    ),
)
def figures_command(
    name: Experiment,
    out: Annotated[Path, typer.Option(help="Folder to write to.")],
    formats: Annotated[
        list[Format] | None,
        typer.Option("--format", help="Which, once for each; all if left out."),
    ] = None,
    run: Stamp = None,
    output_dir: OutputDir = Path("outputs"),
) -> None:
    """Write figures."""
    from pipeline.commands.report import figures

    figures(output_dir, name, run, out, [each.value for each in formats or ()], make_console())


@app.command(
    "report",
    help="Write the page of a run anew, or one page of several runs.",
    epilog=examples("pipeline report first_run", "pipeline report first_run second_run --out both.html"),
)
def write_report(
    names: Annotated[list[str], typer.Argument(help="Experiments; of each the newest run.", metavar="NAME...")],
    run: Stamp = None,
    out: Annotated[Path | None, typer.Option(help="File to write; report.html of the run if left out.")] = None,
    output_dir: OutputDir = Path("outputs"),
) -> None:
    """Write a page for a browser."""
    from pipeline.commands import report as reports

    reports.report(output_dir, names, run, out, make_console())


@app.command(
    help="Tell trackers (tensorboard, trackio, wandb) what they lack of a run.",
    epilog=examples("pipeline track NAME", "pipeline track NAME --report-to tensorboard"),
)
def track(
    name: Experiment,
    report_to: Annotated[
        list[Tracker] | None, typer.Option(help="Which tracker, once for each; those of the run if left out.")
    ] = None,
    project: Annotated[
        str | None, typer.Option(help="What they call the project; as the run if left out.")
    ] = None,
    online: Annotated[bool, typer.Option("--online", help="Let wandb send it at once.")] = False,
    run: Stamp = None,
    output_dir: OutputDir = Path("outputs"),
) -> int:
    """Bring trackers up to date from what the run left."""
    from pipeline.commands import track as tracking

    chosen = [tracker.value for tracker in report_to or ()]
    return tracking.track(output_dir, name, run, make_console(), report_to=chosen, project=project, online=online)


@app.command(
    help="Take a trained model away: a folder that works alone, with a model card; or push it to the hub.",
    epilog=examples(
        "pipeline export first_run PITA --to models/pita",
        "pipeline export first_run s0/QSharp --round 1 --to models/qsharp --push ME/qsharp",
    ),
)
def export(
    name: Experiment,
    to: Annotated[Path, typer.Option(help="The folder to write: a new one, or an empty one.")],
    chain: Annotated[
        str | None,
        typer.Argument(help="Which chain, as PITA or s0/DPO; not needed where only one trains a model."),
    ] = None,
    number: Annotated[
        int | None, typer.Option("--round", min=0, help="After another round than the last.")
    ] = None,
    push: Annotated[str | None, typer.Option(help="Also push it to this repository of the hub.")] = None,
    run: Stamp = None,
    output_dir: OutputDir = Path("outputs"),
) -> None:
    """Copy a trained model into a folder of its own."""
    from pipeline.commands.export import export as exported

    done = exported(output_dir, name, chain, to, stamp=run, number=number, repository=push)
    say(make_console(), f"{done.what}: {done.folder}")
    if done.url:
        say(make_console(), f"pushed to {done.url}")


@app.command(
    "help",
    help="Say what a key means: its type, range, default, choices, and what it changes.",
    epilog=examples(
        "pipeline help",
        "pipeline help training.grad_clip",
        "pipeline help eta",
        "pipeline help algos.PITA",
        "pipeline help profile",
    ),
)
def help_(
    key: Annotated[
        str,
        typer.Argument(
            help="A key, the end of one, a group of keys or of files; what there is if left out.",
            autocompletion=keys,
        ),
    ] = "",
    settings: Annotated[
        list[str] | None, typer.Argument(help="Settings that name code of your own: algos.NAME.class_path=...")
    ] = None,
) -> None:
    """Explain a key."""
    from pipeline.commands.help import print_help

    print_help(make_console(), key, settings or [])
