"""Bounds on YAML that are looked at before anything is made of it: some documents would never be done with.

A few hundred bytes can stand for billions of values (anchors that repeat anchors), and readers take time or stack
out of proportion to what they are given.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import yaml

from pipeline.errors import ConfigError

LONGEST_OVERRIDE = 10_000
"""Characters of one setting on the command line."""
LARGEST_FILE = 1_000_000
"""Bytes of a YAML file."""
MOST_VALUES = 50_000
"""Values of a YAML file, those that aliases repeat counted each time."""
RESOLVED = 4
"""A configuration with all defaults, and the points of fronts written out, may have so many times of both."""
DEEPEST = 50
"""Tables and lists inside each other."""
LONGEST_NUMBER = 300
"""Digits; Python reads no integer of thousands of them."""
LONG_NUMBER = re.compile(rf"(?<![\w'\"])[0-9_]{{{LONGEST_NUMBER + 1},}}(?![\w'\"])")

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def check_file(path: Path) -> None:
    """Refuse a YAML file that is out of bounds.

    Raises:
        ConfigError: Says which bound.
        yaml.YAMLError: It is no YAML.
        OSError: It cannot be read.
    """
    size = path.stat().st_size
    if size > LARGEST_FILE:
        raise ConfigError(
            f"{path}: {size:,} bytes, and a configuration file has {LARGEST_FILE:,} at most. Data belongs in a "
            "dataset, see docs/datasets.md"
        )
    try:
        with path.open("rb") as file:
            check_yaml(file)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def check_yaml(document: str | IO[bytes]) -> None:
    """Refuse YAML that stands for too much, before it is made.

    Raises:
        ConfigError: Says which bound, without the name of a file.
        yaml.YAMLError: It is no YAML.
    """
    _check_events(_events(document), MOST_VALUES)


def read_resolved(data: bytes) -> Any:
    """Read the configuration that a run has left.

    Raises:
        ConfigError: It is out of bounds; says which.
        yaml.YAMLError: It is no YAML.
        ValueError: It is no text, or a value in it is none that YAML has.
    """
    _check_events(_events(data), RESOLVED * MOST_VALUES)
    return yaml.load(data, Loader=_LOADER)  # noqa: S506 - it is a safe one


def _events(document: str | bytes | IO[bytes]) -> Iterator[yaml.Event]:
    """What a document consists of; one that is too deep for the reader is so for us."""
    try:
        yield from yaml.parse(document, Loader=_LOADER)
    except yaml.YAMLError as error:
        # PyYAML 6.0.4 looks ahead, and refuses a depth of 1,000 before it tells of the first list.
        if "maximum nesting depth" in str(error):
            raise ConfigError(_too_deep()) from None
        raise


def _check_events(events: Iterable[yaml.Event], most: int) -> None:
    """Count what a document stands for without making it: an alias counts as all that its anchor has."""
    open_: list[tuple[str | None, int]] = []
    sizes: dict[str, int] = {}
    count = 0
    for event in events:
        anchor = getattr(event, "anchor", None)
        if isinstance(event, yaml.AliasEvent):
            if anchor not in sizes and anchor in [name for name, _ in open_]:
                raise ConfigError(f"what the anchor &{anchor} names holds itself")
            count += sizes.get(anchor or "", 1)
        elif isinstance(event, yaml.CollectionStartEvent):
            open_.append((anchor, count))
            count += 1
        elif isinstance(event, yaml.ScalarEvent):
            count += 1
            if event.implicit[0] and LONG_NUMBER.fullmatch(event.value.lstrip("+-")):
                place = "" if event.start_mark is None else f"line {event.start_mark.line + 1}: "
                raise ConfigError(f"{place}{number_of(event.value)}")
            if anchor:
                sizes[anchor] = 1
        elif isinstance(event, yaml.CollectionEndEvent):
            name, before = open_.pop()
            if name:
                sizes[name] = count - before
        if len(open_) > DEEPEST:
            raise ConfigError(_too_deep())
        if count > most:
            raise ConfigError(f"more than {most:,} values, what its aliases (*name) repeat counted each time")


def _too_deep() -> str:
    return f"tables and lists inside each other more than {DEEPEST} deep"


def number_of(digits: str) -> str:
    """What is said of a number that is too long."""
    return f"a number of {len(digits):,} digits, and {LONGEST_NUMBER} are the most. Quote it if it is a text"
