"""Find algorithms by name or dotted path, and check them before anything is planned with them."""

import inspect
import logging
from collections.abc import Iterator
from dataclasses import asdict, replace
from difflib import get_close_matches
from operator import attrgetter
from types import CodeType
from typing import Any, ClassVar

from pipeline import errors, files
from pipeline.config import schema, tables
from pipeline.config.user_code import import_object, other_arguments, ships
from pipeline.learning.algos import base, parts, policy_config
from pipeline.learning.algos.base import Algorithm, JobContext, Read, Stage
from pipeline.learning.models.kinds import TinyModelConfig
from pipeline.learning.rewards.judge import asks_reference
from pipeline.outputs.formats import TRAINING

# -- reference ---------------------------------------------------------------------------------------------------
# Work shared by all chains, as algorithms of round 0: the preparation of a dataset, and the reference. Only
# datasets from files or the hub are prepared, on a CPU: rows by split, prompts as token ids. Other datasets make
# their rows on the spot. The reference is trained or recorded once, and evaluated like every other policy.


log = logging.getLogger("pipeline")

NAME = "dataset"
PREPARE = Stage("prepare", config=("dataset",), judges=False, seeded=False, loads_models=False, seconds=2.0)
CHECK = Stage(
    "check", reads=(Read("prepare"),), config=("dataset",), seeded=False, loads_models=False, seconds=1.0
)
"""Stage that tries rewards on the rows. It is separate so that rows and draws from them stay valid when rewards
change."""
TOKENIZE = Stage(
    "tokenize",
    reads=(Read("prepare"), base.REFERENCE_TRAIN),
    config=("dataset", "model"),
    judges=False,
    seeded=False,
    loads_models=False,
    seconds=3.0,
)


class Preparation(Algorithm):
    """The work on a dataset before all algorithms."""

    name: ClassVar[str] = NAME
    stages: ClassVar[tuple[Stage, ...]] = (PREPARE, CHECK, TOKENIZE)

    def prepare(self, ctx: JobContext) -> None:
        """Read the source and write its rows by split."""
        with ctx.loading():
            from pipeline.learning.datasets.base import load_dataset
            from pipeline.learning.datasets.from_files import of_dataset
            from pipeline.learning.datasets.prepared import prepare
        config, name = ctx.config.dataset, ctx.job_id.partition("/")[0]
        try:
            prepare(load_dataset(config), ctx.out)
        except errors.DataError as error:
            raise errors.DataError(of_dataset(error, name)) from error

    def check(self, ctx: JobContext) -> None:
        """Check that the rewards work with the rows, which are read again to locate odd ones."""
        with ctx.loading():
            from pipeline.learning.datasets.base import load_dataset
            from pipeline.learning.datasets.prepared import PreparedDataset, add_warnings, check_rows
            from pipeline.learning.rewards.probe import RowCheck, check_gold, check_rewards
        config, name = ctx.config.dataset, ctx.job_id.partition("/")[0]
        dataset, check, rows = load_dataset(config), RowCheck(name, config), PreparedDataset(ctx.input("prepare"))
        check_rows(dataset, check)
        tried = check_rewards(name, config, dataset, rows.example(), rows.about["columns"])
        warnings = [*check.told(), *(warning.removeprefix(f"datasets.{name}: ") for warning in tried)]
        warnings += check_gold(name, config, rows)
        for warning in warnings:
            log.warning("datasets.%s: %s", name, warning)
        add_warnings(ctx.input("prepare"), ctx.out, warnings)

    def tokenize(self, ctx: JobContext) -> None:
        """Write the token ids of every prompt, with the reference's tokenizer."""
        with ctx.loading():
            from pipeline.learning.datasets.prepared import PreparedDataset, tokenized
        dataset = parts.open_dataset(ctx)
        if not isinstance(dataset, PreparedDataset):
            raise errors.JobError("its dataset was not prepared")
        tokenized(dataset, parts.opening.reference_tokenizer(ctx), ctx.out)


class Reference(Algorithm):
    """The reference policy, from which every chain starts and with which it is compared."""

    name: ClassVar[str] = base.REFERENCE
    stages: ClassVar[tuple[Stage, ...]] = (
        Stage(
            "train",
            config=("system", "dataset", "model"),
            judges=False,
            seeded=False,
            scales=True,
            loads_models=False,
            seconds=36.0,
        ),
        Stage(
            "evaluate",
            shards="eval",
            reads=(base.REFERENCE_TRAIN,),
            config=(*base.TEXT, "evaluation"),
            seconds=0.4,
        ),
        Stage("metrics", reads=(Read("evaluate"),), config=("evaluation",), loads_models=False, seconds=0.1),
    )

    def train(self, ctx: JobContext) -> None:
        """Train a tiny model, or record where the named model is; see `learning.models.source`."""
        model = ctx.config.model
        if not isinstance(model, TinyModelConfig):
            parts.source.write_reference(model, ctx.out)
            return
        dataset = parts.open_dataset(ctx)
        trained, losses = parts.tiny.train_reference(
            model,
            ctx.config.system,
            dataset,
            ctx.device,
            lambda step, tokens: ctx.progress(step, total=model.steps, tokens=tokens),
            checkpoint=ctx.checkpoint("reference"),
            hints=ctx.hints,
            ranks=ctx.ranks,
            curve=ctx.curve("reference"),
        )
        parts.save_model(trained, ctx.out, ctx.ranks)
        if not ctx.ranks.is_first:
            return
        parts.load.save_tokenizer(parts.tiny.make_tokenizer(dataset), ctx.out)
        found = parts.tiny.measure_imitation(
            parts.load.load_policy(ctx.out, ctx.config.system, ctx.device), dataset
        )
        about: dict[str, Any] = {"held_out_nats_per_token": found and asdict(found), "loss": losses}
        if found and (note := found.problem(model.references[0])):
            log.warning("%s", note)
            about["note"] = note
        (ctx.out / TRAINING).write_text(files.json_text(about) + "\n")

    def evaluate(self, ctx: JobContext) -> None:
        """Sample from the plain reference, decode it greedily, and compute the optimum of all policies."""
        dataset = parts.open_dataset(ctx)
        policy = parts.opening.reference_policy(ctx, dataset)
        greedy = 0 if ctx.first_sample or ctx.greedy else parts.evaluating.GREEDY_SAMPLES
        each = ctx.config.evaluation.num_samples - ctx.first_sample + greedy
        total = parts.opening.held_out_count(ctx, dataset) * each
        drawn = parts.evaluate(ctx, policy, dataset, ctx.out, total=total)
        if greedy:
            parts.evaluating.evaluate_greedy(ctx, dataset, drawn)
        parts.evaluating.evaluate_right(ctx, dataset, policy)

    def metrics(self, ctx: JobContext) -> None:
        """Compute the metrics of all evaluated samples, and of the baselines."""
        parts.write_metrics(ctx, parts.evaluating.anchor_measures(ctx))


# -- validate ----------------------------------------------------------------------------------------------------
# Requirements on an algorithm before anything is planned with it; one message lists all violations.


_RESERVED = {"name", "version", "stages", "config_class", "kl_is_bound"}
_CLOSE = 0.85
"""Similarity, by `difflib`, from which on a name counts as a misspelling of another."""


def check_algorithm(path: str, kind: object) -> type[Algorithm]:
    """Check that the object at a dotted path is a valid algorithm.

    Args:
        path: The dotted path, for messages.
        kind: The object.

    Returns:
        The class.

    Raises:
        ConfigError: It is not an algorithm, or it cannot run.
    """
    if not (isinstance(kind, type) and issubclass(kind, Algorithm)):
        raise errors.ConfigError(
            f"'{path}' is no Algorithm: it must be a subclass of pipeline.Algorithm, ValueGuidedAlgorithms or "
            f"PostTrainingAlgorithms, and is {kind!r}"
        )
    stages = getattr(kind, "stages", None)
    problems = []
    if not (isinstance(name := getattr(kind, "name", None), str) and name):
        problems.append(f"it has no name; add the line: name = '{kind.__name__}'")
    if not (isinstance(stages, tuple | list) and stages and all(isinstance(each, Stage) for each in stages)):
        problems.append(f"its stages are {stages!r}, but must be a tuple of one Stage or more")
    if problems := problems or [*_methods(kind), *_stages(kind)]:
        raise errors.ConfigError(f"{path} cannot run: {'; '.join(problems)}")
    return kind


def _methods(kind: type[Algorithm]) -> Iterator[str]:
    for name in (stage.name for stage in kind.stages):
        method = getattr(kind, name, None)
        if not callable(method):
            yield f"it lists the stage {name} but has no such method; write def {name}(self, ctx: JobContext)"
        elif not _takes_one(kind, name):
            yield f"the method {name} must take the JobContext and nothing else: def {name}(self, ctx)"
    # Marked by abc.abstractmethod, with or without abc.ABC.
    members = {name: inspect.getattr_static(kind, name, None) for name in dir(kind)}
    if hooks := [name for name, member in members.items() if getattr(member, "__isabstractmethod__", False)]:
        family = next(each.__name__ for each in kind.__mro__ if hooks[0] in vars(each))
        yield f"it must define {', '.join(f'{hook}()' for hook in hooks)}, which {family} leaves to its subclasses"
    yield from _misspelt(kind)
    yield from other_arguments(kind, {stage.name for stage in kind.stages})


def _misspelt(kind: type[Algorithm]) -> Iterator[str]:
    """Yield methods whose names resemble an inherited one: the inherited method would silently run instead."""
    own = [parent for parent in kind.__mro__ if issubclass(parent, Algorithm) and not ships(parent)]
    methods = [each for parent in own for each in vars(parent).items() if inspect.isfunction(each[1])]
    defined = {name for name, _ in methods}
    used = {name for _, method in methods for name in _names_in(method.__code__)}
    used |= {stage.name for stage in kind.stages}  # called by the engine
    ours = [each for parent in kind.__mro__ if ships(parent) for each in vars(parent).items()]
    inherited = {name for name, each in ours if inspect.isfunction(each) and not name.startswith("_")}
    for name in sorted(defined - inherited - used):
        left = inherited - defined
        inside = [each for each in left if f"_{each}_" in f"_{name}_"]  # as in `compute_advantages`
        near = get_close_matches(name, left, 1, _CLOSE) or sorted(inside, key=len)[-1:]
        if near and not name.startswith("_"):
            yield (
                f"its method {name}() is used by none of its methods, and {near[0]}() is inherited: if that is "
                f"what it should be, write def {near[0]}; if not, call it _{name}"
            )


def _names_in(code: CodeType) -> Iterator[str]:
    """Yield the names of attributes and globals that a function uses, including nested functions."""
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


def _stages(kind: type[Algorithm]) -> Iterator[str]:
    names = [stage.name for stage in kind.stages]
    for place, stage in enumerate(kind.stages):
        if stage.name in _RESERVED or stage.name in names[:place]:
            yield f"the stage '{stage.name}' is listed twice, or called as {', '.join(sorted(_RESERVED))}"
        if stage.only_with and not isinstance(_default(stage.only_with), list):
            yield f"the stage '{stage.name}' has only_with={stage.only_with!r}; no setting of that name is a list"
        for read in stage.reads:
            yield from (f"the stage '{stage.name}' {problem}" for problem in _read(read, place, names))


def _default(setting: str) -> object:
    try:
        return attrgetter(setting)(schema.Config())
    except AttributeError:
        return None


def _read(read: Read, place: int, names: list[str]) -> Iterator[str]:
    known = names if read.algo == "self" else _TO_READ[read.algo]
    if read.stage not in known:
        yield f"reads '{read.name}': " + errors.unknown_name("stage", read.stage, known)
    elif read.algo == "self" and read.rounds != "previous" and names.index(read.stage) >= place:
        yield (
            f"reads '{read.name}', which comes later in the same round; list it after the stages that it reads, "
            f"or read that of the previous round: Read({read.stage!r}, 'previous')"
        )


_SHARED: dict[str, type[Algorithm]] = {kind.name: kind for kind in (Reference, Preparation)}
"""Algorithms of round 0, whose work all chains share."""
_TO_READ = {name: [stage.name for stage in kind.stages] for name, kind in _SHARED.items()}
_TO_READ |= {read.algo: [read.stage] for read in (base.START_TRAIN, base.TEACHER_TRAIN)}
"""Stages that an algorithm may read besides its own, by algorithm."""


def planned_stages(
    kind: type[Algorithm], settings: schema.AlgoConfig, config: schema.Config, dataset: str | None = None
) -> list[Stage]:
    """Return the stages of an algorithm in a request, with only the inputs that exist.

    See `Algorithm.stages_with`, `Stage.only_with`, and ``start`` and ``teacher`` in `Read.algo`.

    Args:
        kind: The algorithm.
        settings: Section of the algorithm.
        config: The request.
        dataset: Dataset of the chain; if its rewards compare with the reference, scoring stages draw by it too.
    """
    stages = kind.stages_with(settings)
    if dataset is not None and asks_reference(config.datasets[dataset]):
        stages = tuple(map(_comparing, stages))
    without = {base.START_TRAIN.algo, base.TEACHER_TRAIN.algo} - policy_config.taken_from(settings).keys()
    return [
        replace(stage, reads=tuple(read for read in stage.reads if read.algo not in without))
        for stage in stages
        if not stage.only_with or attrgetter(stage.only_with)(config)
    ]


def _comparing(stage: Stage) -> Stage:
    """Add to a stage what it needs of the reference to compare completions with its greedy ones."""
    if stage.name == base.SCORE.name and stage.config == base.SCORE.config:
        reads, config = (base.REFERENCE_TRAIN, *stage.reads), (*base.TEXT, "data_collection", "algo")
        return replace(stage, reads=reads, config=config)
    if stage.shards == "eval" and stage.name == base.REFERENCE_GREEDY.stage:
        return replace(stage, reads=(*stage.reads, base.REFERENCE_GREEDY))
    return stage


def with_bounded_kl(config: schema.Config) -> list[str]:
    """Return the algorithms whose KL divergence is an upper bound, sorted and without points of fronts."""
    enabled = {tables.point_of(name)[0]: algo.class_path for name, algo in config.algos.items() if algo.enabled}
    return sorted(name for name, path in enabled.items() if load_algorithm(name, path).kl_is_bound)


def load_algorithm(name: str, class_path: str | None = None) -> type[Algorithm]:
    """Find an algorithm's class.

    A user's class may have the name of a shipped algorithm if it is a subclass of it; then it replaces it.

    Raises:
        ConfigError: The name is unknown, the path names no `Algorithm`, or one that cannot run.
    """
    name, _ = tables.point_of(name)
    if class_path is None and name in _SHARED:
        return _SHARED[name]
    if class_path is None and name not in tables.ALGORITHMS:
        raise errors.ConfigError(errors.unknown_name("algorithm", name, tables.ALGORITHMS))
    path = class_path or tables.ALGORITHMS[name]
    kind = check_algorithm(path, import_object(path))
    ours = _SHARED.get(name) or (import_object(tables.ALGORITHMS[name]) if name in tables.ALGORITHMS else object)
    if not issubclass(kind, ours):
        raise errors.ConfigError(
            f"algos.{name}.class_path={path}: {name} is the name of an algorithm that ships, for a subclass of "
            f"{ours.__module__}.{ours.__name__} alone. Write algos.My{name}.class_path={path}"
        )
    return kind
