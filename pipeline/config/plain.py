"""Convert typed configuration to plain data for workers and back, and check each value against its field.

This module does not import Hydra, which only composing a request needs: the import would take a sixth of a
worker's start.
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from functools import cache, lru_cache
from types import NoneType, UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from pipeline.config.schema import CHOICES, MISSING, PATH, RANGE, Range, StageConfig
from pipeline.config.user_code import ask, import_object
from pipeline.errors import ConfigError, without_advice

# -- filled in ---------------------------------------------------------------------------------------------------
# Convert plain values to settings: start from the defaults of a class, and convert each value to the type of its
# field.


_TRUTH = {"true": True, "yes": True, "on": True, "y": True, "false": False, "no": False, "off": False, "n": False}
Path = tuple[str, ...]
Refuse = Callable[[Path, Any, type[Any], Any], None]
"""Called for a value that is left out, with its path, the value, the settings class there, and the type of its
field, or None for an unknown field."""


def _raise(path: Path, _value: Any, schema: type[Any], hint: Any) -> None:
    problem = "of another type" if hint else f"{schema.__name__} has no such setting"
    raise (ValueError if hint else ConfigError)(f"{'.'.join(path)}: {problem}")


def filled(
    schema: type[Any],
    plain: Mapping[str, Any],
    path: Path = (),
    refuse: Refuse = _raise,
    sections: Mapping[str, Any] | None = None,
) -> Any:
    """Make an instance of a settings class.

    Args:
        schema: The class.
        plain: Plain values; whatever is absent keeps its default.
        path: Their path.
        refuse: Called for each invalid value; by default it raises.
        sections: Fields that are already settings.

    Raises:
        ConfigError: A field is unknown, or the `__post_init__` of a class failed.
        ValueError: A value is of another type than its field.
    """
    return _changed(deepcopy(_default(schema)), plain, path, refuse, sections)  # type: ignore[arg-type]  # classes are hashable


def _changed(
    settings: Any, plain: Mapping[str, Any], path: Path, refuse: Refuse, changes: Mapping[str, Any] | None = None
) -> Any:
    schema, values = type(settings), dict(changes or {})
    hints = hints_of(schema)  # type: ignore[arg-type]  # likewise
    for name, value in plain.items():
        where, hint = (*path, str(name)), hints.get(name)
        if hint is None or (refuse is not _raise and is_no_value(value, hint)):
            refuse(where, value, schema, hint)
            continue
        try:
            values[name] = _converted(value, hint, getattr(settings, name), where, refuse)
        except ValueError:
            refuse(where, value, schema, hint)
    if not values:
        return settings
    who = f"__post_init__() of {schema.__name__}"
    return ask(f"{'.'.join(path)}: {who}" if path else who, lambda: replace(settings, **values))


def is_no_value(value: object, hint: Any) -> bool:
    """Return whether a value is still missing, or is Python's `None` as text where null is meant."""
    if isinstance(value, list):
        return any(is_no_value(item, None) for item in value)
    return value == MISSING or (value == "None" and {str, NoneType} <= set(kinds_of(hint)))


def _converted(value: Any, hint: Any, default: Any, path: Path, refuse: Refuse) -> Any:
    """Convert a plain value to the type of a field; a table is merged into the default.

    Raises:
        ValueError: It has another type; texts are not converted from numbers, as `1.10` is read as 1.1.
    """
    kinds = kinds_of(hint)
    if isinstance(value, dict):
        if is_dataclass(default) and not isinstance(default, type):
            return _changed(deepcopy(default), value, path, refuse)
        if settings := next((kind for kind in kinds if is_dataclass(kind)), None):
            return filled(cast("type[Any]", settings), value, path, refuse)
    for kind in kinds:
        inside, before = (get_args(kind) or (Any,))[-1], default if isinstance(default, dict) else {}
        if isinstance(value, dict) and get_origin(kind) is dict:
            entries = {
                name: _converted(entry, inside, before.get(name), (*path, str(name)), refuse)
                for name, entry in value.items()
            }
            return {**before, **entries}
        if isinstance(value, list | tuple) and get_origin(kind) is list:
            *above, name = path
            return [
                _converted(item, inside, None, (*above, f"{name}[{at}]"), refuse) for at, item in enumerate(value)
            ]
        if kind is Any:
            if not isinstance(value, dict):
                return deepcopy(value)
            return _converted(value, dict[str, Any], before, path, refuse)
        if type(value) is kind:
            return value
    for kind in kinds:
        if kind is float and type(value) is int:
            with suppress(OverflowError):
                return float(value)
        if kind in (int, float) and isinstance(value, str):
            with suppress(ValueError):
                return kind(value)
        if kind is bool and isinstance(value, str) and value.lower() in _TRUTH:
            return _TRUTH[value.lower()]
        name = str(value).lower() if type(value) is bool else str(value)
        if isinstance(kind, type) and issubclass(kind, Enum) and name in kind.__members__:
            return kind[name]
    raise ValueError


def kinds_of(hint: Any) -> tuple[Any, ...]:
    """Return the types that a value may have."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


@cache
def hints_of(kind: type[Any]) -> dict[str, Any]:
    """Return the types of the fields of a settings class."""
    hints = get_type_hints(kind)
    return {item.name: hints[item.name] for item in fields(kind)}


@cache
def _default(schema: type[Any]) -> Any:
    return schema()


def default_values(schema: type[Any]) -> dict[str, Any]:
    """Return the plain default values of the fields of a class."""
    return to_plain(_default(schema))  # type: ignore[arg-type]  # classes are hashable


def to_plain(config: object) -> dict[str, Any]:
    """Convert a configuration dataclass to plain JSON data; enums become their names."""
    plain: dict[str, Any] = _plain(config, Any)
    return plain


def _plain(value: Any, hint: Any) -> Any:
    """Convert a value by the type of its field: an integer becomes a float if the field has floats."""
    if is_dataclass(value):
        hints = hints_of(type(value))  # type: ignore[arg-type]  # classes are hashable
        return {item.name: _plain(getattr(value, item.name), hints[item.name]) for item in fields(value)}
    if isinstance(value, Enum):
        return value.name
    kinds = kinds_of(hint)
    if isinstance(value, dict | list | tuple):
        inside = next((get_args(kind)[-1] for kind in kinds if get_args(kind)), Any)
        if isinstance(value, dict):
            return {name: _plain(entry, inside) for name, entry in value.items()}
        return [_plain(entry, inside) for entry in value]
    return float(value) if type(value) is int and float in kinds and int not in kinds else value


def stage_config_from_plain(plain: Mapping[str, Any]) -> StageConfig:
    """Rebuild the sections that a stage declared; reading any other one raises.

    Args:
        plain: Section name -> plain data. The sections ``algo``, ``dataset`` and ``model`` have the name of their
            schema under ``_schema_``.
    """
    config = StageConfig()
    for section in fields(StageConfig):
        if section.name in plain:
            data = dict(plain[section.name])
            schema = data.pop("_schema_", None)
            kind: Any = import_object(schema) if schema else type(getattr(config, section.name))
            made = deepcopy(_filled(kind, json.dumps(data)))  # a stage may change its settings
            setattr(config, section.name, made)
        else:
            delattr(config, section.name)
    return config


@lru_cache(maxsize=256)
def _filled(kind: type[Any], data: str) -> Any:
    """Convert a section, cached: the stages of a run share a few sections, and OmegaConf is slow."""
    return filled(kind, json.loads(data))


def with_schema(config: object) -> dict[str, Any]:
    """Convert a section to plain data with the path of its dataclass, ``module:Class``, under ``_schema_``."""
    return {"_schema_": f"{type(config).__module__}:{type(config).__qualname__}", **to_plain(config)}


# -- values ------------------------------------------------------------------------------------------------------
# Check every single value of a request against its field's declaration, and format the messages. Rules between
# fields are in `pipeline.config.checks`.


_LONGEST_TEXT = 100_000
_LONGEST_NAME = 255
_LONGEST_PATH = 3_000
"""Longest path in bytes; Linux allows 4,095, and paths of outputs are longer than the given folder."""
_SHOWN = 80
_MOST_BITS = 14_000
"""Bits of a whole number without a range: Python writes none of more than 4,300 digits."""


def value_problems(section: object) -> Iterator[str]:
    """Yield problems of single values, one message for each key; nested sections, lists and tables included.

    Args:
        section: A configuration dataclass.
    """
    refused: set[str] = set()
    for key, value, declared in _leaves(section, ""):
        owner = key.partition("[")[0]
        problem = None if owner in refused else _problem(value, declared)
        if problem is not None:
            refused.add(owner)
            yield f"{key}={brief(value)}: {problem}"


def held(value: object, key: str) -> Iterator[tuple[str, Any]]:
    """Yield the entries of settings, a list or a table, each with its key; nothing for a single value."""
    if is_dataclass(value):
        prefix = f"{key}." if key else ""
        yield from ((f"{prefix}{item.name}", getattr(value, item.name)) for item in fields(value))
    elif isinstance(value, Mapping):
        yield from ((f"{key}.{brief(name).strip(chr(39))}", entry) for name, entry in value.items())
    elif isinstance(value, (list, tuple)):
        yield from ((f"{key}[{index}]", entry) for index, entry in enumerate(value))


def value_at(settings: Any, key: str) -> Any:
    """Return the value of plain settings at a dotted key; None where there is none."""
    for part in key.split("."):
        settings = settings.get(part) if isinstance(settings, Mapping) else None
    return settings


def brief(value: object) -> str:
    """Format a value for a message: in one line, shortened."""
    try:
        text = repr(value) if isinstance(value, str) else str(value)
    except ValueError:  # Python refuses to print integers of thousands of digits
        return "(a huge number)"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text)} characters)"


def short(value: float) -> str:
    """Format a number in few digits if they are exact: ``0.1``, ``1e+06``, but ``0.10000001`` in full."""
    text = f"{value:g}"
    return text if float(text) == value else repr(value)


def nearest_choice(text: str, choices: Iterable[str]) -> str | None:
    """Return the choice that was probably meant, ignoring case, or None."""
    from difflib import get_close_matches  # not needed in workers

    by_lower = {choice.lower(): choice for choice in choices}
    near = get_close_matches(text.lower(), by_lower, n=1, cutoff=0.7)
    return by_lower[near[0]] if near else None


def _problem(value: object, declared: Mapping[str, Any]) -> str | None:
    allowed: Range | None = declared.get(RANGE)
    choices: Mapping[str, str] | None = declared.get(CHOICES)
    if isinstance(value, str):
        if allowed is not None and value not in allowed.words:
            kind = "a whole number, " if allowed.words else ""
            return f"must be {kind}{allowed}{_hint(value, allowed.words)}"
        if choices is not None and value not in choices:
            return f"must be {' or '.join(map(repr, choices))}{_hint(value, choices)}"
        return _text_problem(value) or (_path_problem(value) if declared.get(PATH) else None)
    if allowed is not None and isinstance(value, (int, float)) and not allowed.holds(value):
        return f"must be {allowed}" + (f". {allowed.advice}" if allowed.advice else "")
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        return "has too many digits"
    return None


def _hint(text: str, choices: Iterable[str]) -> str:
    near = nearest_choice(text, choices)
    return f". Did you mean '{near}'?" if near else ""


def _text_problem(text: str) -> str | None:
    if len(text) > _LONGEST_TEXT:
        return f"is too long, {_LONGEST_TEXT:,} characters are the most"
    if "\0" in text:
        return "holds a NUL character, which no path and no text may"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "is no valid text: it holds bytes that are not UTF-8"
    return None


def _path_problem(text: str) -> str | None:
    if not text:
        return "is empty; give the path of a file or folder"
    path = os.fsencode(text)
    if len(path) > _LONGEST_PATH or any(len(name) > _LONGEST_NAME for name in path.split(b"/")):
        return f"is too long for a path: {_LONGEST_NAME} bytes a name and {_LONGEST_PATH:,} in all are the most"
    return None


def _leaves(value: object, key: str, declared: Mapping[str, Any] | None = None) -> Iterator[tuple[str, Any, Any]]:
    """Yield key, value and declaration of everything except tables and lists; names in tables count as texts."""
    if is_dataclass(value):
        for item, (below, entry) in zip(fields(value), held(value, key), strict=True):
            yield from _leaves(entry, below, item.metadata)
    elif isinstance(value, (Mapping, list, tuple)):
        if isinstance(value, Mapping):
            yield from ((key, name, {}) for name in value)
        for below, entry in held(value, key):
            yield from _leaves(entry, below, declared)
    else:
        yield key, value, declared or {}


# -- told --------------------------------------------------------------------------------------------------------
# Formatting of messages about a request, without the libraries that read one: Hydra is slow to import.


_TOLD = 20
"""Most problems of one request to report."""


def refuse_all(problems: Sequence[str]) -> None:
    """Raise one error with all problems, if there are any.

    Raises:
        ConfigError: There are problems.
    """
    if len(problems) == 1:
        raise ConfigError(problems[0])
    if problems:
        more = [f"  ... and {len(problems) - _TOLD} more"] if len(problems) > _TOLD else []
        lines = [f"  - {problem}" for problem in problems[:_TOLD]]
        raise ConfigError("\n".join([f"{len(problems)} settings are wrong:", *lines, *more]))


def one_line(text: str) -> str:
    """Join the lines of a message, without parts that only help users of Hydra."""
    lines = (line.strip() for line in text.splitlines())
    noise = re.compile(r"(full_key|object_type|reference_type)[:=]|See https?:|Set HYDRA_FULL_ERROR")
    joined = " ".join(line for line in lines if line and not noise.match(line))
    return without_advice(joined).rstrip(".") + "."
