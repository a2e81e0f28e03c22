"""Commands that explain: what a key means, and to a shell what a word may become."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from pipeline.commands.completion_scripts import SCRIPTS, Shell
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
def completion(shell: Annotated[Shell, typer.Argument(help="Which: bash, zsh or fish.")]) -> None:
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
