"""The weights of a policy that is trained, as precise as training needs them, whatever it writes texts in.

to_train       what training starts from      float32, or with adapters `system.dtype`
frozen_policy  what it is held close to       as precise, since the difference of the two is what counts
exact_logprobs of what was drawn              by weights as precise, computed as in training

What is saved of it is in `policy_output`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pipeline.config.schema import DType
from pipeline.learning.algos.base import JobContext
from pipeline.outputs.adapters import adapter_folders

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from peft import PeftModel
    from transformers import PreTrainedModel

    from pipeline.learning.algos.groups import Drawn
    from pipeline.learning.algos.policy_config import PolicyAlgoConfig
    from pipeline.learning.generation.policy import TextPolicy


def to_train(ctx: JobContext, algo: PolicyAlgoConfig) -> PreTrainedModel:
    """The policy that training starts from, on the first device."""
    with ctx.loading():
        from pipeline.learning.models.value import without_dropout
    model: Any = adapted(ctx, algo)
    without_dropout(model)
    model.to(ctx.first_device)
    started: PreTrainedModel = model
    return started


def frozen_policy(ctx: JobContext, algo: PolicyAlgoConfig, *, previous: bool) -> PreTrainedModel:
    """What a round or the first one starts from, as precise as what is trained, and spread as that is."""
    model = loaded(ctx, algo, previous=previous)
    with ctx.loading():
        import torch

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
    from pipeline.learning.training.policy import computing_in

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
    from pipeline.learning.models.load import train_text
    from pipeline.learning.training.lora import with_adapters, with_weights_of

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
        from pipeline.learning.algos.rounds import started_from
        from pipeline.learning.algos.toolbox import reference_source
        from pipeline.learning.models.load import load_policy

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
