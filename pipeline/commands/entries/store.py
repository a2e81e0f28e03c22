"""``python -m pipeline store``: check a store, see what takes its space, remove what nothing needs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.commands.typed import answering, examples
from pipeline.terminal.console import make_console

app = typer.Typer(no_args_is_help=True, help="Check the store of finished outputs, measure it, clean it up.")

StoreOption = Annotated[
    Path | None, typer.Option("--store", help="Folder of the store; default OUTPUT_DIR/.store.")
]
OutputDir = Annotated[Path | None, typer.Option(help="Folder of all runs; default outputs.")]


@app.command(epilog=examples("pipeline store verify", "pipeline store verify --repair"))
def verify(
    keys: Annotated[
        list[str] | None, typer.Argument(help="Beginnings of keys; all outputs if none is given.")
    ] = None,
    store: StoreOption = None,
    output_dir: OutputDir = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Set aside what is damaged; the next run that needs it makes it anew.")
    ] = False,
) -> None:
    """Read every stored output; exit code 1 if one of them is damaged."""
    from pipeline.commands import store as stores

    with answering():
        raise typer.Exit(stores.verify(store, output_dir, keys or [], make_console(), repair=repair))


@app.command(epilog=examples("pipeline store du", "pipeline store du --output-dir /data/outputs"))
def du(store: StoreOption = None, output_dir: OutputDir = None) -> None:
    """Show what takes the space of the store."""
    from pipeline.commands import store as stores

    with answering():
        stores.du(store, output_dir, make_console())


@app.command(epilog=examples("pipeline store gc --dry-run", "pipeline store gc --keep-runs 2 --yes"))
def gc(
    store: StoreOption = None,
    output_dir: OutputDir = None,
    keep_runs: Annotated[
        int | None, typer.Option(help="Keep what the last N runs of each experiment refer to.")
    ] = None,
    older_than: Annotated[
        float | None, typer.Option(help="Keep what runs of the last DAYS days refer to.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be removed.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Remove without asking.")] = False,
) -> None:
    """Remove outputs that no run refers to, damaged ones set aside, useless checkpoints, and leftovers."""
    from pipeline.commands import store as stores

    with answering():
        code = stores.gc(
            store,
            output_dir,
            make_console(),
            keep_runs=keep_runs,
            older_than=older_than,
            dry_run=dry_run,
            yes=yes,
        )
        raise typer.Exit(code)
