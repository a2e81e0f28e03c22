"""What ``--help`` says of the main command: what it is for, what is typed most, and where the rest is."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from textwrap import fill
from typing import Any

from rich.console import Console

from pipeline.config.load import class_paths, other_names, unknown_key
from pipeline.config.meaning import Meaning, about, meanings_of, sections, shipped_meanings, shipped_sections
from pipeline.config.tables import TABLES, conf_dir, settings_class
from pipeline.errors import ConfigError
from pipeline.terminal.console import say

_TEXT = """\
Train and compare methods of language-model post-training, round by round.
Settings become a plan of jobs, workers on the GPUs or CPU cores of this machine
carry them out, and a table compares what came of them.

    {command} experiment.name=NAME [KEY=VALUE ...] [FLAG ...]

That alone trains a tiny model on sums, which takes a minute or so on two cores.
Further words, any of them together:
    dry_run=true                        the plan, and what of it is stored
    'algos=[PITA,DPO,GRPO]'             choices of a group
    'experiment.seeds=[0,1,2]'          three chains for each algorithm
    rounds_of_training=3 algos.PITA.eta=0.5          any key
    dataset=jsonl datasets.jsonl.path=FILE           data of your own
    model=hf models.hf.path=FOLDER_OR_HUB_ID         another model
    profile=a100_80gb                   values for a GPU
    --multirun algos.PITA.eta=0.5,1.0   a run for each value
The same command again goes on from where it was, and computes nothing twice.

Groups (GROUP=CHOICE; algos, dataset and model also 'GROUP=[CHOICE,CHOICE]'):
{groups}

Flags:
    --num-gpus N             so many GPUs, the idlest
    --gpu-ids 0 2 3          these GPUs; `{other} gpus` lists them
    --device cpu             no GPU
    --multirun, -m           a run for each combination of values with commas
    --cfg job                the configuration; `-p algos` a part of it
    --config-dir, -cd DIR    a folder of groups of your own
    --hydra-help             further flags, which are Hydra's
    --version, --help

What a key means, its type, range, unit and default; also of a group of keys:
    {other} help KEY
Looking at runs, GPUs and the store:
    {other} --help
"""


def usage() -> str:
    """The text, with the command as it was typed."""
    command = typed_command()
    groups = [folder for folder in sorted(conf_dir().iterdir()) if any(folder.glob("*.yaml"))]
    return _TEXT.format(
        command=command,
        groups="\n".join(_group(folder) for folder in groups),
        other="pipeline" if command.startswith("pipeline") else "python -m pipeline",
    )


def typed_command() -> str:
    """How the main command was called: by its script, by the package or by the installed program."""
    program = Path(sys.argv[0])
    if program.name == "__main__.py":
        return "python -m pipeline run"
    return f"python {program.name}" if program.suffix == ".py" else f"{program.name} run"


def _group(folder: Path) -> str:
    names = ", ".join(sorted((file.stem for file in folder.glob("*.yaml")), key=str.lower))
    first, more = f"    {folder.name:<12}", " " * 16
    return fill(names, 79, initial_indent=first, subsequent_indent=more, break_on_hyphens=False)


# -- help keys ---------------------------------------------------------------------------------------------------
# ``python -m pipeline help KEY``: what a key means, or which there are, from where each is declared.


_COLUMN = 11
_NO_EFFECT = "do not depend on this value itself: with another one, what is stored counts as it is"
Line = tuple[str, str]
"""A text and its style."""


def print_help(console: Console, word: str, settings: Sequence[str]) -> None:
    """Print what there is to say of a word.

    Args:
        console: Where to.
        word: A key or the end of one, a group of keys or of files, or one of their names; "" for what there is.
        settings: As for a run; they make algorithms and datasets of one's own known.

    Raises:
        ConfigError: There is nothing of that name; says what was meant.
    """
    for text, style in help_on(word, settings):
        say(console, text, style)


def help_on(word: str, settings: Sequence[str] = ()) -> Iterator[Line]:
    """What there is to say of a word, line by line, as `print_help` prints it."""
    word = word.lstrip("+~").partition("=")[0].strip(".")
    keys, named = _known(settings)
    if not word:
        return _overview(keys, named)
    if word in keys:
        return _key(keys, [word])
    if word in named or word in TABLES:
        return _section(keys, named, word)
    if (conf_dir() / word).is_dir():
        return _help_keys_group(word)
    leaf = word.rpartition(".")[2]
    others = [each.removeprefix("algos.<NAME>.") for each in other_names(leaf)]
    if ends := [key for key in keys if key.endswith(f".{word}")]:
        return _same_end(keys, ends)
    if inside := [section for section in named if section.endswith(f".{word}")]:
        return chain.from_iterable(_section(keys, named, section) for section in inside)
    if spelled := next((name for name in (*named, *keys) if f".{name}".lower().endswith(f".{word.lower()}")), ""):
        return help_on(spelled, settings)
    if others != [leaf]:
        found = [(f"{leaf} is called {' or '.join(others)} here:", "bold")]
        return chain(found, *(help_on(other, settings) for other in others))
    raise ConfigError(f"{unknown_key(word, keys)} `python -m pipeline help` lists what there is.")


def _known(settings: Sequence[str]) -> tuple[dict[str, Meaning], dict[str, str]]:
    """Keys, and groups of them with what they are: those that ship, files of ``conf/`` add, and settings name."""
    if wrong := [setting for setting in settings if "=" not in setting]:
        raise ConfigError(f"cannot read '{wrong[0]}'. After the key come settings as for a run: KEY=VALUE.")
    keys, named = dict(shipped_meanings()), dict(shipped_sections())

    def add(table: str, name: str, section: Mapping[str, Any]) -> None:
        schema, prefix = settings_class(table, name, section), f"{table}.{name}"
        keys.update((each.key, each) for each in meanings_of(schema, prefix))  # type: ignore[arg-type]  # classes are hashable
        named.update({prefix: about(schema), **dict(sections(schema, prefix))})

    for table, group in (("datasets", "dataset"), ("models", "model")):
        for name, kind in _kinds_of_files(group).items():
            add(table, name, {"kind": kind})
    for table in ("algos", "datasets"):
        for name, path in class_paths(table, settings):
            add(table, name, {"class_path": path})
    return keys, named


def _kinds_of_files(group: str) -> dict[str, str]:
    """The kind that each file of a group is of, by the file's name."""
    files = sorted((conf_dir() / group).glob("*.yaml"))
    found = {path.stem: re.search(r"^kind: (\w+)", path.read_text(), re.MULTILINE) for path in files}
    return {name: kind[1] for name, kind in found.items() if kind}


def _overview(keys: Mapping[str, Meaning], named: Mapping[str, str]) -> Iterator[Line]:
    yield "Groups of keys; `python -m pipeline help GROUP` lists them:", "bold"
    for section, text in named.items():
        if "." not in section:
            yield from _named(section, text)
    yield "\nKeys of their own:", "bold"
    for key, each in keys.items():
        if "." not in key:
            yield from _named(key, each.line)
    yield "\nWith a section for each that a run uses, as algos.PITA or datasets.addition:", "bold"
    for table in TABLES:
        names = [section.split(".")[1] for section in named if re.fullmatch(rf"{table}\.[^.]+", section)]
        yield from _named(table, ", ".join(names))
    yield "\nFiles to choose from, GROUP=CHOICE:", "bold"
    for folder in sorted(path for path in conf_dir().iterdir() if any(path.glob("*.yaml"))):
        yield from _named(folder.name, ", ".join(sorted(file.stem for file in folder.glob("*.yaml"))))


def _section(keys: Mapping[str, Meaning], named: Mapping[str, str], section: str) -> Iterator[Line]:
    yield section, "bold"
    if text := named.get(section):
        yield f"    {text}", ""
    if section in TABLES:
        for name in (name for name in named if re.fullmatch(rf"{section}\.[^.]+", name)):
            yield from _named(name, named[name])
        return
    yield "", ""
    for key, each in keys.items():
        if key.startswith(f"{section}."):
            yield from _named(f"{key}={each.default}", each.line)


def _help_keys_group(group: str) -> Iterator[Line]:
    yield f"{group}=CHOICE", "bold"
    for file in sorted((conf_dir() / group).glob("*.yaml"), key=lambda path: path.stem.lower()):
        remarks = [line[1:].strip() for line in file.read_text(encoding="utf-8").splitlines() if line[:1] == "#"]
        said = [line for line in remarks if not line.startswith("@package")]
        yield from _named(f"{group}={file.stem}", said[0] if said else "")
    table = next((table for table, each in TABLES.items() if each.group == group), "")
    if table:
        yield f"\nIts settings: python -m pipeline help {table}.NAME", ""


def _same_end(known: Mapping[str, Meaning], keys: Sequence[str]) -> Iterator[Line]:
    """Keys that end alike: those that mean the same are explained together."""
    alike: dict[tuple[str, str], list[str]] = {}
    for key in keys:
        alike.setdefault((known[key].text, known[key].allowed), []).append(key)
    for number, same in enumerate(alike.values()):
        if number:
            yield "", ""
        yield from _key(known, same)


def _key(known: Mapping[str, Meaning], keys: Sequence[str]) -> Iterator[Line]:
    first = known[keys[0]]
    for key in keys:
        yield f"{key}={known[key].default or '...'}", "bold"
    yield f"    {first.text or 'nothing is written below this field'}", ""
    yield "", ""
    effect = (
        "depend on it" if first.affects_result else f"depend on it {first.keyed}" if first.keyed else _NO_EFFECT
    )
    rows = [
        ("type", first.type),
        ("must be", first.allowed),
        ("default", "" if first.default else "none: a value must be given"),
        *(("choice", f"{choice}{f': {text}' if text else ''}") for choice, text in first.choices.items()),
        ("results", effect),
    ]
    yield from ((f"    {name:<{_COLUMN}}{text}", "") for name, text in rows if text)


def _named(name: str, text: str) -> Iterator[Line]:
    yield f"    {name}", "bold"
    if text:
        yield f"        {text}", ""
