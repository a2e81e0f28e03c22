"""Find the models that a run has trained, by chain and round, and how each was used."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.config.load import COMPOSITION_ERRORS, config_from_plain, explain
from pipeline.config.plain import refuse_all, value_problems
from pipeline.config.schema import Config, DatasetConfig, LongPrompts, ModelConfig
from pipeline.errors import ConfigError, StoreError
from pipeline.foreign import ForeignDataError, converted
from pipeline.learning.algos.base import REFERENCE, Algorithm
from pipeline.learning.algos.registry import load_algorithm
from pipeline.learning.algos.value_guided import ValueAlgoConfig, ValueGuidedAlgorithms
from pipeline.learning.datasets.base import load_dataset
from pipeline.learning.datasets.from_files import FilesDataset
from pipeline.learning.models.source import reference_folder
from pipeline.outputs import formats
from pipeline.outputs.formats import Drawing, GuidanceSettings, Prompting, Usage
from pipeline.outputs.manifest import REMOVED
from pipeline.plan.graph import Job
from pipeline.runs.loaded import LoadedRun, find_named, listed
from pipeline.runs.origin import prepared_rows
from pipeline.runs.record import METRICS_STAGE

if TYPE_CHECKING:
    from pipeline.learning.generation.sampling import Offset

TRAIN = "train"
CHOSEN = f"chosen/{formats.ETA}"
"""Prefix of the metrics of a sweep that mark the chosen strength."""


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A model that a run has trained, after a round of one of its chains.

    Attributes:
        run: The run.
        config: Configuration of the run.
        job: The job that trained the model.
        rounds: Number of rounds of the chain.
    """

    run: LoadedRun
    config: Config
    job: Job
    rounds: int

    @property
    def folder(self) -> Path:
        """Return the stored output of the training."""
        return self.run.store.path(self.job.key)

    @property
    def is_value(self) -> bool:
        """Return whether the model is a value model, not a policy."""
        return issubclass(_kind_of(self.config, self.job.algo), ValueGuidedAlgorithms)

    @cached_property
    def reward_models(self) -> list[Path]:
        """Return the folders of the fitted reward models, by fold; empty for a policy or value model."""
        if not _fits_rewards(self.config, self.job):
            return []
        folds = [self.folder / f"fold_{fold}" for fold in range(len(list(self.folder.glob("fold_*"))))]
        return folds or [self.folder]

    @property
    def reference(self) -> Path:
        """Return the stored output of the reference of the chain; of this training if it is the reference."""
        keys = self.job.inputs.get("reference.train", ())
        return self.run.store.path(keys[0]) if keys else self.folder

    @property
    def weights(self) -> Path:
        """Return the folder of the weights: the output, or the folder that the output names."""
        return self._weights(self.folder)

    @property
    def reference_weights(self) -> Path:
        """Return the folder of the reference's weights."""
        return self._weights(self.reference)

    def _weights(self, output: Path) -> Path:
        return Path(reference_folder(output, self.model))

    @property
    def model(self) -> ModelConfig:
        """Return the settings of the model that the chain starts from."""
        return self.config.models[self.job.model]

    @property
    def sections(self) -> set[str]:
        """Return the sections of the configuration that the stages of the method use."""
        return {name for stage in _kind_of(self.config, self.job.algo).stages for name in stage.config}

    @property
    def data(self) -> DatasetConfig:
        """Return the settings of the dataset of the chain."""
        return self.config.datasets[self.job.dataset]

    @cached_property
    def guidance(self) -> GuidanceSettings:
        """Return how a value model guides: at the strength that a sweep has chosen, or at the method's own.

        Raises:
            StoreError: The saved guidance or metrics cannot be read.
        """
        chosen = self._chosen_eta()
        saved = self._saved_guidance()
        return saved if chosen is None else replace(saved, eta=None if math.isinf(chosen) else chosen)

    @cached_property
    def offset(self) -> Callable[[float], Offset] | None:
        """Return the method's offset as a function of the strength; None if the guidance settings contain it."""
        if self.guidance.offset is not None:
            return None
        method, algo = _kind_of(self.config, self.job.algo)(), self.config.algos[self.job.algo]
        assert isinstance(method, ValueGuidedAlgorithms)
        assert isinstance(algo, ValueAlgoConfig)
        return lambda eta: method.offset(replace(algo, eta=eta))

    @property
    def usage(self) -> Usage:
        """Return how the run's evaluation used the model on the dataset that it was trained on."""
        config = self.config
        drawn = replace(config.generation, **self.data.sampling.of_generation())
        longest = load_dataset(self.data).completion_length
        return Usage(
            kind="value" if self.is_value else "policy",
            drawing=replace(
                converted(vars(drawn), Drawing),
                max_new_tokens=min(drawn.max_new_tokens, longest or drawn.max_new_tokens),
                truncate_prompts=drawn.long_prompts is LongPrompts.truncate,
                dtype=config.system.dtype.name,
                attention=config.system.attn_impl.name,
            ),
            prompting=replace(converted(vars(self.data), Prompting), chat=self._reads_conversations),
            chain=self.job.chain,
            round=self.job.round,
        )

    @property
    def _reads_conversations(self) -> bool:
        """Return whether prompts were conversations, made so by `chat` or given as conversations in the rows."""
        prepared = prepared_rows(self.run.store, self.run.plan.jobs.values()).get(self.job.dataset)
        if prepared is not None:
            return prepared.conversational
        dataset = load_dataset(self.data)
        if isinstance(dataset, FilesDataset):  # its rows are gone
            return bool(getattr(self.data, "chat", False))
        return not isinstance(dataset.row(int(dataset.ids("train")[0])).prompt, str)

    def _saved_guidance(self) -> GuidanceSettings:
        try:
            return formats.read_guidance(self.folder / formats.GUIDANCE)
        except (OSError, ForeignDataError) as error:
            raise StoreError(
                f"cannot read {self.folder / formats.GUIDANCE}: {formats.problem_in_words(error)}"
            ) from error

    def _chosen_eta(self) -> float | None:
        """Return the strength that the round's sweep has chosen, from the metrics; None without a sweep."""
        job = next((job for job in self.run.plan.jobs.values() if self._measures(job)), None)
        if job is None:
            return None
        folder = self.run.store.path(job.key)
        try:
            rows = formats.read_metrics(folder).rows
        except FileNotFoundError:  # not evaluated, so nothing was chosen
            return None
        except (OSError, ForeignDataError) as error:
            raise StoreError(f"cannot read the metrics in {folder}: {formats.problem_in_words(error)}") from error
        taken = [row.metric for row in rows if row.metric.startswith(CHOSEN) and row.value == 1.0]
        return float(taken[0].removeprefix(CHOSEN)) if taken else None

    def _measures(self, job: Job) -> bool:
        return job.stage == METRICS_STAGE and (job.chain, job.round) == (self.job.chain, self.job.round)


def find_trained(
    run: LoadedRun,
    chain: str | None = None,
    number: int | None = None,
    *,
    rewards: bool = False,
    also_gone: bool = False,
    bring: Callable[[Trained], None] = lambda _: None,
) -> Trained:
    """Return the model that a chain of a run has trained.

    Args:
        run: The run.
        chain: Name of the chain, a part of it, or a pattern with ``*``; None for the only chain that trains.
        number: Round; None for the last one.
        rewards: Whether to find the fitted reward models instead of the policy or value model.
        also_gone: Whether to accept a model that was trained but is gone: its weights were removed, as
            `execution.keep` asked, or its output was lost or damaged.
        bring: Called with the model before it is checked, to fetch or compute its output.

    Raises:
        ConfigError: No chain fits, several do, or there is no such round; the message lists those that exist.
        StoreError: The model is not trained yet, or is gone.
    """
    config = config_of(run)
    chains = trained_chains(run, config, rewards=rewards)
    name = _named(run, chains, chain, "reward model" if rewards else "policy or value model")
    jobs = chains[name]
    if number is not None and number not in jobs:
        raise ConfigError(f"{name} has no round {number}; there are: {', '.join(map(str, sorted(jobs)))}")
    model = Trained(run=run, config=config, job=jobs[max(jobs) if number is None else number], rounds=max(jobs))
    bring(model)
    _check_finished(model, jobs, also_gone=also_gone)
    return model


def _named(run: LoadedRun, chains: Mapping[str, object], chain: str | None, what: str) -> str:
    if not chains:
        raise ConfigError(f"run {run.stamp} of {run.name} has no {what}")
    if chain is not None:
        return find_named(chains, chain, what)
    named = [name for name in chains if not name.endswith(f"/{REFERENCE}")]
    if len(named) == 1:
        return named[0]
    has = f"several {what}s" if named else f"no {what} but those of references"
    raise ConfigError(f"run {run.stamp} of {run.name} has {has}; say which:\n{listed(named or list(chains))}")


def trained_chains(run: LoadedRun, config: Config, *, rewards: bool = False) -> dict[str, dict[int, Job]]:
    """Return the chains of a run that train a model: name of the chain -> round -> job that trains.

    Args:
        run: The run.
        config: Configuration of the run.
        rewards: Whether to return chains that fit reward models instead of those that train what is evaluated.
    """
    chains: dict[str, dict[int, Job]] = {}
    for job in run.plan.jobs.values():
        fits = _fits_rewards(config, job)
        trains = config.algos[job.algo].trains if fits else job.stage == TRAIN
        if fits is rewards and trains:
            chains.setdefault(job.chain, {})[job.round] = job
    return chains


def _fits_rewards(config: Config, job: Job) -> bool:
    """Return whether the stage of a job fits reward models."""
    stages = _kind_of(config, job.algo).stages if job.algo in config.algos else ()
    return any(stage.name == job.stage and stage.saves == "rewards" for stage in stages)


def config_of(run: LoadedRun) -> Config:
    """Return the resolved configuration of a run.

    Raises:
        ConfigError: The file cannot be read, or has settings that this version does not know.
    """
    plain = run.read_config()
    try:
        config = config_from_plain(plain)
        refuse_all(list(value_problems(config)))
        refuse_all(list(_missing(run, config)))
    except (ConfigError, *COMPOSITION_ERRORS) as error:
        problem = error if isinstance(error, ConfigError) else explain(error)
        raise ConfigError(f"{run.folder.config} is no configuration ({problem})") from error
    return config


def _missing(run: LoadedRun, config: Config) -> Iterator[str]:
    """Yield the sections that trainings of the run use but that the configuration lacks."""
    jobs = [job for job in run.plan.jobs.values() if job.stage == TRAIN]
    for table, kind in {"algos": "algo", "datasets": "dataset", "models": "model"}.items():
        needed = {getattr(job, kind) for job in jobs} - {REFERENCE}
        yield from (f"{table}.{name} is missing" for name in sorted(needed - getattr(config, table).keys()))


def _kind_of(config: Config, algo: str) -> type[Algorithm]:
    return load_algorithm(algo, None if algo == REFERENCE else config.algos[algo].class_path)


def _check_finished(model: Trained, jobs: dict[int, Job], *, also_gone: bool) -> None:
    store, run, name, number = model.run.store, model.run, model.job.chain, model.job.round
    problem = store.problem(model.job.key, checksums=False)
    was_trained = problem == REMOVED or run.view.jobs[model.job.id].status in ("done", "stored")
    if problem is None or (was_trained and also_gone):
        return
    there = [str(at) for at, job in sorted(jobs.items()) if store.has(job.key, checksums=False)]
    remedy = f"Rounds that are there: {', '.join(there)}" if there else "No round of it is there"
    again = f"`python -m pipeline export {run.name} {name} --round {number} --to DIR` makes them again"
    how, then = f"were lost or damaged ({problem})", again
    if problem == REMOVED:
        how = "were removed, as execution.keep asked"
    elif not was_trained:
        how, then = f"are not trained ({problem})", "The run's command goes on from where it was"
    raise StoreError(f"{name}: the weights of round {number} of {model.rounds} {how}. {remedy}. {then}")
