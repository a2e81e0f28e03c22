"""What README and docs tell users to type can be typed: into bash and zsh, and the program understands it."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
import typer

from pipeline.__main__ import app
from pipeline.commands.multirun import read_flags
from tests.doubles.composing import quick_config

ROOT = Path(__file__).parents[3]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "examples/README.md",
    *sorted(ROOT.glob("docs/**/*.md")),
]
PROGRAMS = r"(?:[^\s\"=]*/)?(?:python3?|pip|pipeline|pytest|ruff|mypy|srun|hf|eval|nvidia-smi)"
COMMAND = re.compile(rf"(?:\$ )?((?:[A-Z_]+=\S* )*{PROGRAMS}(?: .*)?)$")
ASSIGNMENT = re.compile(r"[A-Z_]+=")
ELSEWHERE = ("my_package.", "my_conf", "hydra/", "--help", "--version")
"""Marks of a command about files of the user's, about plugins, or about the program itself."""


@dataclass(frozen=True)
class Typed:
    """A command of a page, lines that end in a backslash joined."""

    page: str
    line: int
    text: str


def typed_commands(page: Path) -> Iterator[Typed]:
    lines = page.read_text().splitlines()
    number, fenced = 0, False
    while number < len(lines):
        line, start = lines[number], number + 1
        fenced ^= line.startswith("```")
        text = line.strip() if line.startswith("    ") or fenced else ""
        while text.endswith("\\"):
            number += 1
            text = text[:-1] + lines[number].strip()
        if found := COMMAND.match(text):
            yield Typed(page.relative_to(ROOT).as_posix(), start, found[1])
        number += 1


COMMANDS = [command for page in PAGES for command in typed_commands(page)]


def unquoted(text: str) -> str:
    """A command with what stands in quotes, `$(...)` and what a backslash protects left out."""
    return re.sub(r"\\.|'[^']*'|\"(?:\\.|[^\"\\])*\"|\$\(\([^)]*\)\)|\$\([^)]*\)", "Q", text)


def without_remark(text: str) -> str:
    return re.split(r"\s+#", text)[0]


def programs_of(text: str) -> list[list[str]]:
    """The words of each program of a line, assignments before it left out."""
    words = shlex.split(text, comments=True)
    parts: list[list[str]] = [[]]
    for word in words:
        if word in ("&&", "||", "|", "&", ";"):
            parts.append([])
        else:
            parts[-1].append(word)
    for part in parts:
        while part and ASSIGNMENT.match(part[0]):
            part.pop(0)
    return [part for part in parts if part]


def arguments_of(words: list[str]) -> tuple[str, list[str]]:
    """What is run ("main" or "commands") with which arguments; ("", []) for other programs."""
    program, *rest = words
    name = Path(program).name
    if name == "srun":
        while rest and not Path(rest[0]).name.startswith("python"):
            rest.pop(0)
        name, rest = (Path(rest[0]).name, rest[1:]) if rest else ("", [])
    if name in ("python", "python3") and rest[:2] == ["-m", "pipeline"]:
        name, rest = "pipeline", rest[2:]
    if name == "pipeline":
        return ("main", rest[1:]) if rest[:1] == ["run"] else ("commands", rest)
    if name in ("python", "python3") and rest[:1] == ["run_parallel.py"]:
        return "main", rest[1:]
    return "", []


PROGRAMS_TYPED = [(command, *arguments_of(words)) for command in COMMANDS for words in programs_of(command.text)]


def test_pages_are_full_of_commands() -> None:
    assert len(COMMANDS) > 80
    assert {command.page for command in COMMANDS} >= {"README.md", "docs/devices.md", "docs/looking-at-runs.md"}


def test_no_shell_reads_a_command_otherwise_than_it_stands_there() -> None:
    """A bare `[` or `{` is a pattern to zsh, which ends the command; words behind it would be arguments."""
    wrong = []
    for command in COMMANDS:
        try:
            shlex.split(command.text, comments=True)
        except ValueError as error:
            wrong.append(f"{command}: {error}")
        bare = without_remark(unquoted(command.text))
        if odd := sorted(set(re.findall(r"[][{}*?()<>!~^]", bare))):
            wrong.append(f"{command.page}:{command.line}: {' '.join(odd)} without quotes: {command.text}")
        if re.search(r"\S {2,}[^ #]", unquoted(command.text).split(" #")[0]):
            wrong.append(f"{command.page}:{command.line}: an explanation without '#': {command.text}")
    assert not wrong, "\n".join(wrong)


def overrides_of(arguments: list[str]) -> list[str]:
    """The settings of a main command; of a multirun those of its first run."""
    return [re.sub(r"=([\w.+-]+),[\w.,+-]+$", r"=\1", word) for word in read_flags(arguments).overrides]


def test_settings_in_commands_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(str(ROOT))
    wrong, read = [], dict[tuple[str, ...], Typed]()
    for command, what, arguments in PROGRAMS_TYPED:
        if what == "main" and not any(mark in command.text for mark in ELSEWHERE):
            words = (re.sub(r"^(experiment.name)=.*", r"\1=x", word) for word in overrides_of(arguments))
            read[tuple(sorted(words))] = command
    for settings, command in read.items():
        try:
            quick_config(settings)
        except Exception as error:  # whatever it is, the page is wrong
            wrong.append(f"{command.page}:{command.line}: {type(error).__name__}: {error}")
    assert len(read) > 40
    assert not wrong, "\n".join(wrong)


def parse(command: click.Command, arguments: list[str], parent: click.Context | None = None) -> None:
    """Read arguments as the program would, without carrying them out."""
    command = getattr(command, "whole", command)
    context = command.make_context(command.name, list(arguments), parent=parent)
    rest = [*context._protected_args, *context.args]
    if hasattr(command, "commands") and rest:  # a group, of click's or of typer's own class
        _, inner, further = command.resolve_command(context, rest)
        assert inner is not None
        parse(inner, further, context)


def epilogs(command: click.Command) -> Iterator[str]:
    command = getattr(command, "whole", command)
    yield command.epilog or ""
    for inner in getattr(command, "commands", {}).values():
        yield from epilogs(inner)


def test_examples_in_help_can_be_typed() -> None:
    program = typer.main.get_command(app)
    examples = [line for text in epilogs(program) for line in text.splitlines() if line.startswith("pipeline ")]
    assert len(examples) > 15
    for line in examples:
        parse(program, shlex.split(re.split(r" [|>] ", line)[0])[1:])


def test_commands_and_their_options_exist() -> None:
    wrong, parsed = [], 0
    program = typer.main.get_command(app)
    for command, what, arguments in PROGRAMS_TYPED:
        if what != "commands":
            continue
        try:
            parse(program, [re.sub(r"\$(\w+|\{[^}]*\})", "2", word) for word in arguments])
            parsed += 1
        except typer.Exit:
            parsed += 1
        except Exception as error:  # click's or typer's own, as versions differ
            wrong.append(f"{command.page}:{command.line}: {error}")
    assert not wrong, "\n".join(wrong)
    assert parsed > 25
