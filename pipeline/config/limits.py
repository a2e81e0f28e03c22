"""Requests are looked at before Hydra reads them: command lines and files that it would never be done with.

What a request needs is far below every bound.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import fields, is_dataclass
from functools import cache, lru_cache
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

import yaml
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigLoadError, ConfigResult
from omegaconf import DictConfig, ListConfig, OmegaConf

from pipeline.config.bounds import DEEPEST, LONG_NUMBER, LONGEST_OVERRIDE, check_file, number_of
from pipeline.config.schema import Config
from pipeline.config.tables import TABLES, all_shipped
from pipeline.config.told import one_line, refuse_all
from pipeline.config.words import Declared, declared_in
from pipeline.errors import ConfigError

if TYPE_CHECKING:
    from hydra._internal.core_plugins.file_config_source import FileConfigSource


# -- file words --------------------------------------------------------------------------------------------------
# Texts in YAML files that YAML reads as something else: ``name: 1.10`` is the number 1.1, ``None`` a text.
# What was typed is lost once the file is read, so such a file is refused, with what to write.


_MAY_BE = re.compile(r"[:\[,-]\s+([-+.]?\d[\w.:+-]*|[A-Za-z]{2,5})\s*(?=[\s,\]}#]|$)", re.MULTILINE)
"""A value without quotes that may be a number, a truth value or None."""
_WORDS = {"on", "off", "yes", "no", "true", "false", "none"}
_FREE = {"hydra"}


def check_texts(text: str, path: Path) -> None:
    """Refuse a file whose texts YAML reads as numbers or truth values, or that says None for nothing.

    Raises:
        ConfigError: Names each line, and what to write.
    """
    found = (each[1] for each in _MAY_BE.finditer(text))
    if any(word.lower() in _WORDS or not word.isalpha() for word in found):
        refuse_all([f"{path}: {problem}" for problem in _problems(yaml.compose(text, yaml.SafeLoader), "", None)])


def _problems(node: Any, key: str, about: Declared | None) -> Iterator[str]:
    match node:
        case yaml.MappingNode():
            for name, value in node.value:
                # What stands inside a table of texts is one whatever it is called.
                known = _by_last_part().get(str(name.value)) if about is None else about
                if name.value not in _FREE and (known is None or not known.free):
                    yield from _problems(value, str(name.value), known)
        case yaml.SequenceNode() if about is not None:
            for value in node.value:
                yield from _problems(value, key, about)
        case yaml.ScalarNode() if about is not None and node.style is None:
            yield from _scalar(node, key, about)


def _scalar(node: yaml.ScalarNode, key: str, about: Declared) -> Iterator[str]:
    line, typed = node.start_mark.line + 1, node.value
    if typed == "None" and about.optional:
        quoted = ", or 'None' in quotes for the text" if about.text else ""
        yield f"line {line}: {key}: None is a text in YAML: write null for nothing{quoted}"
    elif about.text:
        plain: Any = OmegaConf.to_container(OmegaConf.load(StringIO(f"value: {typed}")))
        read = plain["value"]
        if read is not None and not isinstance(read, str) and str(read) != typed:
            yield f"line {line}: {key}: {typed} is read as {read}: for the text write it in quotes, '{typed}'"


@cache
def _by_last_part() -> dict[str, Declared]:
    """What is declared of a key by its last part, where all keys that end so are alike in it."""
    schemas: list[Any] = [Config, *(schema for table in TABLES for schema in all_shipped(table).values())]
    found: dict[str, Declared | None] = {}
    while schemas:
        schema = schemas.pop()
        for each in fields(schema):
            if schema is Config and each.name in TABLES:
                continue
            inside = get_type_hints(schema)[each.name]
            about = declared_in(schema, each.name)
            if is_dataclass(inside):
                schemas.append(inside)
            elif about is not None and about.alike(found.setdefault(each.name, about)):
                continue
            found[each.name] = None
    return {name: about for name, about in found.items() if about is not None}


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
