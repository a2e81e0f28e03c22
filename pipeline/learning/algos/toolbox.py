"""What stages that work with text share: opening policies, choosing rows, evaluating. Worker side only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from pipeline.config.schema import DType
from pipeline.files import json_text
from pipeline.learning.algos import sweep
from pipeline.learning.algos.base import DATASET, PROMPTS, JobContext
from pipeline.learning.choices import HeadType
from pipeline.learning.datasets.base import Dataset, Row, plain_text
from pipeline.learning.datasets.chat import template_arguments
from pipeline.learning.datasets.registry import load_dataset
from pipeline.learning.datasets.tokenized import TokenizedPrompts
from pipeline.learning.evaluation.metrics import (
    FILE,
    Sample,
    evaluation_rows,
    measure,
    read_samples,
    shown_samples,
    write_samples,
)
from pipeline.learning.evaluation.optimum import read_log_right
from pipeline.learning.generation.decode import Decoded, Guidance
from pipeline.learning.generation.policy import TextPolicy
from pipeline.learning.generation.sampling import sample_keys
from pipeline.learning.generation.tilt import Tilt
from pipeline.learning.models.batch_size import BatchSizes
from pipeline.learning.models.flops import answered
from pipeline.learning.models.load import context_length, load_policy, load_tokenizer, load_value
from pipeline.learning.models.source import reference_folder, value_folder
from pipeline.learning.models.value import ValueModel, value_model_from
from pipeline.learning.rewards.scoring import Scored, Scorer
from pipeline.outputs.formats import METRICS
from pipeline.outputs.prompts import PromptMeasures, write_prompts


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
    ctx.failures.add(scored, ctx.out)
    return scored


@dataclass(frozen=True)
class Drawn:
    """What a stage that evaluates several policies, one after the other, has drawn so far.

    Attributes:
        completions: How many.
        tokens: Of all of them.
    """

    completions: int = 0
    tokens: int = 0


NOTHING = Drawn()


def evaluate(
    ctx: JobContext,
    policy: TextPolicy,
    dataset: Dataset,
    folder: Path,
    *,
    split: str | None = None,
    samples: int | None = None,
    before: Drawn = NOTHING,
    total: int | None = None,
) -> Drawn:
    """Sample completions of held-out prompts, score them and write them to a folder.

    Args:
        ctx: Of the stage.
        policy: That completes.
        dataset: Of the chain.
        folder: Where to write.
        split: Of the dataset; None takes `evaluation.split`.
        samples: Completions of each prompt; None takes `evaluation.num_samples`.
        before: What the stage has drawn already.
        total: Completions that the stage draws in all; None where these are the last.

    Returns:
        What the stage has drawn by now.
    """
    samples = samples or ctx.config.evaluation.num_samples
    rows = held_out_rows(ctx, dataset, split)
    # The stream has no name of an algorithm or round in it: all are compared on the same draws.
    keys = sample_keys(ctx.seed, "evaluate", row_ids(rows), samples)
    whole = before.completions + len(rows) * samples if total is None else total
    decoded = policy.complete(
        encode(ctx, policy, rows),
        keys,
        samples=samples,
        on_batch=lambda done, tokens: ctx.progress(
            before.completions + done, total=whole, tokens=before.tokens + tokens
        ),
    )
    answered(len(decoded.tokens))
    repeated = [row for row in rows for _ in range(samples)]
    texts = policy.text(decoded.tokens, repeated)
    scored = score(ctx, repeated, texts, decoded.tokens, ctx.config.evaluation.reward_batch_size)
    write_samples(folder / FILE, _samples(policy, repeated, decoded, texts, scored, samples))
    return Drawn(before.completions + len(decoded.tokens), before.tokens + sum(map(len, decoded.tokens)))


def _samples(
    policy: TextPolicy, rows: Sequence[Row], decoded: Decoded, texts: Sequence[str], scored: Scored, samples: int
) -> Iterator[Sample]:
    """What was drawn, with what it is worth: `rows` has the row of each completion, `samples` in turn for each."""
    several = scored.parts if len(scored.parts) > 1 else {}
    for index, row in enumerate(rows):
        yield Sample(
            row=row.id,
            sample=index % samples,
            prompt=plain_text(row.prompt),
            completion=texts[index],
            tokens=len(decoded.tokens[index]),
            reward=_number(scored.values[index]),
            correct=scored.correct[index],
            kl=float(f"{decoded.kl[index]:.9g}"),
            truncated=policy.truncated(decoded.tokens[index]),
            skipped=policy.skipped(decoded.tokens[index]),
            answer=scored.answers[index],
            parts={name: _number(values[index]) for name, values in several.items()},
            fault=scored.faults[index],
            solution=None if index % samples else _solution(row),
        )


def _solution(row: Row) -> str | None:
    found = row.columns.get("solution")
    return found if found is None or isinstance(found, str) else json_text(found, ensure_ascii=False)


def write_metrics(ctx: JobContext, anchors: Mapping[str, PromptMeasures] | None = None) -> None:
    """Turn the evaluated samples of all shards into metrics, and pick some samples to show.

    Args:
        ctx: Of the stage.
        anchors: Name -> what another policy does on the same prompts, for metrics called ``NAME/METRIC``.
    """
    samples, settings = read_samples(ctx.inputs["evaluate"]), ctx.config.evaluation
    others = {"reference": "reference.evaluate", "previous": "evaluate@previous"}
    compared = {name: read_samples(ctx.inputs[place]) for name, place in others.items() if ctx.inputs.get(place)}
    measured = measure(samples, settings.common_eta, log_right(ctx))
    for name, measures in (anchors or {}).items():
        measured = measured.beside(name, measures)
    tried = sweep.measured(ctx)
    rows = evaluation_rows(samples, settings, compared, measured) + sweep.rows(tried, settings)
    (ctx.out / METRICS).write_text(json_text({"rows": rows}, indent=1) + "\n")
    write_prompts(ctx.out, sweep.by_prompt(measured.by_metric(), tried))
    shown = shown_samples(samples, settings.sample_prompts)
    lines = (json_text(entry, ensure_ascii=False) + "\n" for entry in shown)
    (ctx.out / FILE).write_text("".join(lines), encoding="utf-8")


def log_right(ctx: JobContext) -> dict[int, float]:
    """What the evaluation of the reference says of the optimum; see `learning.evaluation.optimum`."""
    return read_log_right(ctx.inputs.get("reference.evaluate") or ctx.inputs["evaluate"])


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
