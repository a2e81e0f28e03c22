"""Bounds on what is read before it is understood: command lines and YAML files that would never be done with.

A few hundred bytes of YAML can stand for billions of values (anchors that repeat anchors), and both readers take
time or stack out of proportion to what they are given. What a request needs is far below every bound.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigLoadError, ConfigResult
from omegaconf import DictConfig, ListConfig, OmegaConf

from pipeline.errors import ConfigError

if TYPE_CHECKING:
    from hydra._internal.core_plugins.file_config_source import FileConfigSource

LARGEST_FILE = 1_000_000
"""Bytes of a YAML file."""
MOST_VALUES = 50_000
"""Values of a YAML file, those that aliases repeat counted each time."""
DEEPEST = 50
"""Tables and lists inside each other."""
LONGEST_OVERRIDE = 10_000
"""Characters of one setting on the command line."""
LONGEST_COMMAND_LINE = 100_000
LONGEST_NUMBER = 300
"""Digits; Python reads no integer of thousands of them."""
MOST_DEFAULTS = 200
"""Files that the `defaults` of one file name; Hydra takes time with the square of them."""

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
        if long := _LONG_NUMBER.search(override.partition("=")[2]):
            raise ConfigError(f"{key}=...: {_number_of(long[0])}")
        if _depth(override) > DEEPEST:
            raise ConfigError(f"{key}=...: brackets inside each other more than {DEEPEST} deep")
    if sum(map(len, overrides)) > LONGEST_COMMAND_LINE:
        raise ConfigError(f"the settings have more than {LONGEST_COMMAND_LINE:,} characters in all. {_IN_A_FILE}")


def bound_files() -> None:
    """Have Hydra look at YAML files before it reads them, those of `hydra.searchpath` and ``--config-dir`` too.

    Its own class is changed in place: launchers send what is registered to other processes, where Hydra registers
    its own once more and accepts no other.
    """
    Plugins.instance()  # which runs the modules of all plugins again: before, their classes are others
    from hydra._internal.core_plugins.file_config_source import FileConfigSource

    setattr(FileConfigSource, "available", _available)  # noqa: B010 - the type checker knows no change in place
    setattr(FileConfigSource, "load_config", _load_config)  # noqa: B010


def _available(source: FileConfigSource) -> bool:
    """Whether the folder is there; Hydra would go on without one that a user names in vain.

    Raises:
        ConfigError: It is not.
    """
    if not source.is_group(""):
        raise ConfigError(f"there is no folder {source.path} ({source.provider})")
    return True


def _load_config(source: FileConfigSource, config_path: str) -> ConfigResult:
    """Read one file, as Hydra does, but for a mark at its beginning that some editors write (BOM).

    Raises:
        ConfigError: It is too large, too deep, or repeats itself without end.
    """
    path = Path(os.path.realpath(Path(source.path) / source._normalize_file_name(config_path)))
    if not path.exists():
        raise ConfigLoadError(f"Config not found : {path}")
    check_file(path)
    text = path.read_text(encoding="utf-8-sig")
    config = OmegaConf.load(StringIO(text))
    named = config.get("defaults") if isinstance(config, DictConfig) else None
    if isinstance(named, ListConfig) and len(named) > MOST_DEFAULTS:
        raise ConfigError(f"{path}: {len(named):,} entries of `defaults`, and {MOST_DEFAULTS} are the most")
    return ConfigResult(
        config=config,
        path=f"{source.scheme()}://{source.path}",
        provider=source.provider,
        header=source._get_header_dict(text[:_HEADER]),
    )


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
            if event.implicit[0] and _LONG_NUMBER.fullmatch(event.value.lstrip("+-")):
                place = "" if event.start_mark is None else f"line {event.start_mark.line + 1}: "
                raise ConfigError(f"{place}{_number_of(event.value)}")
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


def _number_of(digits: str) -> str:
    return f"a number of {len(digits):,} digits, and {LONGEST_NUMBER} are the most. Quote it if it is a text"


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
_HEADER = 512
"""Characters in which `# @package ...` is looked for."""
_LONG_NUMBER = re.compile(rf"(?<![\w'\"])[0-9_]{{{LONGEST_NUMBER + 1},}}(?![\w'\"])")
_IN_A_FILE = "Put them in a YAML file, as docs/extending.md shows."
