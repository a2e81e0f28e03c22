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
PREPARE = Stage("prepare", config=("dataset",), seeded=False, loads_models=False, seconds=2.0)
TOKENIZE = Stage(
    "tokenize",
    reads=(Read("prepare"), REFERENCE_TRAIN),
    config=("dataset", "model"),
    seeded=False,
    loads_models=False,
    seconds=3.0,
)


class Preparation(Algorithm):
    """The work on a dataset that comes before all algorithms."""

    name: ClassVar[str] = NAME
    stages: ClassVar[tuple[Stage, ...]] = (PREPARE, TOKENIZE)

    def prepare(self, ctx: JobContext) -> None:
        """Read the source once and write its rows by split; then see whether the rewards can work with them."""
        with ctx.loading():
            from pipeline.learning.datasets.columns import MissingColumns, ReservedColumn
            from pipeline.learning.datasets.prepared import PreparedDataset, add_warnings, prepare
            from pipeline.learning.datasets.registry import load_dataset
            from pipeline.learning.rewards.gold import check_gold
            from pipeline.learning.rewards.probe import advice_on, check_rewards
            from pipeline.learning.rewards.row_check import RowCheck
        config, name = ctx.config.dataset, ctx.job_id.partition("/")[0]
        dataset, check = load_dataset(config), RowCheck(name, config)
        try:
            about = prepare(dataset, ctx.out, check)
        except (MissingColumns, ReservedColumn) as error:
            raise DataError(f"{error} {advice_on(error, name, config)}") from error
        rows = PreparedDataset(ctx.out)
        first = rows.row(int(rows.ids("train")[0]))
        tried = check_rewards(name, config, dataset, first, about["columns"])
        warnings = [*check.told(), *(warning.removeprefix(f"datasets.{name}: ") for warning in tried)]
        warnings += check_gold(name, config, rows, dataset)
        for warning in warnings:
            log.warning("datasets.%s: %s", name, warning)
        add_warnings(ctx.out, warnings)

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
