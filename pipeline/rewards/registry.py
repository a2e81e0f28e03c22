"""Rewards by name; any other name with a dot in it is the dotted path of a function."""

from __future__ import annotations

from pipeline.config.load import import_object
from pipeline.errors import ConfigError, unknown_name
from pipeline.rewards.base import RewardFunction

REWARDS = {"exact_match": "pipeline.rewards.exact_match:exact_match"}
"""Name -> dotted path of the function."""


def load_reward(name: str) -> RewardFunction:
    """Find a reward.

    Raises:
        ConfigError: The name is unknown, or the path names nothing that can be called.
    """
    if name not in REWARDS and "." not in name:
        raise ConfigError(unknown_name("reward", name, REWARDS) + " Or give the dotted path of a function.")
    reward = import_object(REWARDS.get(name, name))
    if not callable(reward):
        raise ConfigError(f"'{name}' cannot be called; a reward is a function with TRL's signature")
    found: RewardFunction = reward
    return found
