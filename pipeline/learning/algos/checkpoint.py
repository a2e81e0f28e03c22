"""Evaluate checkpoints of other programs as rows of the results: `evaluation.also`. Nothing is trained."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from pipeline.config.schema import BY_CONTENT, AlgoConfig, Config, file_or_folder, hint
from pipeline.learning.algos import base, parts
from pipeline.learning.algos.post_training import EVALUATE
from pipeline.learning.models.kinds import HFModelConfig


@dataclass(kw_only=True)
class CheckpointConfig(AlgoConfig):
    """A model that is evaluated beside those that the run trains, on the same prompts with the same draws."""

    path: str = file_or_folder("")
    """Folder of a model or of LoRA adapters, GGUF file or hub id, as of `models.hf.path`."""
    revision: str | None = hint(None, keyed=BY_CONTENT)
    """Commit, tag or branch of `path` on the hub; null takes the newest."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model. Only for models whose code you have read."""

    @property
    def trains(self) -> bool:
        """Whether anything is trained: never."""
        return False

    @property
    def model(self) -> HFModelConfig:
        """Settings of this checkpoint as a model of the request."""
        return HFModelConfig(
            kind="hf", path=self.path, revision=self.revision, trust_remote_code=self.trust_remote_code
        )

    def problems(self, key: str, config: Config) -> Iterator[str]:
        """Report a missing path."""
        if not self.path:
            yield f"{key}.path is missing: name a folder, a GGUF file or a hub id"

    def idle(self, setting: str) -> str:
        """Report settings of training as unused."""
        return "" if setting in ("path", "revision", "trust_remote_code") else "a checkpoint is evaluated alone"


class Checkpoint(base.Algorithm):
    """A checkpoint of another program, evaluated once.

    find        store the location; convert a GGUF file or adapters to a whole model
    evaluate    sample from it, and measure its divergence from the reference     (per shard)
    metrics     numbers with intervals
    """

    name: ClassVar[str] = "Checkpoint"
    config_class: ClassVar[type[AlgoConfig]] = CheckpointConfig
    is_fixed: ClassVar[bool] = True
    stages: ClassVar[tuple[base.Stage, ...]] = (
        base.FIND,
        replace(EVALUATE, reads=(base.REFERENCE_TRAIN, base.Read(base.FIND.name))),
        base.METRICS,
    )

    def find(self, ctx: base.JobContext) -> None:
        """Store the location of the checkpoint; convert a GGUF file or adapters to a whole model."""
        parts.source.write_reference(ctx.settings(CheckpointConfig).model, ctx.out)

    def evaluate(self, ctx: base.JobContext) -> None:
        """Sample from the checkpoint, with its own tokenizer and chat template."""
        dataset = parts.open_dataset(ctx)
        policy = parts.opening.outside_policy(ctx, dataset, ctx.settings(CheckpointConfig).model)
        parts.evaluate(ctx, policy, dataset, ctx.out)

    def metrics(self, ctx: base.JobContext) -> None:
        """Compute the metrics of all evaluated samples."""
        parts.write_metrics(ctx)
