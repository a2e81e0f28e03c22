"""What stages that work with text open: policies, value models, a dataset and its rows, rewards. Worker side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from pipeline.config.schema import DType
from pipeline.learning.algos.base import DATASET, PROMPTS, JobContext
from pipeline.learning.choices import HeadType
from pipeline.learning.datasets.base import Dataset, Row, load_dataset
from pipeline.learning.datasets.chat import template_arguments
from pipeline.learning.datasets.prepared import TokenizedPrompts
from pipeline.learning.generation.decode import Guidance
from pipeline.learning.generation.policy import TextPolicy
from pipeline.learning.generation.tilt import Tilt
from pipeline.learning.models.batch_size import BatchSizes
from pipeline.learning.models.load import context_length, load_policy, load_tokenizer, load_value
from pipeline.learning.models.source import reference_folder, value_folder
from pipeline.learning.models.value import ValueModel, value_model_from
from pipeline.learning.rewards.scoring import Scored, Scorer


def reference_source(ctx: JobContext) -> str:
    """The folder of the reference's model and tokenizer."""
    return reference_folder(ctx.input("reference.train"), ctx.config.model)


def reference_model(ctx: JobContext) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The reference and its tokenizer, kept loaded between jobs."""
    source, system, trust = reference_source(ctx), ctx.config.system, ctx.config.model.trusts_code
    bits = ctx.config.model.in_bits
    model = ctx.models.get(
        ("policy", source, *([] if bits is None else [f"in {bits} bits"])),
        lambda: load_policy(source, system, ctx.device, trust_remote_code=trust, ranks=ctx.joined, bits=bits),
        ctx.loading,
    )
    tokenizer = ctx.models.get(
        ("tokenizer", source), lambda: load_tokenizer(source, trust_remote_code=trust), ctx.loading
    )
    return model, tokenizer


def reference_tokenizer(ctx: JobContext) -> PreTrainedTokenizerBase:
    """The reference's tokenizer, read anew."""
    return load_tokenizer(reference_source(ctx), trust_remote_code=ctx.config.model.trusts_code)


def reference_policy(
    ctx: JobContext,
    dataset: Dataset,
    guide_context: int | None = None,
    kind: type[TextPolicy] = TextPolicy,
) -> TextPolicy:
    """The reference, as it is or decoded in another way; see `TextPolicy` for the guide's context."""
    model, tokenizer = reference_model(ctx)
    sizes = BatchSizes(ctx.hints, ctx.device, model)
    return kind(
        model,
        tokenizer,
        ctx.config.generation,
        dataset,
        ctx.device,
        sizes=sizes,
        guide_context=guide_context,
    )


def guided_policy(ctx: JobContext, dataset: Dataset, value: Path, tilt: Tilt) -> TextPolicy:
    """The reference guided by the value model of a folder."""
    model, tokenizer = reference_model(ctx)
    system = ctx.config.system
    guide = ctx.models.get(("value", str(value)), lambda: load_value(value, system, ctx.device), ctx.loading)
    sizes = BatchSizes(ctx.hints, ctx.device, model, guide)
    return TextPolicy(
        model,
        tokenizer,
        ctx.config.generation,
        dataset,
        ctx.device,
        Guidance(guide, tilt),
        sizes=sizes,
        guide_context=context_length(guide.backbone),
    )


def fresh_value_model(ctx: JobContext, head: HeadType, atoms: int = 1) -> ValueModel:
    """A value model that is to be trained, from the backbone that the request names. Never a kept one."""
    # Optimizer steps are too small for the precision of bfloat16, so weights are trained in float32.
    system = replace(ctx.config.system, dtype=DType.float32)
    with ctx.loading():
        with TemporaryDirectory(dir=ctx.out) as scratch:
            backbone = load_policy(
                value_folder(ctx.config.model, Path(scratch)) or reference_source(ctx),
                system,
                ctx.first_device,
                trust_remote_code=ctx.config.model.trusts_code,
                as_stored=ctx.ranks.is_sharded,
                for_values=True,
            )
        model = value_model_from(backbone, head, atoms, take=True)
        model.to(ctx.first_device)  # type: ignore[arg-type]
    model.requires_grad_(True)
    return model


def open_dataset(ctx: JobContext) -> Dataset:
    """The dataset of the chain: prepared, where it is read rather than made."""
    return load_dataset(ctx.config.dataset, ctx.optional_input(DATASET))


def encode(ctx: JobContext, policy: TextPolicy, rows: Sequence[Row]) -> list[list[int]]:
    """Token ids of the prompts of rows: those of the preparation, where there was one."""
    prepared = ctx.optional_input(PROMPTS)
    if prepared is None:
        return policy.fitted(
            policy.encode([row.prompt for row in rows], [template_arguments(row.columns) for row in rows])
        )
    prompts = TokenizedPrompts(prepared)
    return policy.fitted([prompts[row.id] for row in rows])


def round_rows(ctx: JobContext, dataset: Dataset) -> list[Row]:
    """The training rows of this shard."""
    ids = dataset.round_ids(ctx.seed, ctx.round, ctx.config.data_collection.prompts_per_round)
    return [dataset.row(int(row)) for row in ids[ctx.rows[0] : ctx.rows[1]]]


def held_out_rows(ctx: JobContext, dataset: Dataset, split: str | None = None) -> list[Row]:
    """The evaluation rows of this shard; of another split than `evaluation.split` where one is named."""
    ids = dataset.ids(split or ctx.config.evaluation.split)[ctx.rows[0] : ctx.rows[1]]
    return [dataset.row(int(row)) for row in ids]


def held_out_count(ctx: JobContext, dataset: Dataset, split: str | None = None) -> int:
    """How many rows `held_out_rows` gives."""
    return len(dataset.ids(split or ctx.config.evaluation.split)[ctx.rows[0] : ctx.rows[1]])


def row_ids(rows: Sequence[Row]) -> NDArray[np.int64]:
    """Ids of rows, shape [R]."""
    return np.array([row.id for row in rows], np.int64)


def score(
    ctx: JobContext,
    rows: Sequence[Row],
    texts: Sequence[str],
    completions: Sequence[Sequence[int]],
    batch_size: int,
) -> Scored:
    """Score completions by all rewards of the dataset, one row each."""
    settings = repr(asdict(ctx.config.dataset))
    make = partial(Scorer, ctx.config.dataset, ctx.device, ctx.hints)

    def scored_here() -> Scored:
        scorer: Scorer = ctx.models.get(("scorer", settings, ctx.device), make, ctx.loading)
        return scorer.score(rows, texts, completions, batch_size)

    # Of ranks that do a job together one asks: rewards may cost money, and need not say the same twice.
    scored = ctx.ranks.made_by_first(scored_here)
    ctx.failures.add(scored.faults, scored.first_fault, ctx.out)
    return scored
