"""``python -m pipeline``, also installed as ``pipeline``: the commands around the main job."""

if __name__ == "__main__":
    import sys

    if not sys.flags.safe_path:
        # The current folder, which -m puts first: a file there may be named as a module is that this imports.
        sys.path.append(sys.path.pop(0))
    from pipeline.commands.start import pipeline

    pipeline()  # imports this module under its own name and does not return

import sys
from typing import Annotated

import typer

from pipeline.commands.typed import OUTPUTS, Commands, OutputDir, examples, keys

app = typer.Typer(cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False)


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
    """Handle the options before a command."""


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    help="Train and compare: pipeline run experiment.name=NAME [KEY=VALUE ...]; `pipeline run --help` says more.",
)
def run(words: Annotated[list[str] | None, typer.Argument(autocompletion=keys)] = None) -> None:
    """Carry out one request."""
    from pipeline import cli

    raise SystemExit(cli.main(words or []))  # as it is, also where what was printed could not be written


@app.command(epilog=examples("pipeline check"))
def check(output_dir: OutputDir = OUTPUTS) -> int:
    """Check this machine and prove parallel generation on it."""
    from pipeline.commands.check import main as carry_out

    return carry_out(output_dir)


@app.command(
    "help",
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
    """Say what a key means: its type, range, default, choices, and what it changes."""
    from pipeline.config.meaning import help_on
    from pipeline.terminal.console import make_console, say

    for text, style in help_on(key, settings or []):
        say(make_console(), text, style)


def main() -> None:
    """Carry out the command line."""
    # A shell completes one word, and would take the three of `python -m pipeline` for three commands.
    asked = {"--install-completion", "--show-completion"}.intersection(sys.argv[1:2])
    sys.exit(app(prog_name="pipeline" if asked else None))
