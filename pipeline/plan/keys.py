"""What determines a result, and the hash that names it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import Field, fields, is_dataclass
from enum import Enum
from typing import Any

from pipeline.config.fields import UNLESS_DEFAULT

FORMAT = 1
"""Raised when the meaning of stored files changes, which makes every older result unknown."""


_CONFIG = "config"
_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def result_key(determined_by: Mapping[str, Any]) -> str:
    """Hash plain data into a key: 40 hexadecimal digits of the SHA-256 of its canonical JSON."""
    return _hashed(_canonical({"format": FORMAT, **determined_by}))


class ResultKeys:
    """Makes the keys of many jobs, see `result_key`; what thousands of them share is made text once."""

    def __init__(self) -> None:
        self._texts: dict[int, tuple[object, str]] = {}

    def key(self, determined_by: Mapping[str, Any], config: object) -> str:
        """The key of plain data and a configuration, which is the same object for all jobs that share it."""
        parts = {"format": FORMAT, **determined_by}
        before = _canonical({name: value for name, value in parts.items() if name < _CONFIG})
        after = _canonical({name: value for name, value in parts.items() if name > _CONFIG})  # the format at least
        opened = before[:-1] + ("," if len(before) > 2 else "")
        return _hashed(f'{opened}"{_CONFIG}":{self._text(config)},{after[1:]}')

    def _text(self, config: object) -> str:
        # With the object itself, so that no other has its number meanwhile.
        if id(config) not in self._texts:
            self._texts[id(config)] = config, _canonical(config)
        return self._texts[id(config)][1]


def _hashed(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:40]


class SharedConfigs:
    """Configurations of stages by digest. Thousands of shards share a few, so a saved plan has each once."""

    def __init__(self) -> None:
        self.table: dict[str, Any] = {}
        self._digests: dict[int, tuple[object, str]] = {}

    def shorten(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Put a digest in the place of the sections under ``config``."""
        return {**data, "config": self._digest(data["config"])} if "config" in data else dict(data)

    def _digest(self, config: object) -> str:
        # By identity first: the planner gives jobs of one stage the same object.
        if id(config) not in self._digests:
            text = json.dumps(config, sort_keys=True, separators=(",", ":"))
            digest = hashlib.sha256(text.encode()).hexdigest()[:16]
            self._digests[id(config)] = (config, digest)
            self.table[digest] = config
        return self._digests[id(config)][1]


def determining(config: object) -> Any:
    """The part of a configuration that can change a result, as plain data.

    Fields whose metadata say ``affects_result: False`` (worker counts, loader processes, ...) are left out, so
    that changing them finds the same results again. So are options (`config.fields.option`) at their defaults.
    """
    if is_dataclass(config):
        return {
            item.name: determining(getattr(config, item.name)) for item in fields(config) if _counts(item, config)
        }
    if isinstance(config, Enum):
        return config.name
    if isinstance(config, Mapping):
        return {str(name): determining(value) for name, value in config.items()}
    if isinstance(config, (list, tuple)):
        return [determining(value) for value in config]
    return config


def _counts(item: Field[Any], config: object) -> bool:
    if item.metadata.get(UNLESS_DEFAULT, False) and getattr(config, item.name) == item.default:
        return False
    return bool(item.metadata.get("affects_result", True))
