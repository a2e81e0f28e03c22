"""What jobs are made of: what the key of each covers, and what its worker is given.

    sections of the configuration that a stage declares --+-- what of them determines the output --> key
    versions, identity of the model, the user's own code --+
    how it runs: checkpoints, models in memory, port ------> payload alone

A worker is given all of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pipeline.config.bases import DatasetConfig
from pipeline.config.plain import schema_path, to_plain
from pipeline.config.ranks import BY_TENSORS, devices_per_training, spread
from pipeline.config.schema import Config, GenerationConfig, TextBackend
from pipeline.learning.algos.base import GENERATE, Algorithm, Stage
from pipeline.learning.algos.reference import PREPARE
from pipeline.plan.chains import PREPARATION, REFERENCE, Chain
from pipeline.plan.compatibility import Widths, decodes_itself, with_attention
from pipeline.plan.keys import determining, result_key
from pipeline.plan.versions import class_source, dataset_source, shipped_versions

REWARD_FILES = "content of rewards"
"""In a source: models and files that options of rewards name, by ``reward.option``."""


def _without_places(dataset: Mapping[str, Any], files: Collection[str]) -> dict[str, Any]:
    """A dataset's section without the places of what rewards read, where its content is known."""
    options = {
        name: {option: value for option, value in (own or {}).items() if f"{name}.{option}" not in files}
        for name, own in dataset["grading"]["options"].items()
    }
    return {**dataset, "grading": {**dataset["grading"], "options": options}}


@dataclass(frozen=True, kw_only=True)
class Contents:
    """Of one job.

    Attributes:
        determined_by: What determines its output, besides its inputs.
        payload: What its worker is given.
        samples: Completions that it makes or judges; 0 where it is no shard.
        devices: That it needs at once.
        memory_mb: What the user says of its memory.
        digest: A short name for the settings on which its memory may depend, whichever its reference is.
    """

    determined_by: dict[str, Any]
    payload: dict[str, Any]
    samples: int
    devices: int
    memory_mb: int | None
    digest: str


class JobContents:
    """Of all jobs of a configuration; what many share is made once."""

    def __init__(
        self,
        config: Config,
        sources: Mapping[str, Mapping[str, Any]],
        models: Mapping[str, Mapping[str, Any]],
        plain_attention: Collection[str] = (),
        widths: Widths | None = None,
    ) -> None:
        """Nothing is made yet.

        Args:
            config: The configuration.
            sources: As `plan.build.build_plan` takes them.
            models: Likewise.
            plain_attention: Likewise.
            widths: Likewise.
        """
        self.config = config
        self.widths = widths or {}
        self.sources = sources
        self.models = models
        self._systems = {
            name: with_attention(config.system, plain=name in plain_attention) for name in config.models
        }
        self._rows = {name: section.without_rewards() for name, section in config.datasets.items()}
        self._own_generation = replace(config.generation, backend=TextBackend.own)
        self._digests: dict[tuple[str, str, str, str], str] = {}
        self._configs: dict[tuple[str, str, str, int | None, str], tuple[dict[str, Any], dict[str, Any]]] = {}
        self._codes: dict[tuple[str | None, str, bool], dict[str, str | None]] = {}
        self._plains: dict[int, tuple[object, dict[str, Any]]] = {}

    def of(self, chain: Chain, number: int, stage: Stage, rows: tuple[int, int]) -> Contents:
        """Of the job that runs a stage of a round on some rows."""
        what = self._what_it_is(chain, number, stage, rows)
        known, given = self._config(chain, stage)
        determined_by = {**what, "version": chain.kind.version, "config": known}
        if self._drawn_with(chain, stage) is not None:
            determined_by |= {"algo": None, "class_path": None, "version": None}
        devices = self._devices(chain, stage)
        together: dict[str, Any] = {}
        if devices > 1:
            by_tensors = stage.draws and not stage.scales
            shared = {"strategy": BY_TENSORS} if by_tensors else spread(self.config)
            together = {"devices": devices, "spread": shared}
            determined_by |= together
            together["master_port"] = self.config.distributed.master_port
        if stage == PREPARE:
            source = dict(self.sources.get(chain.dataset, {}))
            source.pop(REWARD_FILES, None)
            determined_by["source"] = source
        samples = self._samples(chain, stage, rows)
        return Contents(
            determined_by=determined_by,
            payload={**what, **together, "config": given, **self._how_it_runs(), "samples": samples},
            samples=samples,
            devices=devices,
            memory_mb=self._memory_mb(chain, stage),
            digest=self._digest(chain, stage, known, together),
        )

    def _drawn_with(self, chain: Chain, stage: Stage) -> Mapping[str, Any] | None:
        """What settles a stage that draws for several methods alike; None for all others."""
        return chain.kind.drawn_with(chain.config) if stage.name == GENERATE.name else None

    def _what_it_is(self, chain: Chain, number: int, stage: Stage, rows: tuple[int, int]) -> dict[str, Any]:
        """What of a job's payload its key covers, besides the sections of the configuration."""
        payload: dict[str, Any] = {
            "algo": chain.algo,
            "class_path": chain.config.class_path,
            "seed": chain.seed if stage.seeded else 0,
            "round": number,
            "stage": stage.name,
            "rows": list(rows),
        }
        if own := self._own_code(chain, stage):
            payload["code"] = own
        return payload

    def _how_it_runs(self) -> dict[str, Any]:
        """What of a job's payload changes nothing of what comes out."""
        return {
            "models_in_memory": self.config.execution.models_in_memory,
            "checkpoint_every_steps": self.config.training.checkpoint_every_steps,
            "checkpoint_every_minutes": self.config.training.checkpoint_every_minutes,
        }

    def _memory_mb(self, chain: Chain, stage: Stage) -> int | None:
        """What the user says of a job's memory."""
        if "algo" in stage.config and chain.config.memory_mb is not None:
            return chain.config.memory_mb
        if "training" in stage.config:
            return self.config.training.memory_mb
        return self.config.generation.memory_mb if "generation" in stage.config else None

    def _digest(self, chain: Chain, stage: Stage, known: Mapping[str, Any], together: Mapping[str, Any]) -> str:
        """A short name for the settings on which the memory of a job may depend, whichever its reference is."""
        address = (chain.algo, chain.dataset, chain.model, stage.name)
        if address not in self._digests:
            self._digests[address] = result_key({"config": known, "spread": together.get("spread")})[:12]
        return self._digests[address]

    def _devices(self, chain: Chain, stage: Stage) -> int:
        # The reference of a model that is not trained here only notes where that model is.
        trains = chain.algo != REFERENCE or self.config.models[chain.model].is_trained
        if stage.draws and not stage.scales:
            return max(stage.devices, self.widths.get((chain.algo, chain.model), 1))
        return max(stage.devices, devices_per_training(self.config)) if stage.scales and trains else stage.devices

    def _config(self, chain: Chain, stage: Stage) -> tuple[dict[str, Any], dict[str, Any]]:
        """The sections that a stage declares: what of them its key covers, and as its worker gets them.

        Made once for all jobs that share them, since thousands of shards do.
        """
        address = (chain.algo, chain.dataset, chain.model, chain.reference, stage.name)
        if address not in self._configs:
            sections = self._sections(chain, stage)
            known = {name: determining(section) for name, section in sections.items()}
            if (
                "dataset" in known
                and stage.judges
                and (files := self.sources.get(chain.dataset, {}).get(REWARD_FILES))
            ):
                known["dataset"] = {**_without_places(known["dataset"], files), REWARD_FILES: files}
            if "model" in known:
                known["model"] |= self._identity(chain)
                if stage.draws and (bits := self.config.models[chain.model].in_bits):
                    known["model"]["bits"] = bits
            shown = self._dataset(chain, stage), self.config.models[chain.model]
            generation = self._generation(chain, stage)
            if "generation" in known and generation.backend is not TextBackend.own:
                known["generation"]["backend"] = generation.backend.name
            system = self._systems[chain.model]
            kind = chain.kind
            if (drawn_with := self._drawn_with(chain, stage)) is not None:
                known["algo"], kind = dict(drawn_with), Algorithm
            if versions := shipped_versions(kind, stage, *shown, generation, system):
                known["version"] = versions
            self._configs[address] = (
                known,
                {name: self._plain(section) for name, section in sections.items()},
            )
        return self._configs[address]

    def _plain(self, section: object) -> dict[str, Any]:
        """A section as workers get it; kept with the section, so that no other has its number meanwhile."""
        if id(section) not in self._plains:
            self._plains[id(section)] = section, {"_schema_": schema_path(section), **to_plain(section)}
        return self._plains[id(section)][1]

    def _own_code(self, chain: Chain, stage: Stage) -> dict[str, str | None]:
        """Hashes of the user's own code that a stage runs."""
        sees = "dataset" in stage.config
        shared = self._drawn_with(chain, stage) is not None
        address = (None if shared else chain.config.class_path, chain.dataset if sees else "", stage.judges)
        if address not in self._codes:
            own = {} if shared else class_source(chain.config.class_path)
            self._codes[address] = own | (dataset_source(self._dataset(chain, stage)) if sees else {})
        return self._codes[address]

    def _identity(self, chain: Chain) -> dict[str, Any]:
        """What identifies the content of a model; to the work that all chains share value models do not matter."""
        found = dict(self.models.get(chain.model, {}))
        if chain.algo in (REFERENCE, PREPARATION):
            found.pop("value", None)
        return {"content": found} if found else {}

    def _dataset(self, chain: Chain, stage: Stage) -> DatasetConfig:
        """The settings of a dataset as a stage gets them."""
        return (self.config.datasets if stage.judges else self._rows)[chain.dataset]

    def _sections(self, chain: Chain, stage: Stage) -> dict[str, object]:
        own: dict[str, object] = {
            "algo": chain.config,
            "dataset": self._dataset(chain, stage),
            "model": self.config.models[chain.model].with_reference(chain.reference),
        }
        if "system" in stage.config:
            own["system"] = self._systems[chain.model]
        own["generation"] = self._generation(chain, stage)
        return {name: own[name] if name in own else getattr(self.config, name) for name in stage.config}

    def _generation(self, chain: Chain, stage: Stage) -> GenerationConfig:
        """How a stage draws texts; the same object for all that draw alike."""
        return self._own_generation if decodes_itself(chain.config, stage) else self.config.generation

    def _samples(self, chain: Chain, stage: Stage, rows: tuple[int, int]) -> int:
        if stage.shards is None:
            return 0
        each = self.config.evaluation.num_samples
        if stage.shards == "train":
            each = round(chain.config.drawn(self.config.data_collection.samples_per_example))
        return (rows[1] - rows[0]) * each
