"""What chains of a dataset and model share before anything is generated: rows by split, prompts as token ids.

Only for datasets that are read from files or the hub; the others make their rows on the spot. Runs on a CPU.
"""

from __future__ import annotations

import logging
from typing import ClassVar

from pipeline.errors import DataError, JobError
from pipeline.learning.algos.base import REFERENCE_TRAIN, Algorithm, JobContext, Read, Stage

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
            from pipeline.learning.datasets.columns import MissingColumns, ReservedColumn
            from pipeline.learning.datasets.prepared import prepare
            from pipeline.learning.datasets.registry import load_dataset
            from pipeline.learning.rewards.probe import advice_on
        config, name = ctx.config.dataset, ctx.job_id.partition("/")[0]
        try:
            prepare(load_dataset(config), ctx.out)
        except (MissingColumns, ReservedColumn) as error:
            raise DataError(f"{error} {advice_on(error, name, config)}") from error

    def check(self, ctx: JobContext) -> None:
        """See whether the rewards can work with the rows, which are read once more for the places of odd ones."""
        with ctx.loading():
            from pipeline.learning.datasets.prepared import PreparedDataset, add_warnings, check_rows
            from pipeline.learning.datasets.registry import load_dataset
            from pipeline.learning.rewards.gold import check_gold
            from pipeline.learning.rewards.probe import RowCheck, check_rewards
        config, name = ctx.config.dataset, ctx.job_id.partition("/")[0]
        dataset, check, rows = load_dataset(config), RowCheck(name, config), PreparedDataset(ctx.input("prepare"))
        check_rows(dataset, check)
        first = rows.row(int(rows.ids("train")[0]))
        tried = check_rewards(name, config, dataset, first, rows.about["columns"])
        warnings = [*check.told(), *(warning.removeprefix(f"datasets.{name}: ") for warning in tried)]
        warnings += check_gold(name, config, rows, dataset)
        for warning in warnings:
            log.warning("datasets.%s: %s", name, warning)
        add_warnings(ctx.input("prepare"), ctx.out, warnings)

    def tokenize(self, ctx: JobContext) -> None:
        """Write the token ids of every prompt, by the reference's tokenizer."""
        with ctx.loading():
            from pipeline.learning.algos.toolbox import open_dataset, reference_source
            from pipeline.learning.datasets.prepared import PreparedDataset
            from pipeline.learning.datasets.tokenized import tokenized
            from pipeline.learning.models.load import load_tokenizer
        dataset = open_dataset(ctx)
        if not isinstance(dataset, PreparedDataset):
            raise JobError("its dataset was not prepared")
        tokenizer = load_tokenizer(reference_source(ctx), trust_remote_code=ctx.config.model.trusts_code)
        tokenized(dataset, tokenizer, ctx.out)
