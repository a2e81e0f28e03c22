"""Define options, import commands on use, and answer wrong command lines, for all commands."""

import sys
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup
from typer.main import get_group

from pipeline.commands.start import INTERRUPTED, WRONG_REQUEST, refuse, unless_unwritten
from pipeline.errors import ConfigError, PipelineError


def experiments(context: typer.Context, incomplete: str) -> list[str]:
    """Experiments that begin so, in the folder of the command."""
    folder = Path(context.params.get("output_dir") or "outputs")
    return sorted(path.parent.name for path in folder.glob("*/latest") if path.parent.name.startswith(incomplete))


def keys(incomplete: str) -> list[str]:
    """Return the keys of the configuration with a prefix."""
    from pipeline.config.meaning import shipped_meanings

    return [f"{key}=" for key in shipped_meanings() if key.startswith(incomplete)]


def examples(*commands: str) -> str:
    """Format example commands for the end of a help text, one per line; ``#`` begins a comment."""
    return "Examples:\n\n" + "\n\n".join(commands)


Experiment = Annotated[str, typer.Argument(autocompletion=experiments)]
OutputDir = Annotated[Path, typer.Option(help="Folder of all runs.")]
OUTPUTS = Path("outputs")
Stamp = Annotated[str | None, typer.Option("--run", help="Timestamp of a run, or its beginning; else the newest.")]
Every = Annotated[float, typer.Option(min=0.1, max=86_400, help="Seconds between two looks, with --watch.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print plain JSON, nothing cut off.")]
Attempt = Annotated[int | None, typer.Option(min=1, help="Another attempt than the last.")]
LastLines = Annotated[int | None, typer.Option("--lines", "-n", min=0, help="Only the last lines.")]


def refuse_both(options: Mapping[str, object]) -> None:
    """Refuse options that go together with no other of them.

    Args:
        options: Option -> what was given with it; None and False for nothing.

    Raises:
        ConfigError: Several are given.
    """
    names = [option for option, value in options.items() if value is not None and value is not False]
    if len(names) > 1:
        raise ConfigError(f"{' and '.join(names)} do not go together; give one of them")


# -- command line ------------------------------------------------------------------------------------------------


WRONG_USE: Final[type[Exception]] = typer.BadParameter.__mro__[1]
"""Exception of every wrong command line, for which typer has no public name."""
LATER = {
    "launch": (
        "launch",
        "Run any program with one process on each chosen GPU: pipeline launch --gpus 4,5 -- train.py ARGUMENTS.",
    ),
    "show": ("looking", "Print the table of an experiment's newest run again, or of another."),
    "status": ("looking", "Show where runs stand: the newest of every experiment, or one in detail."),
    "logs": ("looking", "Print the log of a run, or of the last attempt at one of its jobs."),
    "why": ("looking", "Explain where a job stands, and why it ran again."),
    "compare": ("report", "Show runs side by side: settings that differ, and what each method has reached."),
    "figures": ("report", "Write the figures of a run for papers: PDF, SVG and PNG."),
    "report": ("report", "Write the page of a run anew, or one page of several runs."),
    "track": ("report", "Tell trackers (tensorboard, trackio, wandb) what they lack of a run."),
    "evaluate": ("evaluate", "Evaluate a run that is done, or checkpoints, on further test sets."),
    "stop": ("steer", "End a chain of a run that goes on, at once or after its round."),
    "resume": ("steer", "Let a stopped chain go on."),
    "add": ("steer", "Add algorithms, seeds, test sets or rounds to a run, while it goes on or afterwards."),
    "clone": ("steer", "Add a chain like another one, with other settings, from the start or from a round."),
    "priority": ("steer", "Let the jobs of a chain start before or after those of others."),
    "devices": ("steer", "Give devices of a run back to others, or let it take more, while it goes on."),
    "command": ("steer", "Print the one command that computes what a run has become."),
    "chat": ("chat", "Talk with a trained policy in the terminal."),
    "export": ("export", "Take a trained model away: a folder that works alone, with a model card."),
    "bundle": ("bundle", "Write a run as one file that others can check, without weights."),
    "verify": (
        "bundle",
        "Check bundles: every number of their tables, and a share of their jobs by running again.",
    ),
    "store": ("store", "Check the store of finished outputs, measure it, clean it up."),
    "gpus": ("gpus", "Show the GPUs of this machine; `gpus fit` says how a model can be trained on them."),
    "sweep": ("sweep", "Search settings with many trials, and look at them."),
    "slurm": ("slurm", "Batch scripts for Slurm: write one, check one."),
}
"""Command, or the word before a family of them -> its module, and what it is for."""


class Later(TyperGroup):
    """A command, or a family as ``store gc``, whose module is imported when it is asked for."""

    def __init__(self, name: str, module: str, help: str) -> None:  # noqa: A002 - as typer calls it
        self._module = module
        super().__init__(name=name, help=help)

    @cached_property
    def whole(self) -> Any:
        """The command itself."""
        family: Any = get_group(import_module(f"pipeline.commands.{self._module}").app)
        command = family.commands.get(self.name, family)
        command.name, command.help = self.name, self.help
        return command

    def make_context(self, *arguments: Any, **named: Any) -> Any:
        """Make the context as Click does, for the command itself."""
        return self.whole.make_context(*arguments, **named)


class Commands(TyperGroup):
    """All commands, with an answer to words that none of them takes."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands.update((name, Later(name, *where)) for name, where in LATER.items())

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, *, standalone_mode: bool = True, **named: Any
    ) -> Any:
        """Carry out a command line; end the process with the exit code, unless ``standalone_mode`` is false."""
        carry_out = partial(super().main, args, standalone_mode=False, **named)
        if not standalone_mode:
            return carry_out()
        code: object = 0
        try:
            code = carry_out()
        except PipelineError as error:
            code = refuse(error)
        except (typer.Abort, KeyboardInterrupt):
            code = INTERRUPTED
        except WRONG_USE as error:
            text = in_words(error)
            code = refuse(ConfigError(text)) if text else WRONG_REQUEST  # without a word: help has been printed
        sys.exit(unless_unwritten(code if isinstance(code, int) else 0))


def in_words(error: Any) -> str:
    """Say what is wrong with a command line, and where to find the options; "" if help was printed."""
    # typer has pydantic read the values of options, which speaks to programmers.
    text = str(error.format_message()).strip().replace("Value error, ", "").replace("Input should be", "must be")
    if hasattr(error.__cause__, "errors"):
        text += f"; given was {error.__cause__.errors()[0]['input']!r}"
    if not text or error.ctx is None:
        return text
    return f"{text}{'' if text.endswith(('.', '?')) else '.'} See `{error.ctx.command_path} --help`"
