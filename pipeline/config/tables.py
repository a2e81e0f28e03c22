"""Tables of a request, `algos`, `datasets` and `models`: which settings class each of their sections has.

A section has the settings (`config_class`) of its class: the shipped class of its name or kind, or one of the
user's own. Classes are imported by dotted path when needed. Shipped classes are listed here, one per line. An
algorithm may run at several values of its settings (a front).
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from pipeline.config.plain import brief, short
from pipeline.config.schema import MISSING, AlgoConfig, DatasetConfig, ModelConfig
from pipeline.config.user_code import check_settings_class, import_object, ships
from pipeline.errors import ConfigError, unknown_name

# -- shipped -----------------------------------------------------------------------------------------------------
# Shipped code by name: dotted paths, imported only when needed. One line each.


ALGORITHMS = {
    "BestOfN": "pipeline.learning.algos.reward_stage:BestOfN",
    "BlockSearch": "pipeline.learning.algos.block_search:BlockSearch",
    "CD": "pipeline.learning.algos.qsharp:CD",
    "Distilled": "pipeline.learning.algos.distilled:Distilled",
    "DPO": "pipeline.learning.algos.dpo:DPO",
    "GRPO": "pipeline.learning.algos.grpo:GRPO",
    "GRPO-HF": "pipeline.learning.algos.grpo:GRPOHF",
    "KTO": "pipeline.learning.algos.dpo:KTO",
    "ORPO": "pipeline.learning.algos.dpo:ORPO",
    "PITA": "pipeline.learning.algos.value_guided:PITA",
    "QSharp": "pipeline.learning.algos.qsharp:QSharp",
    "QSharp-HF": "pipeline.learning.algos.qsharp:QSharpHF",
    "RAFT": "pipeline.learning.algos.sft:RAFT",
    "REINFORCEpp": "pipeline.learning.algos.grpo:REINFORCEpp",
    "RLOO": "pipeline.learning.algos.grpo:RLOO",
    "RM": "pipeline.learning.algos.reward_stage:RM",
    "SFT": "pipeline.learning.algos.sft:SFT",
    "SimPO": "pipeline.learning.algos.dpo:SimPO",
}
"""Name -> class, whose `config_class` has the settings under ``algos.<name>``."""

CHECKPOINT = "pipeline.learning.algos.checkpoint:Checkpoint"
"""Algorithm that evaluates the checkpoints of `evaluation.also`."""

_SHIPPED = {path.replace(":", ".") for path in (*ALGORITHMS.values(), CHECKPOINT)}


def is_own_code(class_path: str | None) -> bool:
    """Return whether the `class_path` of an algorithm names none that ships; that of a clone may."""
    return class_path is not None and class_path.replace(":", ".") not in _SHIPPED


DATASETS = {
    "addition": "pipeline.learning.datasets.shipped:Addition",
    "csv": "pipeline.learning.datasets.shipped:CsvFiles",
    "gsm8k": "pipeline.learning.datasets.shipped:GSM8K",
    "hf": "pipeline.learning.datasets.shipped:HuggingFace",
    "imdb_sentiment": "pipeline.learning.datasets.shipped:IMDBSentiment",
    "jsonl": "pipeline.learning.datasets.shipped:JsonLines",
    "math": "pipeline.learning.datasets.shipped:CompetitionMath",
    "multiple_choice": "pipeline.learning.datasets.shipped:MultipleChoice",
    "olympiadbench": "pipeline.learning.datasets.shipped:OlympiadBench",
    "parquet": "pipeline.learning.datasets.shipped:ParquetFiles",
    "star_graph": "pipeline.learning.datasets.shipped:StarGraph",
    "tldr": "pipeline.learning.datasets.shipped:TLDR",
}
"""Kind -> class, whose `config_class` has the settings."""

MODELS = {
    "hf": "pipeline.learning.models.kinds:HFModelConfig",
    "tiny": "pipeline.learning.models.kinds:TinyModelConfig",
}
"""Kind -> the settings class itself: a model has no class of ours."""

REWARDS = {
    "boxed": "pipeline.learning.rewards.answers:boxed",
    "choice": "pipeline.learning.rewards.answers:choice",
    "exact_match": "pipeline.learning.rewards.answers:exact_match",
    "gsm8k": "pipeline.learning.rewards.answers:gsm8k",
    "ifeval": "pipeline.learning.rewards.ifeval:ifeval",
    "length": "pipeline.learning.rewards.answers:length",
    "math_verify": "pipeline.learning.rewards.math_verify:math_verify",
    "vader": "pipeline.learning.rewards.answers:vader",
}
"""Name -> function."""

REWARD_MODEL = "model"
"""Name of the reward that is a sequence-classification model rather than a function."""

JUDGE = "judge"
"""Name of the reward that asks a language model, in the worker or behind an endpoint."""

MODEL_REWARDS = (REWARD_MODEL, JUDGE)
"""Rewards that are models: workers load them from their settings, instead of calling a function."""

TRL_REWARDS = {
    "accuracy_reward": "trl.rewards:accuracy_reward",
    "get_cosine_scaled_reward": "trl.rewards:get_cosine_scaled_reward",
    "get_repetition_penalty_reward": "trl.rewards:get_repetition_penalty_reward",
    "get_soft_overlong_punishment": "trl.rewards:get_soft_overlong_punishment",
    "reasoning_accuracy_reward": "trl.rewards:reasoning_accuracy_reward",
    "think_format_reward": "trl.rewards:think_format_reward",
}
"""TRL's own rewards, with the functions that create those with settings."""

REWARD_NAMES = (*REWARDS, *MODEL_REWARDS, *TRL_REWARDS)
"""Rewards with a name; any other reward is the dotted path of a function with TRL's signature."""


# -- fronts ------------------------------------------------------------------------------------------------------
# Fronts: one algorithm at several values of its settings, as points of reward against KL divergence.
# ``algos.DPO.front={beta: [0.03, 0.1]}`` stands for two algorithms, ``DPO@beta=0.03`` and ``DPO@beta=0.1``, with
# all other settings equal. They are created before anything else reads the request.


_MARK = "@"
_TEXT = re.compile(r"[A-Za-z0-9._+-]{1,40}")
SUFFIX = rf"({_MARK}[A-Za-z0-9._+=,-]{{1,100}})?"
"""Suffix that may follow the name of an algorithm."""
_NO_SETTINGS = {"front", "enabled", "class_path"}
MOST_POINTS = 1000
"""Most points of one front. More are probably a mistake, as each is a chain of jobs of its own."""


def point_of(name: str) -> tuple[str, str]:
    """Split a name into its algorithm and the point's settings, "" for none: ``("DPO", "beta=0.1")``."""
    algo, _, point = name.partition(_MARK)
    return algo, point


def evaluated_on(dataset: str, test_set: str | None) -> str:
    """Name what was trained on a dataset and is evaluated on a test set: ``gsm8k@aime25``; see `point_of`."""
    return f"{dataset}{_MARK}{test_set}" if test_set else dataset


MEAN = "mean"
"""Stands in for a test set: the mean of all, each with the same weight."""


def is_mean(place: str) -> bool:
    """Whether what results have as their dataset is the mean of several test sets."""
    return point_of(place)[1] == MEAN


def rows_of(place: str) -> str:
    """The dataset whose rows are evaluated on: ``aime25`` of ``gsm8k@aime25``."""
    dataset, on = point_of(place)
    return on or dataset


def by_settings(name: str) -> tuple[object, ...]:
    """Return the sort key of a name: the algorithm, then its points by their settings, numbers by size."""
    algo, point = point_of(name)
    return algo, by_values(point)


def by_values(point: str) -> list[tuple[str, bool, float, str]]:
    """Return the sort key of the points of one algorithm."""
    return [_by_value(part) for part in point.split(",")] if point else []


def _by_value(part: str) -> tuple[str, bool, float, str]:
    setting, _, text = part.partition("=")
    value = _meant(text)
    is_number = isinstance(value, float) and not math.isnan(value)
    return setting, not is_number, float(value) if is_number else 0.0, text


def settings_of(point: str) -> list[str]:
    """Return the names of a point's settings: ``beta`` and ``epochs`` for ``beta=1,epochs=2``."""
    return [part.partition("=")[0] for part in point.split(",")] if point else []


def as_typed(said: str, names: Iterable[str], also: Iterable[str] = ()) -> str:
    """Replace the key of a point's setting in a message by the key that was typed, that of the front.

    Args:
        said: The message.
        names: Names of algorithms and points.
        also: Names of checkpoints, whose paths are typed in `evaluation.also`.
    """
    for name in also:
        said = said.replace(f"algos.{name}.path=", f"evaluation.also.{name}=")
    for name in names:
        algo, point = point_of(name)
        for setting in settings_of(point):
            said = said.replace(f"algos.{name}.{setting}=", f"algos.{algo}.front.{setting}=")
    return said


def points_of(name: str, settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the points of an algorithm's front, by name.

    Args:
        name: Name of the algorithm.
        settings: All of its settings, plain.

    Raises:
        ConfigError: The front is not a table of lists of plain values.
    """
    key, asked = f"algos.{name}.front", settings["front"]
    if not isinstance(asked, Mapping) or not all(isinstance(values, list) and values for values in asked.values()):
        raise ConfigError(f"{key}={brief(asked)}: must be a table of lists, as {{learning_rate: [1e-4, 3e-4]}}")
    usable = {one for one, value in settings.items() if not isinstance(value, Mapping)} - _NO_SETTINGS
    if unknown := [str(setting) for setting in asked if setting not in usable]:
        said = unknown_name(f"setting of algos.{name}", unknown[0], usable)
        raise ConfigError(f"{key}: {said} Those of a section below it cannot make points of a front.")
    if (points := math.prod(map(len, asked.values()))) > MOST_POINTS:
        raise ConfigError(f"{key}: {points:,} combinations of values, at most {MOST_POINTS:,} can be compared")
    named = {setting: [(_text(f"{key}.{setting}", each), each) for each in asked[setting]] for setting in asked}
    for setting, values in named.items():
        meant = [_meant(text) for text, _ in values]
        if twice := next((text for text, _ in values if meant.count(_meant(text)) > 1), None):
            raise ConfigError(f"{key}.{setting}: names {twice} twice")
    found = {}
    for one in product(*named.values()):
        suffix = ",".join(f"{setting}={text}" for setting, (text, _) in zip(named, one, strict=True))
        chosen = {setting: value for setting, (_, value) in zip(named, one, strict=True)}
        found[f"{name}{_MARK}{suffix}"] = {**settings, **chosen, "front": {}}
    return found


def _meant(text: str) -> float | str:
    """Return a text as a number if it is one, so that 1000000 and 1e6 are equal."""
    try:
        return float(text)
    except ValueError:
        return text.lower()


def _text(key: str, value: object) -> str:
    text = short(value) if isinstance(value, float) else str(value)
    if isinstance(value, (dict, list)) or not _TEXT.fullmatch(text):
        raise ConfigError(f"{key}: {brief(value)} is no number or plain word")
    return text


def conf_dir() -> Path:
    """Return the folder of configuration groups: beside the package in a checkout, inside it when installed."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"


def groups() -> list[str]:
    """Names of the configuration groups that ship."""
    return sorted(folder.name for folder in conf_dir().iterdir() if any(folder.rglob("*.yaml")))


def choices_of(group: str) -> list[str]:
    """Names of the files that ship of a group, those in a folder of it as ``folder/name``."""
    folder = conf_dir() / group
    names = (file.relative_to(folder).with_suffix("").as_posix() for file in folder.rglob("*.yaml"))
    return sorted(names, key=str.lower)


@dataclass(frozen=True)
class Table:
    """A table of sections.

    Attributes:
        what: Name of a section in messages.
        group: Folder in ``conf/``.
        base: Base class of settings.
        shipped: Name or kind -> dotted path of shipped code.
        parent: Dotted path of the base class for users' own classes; "" if there can be none.
        example: An example setting, for messages.
    """

    what: str
    group: str
    base: type[Any]
    shipped: Mapping[str, str]
    parent: str
    example: str


TABLES = {
    "algos": Table(
        "algorithm", "algos", AlgoConfig, ALGORITHMS, "pipeline.learning.algos.base.Algorithm", "enabled: true"
    ),
    "datasets": Table(
        "dataset", "dataset", DatasetConfig, DATASETS, "pipeline.learning.datasets.base.Dataset", "kind: addition"
    ),
    "models": Table("model", "model", ModelConfig, MODELS, "", "kind: tiny"),
}


def settings_class(table: str, name: str, section: Mapping[str, Any]) -> type[Any]:
    """Return the settings class of a section.

    A user's class may have the name or kind of a shipped one. Without settings of its own it has those of the
    shipped one.

    Args:
        table: ``algos``, ``datasets`` or ``models``.
        name: Name of the section.
        section: Its plain settings: ``class_path`` and, if the name does not imply it, ``kind``.

    Raises:
        ConfigError: The name or kind is unknown, or the class has no settings dataclass.
    """
    about = TABLES[table]
    kind = point_of(name)[0] if table == "algos" else str(section.get("kind", MISSING))
    shipped = shipped_settings(about.shipped[kind]) if kind in about.shipped else None
    if about.parent and (path := section.get("class_path")):
        own = _own_settings(f"{table}.{name}.class_path={path}", path, about)
        return shipped if shipped is not None and issubclass(shipped, own) else own
    if shipped is not None:
        return shipped
    if table != "algos":
        raise ConfigError(f"{about.what} '{name}': " + unknown_name("kind", kind, about.shipped))
    advice = f"For one of your own set algos.{kind}.class_path=my_module.MyAlgorithm."
    raise ConfigError(f"{unknown_name(about.what, kind, about.shipped)} {advice}")


def all_shipped(table: str) -> dict[str, type[Any]]:
    """Return the settings classes of all shipped code of a table, by name or kind."""
    return {name: shipped_settings(path) for name, path in TABLES[table].shipped.items()}


@cache
def shipped_settings(path: str) -> type[Any]:
    """Return the settings class of shipped code by its dotted path.

    For a model the path is that of its settings.
    """
    found = import_object(path)
    schema: type[Any] = getattr(found, "config_class", found)
    return schema


def _own_settings(owner: str, path: str, about: Table) -> type[Any]:
    found = import_object(path)
    schema = getattr(found, "config_class", None)
    if schema is None:
        parent = about.parent.rpartition(".")[2]
        raise ConfigError(f"{owner} is no {parent}: it has no config_class. Subclass pipeline.{parent}.")
    check_settings_class(owner, schema, about.base)
    _refuse_other_family(owner, found, schema)
    own: type[Any] = schema
    return own


def _refuse_other_family(owner: str, found: type[Any], schema: type[Any]) -> None:
    """Refuse a settings class without the fields that the shipped base class of its owner reads."""
    ours = next((base for base in getattr(found, "__mro__", ()) if ships(base)), None)
    needed = getattr(ours, "config_class", schema)
    if ours is not None and not issubclass(schema, needed):
        whose = f"{needed.__name__}, the settings of {ours.__name__}, whose methods read them"
        raise ConfigError(f"{owner}: its config_class {schema.__name__} does not build on {whose}")
