"""What stages that work with text open: policies, value models, a dataset and its rows, rewards. Worker side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from pipeline.config.schema import DType
from pipeline.files import json_text
from pipeline.learning.algos.base import DATASET, PROMPTS, START_TRAIN, JobContext, started_from
from pipeline.learning.algos.policy_config import PolicyAlgoConfig
from pipeline.learning.choices import HeadType
from pipeline.learning.datasets.base import Dataset, Row, load_dataset
from pipeline.learning.datasets.chat import template_arguments
from pipeline.learning.datasets.prepared import TokenizedPrompts
from pipeline.learning.generation.decode import Guidance
from pipeline.learning.generation.policy import TextPolicy, TrainedPolicy
from pipeline.learning.generation.sampling import Tilt
from pipeline.learning.models.adapters import copy_adapters, save_adapters
from pipeline.learning.models.batch_size import BatchSizes
from pipeline.learning.models.load import context_length, load_policy, load_tokenizer, load_value, train_text
from pipeline.learning.models.source import reference_folder, value_folder
from pipeline.learning.models.value import ValueModel, value_model_from, without_dropout
from pipeline.learning.rewards.scoring import Scored, Scorer
from pipeline.learning.training.lora import merged, share_kept, weights_below, with_adapters, with_weights_of
from pipeline.outputs.formats import ADAPTERS, FOLDER, Adapters, adapter_folders, is_key


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


def _policy(
    ctx: JobContext,
    dataset: Dataset,
    model: PreTrainedModel,
    kind: type[TextPolicy],
    guidance: Guidance | None = None,
    guide_context: int | None = None,
) -> TextPolicy:
    guides = [] if guidance is None else [guidance.model]
    return kind(
        model,
        reference_model(ctx)[1],
        ctx.config.generation,
        dataset,
        ctx.device,
        guidance,
        sizes=BatchSizes(ctx.hints, ctx.device, model, *guides),
        guide_context=guide_context,
    )


def reference_policy(
    ctx: JobContext,
    dataset: Dataset,
    guide_context: int | None = None,
    kind: type[TextPolicy] = TextPolicy,
) -> TextPolicy:
    """The reference, as it is or decoded in another way; see `TextPolicy` for the guide's context."""
    return _policy(ctx, dataset, reference_model(ctx)[0], kind, guide_context=guide_context)


def guided_policy(ctx: JobContext, dataset: Dataset, value: Path, tilt: Tilt) -> TextPolicy:
    """The reference guided by the value model of a folder."""
    system = ctx.config.system
    guide = ctx.models.get(("value", str(value)), lambda: load_value(value, system, ctx.device), ctx.loading)
    context = context_length(guide.backbone)
    return _policy(ctx, dataset, reference_model(ctx)[0], TextPolicy, Guidance(guide, tilt), context)


def trained_policy(ctx: JobContext, dataset: Dataset, folder: Path, *, compared: bool = False) -> TextPolicy:
    """The policy of a folder.

    Args:
        ctx: Of the stage.
        dataset: The dataset of the chain.
        folder: Output of a training.
        compared: Whether its divergence from the reference is wanted.
    """
    reference, system = reference_model(ctx)[0], ctx.config.system
    how: dict[str, Any] = {
        "base": reference_source(ctx),
        "trust_remote_code": ctx.config.model.trusts_code,
        "ranks": ctx.joined,
    }
    load = partial(load_policy, folder, system, ctx.device, **how)
    policy = _policy(ctx, dataset, ctx.models.get(("policy", str(folder)), load, ctx.loading), TrainedPolicy)
    assert isinstance(policy, TrainedPolicy)
    policy.reference = reference if compared else None
    return policy


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


# -- policy weights ----------------------------------------------------------------------------------------------
# The weights of a policy that is trained, as precise as training needs them, whatever it writes texts in.
#
#     to_train       what training starts from     float32, or with adapters `system.dtype`
#     frozen_policy  what it is held close to      as precise, since the difference of the two is what counts
#     save_policy    what a training leaves        all weights, or the adapters that were trained in their place


def to_train(ctx: JobContext, algo: PolicyAlgoConfig) -> PreTrainedModel:
    """The policy that training starts from, on the first device."""
    model: Any = adapted(ctx, algo)
    without_dropout(model)
    model.to(ctx.first_device)
    started: PreTrainedModel = model
    return started


def frozen_policy(ctx: JobContext, algo: PolicyAlgoConfig, *, previous: bool) -> PreTrainedModel:
    """What a round or the first one starts from, as precise as what is trained, and spread as that is."""
    model = loaded(ctx, algo, previous=previous)
    with ctx.loading():
        ctx.ranks.prepare(model, None if algo.lora.rank else torch.float32)
    return model


def adapted(
    ctx: JobContext, algo: PolicyAlgoConfig, dtype: DType | None = None, device: str | None = None
) -> PreTrainedModel | PeftModel:
    """The weights that training starts from, with adapters where there are to be some, not trained yet."""
    # An optimizer goes on from round to round with the weights that it is of, which are those of the adapters.
    goes_on = algo.warm_start and algo.draws_to_train and algo.lora.rank
    before = ctx.optional_input("train@previous") if goes_on else None
    model = loaded(ctx, algo, previous=algo.warm_start and before is None, dtype=dtype, device=device)
    train_text(model)
    made = with_adapters(model, algo.lora, seed=ctx.seed * 1000 + ctx.round)
    return made if before is None else with_weights_of(made, adapter_folders(before)[-1])


def loaded(
    ctx: JobContext,
    algo: PolicyAlgoConfig,
    *,
    previous: bool,
    dtype: DType | None = None,
    device: str | None = None,
) -> PreTrainedModel:
    """A policy of its own, never a kept one: see `started_from`."""
    with ctx.loading():
        # Optimizer steps are too small for bfloat16, so weights are trained in float32; adapters are anyway.
        precise = dtype or (ctx.config.system.dtype if algo.lora.rank else DType.float32)
        reference = reference_source(ctx)
        return load_policy(
            started_from(ctx, previous=previous) or reference,
            replace(ctx.config.system, dtype=precise),
            device or ctx.first_device,
            base=reference,
            trust_remote_code=ctx.config.model.trusts_code,
            # Ranks that spread weights make float32 of what they keep.
            as_stored=dtype is None and not algo.lora.rank and ctx.ranks.is_sharded,
            ranks=ctx.joined,
        )


def save_policy(ctx: JobContext, algo: PolicyAlgoConfig, model: PreTrainedModel | PeftModel) -> dict[str, Any]:
    """Write what was trained to the output of a job, by the process that has all of it.

    Adapters are written with those of earlier rounds, and of the method that they started from, so that the
    reference is all that they need. Where what they started from has stored all weights, this one does so as well.

    Args:
        ctx: Of the training.
        algo: Its settings.
        model: What was trained; of no use afterwards.

    Returns:
        What of it lower precision keeps, for ``training.json``.
    """
    folder, start = started_from(ctx, previous=algo.warm_start), ctx.optional_input(START_TRAIN.name)
    before = [] if folder is None else adapter_folders(folder)
    if isinstance(model, PeftModel) and (before or folder is None):
        if algo.draws_to_train and folder != start:  # the adapters of the round before have been trained on
            before = before[:-1]
        copy_adapters(before, ctx.out / FOLDER)
        number = ctx.round + max((int(each.name) for each in adapter_folders(start)) if start else (), default=0)
        save_adapters(model, ctx.out / FOLDER / str(number))
        reference = ctx.input("reference.train").name
        rounds = [*(int(each.name) for each in before), number]
        made_of = Adapters(rounds=rounds, reference=reference if is_key(reference) else None)
        (ctx.out / ADAPTERS).write_text(json_text(asdict(made_of)) + "\n")
        return {} if ctx.config.system.dtype is DType.float32 else _whole(ctx, algo, model)[1]
    whole, kept = _whole(ctx, algo, model)
    whole.config._name_or_path = ""
    whole.save_pretrained(ctx.out)
    return kept


def _whole(
    ctx: JobContext, algo: PolicyAlgoConfig, model: PreTrainedModel | PeftModel
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """What was trained as any other model, in the machine's memory, and what of it lower precision keeps.

    It is float32, also where `system.dtype` is not: the next round goes on from all of the update, though who
    reads the model in that type sees only some of it.
    """
    asked = ctx.config.system.dtype
    if asked is DType.float32:
        return merged(model).cpu(), {}
    if isinstance(model, PeftModel):
        before = weights_below(model)
        whole = merged(model, lambda: adapted(ctx, algo, DType.float32, "cpu")).cpu()
    else:
        whole = model.cpu()
        before = dict(loaded(ctx, algo, previous=algo.warm_start, device="cpu").named_parameters())
    share = share_kept(before, whole, getattr(torch, asked.name))
    if share is not None:
        print(f"{asked.name} shows {share:.1%} of the weights that were changed", flush=True)  # noqa: T201 - log
    return whole, {"kept_when_rounded": share}
