"""What the commands around the main job have in common: their errors become messages and exit codes."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup
from typer.main import get_group

from pipeline.commands.start import INTERRUPTED, WRONG_REQUEST, refuse, unless_unwritten
from pipeline.config.schema import Range
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


# -- command line ------------------------------------------------------------------------------------------------
# How ``python -m pipeline`` answers: what is wrong in one line, with the command line too; and its exit code.
# typer has pydantic read the values of options, and would repeat what that says of them to programmers.


WRONG_USE: Final[type[Exception]] = typer.BadParameter.__mro__[1]
"""What every wrong command line raises, for which typer has no public name."""
_CHOICES = re.compile(r"'(?P<given>.*)' is not one of (?P<choices>'.*')\.", re.DOTALL)
_KINDS = {"int": "a whole number", "float": "a number"}


class Family(TyperGroup):
    """Commands with a word before them, as ``store gc``; their module is imported when one is asked for."""

    def __init__(self, name: str, module: str, help: str) -> None:  # noqa: A002 - as typer calls it
        self._module = module
        super().__init__(name=name, help=help)

    @cached_property
    def _whole(self) -> Any:
        app = import_module(self._module).app
        app.info.name, app.info.help = self.name, self.help
        return get_group(app)

    @property
    def commands(self) -> Any:
        """By their names."""
        return self._whole.commands

    @commands.setter
    def commands(self, _: Any) -> None: ...

    def make_context(self, *arguments: Any, **named: Any) -> Any:
        """As Click does, of the commands themselves."""
        return self._whole.make_context(*arguments, **named)


FAMILIES = (
    ("store", "pipeline.commands.store", "Check the store of finished outputs, measure it, clean it up."),
    (
        "gpus",
        "pipeline.commands.gpus",
        "Show the GPUs of this machine; `gpus fit` says how a model can be trained on them.",
    ),
    ("sweep", "pipeline.commands.sweep", "Search settings with many trials, and look at them."),
    ("slurm", "pipeline.commands.slurm", "Batch scripts for Slurm: write one, check one, submit one."),
)


class Commands(TyperGroup):
    """All commands, with an answer to words that none of them takes."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands.update((name, Family(name, module, text)) for name, module, text in FAMILIES)

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
            said = in_words(error)
            code = refuse(ConfigError(said)) if said else WRONG_REQUEST  # without a word: help has been printed
        sys.exit(unless_unwritten(code if isinstance(code, int) else 0))


def in_words(error: Any) -> str:
    """What is wrong, and where to read what may be given; "" where all is said. Of a `WRONG_USE`."""
    if isinstance(error, typer.BadParameter) and error.param is not None:
        said = _of_parameter(error, error.param)
    else:
        said = str(error.format_message()).strip()
    if not said or error.ctx is None:
        return said
    return f"{said}{'' if said.endswith(('.', '?')) else '.'} See `{error.ctx.command_path} --help`"


def _of_parameter(error: Any, parameter: Any) -> str:
    """What is wrong with the value of an option or argument, or that it is missing."""
    name = parameter.name if parameter.param_type_name == "argument" else max(parameter.opts, key=len)
    if hasattr(error, "param_type"):  # missing
        help_text = (getattr(parameter, "help", None) or "").rstrip(".")
        return f"{name} is missing" + (f": {help_text[:1].lower()}{help_text[1:]}" if help_text else "")
    problems: Sequence[Mapping[str, Any]] = error.__cause__.errors() if hasattr(error.__cause__, "errors") else ()
    said = str(error.message)
    if found := _CHOICES.search(said):
        choices = [each.strip("'") for each in found["choices"].split(", ")]
        return f"{name} {shlex.quote(found['given'])}: must be {', '.join(choices[:-1])} or {choices[-1]}"
    if problems and (allowed := _range(problems[0], parameter)):
        return f"{name} {shlex.quote(str(problems[0]['input']))}: must be {allowed}"
    return f"{name}: {said.removeprefix('Value error, ')}"


def _range(problem: Mapping[str, Any], parameter: Any) -> str:
    """Which numbers a parameter takes, from what is wrong with one; "" where it does not take numbers."""
    kind = _KINDS.get(str(problem["type"]).partition("_")[0], "")
    low, high = getattr(parameter, "min", None), getattr(parameter, "max", None)
    told = "" if low is high is None else str(Range(at_least=low, at_most=high))
    return ", ".join(part for part in (kind, told) if part)
