"""What all chains share, as algorithms of round 0: the preparation of their dataset, and the reference.

Only datasets that are read from files or the hub are prepared: rows by split, prompts as token ids, on a CPU. The
others make their rows on the spot. The reference is trained or named once, and evaluated like every other policy.
"""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import Any, ClassVar

from pipeline.errors import DataError, JobError
from pipeline.files import json_text
from pipeline.learning.algos import toolbox
from pipeline.learning.algos.base import REFERENCE, REFERENCE_TRAIN, TEXT, Algorithm, JobContext, Read, Stage
from pipeline.learning.models.kinds import TinyModelConfig
from pipeline.outputs.formats import TRAINING

log = logging.getLogger("pipeline")

NAME = "dataset"
PREPARE = Stage("prepare", config=("dataset",), judges=False, seeded=False, loads_models=False, seconds=2.0)
CHECK = Stage(
    "check", reads=(Read("prepare"),), config=("dataset",), seeded=False, loads_models=False, seconds=1.0
)
"""Rewards tried on the rows, by itself so that rows stay, and what was drawn of them, where rewards change."""
TOKENIZE = Stage(
    "tokenize",
    reads=(Read("prepare"), REFERENCE_TRAIN),
    config=("dataset", "model"),
    judges=False,
    seeded=False,
    loads_models=False,
    seconds=3.0,
)


class Preparation(Algorithm):
    """The work on a dataset that comes before all algorithms."""

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
        except DataError as error:
            raise DataError(of_dataset(error, name)) from error

    def check(self, ctx: JobContext) -> None:
        """See whether the rewards can work with the rows, which are read once more for the places of odd ones."""
        with ctx.loading():
            from pipeline.learning.datasets.base import load_dataset
            from pipeline.learning.datasets.prepared import PreparedDataset, add_warnings, check_rows
            from pipeline.learning.rewards.probe import RowCheck, check_gold, check_rewards
        config, name = ctx.config.dataset, ctx.job_id.partition("/")[0]
        dataset, check, rows = load_dataset(config), RowCheck(name, config), PreparedDataset(ctx.input("prepare"))
        check_rows(dataset, check)
        first = rows.row(int(rows.ids("train")[0]))
        tried = check_rewards(name, config, dataset, first, rows.about["columns"])
        warnings = [*check.told(), *(warning.removeprefix(f"datasets.{name}: ") for warning in tried)]
        warnings += check_gold(name, config, rows)
        for warning in warnings:
            log.warning("datasets.%s: %s", name, warning)
        add_warnings(ctx.input("prepare"), ctx.out, warnings)

    def tokenize(self, ctx: JobContext) -> None:
        """Write the token ids of every prompt, by the reference's tokenizer."""
        with ctx.loading():
            from pipeline.learning.datasets.prepared import PreparedDataset, tokenized
        dataset = toolbox.open_dataset(ctx)
        if not isinstance(dataset, PreparedDataset):
            raise JobError("its dataset was not prepared")
        tokenized(dataset, toolbox.opening.reference_tokenizer(ctx), ctx.out)


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
            toolbox.source.write_reference(model, ctx.out)
            return
        dataset = toolbox.open_dataset(ctx)
        trained, losses = toolbox.tiny.train_reference(
            model,
            dataset,
            ctx.device,
            lambda step, tokens: ctx.progress(step, total=model.steps, tokens=tokens),
            checkpoint=ctx.checkpoint("reference"),
            hints=ctx.hints,
            ranks=ctx.ranks,
            curve=ctx.curve("reference"),
        )
        toolbox.save_model(trained, ctx.out, ctx.ranks)
        if not ctx.ranks.is_first:
            return
        toolbox.load.save_tokenizer(toolbox.tiny.make_tokenizer(dataset), ctx.out)
        found = toolbox.tiny.measure_imitation(
            toolbox.load.load_policy(ctx.out, ctx.config.system, ctx.device), dataset
        )
        about: dict[str, Any] = {"held_out_nats_per_token": found and asdict(found), "loss": losses}
        if found and (note := found.problem(model.references[0])):
            log.warning("%s", note)
            about["note"] = note
        (ctx.out / TRAINING).write_text(json_text(about) + "\n")

    def evaluate(self, ctx: JobContext) -> None:
        """Sample from the reference as it is; decode greedily, and see what the best of all policies could do."""
        dataset = toolbox.open_dataset(ctx)
        policy = toolbox.opening.reference_policy(ctx, dataset)
        each = ctx.config.evaluation.num_samples + toolbox.evaluating.GREEDY_SAMPLES
        total = toolbox.opening.held_out_count(ctx, dataset) * each
        drawn = toolbox.evaluate(ctx, policy, dataset, ctx.out, total=total)
        toolbox.evaluating.evaluate_greedy(ctx, dataset, drawn)
        toolbox.evaluating.evaluate_right(ctx, dataset, policy)

    def metrics(self, ctx: JobContext) -> None:
        """Metrics of all evaluated samples, and of the anchors."""
        toolbox.write_metrics(ctx, toolbox.evaluating.anchor_measures(ctx))
