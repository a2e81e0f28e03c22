"""Bounds on what is read before it is understood: command lines and YAML files that would never be done with.

A few hundred bytes of YAML can stand for billions of values (anchors that repeat anchors), and both readers take
time or stack out of proportion to what they are given. What a request needs is far below every bound.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import yaml
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult, ConfigSource

from pipeline.errors import ConfigError

LARGEST_FILE = 1_000_000
"""Bytes of a YAML file."""
MOST_VALUES = 50_000
"""Values of a YAML file, those that aliases repeat counted each time."""
DEEPEST = 50
"""Tables and lists inside each other."""
LONGEST_OVERRIDE = 10_000
"""Characters of one setting on the command line."""
LONGEST_COMMAND_LINE = 100_000

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def check_overrides(overrides: Sequence[str]) -> None:
    """Refuse settings on the command line that would take the reader for ever.

    Raises:
        ConfigError: Says which one, and where long settings belong.
    """
    for override in overrides:
        key = override.partition("=")[0][:_SHOWN]
        if len(override) > LONGEST_OVERRIDE:
            raise ConfigError(
                f"{key}=...: {len(override):,} characters, and a setting on the command line has "
                f"{LONGEST_OVERRIDE:,} at most. {_IN_A_FILE}"
            )
        if _depth(override) > DEEPEST:
            raise ConfigError(f"{key}=...: brackets inside each other more than {DEEPEST} deep")
    if sum(map(len, overrides)) > LONGEST_COMMAND_LINE:
        raise ConfigError(f"the settings have more than {LONGEST_COMMAND_LINE:,} characters in all. {_IN_A_FILE}")


def bound_files() -> None:
    """Have Hydra look at YAML files before it reads them, those of `hydra.searchpath` and ``--config-dir`` too.

    Its own class is changed in place: launchers send what is registered to other processes, where Hydra registers
    its own once more and accepts no other.
    """
    Plugins.instance()  # registers it
    source = SourcesRegistry.instance().types["file"]
    if not hasattr(source, _LOOKS):
        setattr(source, _LOOKS, True)
        setattr(source, "available", _available(source.available))  # noqa: B010 - the type checker knows no change
        setattr(source, "load_config", _load_config(source.load_config))  # noqa: B010


_LOOKS = "looks_at_files_first"


def _available(hydras: Callable[[ConfigSource], bool]) -> Callable[[ConfigSource], bool]:
    def available(source: ConfigSource) -> bool:
        """Whether the folder is there; Hydra would go on without one that a user names in vain.

        Raises:
            ConfigError: It is not.
        """
        if not hydras(source):
            raise ConfigError(f"there is no folder {source.path} ({source.provider})")
        return True

    return available


def _load_config(
    hydras: Callable[[ConfigSource, str], ConfigResult],
) -> Callable[[ConfigSource, str], ConfigResult]:
    def load_config(source: ConfigSource, config_path: str) -> ConfigResult:
        """Read one file.

        Raises:
            ConfigError: It is too large, too deep, or repeats itself without end.
        """
        path = Path(os.path.realpath(Path(source.path) / source._normalize_file_name(config_path)))
        if path.is_file():
            check_file(path)
        return hydras(source, config_path)

    return load_config


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
            _check_events(yaml.parse(file, Loader=_LOADER))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _check_events(events: Iterable[yaml.Event]) -> None:
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
            if anchor:
                sizes[anchor] = 1
        elif isinstance(event, yaml.CollectionEndEvent):
            name, before = open_.pop()
            if name:
                sizes[name] = count - before
        if len(open_) > DEEPEST:
            raise ConfigError(f"tables and lists inside each other more than {DEEPEST} deep")
        if count > MOST_VALUES:
            raise ConfigError(
                f"more than {MOST_VALUES:,} values, what its aliases (*name) repeat counted each time"
            )


def _depth(text: str) -> int:
    deepest = depth = 0
    for character in text:
        if character in "[{(":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "]})":
            depth = max(0, depth - 1)
    return deepest


_SHOWN = 80
_IN_A_FILE = "Put them in a YAML file, as docs/extending.md shows."
