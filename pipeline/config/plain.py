"""Typed configuration as plain data, which workers receive, and a stage's part of it back.

Free of Hydra: only who composes a request needs it, and its import would be a sixth of a worker's start.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import suppress
from copy import deepcopy
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache, lru_cache
from types import UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline.config.schema import StageConfig
from pipeline.config.user_code import ask, import_object
from pipeline.errors import PipelineError

# -- declared ----------------------------------------------------------------------------------------------------
# What settings classes declare, read once: OmegaConf takes long to take a class apart and to check a value.


def declared(schema: type[Any]) -> DictConfig:
    """The fields of a class with their types and defaults, to be copied before they are changed."""
    if schema not in _DECLARED:
        _DECLARED[schema] = cast("DictConfig", OmegaConf.structured(schema))
    return _DECLARED[schema]


def filled(schema: type[Any], tables: Mapping[str, Mapping[str, type[Any]]], plain: Mapping[str, Any]) -> Any:
    """An instance of a settings class.

    Args:
        schema: The class.
        tables: For each field of the class that is a table of sections, the class of every section.
        plain: Plain values, those of the sections included; whatever is absent keeps its default.

    Raises:
        omegaconf.errors.OmegaConfBaseException: A field is unknown, or its value of another type.
        ConfigError: The `__post_init__` of a class failed.
    """
    node = deepcopy(declared(schema))
    defaults = dict(default_values(schema))
    for table, sections in tables.items():
        defaults[table] = {name: default_values(section) for name, section in sections.items()}
    beyond = _beyond(defaults, plain)
    untouched: dict[str, dict[str, Any]] = {}
    for table, sections in tables.items():
        given = beyond.get(table, {})
        untouched[table] = {}
        for name, section in sections.items():
            instance = _untouched(section) if isinstance(given, dict) and name not in given else None
            if instance is None:
                node[table][name] = declared(section)
            else:
                untouched[table][name] = instance
    made = _object(OmegaConf.unsafe_merge(node, beyond))
    for table, there in untouched.items():
        if there:
            rest = getattr(made, table)
            setattr(
                made, table, {name: rest[name] if name in rest else there[name] for name in tables[table]} | rest
            )
    return made


def _untouched(section: type[Any]) -> Any:
    """An instance of a settings class as it is without any value, or `None` where it cannot be without.

    Most sections of a request are that, and OmegaConf takes long to fill each in.
    """
    try:
        if section not in _UNTOUCHED:
            _UNTOUCHED[section] = OmegaConf.to_object(declared(section))
        return deepcopy(_UNTOUCHED[section])
    except Exception:  # told with its key, by what fills it in
        return None


def _object(node: Any, key: str = "") -> Any:
    """The instances that settings stand for; where the code of a class fails, says which settings it was given."""
    try:
        return OmegaConf.to_object(node)
    except (OmegaConfBaseException, PipelineError):
        raise
    except Exception:
        names: Iterable[Any] = node if isinstance(node, DictConfig) else range(len(node))
        for name in names:
            if OmegaConf.is_config(node[name]):
                below = f"[{name}]" if isinstance(name, int) else f".{name}"
                _object(node[name], f"{key}{below}".removeprefix("."))
        kind = getattr(OmegaConf.get_type(node), "__name__", "settings")
        who = f"__post_init__() of {kind}"
        return ask(f"{key}: {who}" if key else who, lambda: OmegaConf.to_object(node))


def default_values(schema: type[Any]) -> Mapping[str, Any]:
    """The plain values that fields of a class have by default; not to be changed."""
    if schema not in _DEFAULTS:
        plain = OmegaConf.to_container(declared(schema), enum_to_str=True)
        _DEFAULTS[schema] = cast("Mapping[str, Any]", plain)
    return _DEFAULTS[schema]


def _beyond(defaults: Mapping[str, Any], plain: Mapping[str, Any]) -> dict[str, Any]:
    """The values that are not the default of their field."""
    beyond = {}
    for name, value in plain.items():
        default = defaults.get(name)
        if isinstance(default, dict) and isinstance(value, dict):
            if inside := _beyond(default, value):
                beyond[name] = inside
        elif name not in defaults or not _same(default, value):
            beyond[name] = value
    return beyond


def _same(one: object, other: object) -> bool:
    """Whether two plain values are one; `1`, `1.0` and `true` are three."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return type(one) is type(other) and not isinstance(one, dict) and one == other


_DECLARED: dict[type[Any], DictConfig] = {}
_DEFAULTS: dict[type[Any], Mapping[str, Any]] = {}
_UNTOUCHED: dict[type[Any], Any] = {}


def to_plain(config: object) -> dict[str, Any]:
    """Any configuration dataclass as plain JSON data; enums become their names."""
    with suppress(_UnsureError):
        return _as_declared(config)
    node = OmegaConf.structured(config)
    plain = OmegaConf.to_container(node, resolve=True, enum_to_str=True)
    return cast("dict[str, Any]", plain)


class _UnsureError(Exception):
    """Only OmegaConf knows what becomes of a value."""


def _as_declared(config: object) -> dict[str, Any]:
    """The same, where all values are of the types of their fields: OmegaConf makes an object of each to look.

    Raises:
        _UnsureError: One may be of another type, or refer to another one.
    """
    kind: Any = type(config)
    types, defaults = _exact_types(kind), default_values(kind)
    plain: dict[str, Any] = {}
    for name, default in defaults.items():
        value = getattr(config, name)
        if isinstance(value, (dict, list)) and _alike(value, default):
            plain[name] = deepcopy(default)
        elif isinstance(value, dict) and default == {} and _sections(types[name], value.values()):
            plain[name] = {key: _as_declared(section) for key, section in value.items()}
        elif default != {} and _sections(types[name], [value]):
            plain[name] = _as_declared(value)
        elif type(value) in types[name] and not (isinstance(value, str) and "$" in value):
            plain[name] = value.name if isinstance(value, Enum) else value
        else:
            raise _UnsureError
    return plain


def _sections(types: Set[Any], values: Iterable[object]) -> bool:
    """Whether values are settings of classes that a field may have, by itself or under names."""
    kinds: Any = tuple(object if one is Any else one for one in types if one is Any or is_dataclass(one))
    return all(is_dataclass(type(value)) and isinstance(value, kinds) for value in values)


def _alike(value: object, default: object) -> bool:
    """Whether plain values are one, down to their types."""
    if isinstance(value, dict) and isinstance(default, dict):
        return value.keys() == default.keys() and all(_alike(value[name], default[name]) for name in value)
    if isinstance(value, list) and isinstance(default, list):
        return len(value) == len(default) and all(map(_alike, value, default))
    return type(value) is type(default) and type(value) in _SCALARS and value == default and "$" not in str(value)


@cache
def _exact_types(kind: type[Any]) -> dict[str, Set[Any]]:
    """The types whose values a field keeps as they are, and of sections; of a table, what is under its names."""
    return {name: set(_kept(hint)) for name, hint in get_type_hints(kind).items()}


def _kept(hint: Any) -> Iterator[Any]:
    if get_origin(hint) in (Union, UnionType):
        for choice in get_args(hint):
            yield from _kept(choice)
    elif get_origin(hint) is dict:
        yield from (one for one in _kept(get_args(hint)[1]) if one is Any or is_dataclass(one))
    elif (
        hint is Any
        or hint in _SCALARS
        or is_dataclass(hint)
        or (isinstance(hint, type) and issubclass(hint, Enum))
    ):
        yield hint


_SCALARS = {bool, int, float, str, type(None)}


def stage_config_from_plain(plain: Mapping[str, Any]) -> StageConfig:
    """Rebuild the sections that a stage declared; reading any other one raises.

    Args:
        plain: Section name -> plain data. The sections ``algo``, ``dataset`` and ``model`` carry the name of
            their schema under ``_schema_``.
    """
    config = StageConfig()
    for section in fields(StageConfig):
        if section.name in plain:
            setattr(config, section.name, _rebuild(plain[section.name], getattr(config, section.name)))
        else:
            delattr(config, section.name)
    return config


def _rebuild(plain: Mapping[str, Any], default: object) -> Any:
    data = dict(plain)
    schema = data.pop("_schema_", None)
    kind: Any = import_object(schema) if schema else type(default)
    return deepcopy(_filled(kind, json.dumps(data)))  # a stage may do with its settings as it likes


@lru_cache(maxsize=256)
def _filled(kind: type[Any], data: str) -> Any:
    """Kept, since the stages of a run have the same few sections and OmegaConf takes long."""
    return filled(kind, {}, json.loads(data))


def schema_path(config: object) -> str:
    """Dotted path of a configuration's dataclass, as ``module:Class``."""
    return f"{type(config).__module__}:{type(config).__qualname__}"
