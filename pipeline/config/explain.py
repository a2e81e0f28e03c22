"""Which keys and flags there are, and what is said of a request that cannot be: one line with what is allowed."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from typing import Any, NoReturn

import yaml
from hydra.errors import HydraException, MissingConfigException
from omegaconf.errors import OmegaConfBaseException

from pipeline.config.schema import Config
from pipeline.config.tables import TABLES, all_shipped, conf_dir
from pipeline.config.user_code import import_object
from pipeline.config.values import one_line
from pipeline.errors import ConfigError, unknown_name

COMPOSITION_ERRORS = (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError, OSError, RecursionError)
"""What composing a configuration raises of what a user wrote."""
_LONGEST = 1500
"""Characters of a message, so that a setting of thousands does not bury what is said of it."""

GROUPS = {name: table.group for name, table in TABLES.items() if table.group != name}
"""Tables of settings whose entries are chosen by a group of another name."""

_OTHER_NAMES = {
    "deepspeed": "training.strategy",
    "eval_steps": "rounds_of_training",
    "file": "path",
    "filename": "path",
    "kl_coef": "algos.<NAME>.beta",
    "lora_alpha": "alpha",
    "lora_r": "rank",
    "lr": "learning_rate",
    "max_prompt_length": "generation.long_prompts",
    "model_name_or_path": "models.hf.path",
    "r": "rank",
    "ref_model": "reference",
    "reward_funcs": "rewards",
    "trackers": "tracking.report_to",
    "train_dataset": "datasets.hf.path",
    "warmup_ratio": "training.warmup_steps",
}
"""What other programs call a setting, besides the arguments of TRL's configurations: its key, or the end of it."""


def known_keys() -> list[str]:
    """Every key that may be set with what ships, dotted."""
    sections = {f"{table}.{name}": schema for table in TABLES for name, schema in all_shipped(table).items()}
    return [*keys_of(Config), *(key for prefix, schema in sections.items() for key in keys_of(schema, prefix))]


def keys_of(schema: type[Any], prefix: str = "") -> list[str]:
    """The keys of a class of settings, those of settings inside it included."""
    return list(_leaves(schema(), f"{prefix}." if prefix else ""))


def _leaves(settings: Any, prefix: str) -> Iterable[str]:
    for item in fields(settings):
        value = getattr(settings, item.name)
        yield from _leaves(value, f"{prefix}{item.name}.") if is_dataclass(value) else [prefix + item.name]


def other_names(name: str, algo: str = "") -> list[str]:
    """Name the keys, or their ends, that another program calls so, of an algorithm; the name where none does."""
    keys_of = import_object("pipeline.learning.from_trl.keys_of")  # seldom needed
    found = [_OTHER_NAMES[name]] if name in _OTHER_NAMES else list(map(str, keys_of(name, algo)))
    return [name] if not found or name in (each.rpartition(".")[2] for each in found) else found


def nearest_keys(key: str, known: Iterable[str]) -> list[str]:
    """Name what was probably meant: a key of the same section, else those that end alike, else the most alike."""
    keys = dict.fromkeys(known)
    section, _, last = key.rpartition(".")
    names = other_names(last, section.removeprefix("algos."))
    if all(name in keys or "<NAME>" in name for name in names):
        return names
    name = names[0]
    prefix = f"{section}." if section else ""
    inside = {each[len(prefix) :] for each in keys if each.startswith(prefix)}
    inside = {each for each in inside if "." not in each}
    elsewhere = not section and any(each.endswith(f".{name}") for each in keys)
    if near := [name] if name in inside else [] if elsewhere else _alike(name, inside):
        return [prefix + near[0]]
    table = key.partition(".")[0]
    general = dict.fromkeys(
        re.sub(r"^(\w+)\.[^.]+", r"\1.<NAME>", each) if each.partition(".")[0] in {*TABLES} - {table} else each
        for each in sorted(keys, key=lambda one: (not one.endswith(f".{name}"), one.count(".")))
    )
    ends = [each for each in general if each.endswith((f".{prefix}{name}", f".{prefix}{name}s"))]
    ends = ends or [each for each in general if each.endswith((f".{name}", f".{name}s"))]
    ends = ends or [each for each in general if section and each.startswith(section) and each.endswith(f"_{name}")]
    if ends and section:  # of a section that is misspelt, or of another one
        return get_close_matches(key, ends, n=1, cutoff=0.7) or ends[:1]
    by_name = {each.rpartition(".")[2]: each for each in reversed(general)}
    if ends or (section and inside):
        return ends[:3]
    words = sorted(re.split(r"[._]", key))
    turned = [by_name[each] for each in by_name if sorted(each.split("_")) == words]  # gpus.num
    near = turned or get_close_matches(key, general, n=1, cutoff=0.7)
    return near[:1] or [by_name[each] for each in _alike(name, by_name)]


def _alike(name: str, names: Iterable[str]) -> list[str]:
    found = get_close_matches(name, names, n=1, cutoff=0.7)
    return found or [each for each in sorted(names) if each.startswith(f"{name}_")][:1]


def did_you_mean(key: str, known: Iterable[str], ending: str = "") -> str:
    """Word what follows a key that there is not, or flag: what was probably meant; "" where nothing is near."""
    near = " or ".join(f"{each}{ending}" if ending else f"'{each}'" for each in nearest_keys(key, known))
    return f" Did you mean {near}?" if near else ""


def unknown_key(key: str, known: Iterable[str] = ()) -> str:
    """Word the message for a key that there is not: the one that was meant, and which there are.

    Args:
        key: What was typed.
        known: The keys of the request; those of what ships are known besides.
    """
    keys = list(dict.fromkeys([*known, *known_keys()]))
    section = key.rpartition(".")[0]
    while section and not any(each.startswith(f"{section}.") for each in keys):
        section = section.rpartition(".")[0]
    inside = [each.removeprefix(f"{section}.") for each in keys if not section or each.startswith(f"{section}.")]
    listed = ", ".join(dict.fromkeys(each.partition(".")[0] for each in inside))
    return f"unknown key '{key}'.{did_you_mean(key, keys)} Known{f' in {section}' if section else ''}: {listed}."


def explain(error: Exception) -> ConfigError:
    """Say in one message what is wrong with what the user wrote, and what to try."""
    if isinstance(error, ConfigError):
        return error
    said = _explanation(error)
    return ConfigError(said if len(said) <= _LONGEST else f"{said[: _LONGEST // 2]} ... {said[-_LONGEST // 2 :]}")


def _explanation(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "the configuration is nested too deeply, or refers to itself (${...})"
    if isinstance(error, MissingConfigException) and "/" in (error.missing_cfg_file or ""):
        group, _, choice = (error.missing_cfg_file or "").rpartition(
            "/"
        )  # of one in a list Hydra gives no options
        shipped = [file.stem for file in (conf_dir() / group).glob("*.yaml")]
        return unknown_choice(group, choice, error.options or shipped)
    key = getattr(error, "full_key", "") or ""
    cause = error.__cause__
    said = one_line(f"{error}: {cause}" if cause is not None and str(cause) not in str(error) else str(error))
    if name := re.search(r"Interpolation key '(.*)' not found", said):
        return f"{key}: refers to ${{{name[1]}}}, and nothing sets '{name[1]}'"
    if not isinstance(error, COMPOSITION_ERRORS):
        said = f"this configuration cannot be composed ({type(error).__name__}: {said})"
    return f"{key}: {said}" if key else said


def unknown_choice(group: str, name: str, options: Iterable[str]) -> str:
    """What to say of a file that a group does not have."""
    said = unknown_name({"algos": "algorithm"}.get(group, group), name, options)
    said += f" (files in {group}/ of conf/ and of --config-dir)"
    own: Mapping[str, str] = {
        "algos": f" To add your own write algos.{name}.class_path=my_module.MyAlgorithm, and leave it out here.",
        "model": f" For a folder or an id of the hub: model=hf models.hf.path={name}",
    }
    return said + own.get(group, "")


# -- arguments ---------------------------------------------------------------------------------------------------
# The words of a command line that are no settings: Hydra's flags, read before it sees them. Settings are
# written KEY=VALUE. Who writes ``--seed 3`` has in mind a key, and who writes ``--num-gpu 2`` a flag.


_ASKED = {"--help": "-h", "--hydra-help": "", "--version": "", "--resolve": "", "--run": "-r", "--multirun": "-m"}
_ASKED |= {"--shell-completion": "-sc"}
_VALUED = {"--cfg": "-c", "--package": "-p", "--config-path": "-cp", "--config-name": "-cn", "--config-dir": "-cd"}
_VALUED |= {"--experimental-rerun": ""}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}. Settings are written KEY=VALUE")


def read_flags(arguments: Sequence[str], own: Sequence[str] = ()) -> argparse.Namespace:
    """Read Hydra's flags of a command line, and its settings as `overrides`.

    Args:
        arguments: A command line without the flags of this package.
        own: Names of those flags, to be suggested.

    Raises:
        ConfigError: A flag is unknown; names what was probably meant.
    """
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("overrides", nargs="*")
    for flag, short in _ASKED.items():
        parser.add_argument(flag, *filter(None, [short]), action="store_true")
    for flag, short in _VALUED.items():
        choices = ("job", "hydra", "all") if flag == "--cfg" else None
        parser.add_argument(flag, *filter(None, [short]), choices=choices)
    parser.add_argument("--info", "-i", nargs="?", const="all")
    asked, unknown = parser.parse_known_intermixed_args(list(arguments))
    if wrong := [word.partition("=")[0] for word in unknown if word.startswith("-")]:
        flag, names = wrong[0], [*own, *_ASKED, *_VALUED]
        near = [each for each in own if each.startswith(f"{flag}-")] or get_close_matches(flag, names, 1, 0.8)
        meant = f" Did you mean {near[0]}?" if near else ""
        meant = meant or did_you_mean(flag.strip("-").replace("-", "_"), known_keys(), "=...")
        listed = meant or f" Flags are {', '.join(names)}"
        raise ConfigError(f"unknown flag {flag}. Settings are written KEY=VALUE.{listed}")
    return asked


def for_hydra(asked: argparse.Namespace, settings: Sequence[str]) -> list[str]:
    """Order a command line as Hydra takes it: all settings together, as it takes none on both sides of a flag.

    ``--cfg job`` prints the values that a run would have, and no expressions.
    """
    given = {flag: getattr(asked, flag[2:].replace("-", "_")) for flag in (*_ASKED, *_VALUED, "--info")}
    flags = [
        word for flag, value in given.items() if value for word in ([flag] if value is True else [flag, value])
    ]
    return [*settings, *flags, *(["--resolve"] if asked.cfg == "job" and not asked.resolve else [])]
