"""Requests are looked at before Hydra reads them: command lines and files that it would never be done with.

What a request needs is far below every bound.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from copy import deepcopy
from functools import lru_cache
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigLoadError, ConfigResult
from omegaconf import DictConfig, ListConfig, OmegaConf

from pipeline.config.bounds import DEEPEST, LONG_NUMBER, LONGEST_OVERRIDE, check_file, number_of
from pipeline.config.file_words import check_texts
from pipeline.config.told import one_line
from pipeline.errors import ConfigError

if TYPE_CHECKING:
    from hydra._internal.core_plugins.file_config_source import FileConfigSource

LONGEST_COMMAND_LINE = 100_000
MOST_DEFAULTS = 200
"""Files that the `defaults` of one file name; Hydra takes time with the square of them."""


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
        if long := LONG_NUMBER.search(override.partition("=")[2]):
            raise ConfigError(f"{key}=...: {number_of(long[0])}")
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
        ConfigError: It is no YAML, too large, too deep, or repeats itself without end.
    """
    path = Path(os.path.realpath(Path(source.path) / source._normalize_file_name(config_path)))
    if not path.exists():
        raise ConfigLoadError(f"Config not found : {path}")
    try:
        check_file(path)
        text = path.read_text(encoding="utf-8-sig")
        config = deepcopy(_parsed(text))
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        said = re.sub(r' in "[^"]*", (?=line )', " at ", one_line(str(error)))  # which may name `<file>`
        raise ConfigError(f"{path}: not valid YAML: {said}") from error
    check_texts(text, path)
    named = config.get("defaults") if isinstance(config, DictConfig) else None
    if isinstance(named, ListConfig) and len(named) > MOST_DEFAULTS:
        raise ConfigError(f"{path}: {len(named):,} entries of `defaults`, and {MOST_DEFAULTS} are the most")
    return ConfigResult(
        config=config,
        path=f"{source.scheme()}://{source.path}",
        provider=source.provider,
        header=source._get_header_dict(text[:_HEADER]),
    )


@lru_cache(maxsize=128)
def _parsed(text: str) -> DictConfig | ListConfig:
    """What YAML says, kept, since each run of a sweep is composed of the same files; copying it takes a third."""
    return OmegaConf.load(StringIO(text))


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
_IN_A_FILE = "Put them in a YAML file, as docs/extending.md shows."
