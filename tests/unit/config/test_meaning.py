"""Every key says what it means, and says it from where it is declared."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

import click
import pytest
import typer
from typer.testing import CliRunner

import pipeline
from pipeline import cli
from pipeline.__main__ import app
from pipeline.cli import typed_command, usage
from pipeline.config.meaning import help_on, meanings, shipped_meanings, shipped_sections
from pipeline.config.schema import AlgoConfig, number
from pipeline.config.tables import conf_dir
from pipeline.errors import ConfigError


class Colour(Enum):
    """What it is painted with."""

    red = "red"  # as a rose
    blue = "blue"


@dataclass(kw_only=True)
class Inside:
    """Settings inside of others."""

    depth: int = number(3, at_least=1, at_most=9)  # in metres


@dataclass(kw_only=True)
class OwnConfig(AlgoConfig):
    """Settings of a user's own."""

    strength: float | None = number(None, above=0, at_most=2, hint=", or null for none", affects_result=False)
    """How hard it pulls, in newtons.
    Null does not pull; more is no better."""
    colour: Colour = Colour.red
    names: list[str] = field(default_factory=lambda: ["a", "b"])
    learning_rate: float = number(0.5, above=0, at_most=1)
    inside: Inside = field(default_factory=Inside)


def test_every_key_that_ships_says_what_it_means() -> None:
    found = shipped_meanings()
    assert [each.key for each in found.values() if not each.text] == []
    assert [key for key, text in shipped_sections().items() if not text] == []
    unexplained = {key for key, each in found.items() if not all(each.choices.values())}
    assert unexplained == set()


def test_what_is_declared_is_told() -> None:
    own = {each.key: each for each in meanings(OwnConfig, "algos.Mine")}
    pull = own["algos.Mine.strength"]
    assert pull.text == "How hard it pulls, in newtons. Null does not pull; more is no better."
    assert pull.line == "How hard it pulls, in newtons"
    assert (pull.type, pull.default, pull.allowed) == (
        "number or null",
        "null",
        "above 0 and at most 2, or null for none",
    )
    assert not pull.affects_result
    colour = own["algos.Mine.colour"]
    assert (colour.type, colour.default, colour.text) == ("choice", "red", "What it is painted with.")
    assert colour.choices == {"red": "as a rose", "blue": ""}
    assert (own["algos.Mine.names"].type, own["algos.Mine.names"].default) == ("list of texts", "[a,b]")
    assert (own["algos.Mine.inside.depth"].text, own["algos.Mine.inside.depth"].default) == ("in metres", "3")


# -- test help ---------------------------------------------------------------------------------------------------
# What the command says of itself: help of our own, the version, completion in the shell.


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_is_about_this_program_and_has_every_choice(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["experiment.name=x", flag]) == 0
    printed = capsys.readouterr().out
    assert "powered by" not in printed
    assert [line for line in printed.splitlines() if len(line) > 80] == []
    files = list(conf_dir().glob("*/*.yaml"))
    choices = {path.stem for path in files} | {path.parent.name for path in files}
    assert choices <= set(printed.replace(",", " ").split())


@pytest.mark.parametrize(
    ("program", "typed"),
    [
        ("/home/me/run_parallel.py", "python run_parallel.py"),
        ("/lib/pipeline/__main__.py", "python -m pipeline run"),
        ("/env/bin/pipeline", "pipeline run"),
    ],
)
def test_help_shows_the_command_as_it_was_typed(program: str, typed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [program])
    assert typed_command() == typed
    assert f"    {typed} experiment.name=NAME" in usage()


def test_the_version_is_told_by_both_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"pipeline {pipeline.__version__}\n"
    assert CliRunner().invoke(app, ["--version"]).output == f"pipeline {pipeline.__version__}\n"


def leaves(command: click.Command, name: str) -> Iterator[str]:
    inside = getattr(getattr(command, "whole", command), "commands", {})
    for word, inner in inside.items():
        yield from leaves(inner, f"{name} {word}".strip())
    if not inside and not command.hidden and name != "run":  # whose help is that of the main command
        yield name


COMMANDS = sorted(leaves(typer.main.get_command(app), ""))


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_has_examples_that_it_understands(command: str) -> None:
    said = CliRunner().invoke(app, [*command.split(), "--help"], terminal_width=200).output
    assert f"pipeline {command}" in said.partition("Examples")[2]


def told(word: str, *settings: str) -> str:
    return "\n".join(text for text, _ in help_on(word, settings))


def test_a_key_is_explained_by_what_is_written_where_it_is_declared() -> None:
    said = told("training.grad_clip")
    assert said.startswith("training.grad_clip=1\n    Largest norm of the gradient; 0 does not clip.")
    assert "type       number" in said
    assert "at least 0 and at most 1,000,000,000" in said
    assert "results    depend on it" in said
    assert told("training.grad_clip=3") == told("+training.grad_clip") == said
    assert "results    do not depend on this value" in told("execution.workers")
    for key in ("training.gpus_per_job", "generation.gpus_per_job"):
        assert "results    depend on it where it is more than 1" in told(key)
    assert "choice     fsdp: weights, gradients" in told("training.strategy")
    assert "a value must be given" in told("experiment.name")
    split = told("evaluation.split").splitlines()
    assert split[0] == "evaluation.split=test"
    assert "    type       choice" in split
    assert [line.split()[1] for line in split if line.startswith("    choice")] == ["test:", "validation:"]


def test_the_end_of_a_key_a_section_a_group_and_a_name_will_do() -> None:
    assert told("eta").startswith("algos.CD.eta=0.1\nalgos.PITA.eta=1\n")
    assert "training.schedule=cosine" in told("training")
    assert "algos.PITA.pairing=greedy" in told("PITA") == told("algos.PITA")
    assert "profile=h200" in told("profile")
    assert "dataset=gsm8k" in told("dataset")
    assert "datasets.movie_openings" in told("datasets")
    assert told("pita") == told("PITA")
    assert told("ALGOS.pita.ETA") == told("algos.PITA.eta")
    assert "models.smollm2.path=null" in told("models.smollm2")
    everything = told("")
    assert all(section in everything for section in ("training", "rounds_of_training", "QSharp", "a100_80gb"))


def test_keys_of_a_class_of_ones_own_are_explained() -> None:
    own = "algos.Mine.class_path=tests.doubles.own_methods.RewardWeighted"
    assert "algos.Mine.learning_rate" in told("algos.Mine.learning_rate", own)


def test_who_asks_for_a_key_that_there_is_not_is_told_what_was_meant() -> None:
    assert CliRunner().invoke(app, ["help", "training.gradclip"]).exit_code == 2
    with pytest.raises(ConfigError, match=r"'training\.grad_clip'"):
        told("training.gradclip")
    with pytest.raises(ConfigError, match="KEY=VALUE"):
        told("eta", "PITA")
