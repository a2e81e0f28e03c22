"""Find rewards by name; any other name with a dot in it is the dotted path of a function."""

import dis
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.config.schema import NOTHING, DatasetConfig
from pipeline.config.tables import JUDGE, MODEL_REWARDS, REWARD_MODEL, REWARDS, TRL_REWARDS
from pipeline.config.user_code import import_object
from pipeline.errors import ConfigError, install_command, unknown_name
from pipeline.learning.models.kinds import RewardModelSettings, reward_model_settings
from pipeline.learning.rewards.calling import GIVEN, Bound, bind, makes_rewards
from pipeline.learning.rewards.judge import Ask, Judge, JudgeSettings, judge_settings, key_of
from pipeline.learning.rewards.traits import RewardTraits

MODEL_TRAITS = RewardTraits(verifies=False, graded=True, judges="the model's score", isolated=False)
JUDGE_TRAITS = replace(MODEL_TRAITS, judges="what a model thinks of it", pointwise=True)
_NAMED = REWARDS | TRL_REWARDS
_EXTRAS = {"math-verify": "math", "lm-eval": "lm-eval", "langdetect": "lm-eval"}
"""Packages without which a reward cannot be called -> the extra that has them."""


def reward_models(dataset: DatasetConfig) -> dict[str, RewardModelSettings]:
    """Return the settings of the reward models among the rewards of a dataset, by name.

    Raises:
        ConfigError: A setting is missing, unknown or wrong.
    """
    models = {name: own for name, _, own in _settings(dataset) if own.pop("use", name) == REWARD_MODEL}
    return {name: reward_model_settings(name, own) for name, own in models.items()}


@dataclass(frozen=True, kw_only=True)
class LoadedReward(Bound):
    """A reward of a dataset. If the model of a reward is not loaded, its function must not be called.

    Attributes:
        name: Name in the configuration.
        weight: Weight in the sum of several rewards.
        path: Dotted path of the function, or of the factory that returned it.
        options: Settings from the configuration.
    """

    name: str
    weight: float
    path: str
    options: Mapping[str, Any]


def package_versions(traits: RewardTraits) -> dict[str, str | None]:
    """Return the versions of the packages that a reward's scores depend on.

    None for a package that is not installed.
    """
    return {name: _version(name) for name in traits.packages}


def ships(reward: LoadedReward) -> bool:
    """Return whether a reward ships with this package."""
    return reward.path.startswith("pipeline.learning.rewards.")


def load_reward(name: str) -> Callable[..., Any]:
    """Find a reward function, or a factory of rewards.

    Raises:
        ConfigError: The name is unknown, or the path names nothing that can be called.
    """
    if name in MODEL_REWARDS:
        example = f"grading.options={{{name}: {{path: FOLDER_OR_HUB_ID}}}}"
        raise ConfigError(f"the reward '{name}' needs settings: {example}")
    if name not in _NAMED and "." not in name:
        known = [*_NAMED, *MODEL_REWARDS]
        raise ConfigError(unknown_name("reward", name, known) + " Or give the dotted path of a function.")
    reward = import_object(_NAMED.get(name, name))
    if not callable(reward):
        raise ConfigError(f"'{name}' cannot be called; a reward is a function with TRL's signature")
    found: Callable[..., Any] = reward
    return found


def load_rewards(dataset: DatasetConfig, device: str, hints: Path | None = None) -> list[LoadedReward]:
    """Load the rewards of a dataset, in the order of the configuration.

    Args:
        dataset: Configuration of the dataset.
        device: Device of reward models: ``cpu`` or ``cuda``.
        hints: Folder of batch sizes that fitted, for reward models; None stores none.

    Raises:
        ConfigError: A name or a setting is wrong.
    """
    return [_load(*settings, device, hints) for settings in _settings(dataset)]


def load_functions(dataset: DatasetConfig) -> list[LoadedReward]:
    """Load only those rewards of a dataset that are functions.

    Raises:
        ConfigError: A name or a setting is wrong.
    """
    return [one for one in known_rewards(dataset) if one.path not in MODEL_REWARDS]


def known_rewards(dataset: DatasetConfig) -> list[LoadedReward]:
    """Return the rewards of a dataset, in the order of the configuration, without loading models.

    Raises:
        ConfigError: A name or a setting is wrong.
    """
    return [_load(*settings) for settings in _settings(dataset)]


def shipped_traits(dataset: DatasetConfig) -> dict[str, RewardTraits]:
    """Return the traits of those rewards of a dataset that have a name of ours or of TRL's, by that name.

    Code of the user's own is not imported and no model is loaded.

    Raises:
        ConfigError: A name or a setting is wrong.
    """
    named = {str(each[2].get("use", each[0])): each for each in _settings(dataset)}
    return {used: _load(*each).traits for used, each in named.items() if used in (*MODEL_REWARDS, *_NAMED)}


def _settings(dataset: DatasetConfig) -> list[tuple[str, float, dict[str, Any]]]:
    """Return name, weight and options of every reward."""
    weights = dict(dataset.rewards) or {dataset.reward: 1.0}
    options = dataset.grading.options
    if odd := sorted(set(options) - set(weights)):
        raise ConfigError(unknown_name("reward in grading.options", odd[0], weights))
    return [(name, weight, dict(options.get(name) or {})) for name, weight in weights.items()]


def judge_of(rewards: Sequence[LoadedReward], dataset: DatasetConfig) -> LoadedReward | None:
    """Return the reward that decides which completions are correct, or None if no reward does.

    Nothing is guessed: the reward is named by `correct_by`, otherwise it is the first with the trait `verifies`. A
    single reward without this trait decides nothing, and its mean is the result. The weighted sum of several
    rewards is no readable result, so the user must choose if any of them may verify.

    Raises:
        ConfigError: `correct_by` names none of the rewards, or one that judges something else; or `correct_by`
            must be set.
    """
    wanted, by_name = dataset.grading.correct_by, {reward.name: reward for reward in rewards}
    able = [name for name, reward in by_name.items() if reward.traits.verifies is not False]
    if wanted in by_name:
        if wanted not in able:
            judges = by_name[wanted].traits.judges or "something else than correctness"
            raise ConfigError(
                f"grading.correct_by={wanted}: this reward judges {judges}, so its values do not say which "
                f"completions are correct. Choose one of {', '.join([*able, NOTHING])}"
            )
        return by_name[wanted]
    if wanted not in (None, NOTHING):
        raise ConfigError("grading.correct_by: " + unknown_name("reward", str(wanted), [*by_name, NOTHING]))
    known = next((reward for reward in rewards if reward.traits.verifies), None)
    if wanted is None and known is None and able and len(rewards) > 1:
        raise ConfigError(
            "of several rewards it must be known which one says whether a completion is correct, and none of "
            f"{', '.join(by_name)} is known to. Set grading.correct_by to one of {', '.join(able)}, whose values "
            f"of 1 or more then mean correct; or to '{NOTHING}', if none does: results are then mean rewards"
        )
    return known if wanted is None else None


def reads_answers(dataset: DatasetConfig) -> bool:
    """Return whether the reward that judges a dataset says what an answer is, so that votes can be counted.

    Raises:
        ConfigError: A name or a setting is wrong, or it must be said which reward judges.
    """
    judge = judge_of(known_rewards(dataset), dataset)
    return judge is not None and judge.traits.answer is not None


def _load(
    name: str, weight: float, options: Mapping[str, Any], device: str | None = None, hints: Path | None = None
) -> LoadedReward:
    options = dict(options)
    used = str(options.pop("use", name))
    if used == REWARD_MODEL:
        model: Callable[..., Any] = _not_loaded
        if device is not None:
            # Imports torch, which other rewards do not need.
            from pipeline.learning.rewards.model import RewardModel

            model = RewardModel(reward_model_settings(name, options), device, hints)
        return LoadedReward(
            model, MODEL_TRAITS, options, name=name, weight=weight, path=REWARD_MODEL, options=options
        )
    if used == JUDGE:
        settings = judge_settings(name, options)
        asked = _not_loaded if device is None else Judge(settings, _asked(name, settings, device, hints))
        return LoadedReward(asked, JUDGE_TRAITS, options, name=name, weight=weight, path=JUDGE, options=options)
    named: Callable[..., Any] = load_reward(used)
    _check_options(name, named, options, lenient=used not in REWARDS)
    bound = bind(named, options, name)
    for package, extra in _EXTRAS.items():
        if package in bound.traits.packages and _version(package) is None:
            raise ConfigError(f"the reward '{name}' needs a package: {install_command(extra)}")
    path = _NAMED.get(used, used)
    return LoadedReward(**vars(bound), name=name, weight=weight, path=path, options=options)


def _asked(name: str, settings: JudgeSettings, device: str, hints: Path | None) -> Ask:
    """Return the model or endpoint of a judge; only its own dependencies are imported."""
    if settings.endpoint:
        from pipeline.learning.rewards.endpoint import Endpoint

        return Endpoint(settings, key_of(name, settings), hints).ask
    from pipeline.learning.rewards.judge_model import JudgeModel

    return JudgeModel(settings, device, hints).ask


def _not_loaded(**_: Any) -> list[float]:
    raise AssertionError("the model of a reward is not loaded here")


def _check_options(name: str, function: Callable[..., Any], options: Mapping[str, Any], lenient: bool) -> None:
    if makes_rewards(function):
        return  # the call of the factory checks its settings
    parameters = inspect.signature(function).parameters.values()
    if lenient and any(item.kind is item.VAR_KEYWORD and _reads(function, item.name) for item in parameters):
        return
    known = [
        item.name
        for item in parameters
        if item.kind is not item.VAR_KEYWORD
        and item.name not in GIVEN
        and (lenient or item.default is not item.empty)  # the setting replaces a column
    ]
    for option in options:
        if option not in known:
            raise ConfigError(f"grading.options.{name}: " + unknown_name("setting", option, known))


def _reads(function: Callable[..., Any], name: str) -> bool:
    """Return whether a function may read an argument; an argument that is only in the signature cannot be set."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    steps = [step.argval for step in dis.get_instructions(code)] if code is not None else [name]
    return any(name == each or (isinstance(each, tuple) and name in each) for each in steps)


@cache
def _version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version  # slow to import, and rarely needed

    try:
        return version(package)
    except PackageNotFoundError:
        return None
