"""Words of a command line that are neither settings nor flags: what was probably meant, instead of a usage text.

Settings are written KEY=VALUE. Who writes ``--seed 3`` has in mind a key, and who writes ``--num-gpu 2`` a flag.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from typing import Any, NoReturn

from hydra._internal.utils import get_args_parser

from pipeline.config.load import known_keys
from pipeline.config.schema import Config
from pipeline.errors import ConfigError

_TABLES = ("algos", "datasets", "models")


def check_flags(arguments: Sequence[str], own: Sequence[str] = ()) -> None:
    """Refuse a flag that neither Hydra nor this package knows.

    Args:
        arguments: A command line without the flags of this package.
        own: Names of those flags, to be suggested.

    Raises:
        ConfigError: Names the flag and what was probably meant.
    """
    parser = get_args_parser()
    parser.error = _refuse  # type: ignore[method-assign]  # it would print a usage text and exit
    try:
        # Abbreviations are left to Hydra, which knows them too. What only prints is asked for by its whole name.
        unknown = parser.parse_known_args([word for word in arguments if word != "--version"])[1]
    except argparse.ArgumentError as error:
        raise ConfigError(str(error)) from error
    flag = next((word for word in unknown if word.startswith("-")), None)
    if flag is not None:
        raise ConfigError(f"unknown flag {flag}. {_meant(flag, _values(flag, arguments), own)}")


def _refuse(message: str) -> NoReturn:
    raise ConfigError(f"{message}. Settings are written KEY=VALUE")


def _values(flag: str, arguments: Sequence[str]) -> list[str]:
    """What follows a flag up to the next flag or setting."""
    _, equals, value = flag.partition("=")
    if equals:
        return [value]
    values: list[str] = []
    for word in arguments[list(arguments).index(flag) + 1 :]:
        if word.startswith("--") or "=" in word:
            break
        values.append(word)
    return values


def _meant(flag: str, values: Sequence[str], flags: Sequence[str]) -> str:
    name = flag.partition("=")[0]
    known = [*flags, *re.findall(r"--[a-z-]+", get_args_parser().format_usage())]
    if near := [each for each in flags if each.startswith(f"{name}-")] or get_close_matches(name, known, 1, 0.8):
        return f"Did you mean {' '.join([near[0], *values])}?"
    setting = _nearest(name.lstrip("-").replace("-", "_"))
    if setting is None:
        return f"Settings are written KEY=VALUE; flags are {', '.join(flags)}, and those of --hydra-help"
    key, default = setting
    return f"Settings are written KEY=VALUE. Did you mean {key}={_value(values, default)}?"


def _value(values: Sequence[str], default: Any) -> str:
    if isinstance(default, list):
        return f"[{','.join(values)}]" if values else "[...]"
    if not values:
        return str(not default).lower() if isinstance(default, bool) else "..."
    return values[0]


def _nearest(name: str) -> tuple[str, Any] | None:
    """The key whose last part, or whole, resembles a name most, and its default if that is known."""
    keys: dict[str, Any] = dict(_settings(Config(), ""))
    near = _nearest_of(name, list(keys))
    if near is None:
        parts = [key.split(".", 2) for key in known_keys() if key.startswith(_TABLES)]
        near = _nearest_of(name, [f"{each[0]}.<NAME>.{each[2]}" for each in parts if len(each) == 3])
    return None if near is None else (near, keys.get(near))


def _nearest_of(name: str, keys: Sequence[str]) -> str | None:
    by_leaf: dict[str, str] = {}
    for key in keys:
        by_leaf.setdefault(key.rpartition(".")[2], key)
    whole = {key.replace(".", "_"): key for key in keys}
    found = (
        [leaf for leaf in (name, f"{name}s") if leaf in by_leaf]
        or [leaf for leaf in by_leaf if leaf.startswith(f"{name}_")]
        or get_close_matches(name, [*by_leaf, *whole], 1, 0.7)
    )
    return (by_leaf.get(found[0]) or whole[found[0]]) if found else None


def _settings(section: Any, prefix: str) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for item in fields(section):
        value = getattr(section, item.name)
        if is_dataclass(value):
            found += _settings(value, f"{prefix}{item.name}.")
        elif prefix or item.name not in _TABLES:
            found.append((prefix + item.name, value))
    return found
