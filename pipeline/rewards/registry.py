"""Rewards by name; any other name with a dot in it is the dotted path of a function."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pipeline.config.own_code import import_object, split_path
from pipeline.config.schema import REWARD_NAMES, DatasetConfig
from pipeline.errors import ConfigError, unknown_name
from pipeline.rewards.base import RewardFunction
from pipeline.rewards.signature import GIVEN
from pipeline.rewards.traits import GRADING, RewardTraits, traits_of

MODEL = "model"
"""The reward that is a sequence-classification model rather than a function."""

REWARDS = {name: f"pipeline.rewards.{name}:{name}" for name in REWARD_NAMES if name != MODEL}
"""Name -> dotted path of the function."""


@dataclass(frozen=True)
class LoadedReward:
    """A reward with its settings.

    Attributes:
        name: As the configuration has it.
        weight: In the sum of several.
        path: Dotted path of the function.
        function: The function.
        options: Further arguments.
        traits: What the engine may know of it.
    """

    name: str
    weight: float
    path: str
    function: Callable[..., Any]
    options: Mapping[str, Any]
    traits: RewardTraits

    def identity(self) -> dict[str, Any]:
        """Plain data that determines its scores, as far as can be known: code that it imports is not covered."""
        source = inspect.getsourcefile(inspect.unwrap(self.function)) if inspect.isroutine(self.function) else None
        return {
            "function": self.path,
            "version": self.traits.version,
            "grading": GRADING,
            "options": dict(self.options),
            "source": hashlib.sha256(Path(source).read_bytes()).hexdigest() if source else None,
            "packages": package_versions(self.traits),
        }


def package_versions(traits: RewardTraits) -> dict[str, str | None]:
    """Versions of the packages that a reward's scores depend on; None for one that is not installed."""
    return {name: _version(name) for name in traits.packages}


def load_reward(name: str) -> RewardFunction:
    """Find a reward that is a function.

    Raises:
        ConfigError: The name is unknown, or the path names nothing that can be called.
    """
    if name == MODEL:
        raise ConfigError("the reward 'model' needs settings: grading.options={model: {path: FOLDER_OR_HUB_ID}}")
    if name not in REWARDS and "." not in name:
        known = [*REWARDS, MODEL]
        raise ConfigError(unknown_name("reward", name, known) + " Or give the dotted path of a function.")
    reward = import_object(REWARDS.get(name, name))
    if _is_method_of_class(REWARDS.get(name, name)):
        owner = split_path(name)[1].rpartition(".")[0]
        raise ConfigError(
            f"'{name}' is a method of the class {owner}, and rewards are called without an object of it; name a "
            f"function, or an object that the module makes, such as my_reward = {owner}()"
        )
    if not callable(reward):
        raise ConfigError(f"'{name}' cannot be called; a reward is a function with TRL's signature")
    found: RewardFunction = reward
    return found


def _is_method_of_class(path: str) -> bool:
    module, name = split_path(path)
    owner, _, leaf = name.rpartition(".")
    kind = import_object(f"{module}:{owner}") if owner else None
    return isinstance(kind, type) and inspect.isfunction(inspect.getattr_static(kind, leaf, None))


def load_rewards(dataset: DatasetConfig, device: str) -> list[LoadedReward]:
    """The rewards of a dataset, in the order of the configuration.

    Args:
        dataset: Its settings.
        device: For reward models: ``cpu`` or ``cuda``.

    Raises:
        ConfigError: A name or a setting is wrong.
    """
    return [_load(*settings, device) for settings in _settings(dataset)]


def load_functions(dataset: DatasetConfig) -> list[LoadedReward]:
    """Those rewards of a dataset that are functions; no model is loaded.

    Raises:
        ConfigError: A name or a setting is wrong.
    """
    return [_load(*one, "cpu") for one in _settings(dataset) if one[2].get("use", one[0]) != MODEL]


def _settings(dataset: DatasetConfig) -> list[tuple[str, float, dict[str, Any]]]:
    """Name, weight and further arguments of every reward."""
    weights = dict(dataset.rewards) or {dataset.reward: 1.0}
    options = dataset.grading.options
    if odd := sorted(set(options) - set(weights)):
        raise ConfigError(unknown_name("reward in grading.options", odd[0], weights))
    return [(name, weight, dict(options.get(name) or {})) for name, weight in weights.items()]


def judge_of(rewards: list[LoadedReward], dataset: DatasetConfig) -> LoadedReward | None:
    """The reward that says which completions are correct, or None where none can.

    Raises:
        ConfigError: `correct_by` names none of the rewards.
    """
    wanted = dataset.grading.correct_by
    if wanted is None:
        return next((reward for reward in rewards if reward.traits.verifies), None)
    by_name = {reward.name: reward for reward in rewards}
    if wanted not in by_name:
        raise ConfigError("grading.correct_by: " + unknown_name("reward", wanted, by_name))
    return by_name[wanted]


def _load(name: str, weight: float, options: Mapping[str, Any], device: str) -> LoadedReward:
    options = dict(options)
    used = str(options.pop("use", name))
    if used == MODEL:
        # Imports torch, which the other rewards do without.
        from pipeline.rewards.model import MODEL_TRAITS, RewardModel, model_settings

        model = RewardModel(model_settings(name, options), device)
        return LoadedReward(name, weight, MODEL, model, options, MODEL_TRAITS)
    function: Callable[..., Any] = load_reward(used)
    _check_options(name, function, options, lenient=used not in REWARDS)
    return LoadedReward(name, weight, REWARDS.get(used, used), function, options, traits_of(function))


def _check_options(name: str, function: Callable[..., Any], options: Mapping[str, Any], lenient: bool) -> None:
    parameters = inspect.signature(function).parameters.values()
    if lenient and any(item.kind is item.VAR_KEYWORD for item in parameters):
        return
    known = [
        item.name
        for item in parameters
        if item.kind is not item.VAR_KEYWORD and item.name not in GIVEN and item.default is not item.empty
    ]
    for option in options:
        if option not in known:
            raise ConfigError(f"grading.options.{name}: " + unknown_name("setting", option, known))


@cache
def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
