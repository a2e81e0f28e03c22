"""``python -m pipeline sweep multi``: several experiments by one command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.commands.typed import OutputDir, answering, examples
from pipeline.config.fields import LONGEST_S
from pipeline.terminal.console import make_console

app = typer.Typer()


@app.command(
    help="Run several experiments side by side, NAME.run1 and so on, each on GPUs of its own.",
    epilog=examples(
        "pipeline sweep multi my_sweep 2 4",
        "pipeline sweep multi my_sweep 4 2 8 rounds_of_training=3",
        "pipeline sweep multi my_sweep 1 2 device=cpu training.grad_clip=0.5,2",
    ),
)
def multi(
    name: Annotated[str, typer.Argument(help="What the names of the experiments begin with.")],
    gpus_per_run: Annotated[int, typer.Argument(help="GPUs of each; CPU slots with device=cpu.")],
    num_runs: Annotated[int, typer.Argument(help="How many runs.")],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            help="GPUs to be shared out, if not all: TOTAL_GPUS; then settings of all runs: KEY=VALUE, or "
            "KEY=V1,V2,... with a value for each.",
            metavar="[TOTAL_GPUS] [KEY=VALUE]...",
        ),
    ] = None,
    queue: Annotated[bool, typer.Option("--queue", help="Let runs wait for GPUs that others have.")] = False,
    grace: Annotated[
        int, typer.Option(min=1, max=LONGEST_S, help="Seconds that a run has to end before it is killed.")
    ] = 30,
    output_dir: OutputDir = Path("outputs"),
) -> None:
    """Run several experiments on disjoint sets of GPUs."""
    from pipeline.commands.sweep_multi import multi as several

    with answering():
        raise typer.Exit(
            several(
                name, gpus_per_run, num_runs, words or [], output_dir, make_console(), queue=queue, grace_s=grace
            )
        )
