"""A YAML file as plain data that JSON can hold, with the line of each value, so that a message can name it.

It is read as PyYAML reads it, which is how W&B does, with three differences: ``1e-5`` is a number, as YAML 1.2 has
it; dates and numbers of base 60 (``1:30``) are texts, likewise; and a key that is there twice is a mistake.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from pipeline.config.bounds import DEEPEST, LARGEST_FILE, check_yaml
from pipeline.config.told import one_line
from pipeline.config.values import brief
from pipeline.errors import ConfigError
from pipeline.foreign import ForeignDataError, read_plain

Place = tuple[str | int, ...]
"""Keys, and positions in lists, from the top of the file."""
Fault = tuple[Place, str]
"""What is wrong, and where."""


@dataclass(frozen=True)
class Document:
    """What a file holds.

    Attributes:
        data: Texts, numbers, truth values, null, lists, and tables whose keys are texts.
        lines: Place -> number of its line, from 1.
        faults: What in it is no plain data, or is there twice.
        unread: Places of which `data` does not have what the file has.
    """

    data: Any
    lines: Mapping[Place, int] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()
    unread: frozenset[Place] = frozenset()

    def line(self, place: Place) -> int:
        """Number of the line of a place, or of the nearest place around it; 0 for the file as a whole."""
        return next((self.lines[place[:n]] for n in range(len(place), 0, -1) if place[:n] in self.lines), 0)

    def where(self, place: Place) -> str:
        """A place in words, to begin a message with: its line and its dotted name."""
        line = f"line {self.line(place)}: " if self.line(place) else ""
        return f"{line}{dotted(place)}: " if place else line


def dotted(place: Place) -> str:
    """``parameters.lr.values[2]``."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{shown_name(part)}" for part in place)
    text = "".join(parts).removeprefix(".")
    return text if len(text) <= _LONGEST_PLACE else f"{text[:_LONGEST_PLACE]}..."


def shown_name(name: str) -> str:
    """A name as a message shows it: in quotes where that is needed to tell where it ends."""
    return name if name.isprintable() and " " not in name else brief(name)


_LONGEST_PLACE = 120


def read_yaml(path: Path) -> Document:
    """Read a file.

    Raises:
        ConfigError: It is missing, no YAML, too large or too deep.
    """
    try:
        text = read_plain(path, LARGEST_FILE, follow=True).decode("utf-8-sig")
    except (OSError, ForeignDataError) as error:
        raise ConfigError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: this is no UTF-8 text, and a sweep file is YAML") from error
    try:
        return parse_yaml(text)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def parse_yaml(text: str) -> Document:
    """Read a text; see `read_yaml`.

    Raises:
        ConfigError: As there, without the name of the file.
    """
    try:
        check_yaml(text)
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            reader = _Reader(loader)
            data = None if node is None else reader.plain(node, ())
            return Document(data, reader.lines, tuple(reader.faults), frozenset(reader.unread))
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        raise ConfigError(_no_yaml(error, text)) from error
    except yaml.YAMLError as error:
        raise ConfigError(f"not valid YAML: {one_line(str(error))}") from error


def _no_yaml(error: yaml.MarkedYAMLError, text: str) -> str:
    """What is wrong with the text, and in which line, without PyYAML's name for it (``<unicode string>``)."""
    mark, begun = error.problem_mark, error.context_mark
    since = f" from line {begun.line + 1}" if begun and error.context and mark and begun.line < mark.line else ""
    said = ", ".join(filter(None, (f"{error.context or ''}{since}", error.problem)))
    if mark is None:
        return f"not valid YAML: {said}"
    lines = text.splitlines()[begun.line if begun else mark.line : mark.line + 1]
    hint = (
        "; a tab indents nothing in YAML: write spaces" if lines and lines[-1][mark.column :][:1] == "\t" else ""
    )
    if any(map(_BARE_MACRO.search, lines)):
        hint = '; a macro in a list stands in quotes: "${args}"'
    return f"line {mark.line + 1}: not valid YAML: {said}{hint}"


_BARE_MACRO = re.compile(r"[\[,]\s*\$\{")


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """PyYAML's, with other words for numbers; only its resolver and the flattening of ``<<`` are used."""


_NUMBER = re.compile(
    r"""^(?: [-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?
           | [-+]?[0-9][0-9_]*[eE][-+]?[0-9]+
           | [-+]?\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?
           | [-+]?\.(?:inf|Inf|INF) | \.(?:nan|NaN|NAN) )$""",
    re.VERBOSE,
)
_WHOLE = re.compile(r"^[-+]?(?:0b[01_]+|0[0-7_]+|0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)$")
_TAG = "tag:yaml.org,2002:"
_OTHERWISE = {f"{_TAG}{kind}" for kind in ("float", "int", "timestamp", "value")}
_Loader.yaml_implicit_resolvers = {
    first: [(tag, words) for tag, words in known if tag not in _OTHERWISE]
    for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(f"{_TAG}float", _NUMBER, list("-+0123456789."))
_Loader.add_implicit_resolver(f"{_TAG}int", _WHOLE, list("-+0123456789"))


class _Reader:
    """Turns nodes into plain data, notes their lines, and what is wrong with them, without stopping at it."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self.lines: dict[Place, int] = {}
        self.faults: list[Fault] = []
        self.unread: set[Place] = set()

    def plain(self, node: yaml.Node, place: Place) -> Any:
        self.lines[place] = node.start_mark.line + 1
        if len(place) > DEEPEST:
            where = Document(None, self.lines).where(place)
            raise ConfigError(f"{where}tables and lists inside each other more than {DEEPEST} deep")
        kind = node.tag.removeprefix(_TAG).replace("merge", "str")  # `<<` as a value is a text
        if isinstance(node, yaml.MappingNode) and kind == "map":
            return self._table(node, place)
        if isinstance(node, yaml.SequenceNode) and kind == "seq":
            return [self.plain(item, (*place, number)) for number, item in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode) and kind in _SCALARS:
            return self._scalar(node, kind, place)
        given = node.tag.replace(_TAG, "!!")
        return self._refuse(place, f"{brief(given)} is nothing that settings are made of: write a plain value")

    def _table(self, node: yaml.MappingNode, place: Place) -> dict[str, Any]:
        self._check_keys(node, place)
        self._loader.flatten_mapping(node)
        found = {}
        for key, value in node.value:
            if _is_readable(key):
                found[str(key.value)] = key, value  # what stands here comes after what is merged into it
        read = {}
        for name, (key, value) in found.items():
            read[name] = self.plain(value, (*place, name))
            self.lines[*place, name] = key.start_mark.line + 1
        return read

    def _check_keys(self, node: yaml.MappingNode, place: Place) -> None:
        """Before what is merged (``<<``) comes in, as that may be overridden."""
        seen: dict[str, int] = {}
        for key, _ in node.value:
            if key.tag == f"{_TAG}merge":
                continue
            name = str(key.value) if isinstance(key, yaml.ScalarNode) else "[...]"
            line = self.lines[*place, name] = key.start_mark.line + 1
            if name in seen and isinstance(key, yaml.ScalarNode):
                self.faults.append(((*place, name), f"is there twice, first in line {seen[name]}"))
            elif not _is_readable(key):
                said = f"{brief(name)} {_NUL}" if _is_text(key) else f"the key {brief(name)} is no text: {_QUOTES}"
                self.faults.append(((*place, name), said))
                self.unread |= {place} - {()}  # which is not empty, say, for that
            seen.setdefault(name, line)

    def _scalar(self, node: yaml.ScalarNode, kind: str, place: Place) -> Any:
        try:
            value = getattr(self._loader, f"construct_yaml_{kind}")(node)
        except (ValueError, LookupError):  # an explicit tag, as in `!!int abc`
            return self._refuse(place, f"{brief(node.value)} is no !!{kind}")
        if kind == "float" and (said := _number_fault(node.value, value)):
            return self._refuse(place, said)
        return self._refuse(place, f"{brief(node.value)} {_NUL}") if "\0" in node.value else value

    def _refuse(self, place: Place, said: str) -> None:
        self.faults.append((place, said))
        self.unread.add(place)


_QUOTES = "write it in quotes"
_NUL = "has a NUL character, which no command line can have"
_SCALARS = ("null", "bool", "int", "float", "str")


def _is_text(key: yaml.Node) -> bool:
    return isinstance(key, yaml.ScalarNode) and key.tag == f"{_TAG}str"


def _is_readable(key: yaml.Node) -> bool:
    return _is_text(key) and "\0" not in key.value


def _number_fault(text: str, value: float) -> str:
    """What is wrong with a number as it is written; "" for nothing."""
    if math.isnan(value):
        return f"{text}: not a number, and so no setting"
    if math.isinf(value) and "inf" not in text.lower():
        return f"{brief(text)} is too large for a number: 1.8e308 is the largest; .inf is infinity"
    if value == 0 and re.search("[1-9]", re.split("[eE]", text)[0]):
        return f"{brief(text)} is too close to zero for a number, which would make it 0"
    return ""
