"""``python -m pipeline help KEY``: what a key means, or which there are, from where each is declared."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from pipeline.config.explain import GROUPS, advice_on, other_name, unknown_key
from pipeline.config.install import conf_dir
from pipeline.config.meaning import (
    Meaning,
    about,
    meanings_of,
    sections,
    shipped_meanings,
    shipped_sections,
    typed,
)
from pipeline.config.tables import TABLES, settings_class
from pipeline.config.words import class_paths
from pipeline.errors import ConfigError
from pipeline.terminal.console import say

_PACKAGE = re.compile(r"^# @package (\S+)\s*\n")
_COLUMN = 11
_MOST_NAMED = 6
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
        inside = text.lstrip(" ")
        if console.is_terminal and inside:
            left = len(text) - len(inside)
            console.print(Padding(Text(inside, style=style), (0, 0, 0, left)), highlight=False)
        else:
            say(console, text, style or None)


def help_on(word: str, settings: Sequence[str] = ()) -> Iterator[Line]:
    """What there is to say of a word, line by line, as `print_help` prints it."""
    known, word = _Known(settings), word.lstrip("+~").partition("=")[0].strip(".")
    if not word:
        return _overview(known)
    if word in known.keys:
        return _key(known, [word])
    if word in known.sections or word in TABLES:
        return _section(known, word)
    if (conf_dir() / word).is_dir():
        return _group(word)
    ends = [key for key in known.keys if key.endswith(f".{word}")]
    named = [section for section in known.sections if _leaf(section) == word]
    other: str = other_name(_leaf(word))
    called: Iterator[Line] = iter(())
    if other != _leaf(word):
        called = chain([(f"{_leaf(word)} is called {other} here:", "bold")], help_on(other, settings))
    if ends:
        return chain(_same_end(known, ends), called)
    if named:
        return _same_section(known, named)
    if spelled := known.spelled(word):
        return help_on(spelled, settings)
    if other != _leaf(word):
        return called
    if advice := advice_on(word):
        return iter([(f"{word}: {advice}", "")])
    holding = [key for key in dict.fromkeys(map(_leaf, known.keys)) if word in key]
    hint = f" Keys with that in them: {', '.join(holding[:_MOST_NAMED])}." if holding else ""
    raise ConfigError(
        f"{unknown_key(word, known=known.keys)}{hint} `python -m pipeline help` lists what there is."
    )


# -- what is known ---------------------------------------------------------------------------------------------


class _Known:
    """Keys and their groups: what ships, what files of ``conf/`` add, and what settings name."""

    def __init__(self, settings: Sequence[str]) -> None:
        wrong = [setting for setting in settings if "=" not in setting]
        if wrong:
            raise ConfigError(f"cannot read '{wrong[0]}'. After the key come settings as for a run: KEY=VALUE.")
        self.keys: dict[str, Meaning] = shipped_meanings()
        self.sections: dict[str, str] = shipped_sections()
        for table, group in (("datasets", "dataset"), ("models", "model")):
            for name, kind in _kinds_of_files(group).items():
                self._add(table, name, {"kind": kind})
        for table in ("algos", "datasets"):
            for name, path in class_paths(table, settings):
                self._add(table, name, {"class_path": path})

    def _add(self, table: str, name: str, section: Mapping[str, Any]) -> None:
        schema, prefix = settings_class(table, name, section), f"{table}.{name}"
        self.keys |= {each.key: each for each in meanings_of(schema, prefix)}  # type: ignore[arg-type]  # classes are hashable
        self.sections |= {prefix: about(schema), **dict(sections(schema, prefix))}

    def spelled(self, word: str) -> str:
        """What there is that differs from a word in capital letters alone; "" where there is nothing."""
        names = [*self.sections, *self.keys]
        names += [_leaf(name) for name in names]
        return next((name for name in names if name != word and name.casefold() == word.casefold()), "")

    @cached_property
    def set_by(self) -> dict[str, list[tuple[str, str]]]:
        """Key -> choices of groups that set it, and to what."""
        return _set_by_files(conf_dir())


@cache
def _set_by_files(folder: Path) -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {}
    for file in sorted(folder.rglob("*.yaml")):
        group = file.parent.relative_to(folder).as_posix()
        choice = file.name if group == "." else f"{group}={file.stem}"
        for key, value in _values(file, "" if group == "." else group):
            found.setdefault(key, []).append((choice, value))
    return found


def _kinds_of_files(group: str) -> dict[str, str]:
    """The kind that each file of a group is of, by the file's name."""
    files = sorted((conf_dir() / group).glob("*.yaml"))
    found = {path.stem: re.search(r"^kind: (\w+)", path.read_text(), re.MULTILINE) for path in files}
    return {name: kind[1] for name, kind in found.items() if kind}


def _leaf(key: str) -> str:
    return key.rpartition(".")[2]


def _values(file: Path, package: str) -> Iterator[tuple[str, str]]:
    text = file.read_text(encoding="utf-8")
    if named := _PACKAGE.match(text):
        package = "" if named[1] == "_global_" else named[1]
    data = yaml.safe_load(text) or {}
    data.pop("defaults", None)
    yield from _leaves(data, package)


def _leaves(node: Any, key: str) -> Iterator[tuple[str, str]]:
    if isinstance(node, dict) and node:
        for name, value in node.items():
            yield from _leaves(value, f"{key}.{name}".strip("."))
    else:
        yield key, typed(node)


# -- what is said ----------------------------------------------------------------------------------------------


def _overview(known: _Known) -> Iterator[Line]:
    yield "Groups of keys; `python -m pipeline help GROUP` lists them:", "bold"
    for section, text in known.sections.items():
        if "." not in section:
            yield from _named(section, text)
    yield "\nKeys of their own:", "bold"
    for key, each in known.keys.items():
        if "." not in key:
            yield from _named(key, each.line)
    yield "\nWith a section for each that a run uses, as algos.PITA or datasets.addition:", "bold"
    for table in TABLES:
        names = [section.split(".")[1] for section in known.sections if re.fullmatch(rf"{table}\.[^.]+", section)]
        yield from _named(table, ", ".join(names))
    yield "\nFiles to choose from, GROUP=CHOICE:", "bold"
    for folder in sorted(path for path in conf_dir().iterdir() if any(path.glob("*.yaml"))):
        yield from _named(folder.name, ", ".join(sorted(file.stem for file in folder.glob("*.yaml"))))


def _section(known: _Known, section: str) -> Iterator[Line]:
    yield section, "bold"
    if text := known.sections.get(section):
        yield f"    {text}", ""
    inside = [each for key, each in known.keys.items() if key.startswith(f"{section}.")]
    if section in TABLES:
        for name in (name for name in known.sections if re.fullmatch(rf"{section}\.[^.]+", name)):
            yield from _named(name, known.sections[name])
        return
    yield "", ""
    for each in inside:
        yield from _named(f"{each.key}={each.default}", each.line)


def _same_section(known: _Known, sections: Sequence[str]) -> Iterator[Line]:
    """Sections of one name, as `lora`: what each has is said once, where it is the same for all."""
    alike: dict[tuple[Line, ...], list[str]] = {}
    for section in sections:
        lines = [
            (text.replace(f"{section}.", f"{_leaf(section)}."), style) for text, style in _section(known, section)
        ]
        alike.setdefault(tuple(lines[1:]), []).append(section)
    for number, (shared, same) in enumerate(alike.items()):
        if number:
            yield "", ""
        yield from ((section, "bold") for section in same)
        yield from shared if len(same) > 1 else list(_section(known, same[0]))[1:]


def _group(group: str) -> Iterator[Line]:
    yield f"{group}=CHOICE", "bold"
    for file in sorted((conf_dir() / group).glob("*.yaml"), key=lambda path: path.stem.lower()):
        remarks = [line[1:].strip() for line in file.read_text(encoding="utf-8").splitlines() if line[:1] == "#"]
        said = [line for line in remarks if not line.startswith("@package")]
        yield from _named(f"{group}={file.stem}", said[0] if said else "")
    table = next((table for table, each in GROUPS.items() if each == group), group)
    if table in TABLES:
        yield f"\nIts settings: python -m pipeline help {table}.NAME", ""


def _same_end(known: _Known, keys: Sequence[str]) -> Iterator[Line]:
    """Keys that end alike: those that mean the same are explained together."""
    alike: dict[tuple[str, str], list[str]] = {}
    for key in keys:
        each = known.keys[key]
        alike.setdefault((each.text, each.allowed), []).append(key)
    for number, same in enumerate(alike.values()):
        if number:
            yield "", ""
        yield from _key(known, same)


def _key(known: _Known, keys: Sequence[str]) -> Iterator[Line]:
    first = known.keys[keys[0]]
    for key in keys:
        yield f"{key}={known.keys[key].default or '...'}", "bold"
    yield f"    {first.text or 'nothing is written below this field'}", ""
    yield "", ""
    rows = {"type": first.type, "must be": first.allowed, "choices": ""}
    if not first.default:
        rows["default"] = "none: a value must be given"
    for name, text in rows.items():
        if text:
            yield f"    {name:<{_COLUMN}}{text}", ""
    for choice, text in first.choices.items():
        yield f"    {'choice':<{_COLUMN}}{choice}{f': {text}' if text else ''}", ""
    for choices, said in _set_by(known, keys):
        yield f"    {'set by':<{_COLUMN}}{choices}: {said}", ""
    keyed = f"depend on it {first.keyed}" if first.keyed else _NO_EFFECT
    effect = "depend on it" if first.affects_result else keyed
    yield f"    {'results':<{_COLUMN}}{effect}", ""
    yield f"    {'declared':<{_COLUMN}}{first.declared}", ""


def _set_by(known: _Known, keys: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Files that set keys to the same values, with a comma between two, and those values."""
    of_files: dict[str, dict[str, list[str]]] = {}
    for key in keys:
        for choice, value in known.set_by.get(key, []):
            if value:  # not a file that only says that the key must be given
                of_files.setdefault(choice, {}).setdefault(value, []).append(key)
    alike: dict[str, list[str]] = {}
    for choice, values in of_files.items():
        told = (f"{value} ({', '.join(named)})" if len(keys) > 1 else value for value, named in values.items())
        alike.setdefault("; ".join(told), []).append(choice)
    for said, choices in alike.items():
        yield ", ".join(choices), said


def _named(name: str, text: str) -> Iterator[Line]:
    yield f"    {name}", "bold"
    if text:
        yield f"        {text}", ""
