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

from omegaconf import OmegaConf

from pipeline.config.declared import default_values, filled
from pipeline.config.schema import StageConfig
from pipeline.config.user_code import import_object


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
