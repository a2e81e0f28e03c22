"""``python -m pipeline``, also installed as ``pipeline``: the commands around the main job."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from pipeline import cli, preflight, store_commands
from pipeline.errors import PipelineError
from pipeline.experiment import print_results
from pipeline.results.paths import find_run
from pipeline.results.record import read_results

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.add_typer(store_commands.app, name="store")

OutputDir = Annotated[Path, typer.Option(help="Folder of all runs.")]


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    help="Train and compare, like run_parallel.py: pipeline run experiment.name=NAME [KEY=VALUE ...].",
)
def run(context: typer.Context) -> None:
    """Carry out one request."""
    raise typer.Exit(cli.main(context.args))


@app.command(help="Check this machine and prove parallel generation on it.")
def check(output_dir: OutputDir = Path("outputs")) -> None:
    """Run every check; exit code 1 if one fails."""
    raise typer.Exit(preflight.main(output_dir))


@app.command(help="Print the table of an experiment's newest run again.")
def show(name: str, output_dir: OutputDir = Path("outputs")) -> None:
    """Print results that are on disk."""
    try:
        folder = find_run(output_dir, name)
        if not folder.results_json.is_file():
            raise PipelineError(f"{folder.path} has no results yet")
        print_results(cli.make_console(), read_results(folder.results_json), folder)
    except PipelineError as error:
        raise typer.Exit(cli.refuse(error)) from error


def main() -> None:
    """Entry of the console script."""
    sys.exit(app())


if __name__ == "__main__":
    main()
