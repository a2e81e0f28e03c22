"""The words of a command line that are no settings: Hydra's flags, read before it sees them.

Settings are written KEY=VALUE. Who writes ``--seed 3`` has in mind a key, and who writes ``--num-gpu 2`` a flag.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from difflib import get_close_matches
from typing import NoReturn

from pipeline.config.explain import advice_on, known_keys, nearest_key
from pipeline.errors import ConfigError

_ASKED = ("--help", "--hydra-help", "--version", "--resolve", "--run", "--multirun", "--shell-completion")
_VALUED = ("--cfg", "--package", "--config-path", "--config-name", "--config-dir", "--experimental-rerun")
_SHORT = {"--help": ("-h",), "--run": ("-r",), "--multirun": ("-m",), "--cfg": ("-c",), "--package": ("-p",)}
_SHORT |= {"--config-path": ("-cp",), "--config-name": ("-cn",), "--config-dir": ("-cd",)}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}. Settings are written KEY=VALUE")


def read_flags(arguments: Sequence[str], own: Sequence[str] = ()) -> argparse.Namespace:
    """Hydra's flags of a command line, and its settings as `overrides`.

    Args:
        arguments: A command line without the flags of this package.
        own: Names of those flags, to be suggested.

    Raises:
        ConfigError: A flag is unknown; names what was probably meant.
    """
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("overrides", nargs="*")
    for flag in _ASKED:
        parser.add_argument(flag, *_SHORT.get(flag, ()), action="store_true")
    for flag in _VALUED:
        parser.add_argument(
            flag, *_SHORT.get(flag, ()), choices=("job", "hydra", "all") if flag == "--cfg" else None
        )
    parser.add_argument("--info", "-i", nargs="?", const="all")
    asked, unknown = parser.parse_known_intermixed_args(list(arguments))
    if wrong := [word.partition("=")[0] for word in unknown if word.startswith("-")]:
        flag = wrong[0]
        names = [*own, *_ASKED, *_VALUED]
        near = [each for each in own if each.startswith(f"{flag}-")] or get_close_matches(flag, names, 1, 0.8)
        word = flag.strip("-").replace("-", "_")
        key = nearest_key(word, known_keys())
        meant = (
            f"Did you mean {near[0] if near else f'{key}=...'}?"
            if near or key
            else f"Flags are {', '.join(names)}"
        )
        raise ConfigError(f"unknown flag {flag}. Settings are written KEY=VALUE. {advice_on(word) or meant}")
    return asked


def for_hydra(asked: argparse.Namespace, settings: Sequence[str]) -> list[str]:
    """The command line that Hydra is given: all settings together, as it takes none on both sides of a flag.

    ``--cfg job`` prints the values that a run would have, and no expressions.
    """
    flags = [flag for flag in _ASKED if getattr(asked, flag[2:].replace("-", "_"))]
    for flag in (*_VALUED, "--info"):
        value = getattr(asked, flag[2:].replace("-", "_"))
        flags += [] if value is None else [flag, value]
    resolved = ["--resolve"] if asked.cfg == "job" and not asked.resolve else []
    return [*settings, *flags, *resolved]
