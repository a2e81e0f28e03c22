"""Algorithms by name or dotted path, checked before anything is planned with them."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator
from dataclasses import replace
from difflib import get_close_matches
from keyword import iskeyword
from operator import attrgetter
from types import CodeType
from typing import get_args, get_type_hints

from pipeline.config.bases import AlgoConfig
from pipeline.config.schema import Config
from pipeline.config.tables import ALGORITHMS, point_of
from pipeline.config.user_code import import_object
from pipeline.errors import ConfigError, unknown_name
from pipeline.learning.algos.base import START_TRAIN, Algorithm, Read, Section, Stage
from pipeline.learning.algos.policy_config import start_of
from pipeline.learning.algos.reference import Preparation, Reference
from pipeline.learning.overriding import other_arguments, ships

# -- validate ----------------------------------------------------------------------------------------------------
# What an algorithm must fulfil before anything is planned with it: every breach in one message.


_SECTIONS = get_args(Section)
_SHARDS = ("train", "eval", None)
_ROUNDS = get_args(get_type_hints(Read)["rounds"])
_RESERVED = {"name", "version", "stages", "config_class", "kl_is_bound"}
_CLOSE = 0.85
"""How alike two names are of which one is taken for the other misspelt, as `difflib` counts."""
_EXAMPLE = "stages = (Stage('train'), Stage('evaluate', shards='eval', reads=(Read('train'),)), METRICS)"


def check_algorithm(path: str, kind: object, shared: dict[str, tuple[str, ...]]) -> type[Algorithm]:
    """Check what a dotted path has led to.

    Args:
        path: The dotted path, for messages.
        kind: What was found there.
        shared: Whose stages may be read besides its own, by name.

    Returns:
        The class.

    Raises:
        ConfigError: It is no algorithm, or one that cannot run.
    """
    if not isinstance(kind, type):
        hint = "; name the class, not an object made of it" if isinstance(kind, Algorithm) else ""
        raise ConfigError(f"'{path}' is no algorithm: it is no class, but a {type(kind).__name__}{hint}")
    if not issubclass(kind, Algorithm):
        bases = ", ".join(base.__name__ for base in kind.__bases__)
        raise ConfigError(
            f"'{path}' is no algorithm: it must be a subclass of pipeline.learning.algos.base.Algorithm, of "
            f"ValueGuidedAlgorithms or of PostTrainingAlgorithms, and is one of {bases}"
        )
    problems = list(_attributes(kind)) or [*_methods(kind), *_stages(kind, shared)]
    if len(problems) == 1:
        raise ConfigError(f"{path}: {problems[0]}")
    if problems:
        raise ConfigError("\n".join([f"{path} cannot run:", *(f"  - {problem}" for problem in problems)]))
    return kind


def _attributes(kind: type[Algorithm]) -> Iterator[str]:
    name, version = getattr(kind, "name", None), kind.version
    if not (isinstance(name, str) and name):
        yield f"it has no name; add the line: name = '{kind.__name__}'"
    if not isinstance(version, int) or isinstance(version, bool):
        yield f"its version is {version!r}, but must be a whole number"
    if not isinstance(bound := getattr(kind, "kl_is_bound", None), bool):
        yield f"its kl_is_bound is {bound!r}, but must be True or False"
    stages = getattr(kind, "stages", None)
    if stages is None:
        yield f"it has no stages; add a line such as: {_EXAMPLE}"
        return
    if not isinstance(stages, tuple | list) or not stages or not all(isinstance(each, Stage) for each in stages):
        yield f"its stages are {stages!r}, but must be a tuple of one Stage or more, such as: {_EXAMPLE}"


def _methods(kind: type[Algorithm]) -> Iterator[str]:
    names = [stage.name for stage in kind.stages if _is_name(stage.name)]
    methods = {name: getattr(kind, name, None) for name in names}
    if missing := [name for name, method in methods.items() if not callable(method)]:
        yield (
            f"it lists the stages {', '.join(missing)} but has no method of that name; "
            f"write def {missing[0]}(self, ctx: JobContext) -> None"
        )
    for name, method in methods.items():
        if inspect.iscoroutinefunction(method) or inspect.isgeneratorfunction(method):
            yield f"the method {name} is async or yields, so calling it would do nothing; make it a plain method"
        elif callable(method) and not _takes_one(kind, name):
            yield f"the method {name} must take the JobContext and nothing else: def {name}(self, ctx)"
    # Marked by abc.abstractmethod, with or without abc.ABC.
    members = {name: inspect.getattr_static(kind, name, None) for name in dir(kind)}
    if hooks := [name for name, member in members.items() if getattr(member, "__isabstractmethod__", False)]:
        family = next(base.__name__ for base in kind.__mro__ if hooks[0] in vars(base))
        yield f"it must define {', '.join(f'{hook}()' for hook in hooks)}, which {family} leaves to its subclasses"
    yield from _misspelt(kind)
    yield from other_arguments(kind, {stage.name for stage in kind.stages})


def _misspelt(kind: type[Algorithm]) -> Iterator[str]:
    """Methods that are called much as an inherited one, which would then run in their place, and say nothing."""
    own = [base for base in kind.__mro__ if issubclass(base, Algorithm) and not ships(base)]
    methods = [each for base in own for each in vars(base).items() if inspect.isfunction(each[1])]
    defined = {name for name, _ in methods}
    used = {name for _, method in methods for name in _names_in(method.__code__)}
    used |= {stage.name for stage in kind.stages}  # which the engine calls
    ours = [each for base in kind.__mro__ if ships(base) for each in vars(base).items()]
    inherited = {name for name, each in ours if inspect.isfunction(each) and not name.startswith("_")}
    for name in sorted(defined - inherited - used):
        likely = None if name.startswith("_") else _likely(name, inherited - defined)
        if likely:
            yield (
                f"its method {name}() is used by none of its methods, and {likely}() is inherited: if that is "
                f"what it should be, write def {likely}; if not, call it _{name}"
            )


def _likely(name: str, inherited: Collection[str]) -> str | None:
    """The inherited name that another one resembles, or holds between words of its own as `compute_advantages`."""
    inside = [each for each in inherited if f"_{each}_" in f"_{name}_"]
    near = get_close_matches(name, inherited, 1, _CLOSE)
    return near[0] if near else max(inside, key=lambda each: (len(each), each), default=None)


def _names_in(code: CodeType) -> Iterator[str]:
    """Names of attributes and globals that a function uses, and the functions in it."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names_in(inner)


def _takes_one(kind: type[Algorithm], name: str) -> bool:
    plain = not isinstance(inspect.getattr_static(kind, name), staticmethod | classmethod)
    try:
        inspect.signature(getattr(kind, name)).bind(*[None] * (2 if plain else 1))
    except TypeError:
        return False
    return True


def _stages(kind: type[Algorithm], shared: dict[str, tuple[str, ...]]) -> Iterator[str]:
    names = [stage.name for stage in kind.stages]
    for place, stage in enumerate(kind.stages):
        if not _is_name(stage.name):
            yield (
                f"the stage {stage.name!r} must be named as its method is: letters, digits and '_', no word of "
                f"Python, and none of {', '.join(sorted(_RESERVED))}"
            )
        if stage.name in names[:place]:
            yield f"the stage '{stage.name}' is listed twice; a method is one stage"
        if stage.shards not in _SHARDS:
            yield f"the stage '{stage.name}' has shards={stage.shards!r}; it must be 'train', 'eval' or None"
        if stage.devices < 1:
            yield f"the stage '{stage.name}' has devices={stage.devices}; it must be at least 1"
        if stage.only_with and not isinstance(_default(stage.only_with), list):
            yield f"the stage '{stage.name}' has only_with={stage.only_with!r}; no setting of that name is a list"
        for section in stage.config:
            if section not in _SECTIONS:
                yield f"the stage '{stage.name}': " + unknown_name("section", str(section), _SECTIONS)
        for read in stage.reads:
            yield from (f"the stage '{stage.name}' {problem}" for problem in _read(read, place, names, shared))


def _default(setting: object) -> object:
    try:
        return attrgetter(str(setting))(Config())
    except AttributeError:
        return None


def _read(read: object, place: int, names: list[str], shared: dict[str, tuple[str, ...]]) -> Iterator[str]:
    if not isinstance(read, Read):
        yield f"reads {read!r}; it must be Read({read!r})"
    elif read.rounds not in _ROUNDS:
        yield f"reads '{read.stage}' of rounds={read.rounds!r}; it must be one of {', '.join(_ROUNDS)}"
    elif read.algo != "self" and read.algo not in shared:
        yield f"reads '{read.stage}' of algo={read.algo!r}; it must be one of self, {', '.join(shared)}"
    elif read.algo != "self":
        if read.stage not in shared[read.algo]:
            yield f"reads an unknown stage of {read.algo}: " + unknown_name("stage", read.stage, shared[read.algo])
    elif read.stage not in names:
        yield f"reads '{read.name}': " + unknown_name("stage", read.stage, set(names))
    elif read.rounds != "previous" and names.index(read.stage) >= place:
        yield (
            f"reads '{read.name}', which comes later in the same round; list it after the stages that it reads, "
            f"or read that of the previous round: Read({read.stage!r}, 'previous')"
        )


def _is_name(name: object) -> bool:
    return (
        isinstance(name, str)
        and name.isidentifier()
        and not iskeyword(name)
        and not name.startswith("__")
        and name not in _RESERVED
    )


SHARED = {
    "dataset": "pipeline.learning.algos.reference:Preparation",
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
