"""Words of a command line that are neither settings nor flags: what was probably meant, instead of a usage text.

Settings are written KEY=VALUE. Who writes ``--seed 3`` has in mind a key, and who writes ``--num-gpu 2`` a flag.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import NoReturn

from hydra._internal.utils import get_args_parser

from pipeline.config.known import advice_on, nearest_setting
from pipeline.errors import ConfigError


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


def settings_first(arguments: Sequence[str]) -> list[str]:
    """Bring all settings together, since Hydra takes none on both sides of a flag; their order stays.

    They go before the flags: one that may take a value would take the setting after it.

    Args:
        arguments: A command line that `check_flags` has passed.
    """
    settings = list(get_args_parser().parse_known_intermixed_args(list(arguments))[0].overrides)
    first, flags = list(settings), []
    for word in arguments:
        if settings and word == settings[0]:
            settings.pop(0)
        else:
            flags.append(word)
    return [*first, *flags]


def with_values(arguments: Sequence[str]) -> list[str]:
    """Have ``--cfg job`` print the values that a run would have, and no expressions.

    Args:
        arguments: A command line that `check_flags` has passed.
    """
    asked = get_args_parser().parse_known_intermixed_args(list(arguments))[0]
    return [*arguments, *(["--resolve"] if asked.cfg == "job" and not asked.resolve else [])]


def config_dir_of(arguments: Sequence[str]) -> str | None:
    """The folder of groups of the user's own that a command line names, or None; it has passed `check_flags`."""
    folder: str | None = get_args_parser().parse_known_intermixed_args(list(arguments))[0].config_dir
    return folder


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
    word = name.lstrip("-").replace("-", "_")
    if advice := advice_on(word, " ".join(values)):
        return f"Settings are written KEY=VALUE. {advice}".removesuffix(".")
    setting = nearest_setting(word, values)
    if setting is None:
        return f"Settings are written KEY=VALUE; flags are {', '.join(flags)}, and those of --hydra-help"
    return f"Settings are written KEY=VALUE. Did you mean {setting}?"
