"""The weights of a policy that is trained, as precise as training needs them, whatever it writes texts in.

to_train       what training starts from      float32, or with adapters `system.dtype`
frozen_policy  what it is held close to       as precise, since the difference of the two is what counts
exact_logprobs of what was drawn              by weights as precise, computed as in training
save_policy    what a training leaves         all weights, or the adapters that were trained in their place
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from peft import PeftModel
from transformers import PreTrainedModel

from pipeline.config.schema import DType
from pipeline.files import json_text
from pipeline.learning.algos.base import START_TRAIN, JobContext
from pipeline.learning.algos.groups import Drawn
from pipeline.learning.algos.opening import reference_source
from pipeline.learning.algos.policy_config import PolicyAlgoConfig
from pipeline.learning.algos.rounds import started_from
from pipeline.learning.generation.policy import TextPolicy
from pipeline.learning.models.adapters import copy_adapters, save_adapters
from pipeline.learning.models.load import load_policy, train_text
from pipeline.learning.models.value import without_dropout
from pipeline.learning.training.lora import merged, share_kept, weights_below, with_adapters, with_weights_of
from pipeline.learning.training.policy import computing_in
from pipeline.outputs.guidance import ADAPTERS, FOLDER, Adapters, adapter_folders, is_key


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
        ctx.ranks.prepare(model, None if _adapts(algo) else torch.float32)
    return model


def exact_logprobs(
    ctx: JobContext, algo: PolicyAlgoConfig, policy: TextPolicy, drawn: Drawn
) -> list[NDArray[np.float32]] | None:
    """Of the drawn tokens under the policy that drew them, as precise as the one that is trained on them.

    In training their ratio is to be 1 where nothing was learnt yet. What drew them may have been rounded. None
    where no loss needs them, or training computes them anyway, as those of the policy as it is.
    """
    if not algo.wants_logprobs:
        return None
    if ctx.config.system.dtype is DType.float32 or algo.draws_to_train:  # what draws online is what is trained
        return policy.logprobs(drawn.prompts, drawn.tokens)
    # Below adapters the weights are those that drew, unless these were quantized: no second copy is needed.
    same = _adapts(algo) and ctx.config.model.in_bits is None
    exact = None if same else loaded(ctx, algo, previous=True)
    with computing_in(ctx.config.system.dtype, ctx.device):
        return policy.logprobs(drawn.prompts, drawn.tokens, exact)


def _adapts(algo: PolicyAlgoConfig) -> bool:
    """Whether adapters are trained, and all else is left as it is."""
    return bool(algo.lora.rank)


def adapted(
    ctx: JobContext, algo: PolicyAlgoConfig, dtype: DType | None = None, device: str | None = None
) -> PreTrainedModel | PeftModel:
    """The weights that training starts from, with adapters where there are to be some, not trained yet."""
    # An optimizer goes on from round to round with the weights that it is of, which are those of the adapters.
    before = (
        ctx.optional_input("train@previous") if algo.warm_start and algo.draws_to_train and _adapts(algo) else None
    )
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
        adapts = _adapts(algo)
        # Ranks that spread weights make float32 of what they keep.
        as_stored = dtype is None and not adapts and ctx.ranks.is_sharded
        # Optimizer steps are too small for bfloat16, so weights are trained in float32; adapters are anyway.
        dtype = dtype or (ctx.config.system.dtype if adapts else DType.float32)
        reference = reference_source(ctx)
        return load_policy(
            started_from(ctx, previous=previous) or reference,
            replace(ctx.config.system, dtype=dtype),
            device or ctx.first_device,
            base=reference,
            trust_remote_code=ctx.config.model.trusts_code,
            as_stored=as_stored,
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
