"""Typed configuration as plain data, which workers receive, and a stage's part of it back.

Free of Hydra: only who composes a request needs it, and its import would be a sixth of a worker's start.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import fields
from functools import lru_cache
from typing import Any, cast

from omegaconf import OmegaConf

from pipeline.config.declared import filled
from pipeline.config.schema import StageConfig
from pipeline.config.user_code import import_object


def to_plain(config: object) -> dict[str, Any]:
    """Any configuration dataclass as plain JSON data; enums become their names."""
    node = OmegaConf.structured(config)
    plain = OmegaConf.to_container(node, resolve=True, enum_to_str=True)
    return cast("dict[str, Any]", plain)


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
