"""One algorithm at several values of its settings: points of a front of reward against divergence.

``algos.DPO.front={beta: [0.03, 0.1]}`` stands for two algorithms, ``DPO@beta=0.03`` and ``DPO@beta=0.1``, which
have everything else in common. They are made before anything else looks at the request.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from typing import Any

from pipeline.config.values import brief, short
from pipeline.errors import ConfigError, unknown_name

_MARK = "@"
_TEXT = re.compile(r"[A-Za-z0-9._+-]{1,40}")
SUFFIX = rf"({_MARK}[A-Za-z0-9._+=,-]{{1,100}})?"
"""What may follow the name of an algorithm."""
_NO_SETTINGS = {"front", "enabled", "class_path"}
MOST_POINTS = 1000
"""Of one front. More are a mistake, and each is a chain of jobs of its own."""


def point_of(name: str) -> tuple[str, str]:
    """The algorithm that a point is of, and what tells it from others, "" for none: ``("DPO", "beta=0.1")``."""
    algo, _, point = name.partition(_MARK)
    return algo, point


def by_settings(name: str) -> tuple[object, ...]:
    """What names are sorted by: the algorithm, then its points by their settings, numbers by their size."""
    algo, point = point_of(name)
    return algo, by_values(point)


def by_values(point: str) -> list[tuple[str, bool, float, str]]:
    """What points of one algorithm are sorted by."""
    return [_by_value(part) for part in point.split(",")] if point else []


def _by_value(part: str) -> tuple[str, bool, float, str]:
    setting, _, text = part.partition("=")
    value = _meant(text)
    is_number = isinstance(value, float) and not math.isnan(value)
    return setting, not is_number, float(value) if is_number else 0.0, text


def settings_of(point: str) -> list[str]:
    """Names of the settings that make a point: ``beta`` and ``epochs`` of ``beta=1,epochs=2``."""
    return [part.partition("=")[0] for part in point.split(",")] if point else []


def as_typed(said: str, names: Iterable[str]) -> str:
    """A message about a setting of a point by the key that was typed, that of the front.

    Args:
        said: The message.
        names: Of algorithms and points.
    """
    for name in names:
        algo, point = point_of(name)
        for setting in settings_of(point):
            said = said.replace(f"algos.{name}.{setting}=", f"algos.{algo}.front.{setting}=")
    return said


def with_points(algos: Mapping[str, Any]) -> dict[str, Any]:
    """The table of algorithms with points in the place of those that are asked for a front.

    Args:
        algos: Name -> plain settings.

    Raises:
        ConfigError: What makes the points is no table of lists of plain values.
    """
    found: dict[str, Any] = {}
    for name, settings in algos.items():
        asked = isinstance(settings, Mapping) and settings.get("enabled") and settings.get("front")
        found |= dict(_points(name, settings, asked)) if asked else {name: settings}
    return found


def _points(name: str, settings: Mapping[str, Any], asked: object) -> Iterator[tuple[str, dict[str, Any]]]:
    key = f"algos.{name}.front"
    if not isinstance(asked, Mapping) or not all(isinstance(values, list) and values for values in asked.values()):
        raise ConfigError(
            f"{key}={brief(asked)}: must be a table of settings, each with a list of one value or more, for "
            "example {learning_rate: [1e-4, 3e-4]}"
        )
    usable = {one for one, value in settings.items() if not isinstance(value, Mapping)} - _NO_SETTINGS
    for setting in asked:
        if setting not in usable:
            unknown = unknown_name(f"setting of algos.{name}", str(setting), usable)
            raise ConfigError(f"{key}: {unknown} Those of a section below it cannot make points of a front.")
    points = math.prod(len(values) for values in asked.values())
    if points > MOST_POINTS:
        raise ConfigError(f"{key}: {points:,} combinations of values, at most {MOST_POINTS:,} can be compared")
    for setting, values in asked.items():
        texts = [_text(key, setting, value) for value in values]
        meant = list(map(_meant, texts))
        if twice := next((text for text, one in zip(texts, meant, strict=True) if meant.count(one) > 1), None):
            raise ConfigError(f"{key}.{setting}: names {twice} twice")
    for values in product(*asked.values()):
        chosen = dict(zip(asked, values, strict=True))
        suffix = ",".join(f"{setting}={_text(key, setting, value)}" for setting, value in chosen.items())
        yield f"{name}{_MARK}{suffix}", {**settings, **chosen, "front": {}}


def _meant(text: str) -> float | str:
    """The number that a text is, so that 1000000 and 1e6 are one."""
    try:
        return float(text)
    except ValueError:
        return text.lower()


def _text(key: str, setting: str, value: object) -> str:
    text = short(value) if isinstance(value, float) else str(value)
    if isinstance(value, (dict, list)) or not _TEXT.fullmatch(text):
        raise ConfigError(f"{key}.{setting}: {brief(value)} is no number or plain word")
    return text
