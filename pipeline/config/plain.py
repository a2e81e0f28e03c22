"""Typed configuration as plain data, which workers receive, and a stage's part of it back.

Free of Hydra: only who composes a request needs it, and its import would be a sixth of a worker's start.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
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
    plain: dict[str, Any] = _plain(config, Any)
    return plain


def _plain(value: Any, hint: Any) -> Any:
    """A value as its field has it: a whole number is a number where that is asked for."""
    if is_dataclass(value):
        hints = _hints(type(value))  # type: ignore[arg-type]  # classes are hashable
        return {each.name: _plain(getattr(value, each.name), hints[each.name]) for each in fields(value)}
    if isinstance(value, Enum):
        return value.name
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if isinstance(value, dict | list | tuple):
        inside = next((get_args(kind)[-1] for kind in kinds if get_args(kind)), Any)
        if isinstance(value, dict):
            return {name: _plain(entry, inside) for name, entry in value.items()}
        return [_plain(entry, inside) for entry in value]
    return float(value) if type(value) is int and float in kinds and int not in kinds else value


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    return get_type_hints(kind)


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
