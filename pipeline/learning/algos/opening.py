"""Open what stages that work with text need: policies, value models, datasets and rows, rewards.

Used in workers.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from pipeline.config import schema
from pipeline.files import json_text
from pipeline.learning.algos.base import DATASET, PROMPTS, REFERENCE_GREEDY, START_TRAIN, JobContext, started_from
from pipeline.learning.algos.policy_config import PolicyAlgoConfig
from pipeline.learning.choices import HeadType
from pipeline.learning.datasets.base import Dataset, Row, load_dataset
from pipeline.learning.datasets.chat import template_arguments
from pipeline.learning.datasets.prepared import TokenizedPrompts
from pipeline.learning.evaluation import metrics
from pipeline.learning.generation import sampling
from pipeline.learning.generation.decode import Guidance
from pipeline.learning.generation.policy import OutsidePolicy, TextPolicy, TrainedPolicy
from pipeline.learning.models.batch_size import BatchSizes
from pipeline.learning.models.flops import metered, spend
from pipeline.learning.models.load import context_length, load_policy, load_tokenizer, load_value, train_text
from pipeline.learning.models.source import reference_folder, value_folder
from pipeline.learning.models.value import ValueModel, value_model_from, without_dropout
from pipeline.learning.rewards.judge import Asking, asks_reference
from pipeline.learning.rewards.scoring import Scored, Scorer
from pipeline.learning.training import lora
from pipeline.learning.training.scoring import inner_model
from pipeline.outputs import formats
from pipeline.outputs.formats import adapter_folders

if TYPE_CHECKING:
    from peft import PeftModel


def reference_source(ctx: JobContext) -> str:
    """Return the folder of the reference's model and tokenizer."""
    return reference_folder(ctx.input("reference.train"), ctx.config.model)


def reference_model(ctx: JobContext) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return the reference and its tokenizer, cached between jobs."""
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
    """Return the reference's tokenizer, loaded anew."""
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
    """Return the reference as a policy, plain or of another kind; see `TextPolicy` for the guide's context."""
    return _policy(ctx, dataset, reference_model(ctx)[0], kind, guide_context=guide_context)


def guided_policy(ctx: JobContext, dataset: Dataset, value: Path, tilt: sampling.Tilt) -> TextPolicy:
    """Return the reference guided by the value model in a folder."""
    guide = value_model(ctx, value)
    context = context_length(guide.backbone)
    return _policy(ctx, dataset, reference_model(ctx)[0], TextPolicy, Guidance(guide, tilt), context)


def value_model(ctx: JobContext, folder: Path) -> ValueModel:
    """Return the value model in a folder, cached between jobs."""
    load = partial(load_value, folder, ctx.config.system, ctx.device)
    loaded: ValueModel = ctx.models.get(("value", str(folder)), load, ctx.loading)
    return loaded


def trained_policy(ctx: JobContext, dataset: Dataset, folder: Path, *, compared: bool = False) -> TextPolicy:
    """Return the policy in a folder.

    Args:
        ctx: Context of the stage.
        dataset: The dataset of the chain.
        folder: Output of a training.
        compared: Whether its KL divergence from the reference is needed.
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


def outside_policy(ctx: JobContext, dataset: Dataset, model: schema.ModelConfig) -> TextPolicy:
    """Return a checkpoint of another program, located by the stage `find`, with the checkpoint's own tokenizer.

    The divergence from the reference is exact if both have the same vocabulary and the same number of outputs, and
    unknown otherwise: models may have more outputs than their tokenizer has tokens, and draw them.
    """
    reference, known = reference_model(ctx)
    folder, loaded, tokenizer = outside_model(ctx, model)
    widths = [one.config.get_text_config().vocab_size for one in (loaded, reference)]
    same = tokenizer.get_vocab() == known.get_vocab() and widths[0] == widths[1]
    sizes = BatchSizes(ctx.hints, ctx.device, loaded)
    policy = OutsidePolicy(loaded, tokenizer, ctx.config.generation, dataset, ctx.device, sizes=sizes)
    policy.reference = reference if same else None
    if not same:
        said = "KL to the reference is left out: the two differ in their tokens, or in their number of outputs"
        print(f"{folder}: {said}", flush=True)  # noqa: T201 - the job's log
    return policy


def outside_model(
    ctx: JobContext, model: schema.ModelConfig
) -> tuple[str, PreTrainedModel, PreTrainedTokenizerBase]:
    """Return folder, model and tokenizer of a checkpoint of another program, located by the stage `find`."""
    folder, trust = reference_folder(ctx.input("find"), model), model.trusts_code
    loaded = ctx.models.get(
        ("policy", folder),
        lambda: load_policy(folder, ctx.config.system, ctx.device, trust_remote_code=trust, ranks=ctx.joined),
        ctx.loading,
    )
    return folder, loaded, load_tokenizer(folder, trust_remote_code=trust)


def fresh_value_model(ctx: JobContext, head: HeadType, atoms: int = 1) -> ValueModel:
    """Return a value model to train, from the backbone of the request. It is never a cached one."""
    # Optimizer steps are too small for bfloat16, so weights are trained in float32.
    system = replace(ctx.config.system, dtype=schema.DType.float32)
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
    """Return the dataset of the chain: the prepared one, unless it makes its rows."""
    return load_dataset(ctx.config.dataset, ctx.optional_input(DATASET))


def encode(ctx: JobContext, policy: TextPolicy, rows: Sequence[Row]) -> list[list[int]]:
    """Return the token ids of the prompts of rows, from the preparation if there was one."""
    prepared = None if isinstance(policy, OutsidePolicy) else ctx.optional_input(PROMPTS)
    if prepared is None:
        return policy.fitted(
            policy.encode([row.prompt for row in rows], [template_arguments(row.columns) for row in rows])
        )
    prompts = TokenizedPrompts(prepared)
    return policy.fitted([prompts[row.id] for row in rows])


def round_rows(ctx: JobContext, dataset: Dataset) -> list[Row]:
    """Return the training rows of this shard."""
    ids = dataset.round_ids(ctx.seed, ctx.round, ctx.config.data_collection.prompts_per_round)
    return [dataset.row(int(row)) for row in ids[ctx.rows[0] : ctx.rows[1]]]


def held_out_rows(ctx: JobContext, dataset: Dataset, split: str | None = None) -> list[Row]:
    """Return the evaluation rows of this shard, of `split` or else `evaluation.split`."""
    ids = dataset.ids(split or ctx.config.evaluation.split)[ctx.rows[0] : ctx.rows[1]]
    return [dataset.row(int(row)) for row in ids]


def held_out_count(ctx: JobContext, dataset: Dataset, split: str | None = None) -> int:
    """Return the number of rows that `held_out_rows` gives."""
    return len(dataset.ids(split or ctx.config.evaluation.split)[ctx.rows[0] : ctx.rows[1]])


def row_ids(rows: Sequence[Row]) -> NDArray[np.int64]:
    """Return the ids of rows, shape [R]."""
    return np.array([row.id for row in rows], np.int64)


def score(
    ctx: JobContext,
    rows: Sequence[Row],
    texts: Sequence[str],
    completions: Sequence[Sequence[int]],
    batch_size: int,
    told: Callable[[int], None] | None = None,
) -> Scored:
    """Score completions with all rewards of the dataset, one row per completion.

    `told` is called with the number that judges have judged so far; None reports it as the job's progress.
    """
    references = _of_reference(ctx, rows) if asks_reference(ctx.config.dataset) else None
    settings = repr(asdict(ctx.config.dataset))
    make = partial(Scorer, ctx.config.dataset, ctx.device, ctx.hints)
    tell = told or (lambda count: ctx.progress(count, total=len(texts)))
    asking = Asking(
        key=ctx.checkpoints.name,  # the job's
        told=lambda part: tell(int(part * len(texts))),
        stopping=ctx.stopping,
    )

    def scored_here() -> Scored:
        scorer: Scorer = ctx.models.get(("scorer", settings, ctx.device), make, ctx.loading)
        return scorer.score(rows, texts, completions, batch_size, references, asking)

    # Only one rank calls the rewards: they may cost money, and need not be deterministic.
    scored = ctx.ranks.made_by_first(scored_here)
    ctx.failures.add(scored.faults, scored.first_fault, ctx.out)
    if scored.asked:
        path, asked = ctx.out / formats.ASKED, dict(scored.asked)
        before = formats.read_asked(path) if path.exists() else {}
        asked |= {name: before[name] + of for name, of in asked.items() if name in before}
        path.write_text(json_text({name: asdict(of) for name, of in asked.items()}) + "\n")
    return scored


def _of_reference(ctx: JobContext, rows: Sequence[Row]) -> list[str]:
    """Return the greedy completion of the reference for each row."""
    different = list({row.id: row for row in rows}.values())
    evaluated = ctx.optional_input(REFERENCE_GREEDY.name)
    folder = evaluated if evaluated is None or ctx.greedy else evaluated / formats.GREEDY
    if folder is not None and folder.is_dir():  # a grown evaluation has it elsewhere
        found = {one.row: one.completion for one in metrics.read_samples([folder])}
        return [found[row.id] for row in rows]
    policy = reference_policy(ctx, open_dataset(ctx))
    with metered() as meter:  # counted as rewards, not as the cost of an evaluated answer
        drawn = policy.complete(encode(ctx, policy, different), None).tokens
    spend("rewards", meter.total)
    texts = dict(zip((row.id for row in different), policy.text(drawn, different), strict=True))
    return [texts[row.id] for row in rows]


# -- policy weights ----------------------------------------------------------------------------------------------
# Weights of a trained policy, at the precision that training needs, whatever the precision of decoding.
#
#     to_train       start of a training      float32, or with adapters `system.dtype`
#     frozen_policy  anchor of the KL term    same precision, since the difference of the two counts
#     save_policy    result of a training     all weights, or the trained adapters in their place


def to_train(ctx: JobContext, algo: PolicyAlgoConfig) -> PreTrainedModel:
    """Return the policy that training starts from, on the first device."""
    model: Any = adapted(ctx, algo)
    without_dropout(model)
    model.to(ctx.first_device)
    started: PreTrainedModel = model
    return started


def frozen_policy(ctx: JobContext, algo: PolicyAlgoConfig, *, previous: bool) -> PreTrainedModel:
    """Return the anchor (start of this or the first round), as precise and sharded as the trained policy."""
    model = loaded(ctx, algo, previous=previous)
    with ctx.loading():
        ctx.ranks.prepare(model, None if algo.lora.rank else torch.float32)
    return model


def adapted(
    ctx: JobContext, algo: PolicyAlgoConfig, dtype: schema.DType | None = None, device: str | None = None
) -> "PreTrainedModel | PeftModel":
    """Return the start weights of a training, with new adapters if the settings ask for them."""
    before = _adapters_before(ctx, algo)
    model = loaded(ctx, algo, previous=algo.warm_start and before is None, dtype=dtype, device=device)
    train_text(model)
    made = lora.with_adapters(model, algo.lora, seed=ctx.seed * 1000 + ctx.round)
    return made if before is None else lora.with_weights_of(made, adapter_folders(before)[-1])


def _adapters_before(ctx: JobContext, algo: PolicyAlgoConfig) -> Path | None:
    """Return the policy whose last adapters the training goes on with; None if it makes new ones, or has none."""
    # An optimizer's state is carried from round to round with its weights, here those of the adapters.
    goes_on = algo.warm_start and algo.draws_to_train and algo.lora.rank
    return ctx.optional_input("train@previous") if goes_on else None


def is_below_adapters(ctx: JobContext, algo: PolicyAlgoConfig, *, previous: bool) -> bool:
    """Return whether the frozen weights below the trained adapters are those of `frozen_policy`."""
    if not algo.lora.rank or ctx.ranks.is_sharded:
        return False
    goes_on = _adapters_before(ctx, algo) is not None
    return started_from(ctx, previous=algo.warm_start and not goes_on) == started_from(ctx, previous=previous)


def loaded(
    ctx: JobContext,
    algo: PolicyAlgoConfig,
    *,
    previous: bool,
    dtype: schema.DType | None = None,
    device: str | None = None,
) -> PreTrainedModel:
    """Load a policy, never a cached one: see `started_from`."""
    with ctx.loading():
        # Optimizer steps are too small for bfloat16, so weights are trained in float32; adapters always are.
        precise = dtype or (ctx.config.system.dtype if algo.lora.rank else schema.DType.float32)
        reference = reference_source(ctx)
        return load_policy(
            started_from(ctx, previous=previous) or reference,
            replace(ctx.config.system, dtype=precise),
            device or ctx.first_device,
            base=reference,
            trust_remote_code=ctx.config.model.trusts_code,
            # Ranks that shard weights convert their own part to float32.
            as_stored=dtype is None and not algo.lora.rank and ctx.ranks.is_sharded,
            ranks=ctx.joined,
        )


def save_policy(ctx: JobContext, algo: PolicyAlgoConfig, model: "PreTrainedModel | PeftModel") -> None:
    """Write the trained policy to the output of a job, in the process that has all of it.

    Adapters are written together with those of earlier rounds and of the method that they started from, so that
    only the reference is needed besides. If the start policy has stored all weights, so does this one.

    Args:
        ctx: Context of the training.
        algo: Its settings.
        model: The trained model; unusable afterwards.
    """
    folder, start = started_from(ctx, previous=algo.warm_start), ctx.optional_input(START_TRAIN.name)
    before = [] if folder is None else adapter_folders(folder)
    if inner_model(model) is not model and (before or folder is None):
        from pipeline.learning.models import adapters  # loads peft, which few jobs need

        if algo.draws_to_train and folder != start:  # training continued on the adapters of the round before
            before = before[:-1]
        adapters.copy_adapters(before, ctx.out / formats.FOLDER)
        number = ctx.round + max((int(each.name) for each in adapter_folders(start)) if start else (), default=0)
        adapters.save_adapters(cast("PeftModel", model), ctx.out / formats.FOLDER / str(number))
        reference = ctx.input("reference.train").name
        rounds = [*(int(each.name) for each in before), number]
        made_of = formats.Adapters(rounds=rounds, reference=reference if formats.is_key(reference) else None)
        (ctx.out / formats.ADAPTERS).write_text(json_text(asdict(made_of)) + "\n")
        return
    # In float32 even if `system.dtype` is not: the next round continues from the full update, though readers at a
    # lower precision see only some of it.
    rounded = ctx.config.system.dtype is not schema.DType.float32
    exact = partial(adapted, ctx, algo, schema.DType.float32, "cpu") if rounded else None
    whole = lora.merged(model, exact).cpu()
    whole.config._name_or_path = ""
    whole.save_pretrained(ctx.out)
