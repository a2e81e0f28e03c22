"""``python -m pipeline sweep``: many trials of settings, and looking at them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.commands.typed import Every, answering, examples, refuse_both
from pipeline.terminal.console import make_console

app = typer.Typer(no_args_is_help=True, help="Search settings with many trials, and look at them.")

OutputDir = Annotated[Path, typer.Option(help="Folder of all runs and sweeps.")]


@app.command(
    help="Show where sweeps stand: all of them, or one with its trials.",
    epilog=examples(
        "pipeline sweep status", "pipeline sweep status lr --watch", "pipeline sweep status lr --json"
    ),
)
def status(
    name: Annotated[str | None, typer.Argument(help="The sweep; all if left out.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print plain JSON, nothing cut off.")] = False,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch", "-w", help="Show it again and again: one sweep until it is over, without NAME until Ctrl-C."
        ),
    ] = False,
    every: Every = 2.0,
    output_dir: OutputDir = Path("outputs"),
) -> None:
    """Show the state of sweeps."""
    from pipeline.commands import sweep_look

    with answering():
        if watch:
            refuse_both(watch="--watch", json="--json" if as_json else "")
            sweep_look.watch_status(output_dir, name, make_console(), every)
        else:
            sweep_look.status(output_dir, name, make_console(), as_json=as_json)
