"""Commands that make something of runs for other places: comparisons, figures, pages, trackers, models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.commands.typed import Experiment, OutputDir, Stamp, answering, examples
from pipeline.config.schema import Tracker
from pipeline.runs.figures.formats import Format
from pipeline.terminal.console import make_console, say

app = typer.Typer()


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
        typer.Option(help="Write a table for other programs instead; - prints it. Columns: docs/compare.md"),
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with their reports instead.")] = None,
    output_dir: OutputDir = Path("outputs"),
) -> None:
    """Compare runs."""
    from pipeline.commands.compare import compare

    with answering():
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

    with answering():
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

    with answering():
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
) -> None:
    """Bring trackers up to date from what the run left."""
    from pipeline.commands import track as tracking

    with answering():
        chosen = [tracker.value for tracker in report_to or ()]
        raise typer.Exit(
            tracking.track(output_dir, name, run, make_console(), report_to=chosen, project=project, online=online)
        )


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

    with answering():
        done = exported(output_dir, name, chain, to, stamp=run, number=number, repository=push)
        say(make_console(), f"{done.what}: {done.folder}")
        if done.url:
            say(make_console(), f"pushed to {done.url}")
