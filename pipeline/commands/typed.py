"""What the commands around the main job have in common: their errors become messages and exit codes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from pipeline.commands.exits import refuse, unless_unwritten
from pipeline.commands.start import INTERRUPTED
from pipeline.errors import ConfigError, PipelineError


def experiments(context: typer.Context, incomplete: str) -> list[str]:
    """Experiments that begin so, in the folder of the command."""
    folder = Path(context.params.get("output_dir") or "outputs")
    return sorted(path.parent.name for path in folder.glob("*/latest") if path.parent.name.startswith(incomplete))


def keys(incomplete: str) -> list[str]:
    """Keys of the configuration that begin so."""
    from pipeline.config.meaning import shipped_meanings

    return [f"{key}=" for key in shipped_meanings() if key.startswith(incomplete)]


def examples(*commands: str) -> str:
    """Commands that the help of one ends with, each on a line; ``#`` begins a remark."""
    return "Examples:\n\n" + "\n\n".join(commands)


Experiment = Annotated[str, typer.Argument(autocompletion=experiments)]
OutputDir = Annotated[Path, typer.Option(help="Folder of all runs.")]
Stamp = Annotated[
    str | None, typer.Option("--run", help="Timestamp of a run, or how it begins; the newest if left out.")
]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Show it again and again; Ctrl-C ends that.")]
Every = Annotated[float, typer.Option(min=0.1, max=86_400, help="Seconds between two looks, with --watch.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print plain JSON, nothing cut off.")]
Attempt = Annotated[int | None, typer.Option(min=1, help="Another attempt than the last.")]
LastLines = Annotated[int | None, typer.Option("--lines", "-n", min=0, help="Only the last lines.")]
Raw = Annotated[
    bool, typer.Option("--raw", help="On a terminal too, let it have the control characters in the log.")
]


def refuse_both(**options: str) -> None:
    """Refuse options that go together with no other of them.

    Raises:
        ConfigError: Several are given.
    """
    given = [option for option in options.values() if option]
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(given)} do not go together; give one of them")


@contextmanager
def answering() -> Iterator[None]:
    """Answer what a user did wrong with one message, and Ctrl-C with its exit code.

    Raises:
        typer.Exit: 1 if what was to be shown could not be written, 2 for a wrong request, 130 for Ctrl-C; or what
            the command raised.
    """
    try:
        yield
    except PipelineError as error:
        raise typer.Exit(refuse(error)) from error
    except KeyboardInterrupt as interrupt:
        raise typer.Exit(INTERRUPTED) from interrupt
    except typer.Exit as end:
        raise typer.Exit(unless_unwritten(end.exit_code)) from end
    if code := unless_unwritten(0):
        raise typer.Exit(code)
