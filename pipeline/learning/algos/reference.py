"""The reference policy as an algorithm of round 0: trained or named once, evaluated like every other."""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import Any, ClassVar

from pipeline.files import json_text
from pipeline.learning.algos.base import REFERENCE, REFERENCE_TRAIN, TEXT, Algorithm, JobContext, Read, Stage
from pipeline.learning.models.kinds import TinyModelConfig
from pipeline.outputs.formats import TRAINING

log = logging.getLogger("pipeline")


class Reference(Algorithm):
    """What every chain starts from and is compared with."""

    name: ClassVar[str] = REFERENCE
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
        Stage("evaluate", shards="eval", reads=(REFERENCE_TRAIN,), config=(*TEXT, "evaluation"), seconds=0.4),
        Stage("metrics", reads=(Read("evaluate"),), config=("evaluation",), loads_models=False, seconds=0.1),
    )

    def train(self, ctx: JobContext) -> None:
        """Train a tiny model, or note where the named model is; see `learning.models.source`."""
        model = ctx.config.model
        if not isinstance(model, TinyModelConfig):
            with ctx.loading():
                from pipeline.learning.models.source import write_reference
            write_reference(model, ctx.out)
            return
        with ctx.loading():
            from pipeline.learning.algos.toolbox import open_dataset
            from pipeline.learning.models.load import load_policy, save_tokenizer
            from pipeline.learning.models.tiny import make_tokenizer, measure_imitation, train_reference
            from pipeline.learning.training.distributed import save_model
        dataset = open_dataset(ctx)
        trained, losses = train_reference(
            model,
            dataset,
            ctx.device,
            lambda step, tokens: ctx.progress(step, total=model.steps, tokens=tokens),
            checkpoint=ctx.checkpoint("reference"),
            hints=ctx.hints,
            ranks=ctx.ranks,
            curve=ctx.curve("reference"),
        )
        save_model(trained, ctx.out, ctx.ranks)
        if not ctx.ranks.is_first:
            return
        save_tokenizer(make_tokenizer(dataset), ctx.out)
        found = measure_imitation(load_policy(ctx.out, ctx.config.system, ctx.device), dataset)
        about: dict[str, Any] = {"held_out_nats_per_token": found and asdict(found), "loss": losses}
        if found and (note := found.problem(model.references[0])):
            log.warning("%s", note)
            about["note"] = note
        (ctx.out / TRAINING).write_text(json_text(about) + "\n")

    def evaluate(self, ctx: JobContext) -> None:
        """Sample from the reference as it is; decode greedily, and see what the best of all policies could do."""
        with ctx.loading():
            from pipeline.learning.algos import anchors, toolbox
        dataset = toolbox.open_dataset(ctx)
        policy = toolbox.reference_policy(ctx, dataset)
        each = ctx.config.evaluation.num_samples + anchors.GREEDY_SAMPLES
        total = toolbox.held_out_count(ctx, dataset) * each
        drawn = toolbox.evaluate(ctx, policy, dataset, ctx.out, total=total)
        anchors.evaluate_greedy(ctx, dataset, drawn)
        anchors.evaluate_right(ctx, dataset, policy)

    def metrics(self, ctx: JobContext) -> None:
        """Metrics of all evaluated samples, and of the anchors."""
        with ctx.loading():
            from pipeline.learning.algos import anchors, toolbox
        toolbox.write_metrics(ctx, anchors.measures(ctx))
