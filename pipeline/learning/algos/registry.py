"""Algorithms by name or dotted path, checked before anything is planned with them."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter

from pipeline.config.bases import AlgoConfig
from pipeline.config.fronts import point_of
from pipeline.config.schema import Config
from pipeline.config.shipped import ALGORITHMS
from pipeline.config.user_code import import_object
from pipeline.errors import ConfigError, unknown_name
from pipeline.learning.algos.base import START_TRAIN, Algorithm, Stage
from pipeline.learning.algos.policy_config import start_of
from pipeline.learning.algos.prepare import Preparation
from pipeline.learning.algos.reference import Reference
from pipeline.learning.algos.validate import check_algorithm

SHARED = {
    "dataset": "pipeline.learning.algos.prepare:Preparation",
    "reference": "pipeline.learning.algos.reference:Reference",
}
"""What all chains share, written as algorithms of round 0."""

SHARED_STAGES = {kind.name: tuple(stage.name for stage in kind.stages) for kind in (Reference, Preparation)} | {
    START_TRAIN.algo: (START_TRAIN.stage,)
}
"""Whose stages an algorithm may read besides its own."""


def planned_stages(kind: type[Algorithm], settings: AlgoConfig, config: Config) -> list[Stage]:
    """The stages that a request has of an algorithm, and what of it they read.

    See `Algorithm.stages_with`, `Stage.only_with`, and `Read.algo` of ``start``.

    Args:
        kind: The algorithm.
        settings: Its section.
        config: The request.
    """
    stages = kind.stages_with(settings)
    without = () if start_of(settings) else ("start",)
    return [
        replace(stage, reads=tuple(read for read in stage.reads if read.algo not in without))
        for stage in stages
        if not stage.only_with or attrgetter(stage.only_with)(config)
    ]


def with_bounded_kl(config: Config) -> list[str]:
    """Names of a request's algorithms whose divergence is an upper bound, without points of fronts; sorted."""
    enabled = {point_of(name)[0]: algo.class_path for name, algo in config.algos.items() if algo.enabled}
    return sorted(name for name, path in enabled.items() if load_algorithm(name, path).kl_is_bound)


def known_algorithms() -> list[str]:
    """Names of the algorithms that ship, sorted."""
    return sorted(ALGORITHMS)


def load_algorithm(name: str, class_path: str | None = None) -> type[Algorithm]:
    """Find an algorithm's class.

    A class of the user's own may have the name of one that ships if it builds on that one's class: then it takes
    its place.

    Raises:
        ConfigError: The name is unknown, the path names no `Algorithm`, or one that cannot run.
    """
    known, (name, _) = {**ALGORITHMS, **SHARED}, point_of(name)
    if class_path is None and name not in known:
        raise ConfigError(unknown_name("algorithm", name, ALGORITHMS))
    path = class_path or known[name]
    kind = check_algorithm(path, import_object(path), SHARED_STAGES)
    if class_path is not None and name in known and not issubclass(kind, import_object(known[name])):
        shipped = known[name].replace(":", ".")
        raise ConfigError(
            f"algos.{name}.class_path={path}: {name} is the name of an algorithm that ships. Choose another one, "
            f"for example algos.My{name}.class_path={path}; or, if yours is to take its place, make it a subclass "
            f"of {shipped}."
        )
    return kind
