"""What the training of a policy leaves: all of its weights, or the adapters that were trained in their place."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from peft import PeftModel
from transformers import PreTrainedModel

from pipeline.config.schema import DType
from pipeline.files import json_text
from pipeline.learning.algos.base import START_TRAIN, JobContext
from pipeline.learning.algos.policy_weights import adapted, loaded
from pipeline.learning.algos.rounds import started_from
from pipeline.learning.models.adapters import copy_adapters, save_adapters
from pipeline.learning.training.lora import merged, share_kept, weights_below
from pipeline.outputs.adapters import ADAPTERS, FOLDER, Adapters, adapter_folders
from pipeline.outputs.guidance import is_key

if TYPE_CHECKING:
    from pipeline.learning.algos.policy_config import PolicyAlgoConfig


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
