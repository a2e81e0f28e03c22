"""Bounds on YAML of others that are looked at before anything is made of it.

A few hundred bytes can stand for billions of values (anchors that repeat anchors), and readers take stack out of
proportion to what they are given.
"""

from __future__ import annotations

from typing import Any

import yaml

from pipeline.errors import ConfigError

LONGEST_OVERRIDE = 10_000
"""Characters of a setting on the command line that is looked at for what was meant."""
LARGEST_FILE = 1_000_000
"""Bytes of a YAML file."""
MOST_VALUES = 50_000
"""Values of a YAML file, those that aliases repeat counted each time."""
RESOLVED = 4
"""A configuration with all defaults, and the points of fronts written out, may have so many times of both."""
DEEPEST = 50
"""Tables and lists inside each other."""

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_resolved(data: bytes) -> Any:
    """Read the configuration that a run has left.

    Raises:
        ConfigError: It is out of bounds; says which.
        yaml.YAMLError: It is no YAML.
        ValueError: It is no text, or a value in it is none that YAML has.
    """
    check_yaml(data, RESOLVED * MOST_VALUES)
    return yaml.load(data, Loader=_LOADER)  # noqa: S506 - it is a safe one


def check_yaml(document: str | bytes, most: int = MOST_VALUES) -> None:
    """Refuse YAML that stands for too much without making it: an alias counts as all that its anchor has.

    Raises:
        ConfigError: Says which bound, without the name of a file.
        yaml.YAMLError: It is no YAML.
    """
    open_: list[tuple[str | None, int]] = []
    sizes: dict[str, int] = {}
    count = 0
    for event in yaml.parse(document, Loader=_LOADER):
        anchor = getattr(event, "anchor", None)
        if isinstance(event, yaml.AliasEvent):
            if anchor not in sizes and anchor in [name for name, _ in open_]:
                raise ConfigError(f"what the anchor &{anchor} names holds itself")
            count += sizes.get(anchor or "", 1)
        elif isinstance(event, yaml.NodeEvent):
            count += 1
            if isinstance(event, yaml.CollectionStartEvent):
                open_.append((anchor, count - 1))
            elif anchor:
                sizes[anchor] = 1
        elif isinstance(event, yaml.CollectionEndEvent):
            name, before = open_.pop()
            if name:
                sizes[name] = count - before
        if len(open_) > DEEPEST or count > most:
            raise ConfigError(
                f"more than {DEEPEST} tables and lists inside each other, or more than {most:,} values, what its "
                "aliases (*name) repeat counted each time"
            )
