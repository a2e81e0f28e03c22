"""What settings classes declare, read once: OmegaConf takes long to take a class apart and to check a value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline.config.user_code import ask
from pipeline.errors import PipelineError


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
