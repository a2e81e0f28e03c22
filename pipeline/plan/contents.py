"""Chains of a request, and for each job: what its key covers and what its worker gets.

    sections of the configuration that a stage declares --+-- what of them determines the output --> key
    versions, identity of the model, the user's own code --+
    how it runs: checkpoints, models in memory, port ------> payload alone

A worker gets all of it.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, TypeVar

from pipeline.config import schema
from pipeline.config.plain import brief, with_schema
from pipeline.config.schema import continued_from
from pipeline.config.tables import DATASETS, REWARD_MODEL, REWARD_NAMES, evaluated_on, point_of
from pipeline.config.user_code import import_object, source_hash
from pipeline.errors import ConfigError, unknown_name
from pipeline.learning.algos.base import GENERATE, START_TRAIN, TEACHER_TRAIN, Algorithm, Stage
from pipeline.learning.algos.policy_config import taken_from
from pipeline.learning.algos.registry import PREPARE, Preparation, Reference, load_algorithm
from pipeline.learning.rewards.judge import keyed_options
from pipeline.learning.rewards.registry import package_versions, shipped_traits
from pipeline.learning.rewards.traits import GRADING
from pipeline.plan.compatibility import decodes_itself
from pipeline.plan.graph import chain_name, determining, result_key
from pipeline.plan.models import FILES, REWARD_FILES

# -- chains ------------------------------------------------------------------------------------------------------
# A chain: one algorithm on one dataset, model, reference and seed.


REFERENCE = Reference.name
PREPARING = Preparation.name
EVALUATE = "evaluate"
"""Stage that is evaluation, by every algorithm."""
_T = TypeVar("_T")


@dataclass(frozen=True)
class Chain:
    """One algorithm on one dataset, model, reference and seed; the reference itself is a chain with round 0 only.

    Attributes:
        reference: Seed of the reference, or None if the model is not trained from one.
        named_reference: The same if the model has several references, so that names must tell them apart; else
            None.
        on: The test set of `evaluation.on` to evaluate it on; None for the dataset that it is trained on.
    """

    algo: str
    dataset: str
    model: str
    reference: int | None
    named_reference: int | None
    seed: int
    kind: type[Algorithm]
    config: schema.AlgoConfig
    on: str | None = None

    @property
    def rounds_from(self) -> int:
        """Number of its first round."""
        return 0 if self.algo in (REFERENCE, PREPARING) else 1

    @property
    def name(self) -> str:
        """Name of the chain, as in the ids of its jobs."""
        return chain_name(self.dataset, self.model, self.named_reference, self.seed, self.algo)

    @property
    def data(self) -> str:
        """The dataset whose rows its stages see."""
        return self.on or self.dataset

    @property
    def place(self) -> str:
        """Return the dataset of jobs and results: ``gsm8k``, or ``gsm8k@aime25`` on a test set."""
        return evaluated_on(self.dataset, self.on)


def chains(config: schema.Config) -> Iterator[Chain]:
    """Yield every chain of a request, each after the chains that it reads.

    The reference of a dataset, model and seed comes first; a chain comes before those that use its last model.

    Raises:
        ConfigError: An algorithm cannot be loaded, or does not read the model that it should use.
    """
    enabled = [(name, load_algorithm(name, algo.class_path), algo) for name, algo in config.enabled.items()]
    for name, kind, algo in enabled:
        for setting, other in taken_from(algo).items():
            read = {"start": START_TRAIN, "teacher": TEACHER_TRAIN}[setting]
            if not any(read in stage.reads for stage in kind.stages_with(algo)):
                raise ConfigError(
                    f"algos.{name}.{setting}={other}: no stage of {kind.__name__} reads it. Add "
                    f"{setting.upper()}_TRAIN to the reads of those that use its model"
                )
    before = {name: {*taken_from(algo).values(), continued_from(algo)[0]} for name, _, algo in enabled}

    def depth(name: str) -> int:
        return 1 + max((depth(other) for other in before[name] if other in before), default=0)

    enabled.sort(key=lambda each: depth(each[0]))
    for dataset, (model, section) in product(config.trained_on, config.models.items()):
        several = len(section.references) > 1
        for reference, seed in product(section.references, config.experiment.seeds):
            for name, kind, algo in [(REFERENCE, Reference, schema.AlgoConfig()), *enabled]:
                named = reference if several else None
                yield Chain(name, dataset, model, reference, named, seed, kind, algo)


def last_round(config: schema.Config, chain: Chain) -> int:
    """Return the last round of a chain."""
    return min(
        config.rounds_of_training, _set_for(config.experiment.last_rounds, chain, config.rounds_of_training)
    )


def evaluated_prompts(config: schema.Config, chain: Chain, number: int) -> int:
    """Return how many prompts of its own dataset a round of a chain is evaluated on, counted from the first."""
    looks, every = _set_for(config.experiment.looks, chain, list[int]()), config.evaluation.num_prompts
    return min(every, looks[number - 1]) if 1 <= number <= len(looks) else every


def _set_for(of: Mapping[str, _T], chain: Chain, default: _T) -> _T:
    """Return the setting of a chain, else that of its algorithm, a front after its point."""
    return next((of[name] for name in _names(chain) if name in of), default)


def _names(chain: Chain) -> tuple[str, str, str]:
    return chain.name, chain.algo, point_of(chain.algo)[0]


def check_chains(config: schema.Config) -> None:
    """Refuse settings of chains that the run does not have.

    Raises:
        ConfigError: There are such.
    """
    names = dict.fromkeys(name for chain in chains(config) if chain.algo != REFERENCE for name in _names(chain))
    for setting in ("last_rounds", "looks"):
        of: dict[str, object] = getattr(config.experiment, setting)
        for name in of:
            if name not in names:
                raise ConfigError(f"experiment.{setting}={brief(of)}: {unknown_name('chain', str(name), names)}")


# -- versions ----------------------------------------------------------------------------------------------------
# Versions of the code that ships, as part of keys. A stored output is reused for a job with the same key, so a key
# must change whenever the code would make other bytes. Algorithms, datasets and their base classes have a
# `version` of their own; a reward has the version in its traits and those of its packages, since scores must be
# exact. Code that many stages share has its number here. The key of a stage covers the numbers of the parts that
# it uses, according to the sections of the configuration that it declares. Versions of torch, transformers and TRL
# are in no key: an upgrade of a library keeps what is stored. Manifests record which versions made an output, and
# a table over several versions says so (`runs.origin`). `tests/integration/test_golden.py` holds digests of a
# small run stage by stage, and fails until a number is raised.


MODELS = 2
"""`pipeline.learning.models`: how models are created, read and written, and what their heads compute."""
TINY = 3
"""`pipeline.learning.models.tiny`: how a tiny reference is initialised, trained and evaluated."""
COMPUTING = 1
"""Type and attention in which a tiny reference is trained; keys without bfloat16 and with torch's attention do not
cover it."""
DECODING = 3
"""`pipeline.learning.generation`: draws, caches, guidance, divergences."""
DRAWS = 1
"""`pipeline.learning.algos.groups`: what a round draws with a policy, and what it stores."""
BACKENDS = {schema.TextBackend.vllm: 4}
"""`pipeline.learning.generation.vllm_engine`: how backends other than our own decoder are called."""
TRAINING = 4
"""`pipeline.learning.training`: losses, optimizer, schedule, order of batches."""
ROUNDING = 3
"""Stored part of a training, and attention of a guide's candidates, if models are in half precision; keys
without half precision do not cover it."""
ATTENTION = 2
"""Attention of models that are trained from scratch; keys with torch's attention do not cover it."""
PREPARATION = 9
"""`pipeline.learning.datasets`: how rows are read, converted, split and tokenised, and what is reported."""
DIVERGENCES = 1
"""Baseline of the KL divergence of completions; keys without a nucleus do not cover it."""
EVALUATION = 3
"""`pipeline.learning.algos.evaluating`: what an evaluation draws and stores for the metrics."""
STATISTICS = 7
"""`pipeline.learning.evaluation`: metrics, intervals, tests."""


_SHIPPED = "pipeline."


def shipped_versions(
    kind: type[Algorithm],
    stage: Stage,
    dataset: schema.DatasetConfig,
    model: schema.ModelConfig,
    generation: schema.GenerationConfig,
    system: schema.SystemConfig,
) -> dict[str, int | str | None]:
    """Return the versions that a stage's key covers, by part, besides that of its algorithm's own class.

    Args:
        kind: The algorithm.
        stage: A stage of it.
        dataset: The dataset of its chain.
        model: The model of its chain.
        generation: Settings for drawing texts.
        system: Precision and attention of models.
    """
    sections = set(stage.config)
    found = _of_bases(kind)
    if "model" in sections:
        found["models"] = MODELS
        if model.is_trained:
            found["tiny references"] = TINY
    if "generation" in sections:
        found["decoding"] = DECODING
        if stage.shards == "train":
            found["draws"] = DRAWS
        if generation.backend is not schema.TextBackend.own:
            found[f"decoding by {generation.backend.name}"] = BACKENDS[generation.backend]
        if "evaluation" in sections and not generation.sampling.is_whole:
            found["divergences"] = DIVERGENCES
    if "training" in sections or stage.scales:
        found["training"] = TRAINING
    if ("training" in sections or stage.scales) and system.attn_impl is not schema.Attention.sdpa:
        found["attention"] = ATTENTION
    asked = (system.dtype is schema.DType.bfloat16, system.attn_impl is not schema.Attention.sdpa)
    if stage.scales and model.is_trained and any(asked):
        found["computing"] = COMPUTING
    if system.dtype is not schema.DType.float32 and {"system", "algo"} <= sections:
        found["rounding"] = ROUNDING
    if "dataset" in sections:
        found |= {"datasets": PREPARATION, **_of_dataset(dataset)}
        if stage.judges:
            found["rewards"] = GRADING
    if "evaluation" in sections:
        found |= {"evaluation": EVALUATION} if "generation" in sections else {"statistics": STATISTICS}
    return found


def _of_bases(kind: type) -> dict[str, int | str | None]:
    """Return the versions of the base classes of a class; its own version overrides theirs."""
    return {
        f"class {_class_name(base)}": base.__dict__["version"]
        for base in kind.__mro__[1:]
        if "version" in base.__dict__
    }


def _class_name(kind: type) -> str:
    # Shipped code may move to another module without a new version.
    return kind.__qualname__ if kind.__module__.startswith(_SHIPPED) else f"{kind.__module__}.{kind.__qualname__}"


def _of_dataset(dataset: schema.DatasetConfig) -> dict[str, int | str | None]:
    path = dataset.class_path or DATASETS[dataset.kind]
    kind = import_object(path)
    found = {f"dataset {dataset.kind}": kind.version, **_of_bases(kind)}
    for name, traits in shipped_traits(dataset).items():
        if name != REWARD_MODEL:
            found[f"reward {name}"] = traits.version
            found |= {f"package {name}": version for name, version in package_versions(traits).items()}
    return found


def reward_names(dataset: schema.DatasetConfig) -> list[str]:
    """Return the rewards of a dataset: names of shipped ones, or dotted paths."""
    options = dataset.grading.options
    return [str((options.get(name) or {}).get("use", name)) for name in dataset.reward_weights if name]


# -- source code -------------------------------------------------------------------------------------------------
# The source of the user's own code as part of keys: an edited algorithm, dataset or reward runs again. The key
# covers all code in the user's files that is reachable from the class or function that the configuration names;
# comments and layout do not count (`config.user_code`). For changes that cannot be seen there, users set
# `version`.


def class_source(class_path: str | None) -> dict[str, str | None]:
    """Return the source hashes of a class by its dotted path; empty for a shipped class.

    Raises:
        ConfigError: There is no such class.
    """
    if class_path is None:
        return {}
    kind = import_object(class_path)
    # A package may re-export a definition of one of its modules.
    path = f"{kind.__module__}:{kind.__qualname__}"
    return {} if path.startswith(_SHIPPED) else {path: source_hash(path)}


def dataset_source(dataset: schema.DatasetConfig) -> dict[str, str | None]:
    """Return the source hashes of a dataset and of its rewards; empty for shipped ones.

    Rewards are parsed, not imported: they may need packages that the engine does not have.

    Raises:
        ConfigError: A reward does not exist.
    """
    rewards = [
        name for name in reward_names(dataset) if name not in REWARD_NAMES and not name.startswith(_SHIPPED)
    ]
    return class_source(dataset.class_path) | {path: source_hash(path) for path in rewards}


def _without_places(settings: Mapping[str, Any], files: Collection[str], at: str = "") -> dict[str, Any]:
    """Return settings without the paths of files whose content is known."""
    found = {}
    for name, value in settings.items():
        if f"{at}{name}" not in files:
            inner: Any = dict(enumerate(value)) if isinstance(value, list) else value
            below = [each for each in files if each.startswith(f"{at}{name}.")]
            found[name] = _without_places(inner, below, f"{at}{name}.") if below else value
    return found


@dataclass(frozen=True, kw_only=True)
class Shared:
    """Common part of all jobs of a stage, for an algorithm on a dataset, model and reference.

    Attributes:
        known: Sections of the configuration that keys cover.
        given: The same sections as workers get them.
        code: Hashes of the user's own code that it runs, under ``code``; empty if it runs none.
        over: Entries that determine the output, which replace or extend those of all stages.
        devices: Number of devices that a job needs at once.
        together: How these devices share the work, for the worker.
        memory_mb: Memory per device that the user has set.
        digest: Short name for the settings that may change its memory, regardless of its reference.
    """

    known: dict[str, Any]
    given: dict[str, Any]
    code: dict[str, Any]
    over: dict[str, Any]
    devices: int
    together: dict[str, Any]
    memory_mb: int | None
    digest: str


@dataclass(frozen=True, kw_only=True)
class Contents:
    """The contents of a job.

    Attributes:
        determined_by: Data that determine its output, besides its inputs.
        payload: Data for its worker.
        samples: Completions that it makes or judges; 0 if it is not a shard.
        shared: Data that it shares with other jobs.
    """

    determined_by: dict[str, Any]
    payload: dict[str, Any]
    samples: int
    shared: Shared


class JobContents:
    """Makes the contents of jobs; parts that many jobs share are made once."""

    def __init__(
        self,
        config: schema.Config,
        sources: Mapping[str, Mapping[str, Any]],
        models: Mapping[str, Mapping[str, Any]],
        plain_attention: Collection[str] = (),
    ) -> None:
        """Prepare; nothing is made yet.

        Args:
            config: The configuration.
            sources: As for `plan.build.build_plan`.
            models: Likewise.
            plain_attention: Likewise.
        """
        self.config = config
        self.sources = sources
        self.models = models
        plain = replace(config.system, attn_impl=schema.Attention.eager)
        self._systems = {name: plain if name in plain_attention else config.system for name in config.models}
        self._rows = {name: section.without_rewards() for name, section in config.datasets.items()}
        self._own_generation = replace(config.generation, backend=schema.TextBackend.own)
        unscored = schema.DataCollectionConfig().reward_batch_size
        self._unscored = replace(config.data_collection, reward_batch_size=unscored)
        self._how_it_runs = {  # parts of a payload that do not change the output
            "models_in_memory": config.execution.models_in_memory,
            "checkpoint_every_steps": config.training.checkpoint_every_steps,
            "checkpoint_every_minutes": config.training.checkpoint_every_minutes,
        }
        self._shared: dict[tuple[str, str, str, int | None, str, tuple[int, int]], Shared] = {}
        self._digests: dict[tuple[str, str, str, str], str] = {}
        self._plains: dict[int, tuple[object, dict[str, Any]]] = {}

    def of(
        self,
        chain: Chain,
        number: int,
        stage: Stage,
        rows: tuple[int, int],
        part: schema.EvaluationPart | None = None,
    ) -> Contents:
        """Return the contents of the job that runs a stage of a round on some rows.

        Args:
            chain: The chain.
            number: The round.
            stage: The stage.
            rows: Positions of its prompts; (0, 0) for a stage that is not split.
            part: Part of the evaluation that it draws; None for a stage that does not evaluate.
        """
        evaluation = schema.evaluation_on(self.config, chain.data) if part is None else part.settings
        size = (evaluation.num_prompts, evaluation.num_samples)
        address = (chain.algo, chain.place, chain.model, chain.reference, stage.name, size)
        if address not in self._shared:  # the same for thousands of shards
            self._shared[address] = self._made(chain, stage, evaluation)
        shared = self._shared[address]
        what: dict[str, Any] = {
            "algo": chain.algo,
            "class_path": chain.config.class_path,
            "seed": chain.seed if stage.seeded else 0,
            "round": 0 if chain.kind.is_fixed else number,
            "stage": stage.name,
            "rows": list(rows),
            **({"first_sample": part.samples[0]} if part is not None and part.samples[0] else {}),
            **({"greedy": True} if self._greedy(chain, stage) else {}),
            **shared.code,
        }
        samples = self._samples(chain, stage, rows, part)
        return Contents(
            determined_by={**what, "version": chain.kind.version, "config": shared.known, **shared.over},
            payload={**what, **shared.together, "config": shared.given, **self._how_it_runs, "samples": samples},
            samples=samples,
            shared=shared,
        )

    def _made(self, chain: Chain, stage: Stage, evaluation: schema.EvaluationConfig) -> Shared:
        dataset = (self.config.datasets if stage.judges else self._rows)[chain.data]
        # Content of a stage whose draws several methods share; None for all others.
        drawn_with = chain.kind.drawn_with(chain.config) if stage.name == GENERATE.name else None
        sections = self._sections(chain, stage, dataset, evaluation)
        known = self._known(chain, stage, sections)
        kind, over, together = chain.kind, dict[str, Any](), dict[str, Any]()
        if drawn_with is not None:
            known["algo"], kind = dict(drawn_with), Algorithm
            over = {"algo": None, "class_path": None, "version": None}
        model, generation = self.config.models[chain.model], self._generation(chain, stage)
        if versions := shipped_versions(kind, stage, dataset, model, generation, self._systems[chain.model]):
            known["version"] = versions
        if (devices := self._devices(chain, stage)) > 1:
            by_tensors = stage.draws and not stage.scales
            spread = {"strategy": schema.BY_TENSORS} if by_tensors else schema.spread(self.config)
            together = {"devices": devices, "spread": spread}
        if stage == PREPARE:
            source = self.sources.get(chain.data, {}).items()
            over["source"] = {name: of for name, of in source if name not in (FILES, REWARD_FILES)}
        code = {} if drawn_with is not None else class_source(chain.config.class_path)
        code |= dataset_source(dataset) if "dataset" in stage.config else {}
        digest = result_key({"config": known, "spread": together.get("spread")})[:12]
        return Shared(
            known=known,
            given={name: self._plain(section) for name, section in sections.items()},
            code={"code": code} if code else {},
            over={**over, **together},
            devices=devices,
            together={**together, "master_port": self.config.distributed.master_port} if together else {},
            memory_mb=self._memory_mb(chain, stage),
            digest=self._digests.setdefault((chain.algo, chain.place, chain.model, stage.name), digest),
        )

    def _known(self, chain: Chain, stage: Stage, sections: Mapping[str, object]) -> dict[str, Any]:
        """Return the part of a stage's declared sections that its key covers."""
        known = {name: determining(section) for name, section in sections.items()}
        if "dataset" in known:
            source = self.sources.get(chain.data, {})
            if files := source.get(FILES):
                known["dataset"] = {**_without_places(known["dataset"], files), FILES: files}
            if stage.judges and (judges := keyed_options(self.config.datasets[chain.dataset])):
                grading = known["dataset"]["grading"]
                known["dataset"]["grading"] = {**grading, "options": {**grading["options"], **judges}}
            if stage.judges and (files := source.get(REWARD_FILES)):
                grading = known["dataset"]["grading"]
                grading = {**grading, "options": _without_places(grading["options"], files)}
                known["dataset"] = {**known["dataset"], "grading": grading, REWARD_FILES: files}
        if "algo" in known and (files := self.sources.get(f"algos.{chain.algo}", {}).get(FILES)):
            known["algo"] = {**_without_places(known["algo"], files), FILES: files}
        if "model" in known:
            # Value models do not matter to work that all chains share.
            content = dict(self.models.get(chain.model, {}))
            if not chain.rounds_from:
                content.pop("value", None)
            known["model"] |= {"content": content} if content else {}
            if stage.draws and (bits := self.config.models[chain.model].in_bits):
                known["model"]["bits"] = bits
        generation = self._generation(chain, stage)
        if "generation" in known and generation.backend is not schema.TextBackend.own:
            known["generation"]["backend"] = generation.backend.name
        return known

    def _sections(
        self,
        chain: Chain,
        stage: Stage,
        dataset: schema.DatasetConfig,
        evaluation: schema.EvaluationConfig,
    ) -> dict[str, object]:
        own: dict[str, object] = {
            "evaluation": evaluation,
            "algo": chain.config,
            "dataset": dataset,
            "model": self.config.models[chain.model].with_reference(chain.reference),
            "system": self._systems[chain.model],
            "generation": self._generation(chain, stage),
            "data_collection": self.config.data_collection if stage.judges else self._unscored,
        }
        return {name: own[name] if name in own else getattr(self.config, name) for name in stage.config}

    def _generation(self, chain: Chain, stage: Stage) -> schema.GenerationConfig:
        """Return how a stage draws texts; the same object for all stages that draw alike."""
        usual = self._own_generation if decodes_itself(chain.config, stage) else self.config.generation
        own = self.config.datasets[chain.data].sampling.of_generation() if stage.shards == "eval" else {}
        return replace(usual, **own) if own else usual

    def _greedy(self, chain: Chain, stage: Stage) -> bool:
        # Strengths of guidance are chosen by samples all the same.
        return stage.name == EVALUATE and self.config.datasets[chain.data].sampling.is_greedy

    def _plain(self, section: object) -> dict[str, Any]:
        """Return a section as workers get it; the section is kept alive, so that its `id` is not reused."""
        if id(section) not in self._plains:
            self._plains[id(section)] = section, with_schema(section)
        return self._plains[id(section)][1]

    def _devices(self, chain: Chain, stage: Stage) -> int:
        # The reference of a model that is not trained here only records the model's path.
        trains = chain.algo != REFERENCE or self.config.models[chain.model].is_trained
        most = 1
        if stage.draws and not stage.scales:
            most = self.config.generation.gpus_per_job
        elif stage.scales and trains:
            most = schema.devices_per_training(self.config)
        return max(stage.devices, most)

    def _memory_mb(self, chain: Chain, stage: Stage) -> int | None:
        """Return the memory in MiB that the user has set for a job."""
        if "algo" in stage.config and chain.config.memory_mb is not None:
            return chain.config.memory_mb
        if "training" in stage.config:
            return self.config.training.memory_mb
        return self.config.generation.memory_mb if "generation" in stage.config else None

    def _samples(
        self, chain: Chain, stage: Stage, rows: tuple[int, int], part: schema.EvaluationPart | None
    ) -> int:
        if stage.shards is None:
            return 0
        if part is None:
            each = round(chain.config.drawn(self.config.data_collection.samples_per_example))
        else:
            each = part.samples[1] - part.samples[0]
        return (rows[1] - rows[0]) * each
