"""What settings classes declare, read once: OmegaConf takes long to take a class apart and to check a value."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf


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
    """
    node = deepcopy(declared(schema))
    defaults = dict(_defaults(schema))
    for table, sections in tables.items():
        for name, section in sections.items():
            node[table][name] = declared(section)
        defaults[table] = {name: _defaults(section) for name, section in sections.items()}
    return OmegaConf.to_object(OmegaConf.unsafe_merge(node, _beyond(defaults, plain)))


def _defaults(schema: type[Any]) -> Mapping[str, Any]:
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
