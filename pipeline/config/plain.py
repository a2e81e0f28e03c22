"""Typed configuration as plain data, which workers receive, and a stage's part of it back.

Free of Hydra: only who composes a request needs it, and its import would be a sixth of a worker's start.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from functools import cache, lru_cache
from types import NoneType, UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from pipeline.config.schema import MISSING, StageConfig
from pipeline.config.user_code import ask, import_object
from pipeline.errors import ConfigError

# -- filled in ---------------------------------------------------------------------------------------------------
# Plain values as settings: onto the defaults of a class, each converted to what its field declares.


_TRUTH = {"true": True, "yes": True, "on": True, "y": True, "false": False, "no": False, "off": False, "n": False}
Path = tuple[str, ...]
Refuse = Callable[[Path, Any, type[Any], Any], None]
"""Told of a value that is left out: where it stands, the value, the class of settings there, and the type of its
field, or None where there is none."""


def _raise(path: Path, _value: Any, schema: type[Any], hint: Any) -> None:
    said = "of another type" if hint else f"{schema.__name__} has no such setting"
    raise (ValueError if hint else ConfigError)(f"{'.'.join(path)}: {said}")


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
        path: Where they stand.
        refuse: Told of what cannot be; by default it raises.
        sections: Fields that are settings already.

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
    """Return whether a value is still to be given, or is Python's word for none where null would be one."""
    if isinstance(value, list):
        return any(is_no_value(each, None) for each in value)
    return value == MISSING or (value == "None" and {str, NoneType} <= set(kinds_of(hint)))


def _converted(value: Any, hint: Any, default: Any, path: Path, refuse: Refuse) -> Any:
    """Return a plain value as a field of a type has it; a table is added to the default.

    Raises:
        ValueError: It is of another type; a text must be one, as `1.10` is read as 1.1.
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
            found = {
                name: _converted(each, inside, before.get(name), (*path, str(name)), refuse)
                for name, each in value.items()
            }
            return {**before, **found}
        if isinstance(value, list | tuple) and get_origin(kind) is list:
            *above, name = path
            return [
                _converted(each, inside, None, (*above, f"{name}[{at}]"), refuse) for at, each in enumerate(value)
            ]
        if kind is Any:
            return (
                _converted(value, dict[str, Any], before, path, refuse)
                if isinstance(value, dict)
                else deepcopy(value)
            )
        if type(value) is kind:
            return value
    for kind in kinds:
        if kind is float and type(value) is int:
            return float(value)
        if kind in (int, float) and isinstance(value, str):
            with suppress(ValueError):
                return kind(value)
        if kind is bool and isinstance(value, str) and value.lower() in _TRUTH:
            return _TRUTH[value.lower()]
        if isinstance(kind, type) and issubclass(kind, Enum) and str(value) in kind.__members__:
            return kind[str(value)]
    raise ValueError


def kinds_of(hint: Any) -> tuple[Any, ...]:
    """The types of which a value may be one."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


@cache
def hints_of(kind: type[Any]) -> dict[str, Any]:
    """The types of the fields of a class of settings."""
    hints = get_type_hints(kind)
    return {each.name: hints[each.name] for each in fields(kind)}


@cache
def _default(schema: type[Any]) -> Any:
    return schema()


def default_values(schema: type[Any]) -> dict[str, Any]:
    """The plain values that fields of a class have by default."""
    return to_plain(_default(schema))  # type: ignore[arg-type]  # classes are hashable


def to_plain(config: object) -> dict[str, Any]:
    """Any configuration dataclass as plain JSON data; enums become their names."""
    plain: dict[str, Any] = _plain(config, Any)
    return plain


def _plain(value: Any, hint: Any) -> Any:
    """A value as its field has it: a whole number is a number where that is asked for."""
    if is_dataclass(value):
        hints = hints_of(type(value))  # type: ignore[arg-type]  # classes are hashable
        return {each.name: _plain(getattr(value, each.name), hints[each.name]) for each in fields(value)}
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
    return filled(kind, json.loads(data))


def schema_path(config: object) -> str:
    """Dotted path of a configuration's dataclass, as ``module:Class``."""
    return f"{type(config).__module__}:{type(config).__qualname__}"
