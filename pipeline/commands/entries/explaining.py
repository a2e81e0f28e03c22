"""The command that explains what a key means."""

from __future__ import annotations

from typing import Annotated

import typer

from pipeline.commands.completion import keys
from pipeline.commands.typed import answering, examples
from pipeline.terminal.console import make_console

app = typer.Typer()


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
    from pipeline.commands.help_keys import print_help

    with answering():
        print_help(make_console(), key, settings or [])
