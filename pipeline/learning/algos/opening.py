"""Open what stages that work with text need: policies, value models, datasets and rows, rewards.

Used in workers.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from pipeline.config import plain, schema
from pipeline.files import json_text
from pipeline.learning.algos.base import DATASET, PROMPTS, REFERENCE_GREEDY, START_TRAIN, JobContext, started_from
from pipeline.learning.algos.policy_config import PolicyAlgoConfig
from pipeline.learning.choices import HeadType
from pipeline.learning.datasets.base import Dataset, Row, load_dataset, plain_text
from pipeline.learning.datasets.chat import template_arguments
from pipeline.learning.datasets.prepared import TokenizedPrompts
from pipeline.learning.evaluation import metrics
from pipeline.learning.generation import sampling, stops
from pipeline.learning.generation.decode import Decoded, Guidance
from pipeline.learning.generation.policy import GreedyPolicy, OutsidePolicy, TextPolicy, TrainedPolicy
from pipeline.learning.models.batch_size import BatchSizes
from pipeline.learning.models.flops import answered, metered, spend
from pipeline.learning.models.load import context_length, load_policy, load_tokenizer, load_value, train_text
from pipeline.learning.models.source import reference_folder, value_folder
from pipeline.learning.models.value import ValueModel, value_model_from, without_dropout
from pipeline.learning.rewards.judge import Asking, asks_reference
from pipeline.learning.rewards.registry import known_rewards
from pipeline.learning.rewards.scoring import Scored, Scorer
from pipeline.learning.training import lora
from pipeline.learning.training.scoring import inner_model
from pipeline.outputs import formats
from pipeline.outputs.formats import Sample, adapter_folders
from pipeline.outputs.prompts import PromptMeasures, Sums, write_prompts

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
    system = ctx.config.system
    guide = ctx.models.get(("value", str(value)), lambda: load_value(value, system, ctx.device), ctx.loading)
    context = context_length(guide.backbone)
    return _policy(ctx, dataset, reference_model(ctx)[0], TextPolicy, Guidance(guide, tilt), context)


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
    folder, trust = reference_folder(ctx.input("find"), model), model.trusts_code
    reference, known = reference_model(ctx)
    loaded = ctx.models.get(
        ("policy", folder),
        lambda: load_policy(folder, ctx.config.system, ctx.device, trust_remote_code=trust, ranks=ctx.joined),
        ctx.loading,
    )
    tokenizer = load_tokenizer(folder, trust_remote_code=trust)
    widths = [one.config.get_text_config().vocab_size for one in (loaded, reference)]
    same = tokenizer.get_vocab() == known.get_vocab() and widths[0] == widths[1]
    sizes = BatchSizes(ctx.hints, ctx.device, loaded)
    policy = OutsidePolicy(loaded, tokenizer, ctx.config.generation, dataset, ctx.device, sizes=sizes)
    policy.reference = reference if same else None
    if not same:
        said = "KL to the reference is left out: the two differ in their tokens, or in their number of outputs"
        print(f"{folder}: {said}", flush=True)  # noqa: T201 - the job's log
    return policy


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
        path.write_text(json_text({name: asdict(of) for name, of in asked.items()}, indent=1) + "\n")
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
    # An optimizer's state is carried from round to round with its weights, here those of the adapters.
    goes_on = algo.warm_start and algo.draws_to_train and algo.lora.rank
    before = ctx.optional_input("train@previous") if goes_on else None
    model = loaded(ctx, algo, previous=algo.warm_start and before is None, dtype=dtype, device=device)
    train_text(model)
    made = lora.with_adapters(model, algo.lora, seed=ctx.seed * 1000 + ctx.round)
    return made if before is None else lora.with_weights_of(made, adapter_folders(before)[-1])


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


# -- evaluating --------------------------------------------------------------------------------------------------
# Evaluation: completions of held-out prompts, and their metrics. Sweeps: a policy is tried at several guidance
# strengths on the validation split and tested at one of them, so that the choice does not use the reported data.
# Baselines: greedy decoding of the reference, and the optimum, which the evaluation of the reference computes.
# Used in workers only.


def evaluate(
    ctx: JobContext,
    policy: TextPolicy,
    dataset: Dataset,
    folder: Path,
    *,
    split: str | None = None,
    samples: int | None = None,
    before: tuple[int, int] = (0, 0),
    total: int | None = None,
) -> tuple[int, int]:
    """Sample completions of held-out prompts, score them and write them to a folder.

    Args:
        ctx: Context of the stage.
        policy: Policy to sample from.
        dataset: Dataset of the chain.
        folder: Output folder.
        split: Split of the dataset; None for `evaluation.split`.
        samples: Completions per prompt; None for `evaluation.num_samples`.
        before: Completions that the stage has already drawn for other policies, and their tokens.
        total: Completions that the stage draws in all; None if these are the last.

    Returns:
        Completions and tokens that the stage has drawn so far, for the next `before`.
    """
    first = 0 if samples else ctx.first_sample  # earlier samples were drawn before
    samples = (samples or ctx.config.evaluation.num_samples) - first
    rows = held_out_rows(ctx, dataset, split)
    # The RNG stream does not depend on algorithm or round: all are compared on the same draws.
    keys = sampling.sample_keys(ctx.seed, "evaluate", row_ids(rows), first + samples)[:, first:]
    done, tokens = before
    whole = done + len(rows) * samples if total is None else total
    decoded = policy.complete(
        encode(ctx, policy, rows),
        None if ctx.greedy else keys,
        samples=samples,
        on_batch=lambda more, of_more: ctx.progress(done + more, total=whole, tokens=before[1] + of_more),
    )
    if ctx.greedy:  # all probability on one completion: 0 or infinite nats from another such policy
        decoded = Decoded(decoded.tokens, np.full(len(decoded.tokens), np.nan))
    answered(len(decoded.tokens))
    repeated = [row for row in rows for _ in range(samples)]
    texts = policy.text(decoded.tokens, repeated)
    tokens += sum(map(len, decoded.tokens))
    scored = score(
        ctx,
        repeated,
        texts,
        decoded.tokens,
        ctx.config.evaluation.reward_batch_size,
        lambda judged: ctx.progress(done + judged, total=whole, tokens=tokens),
    )
    drawn = _samples(policy, repeated, decoded, texts, scored, range(first, first + samples))
    metrics.write_samples(folder / formats.SAMPLES, drawn)
    return done + len(decoded.tokens), tokens


def _samples(
    policy: TextPolicy, rows: Sequence[Row], decoded: Decoded, texts: Sequence[str], scored: Scored, numbers: range
) -> Iterator[Sample]:
    """Yield the completions with scores: one of `rows` each; `numbers` are the sample numbers of a prompt."""
    several = scored.parts if len(scored.parts) > 1 else {}
    for index, row in enumerate(rows):
        yield Sample(
            row=row.id,
            sample=numbers[index % len(numbers)],
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
            solution=None if numbers[index % len(numbers)] else _solution(row),
        )


def _solution(row: Row) -> str | None:
    found = row.columns.get("solution")
    return found if found is None or isinstance(found, str) else json_text(found, ensure_ascii=False)


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def write_metrics(
    ctx: JobContext,
    anchors: Mapping[str, PromptMeasures] | None = None,
    of_training: PromptMeasures | None = None,
) -> None:
    """Turn the evaluated samples of all shards into metrics, and pick some samples to show.

    Args:
        ctx: Context of the stage.
        anchors: Name -> measures of another policy on the same prompts, for metrics called ``NAME/METRIC``.
        of_training: What was measured on other prompts, for further metrics.
    """
    samples, settings = metrics.read_samples(ctx.inputs["evaluate"]), ctx.config.evaluation
    others = {"reference": "reference.evaluate", "previous": "evaluate@previous"}
    compared = {
        name: metrics.read_samples(ctx.inputs[place]) for name, place in others.items() if ctx.inputs.get(place)
    }
    measured = metrics.measure(samples, settings.common_eta, log_right(ctx))
    for name, measures in (anchors or {}).items():
        measured = metrics.beside(measured, name, measures)
    tried = swept(ctx)
    rows = metrics.evaluation_rows(samples, settings, compared, measured) + sweep_rows(tried, settings)
    if of_training is not None:
        rows += metrics.estimates(of_training, settings)
    (ctx.out / formats.METRICS).write_text(json_text({"rows": rows}, indent=1) + "\n")
    write_prompts(ctx.out, with_sweep(measured, tried))
    shown = metrics.shown_samples(samples, settings.sample_prompts)
    lines = (json_text(entry, ensure_ascii=False) + "\n" for entry in shown)
    (ctx.out / formats.SAMPLES).write_text("".join(lines), encoding="utf-8")


def log_right(ctx: JobContext) -> dict[int, float]:
    """Return the log-probabilities of being right, by row, from the evaluation of the reference.

    See `learning.evaluation.metrics`.
    """
    return metrics.read_log_right(ctx.inputs.get("reference.evaluate") or ctx.inputs["evaluate"])


# -- strengths -------------------------------------------------------------------------------------------------


SWEEP = "sweep"
_TOLD = ("pass@1", "reward", "kl_per_sequence", "kl_per_token", metrics.J)


Tried = Mapping[str, tuple[Sequence[Sample], PromptMeasures]]
"""Name of a strength -> evaluated completions of the validation split, and their measures by prompt."""


def eta_folder(eta: float) -> str:
    """Return the folder name of the samples at a strength, in the output of a sweep; results use the same name."""
    return f"{formats.ETA}{plain.short(eta)}"


def strengths(own: float, further: Iterable[float]) -> dict[str, float]:
    """Return the strengths to try by folder name: the method's own and further ones."""
    return {eta_folder(eta): eta for eta in (own, *further)}


def swept(ctx: JobContext) -> Tried:
    """Return the samples of this round's sweep by folder name; empty without a sweep."""
    outputs = ctx.inputs.get(SWEEP, ())
    names = sorted(path.name for path in outputs[0].glob(f"{formats.ETA}*")) if outputs else []
    drawn = {name: metrics.read_samples([output / name for output in outputs]) for name in names}
    eta = ctx.config.evaluation.common_eta
    # A dataset may have no such split.
    return {name: (samples, metrics.measure(samples, eta)) for name, samples in drawn.items() if samples}


def chosen(tried: Tried, settings: schema.EvaluationConfig) -> str | None:
    """Return the name of the best strength: the highest mean reward within the KL limit; None if there is none."""
    best = metrics.chosen_point(_points(tried), settings.kl_limit)
    return None if best is None else best.label


def sweep_rows(tried: Tried, settings: schema.EvaluationConfig) -> list[dict[str, Any]]:
    """Return reward and KL at every strength, whether it is on the Pareto front, and whether it was chosen."""
    found: list[dict[str, Any]] = []
    for name, (samples, measured) in tried.items():
        own = metrics.evaluation_rows(samples, settings, measured=measured)
        found += [{**row, "metric": f"{row['metric']}/{name}"} for row in own if row["metric"] in _TOLD]
    points, best = _points(tried), chosen(tried, settings)
    front = {point.label for point in metrics.reward_kl_front(points)}
    bare = {"ci_low": None, "ci_high": None, "n": 0}
    for point in points:
        found.append({"metric": f"front/{point.label}", "value": float(point.label in front), **bare})
        found.append({"metric": f"chosen/{point.label}", "value": float(point.label == best), **bare})
    return found


def with_sweep(own: PromptMeasures, tried: Tried) -> PromptMeasures:
    """Return the measures of a policy with those of its sweep; they are of different prompts."""
    parts = {name: part for name, (_, part) in tried.items()}
    every = np.unique(np.concatenate([own.rows, *(part.rows for part in parts.values())]))

    def spread(part: PromptMeasures, sums: Sums) -> Sums:
        above, below = np.zeros(len(every)), np.zeros(len(every))
        places = np.searchsorted(every, part.rows)
        above[places], below[places] = sums
        return above, below

    found = {name: spread(own, sums) for name, sums in own.sums.items()}
    for label, part in parts.items():
        found |= {f"{name}/{label}": spread(part, part.sums[name]) for name in _TOLD if name in part.sums}
    return PromptMeasures(every, found)


def _points(tried: Tried) -> list[metrics.FrontPoint]:
    def mean(measures: PromptMeasures, name: str) -> float:
        """Return the mean over prompts and samples; NaN if nothing is known."""
        above, below = measures.sums.get(name, (np.zeros(1), np.zeros(1)))
        return float(above.sum() / below.sum()) if below.sum() > 0 else math.nan

    return [
        metrics.FrontPoint(mean(each, "kl_per_sequence"), mean(each, "reward"), name)
        for name, (_, each) in tried.items()
    ]


# -- anchors ---------------------------------------------------------------------------------------------------

GREEDY_SAMPLES = 1
"""Greedy completions per prompt: more would be the same."""
_MOST_SPELLINGS = 100
"""Most spellings of a right completion that are enumerated."""


def evaluate_greedy(ctx: JobContext, dataset: Dataset, drawn: tuple[int, int]) -> None:
    """Complete the held-out prompts greedily, `GREEDY_SAMPLES` times each.

    Args:
        ctx: Context of the reference's evaluation.
        dataset: Dataset of the chain.
        drawn: What the stage has already drawn.
    """
    folder = ctx.out / formats.GREEDY
    folder.mkdir()
    policy = reference_policy(ctx, dataset, kind=GreedyPolicy)
    with metered() as meter:  # greedy decoding is no part of what an answer costs
        evaluate(ctx, policy, dataset, folder, samples=GREEDY_SAMPLES, before=drawn)
    for purpose, flops in meter.flops.items():
        spend("scoring" if purpose in formats.ANSWERING else purpose, flops)


def evaluate_right(ctx: JobContext, dataset: Dataset, policy: TextPolicy) -> None:
    """Write the reference's exact probability of being right at every prompt, where it can be computed.

    Args:
        ctx: Context of the reference's evaluation, which has written its samples.
        dataset: Dataset of the chain.
        policy: The reference.
    """
    rewards, rows = known_rewards(ctx.config.dataset), held_out_rows(ctx, dataset)
    right = rewards[0].traits.right if len(rewards) == 1 and rewards[0].weight == 1 else None
    model, tokenizer = reference_model(ctx)
    draws_all = ctx.config.generation.sampling.is_whole and policy.stops is None and not ctx.greedy
    # Cheap checks come first: a pretrained tokenizer has 100,000 tokens and more to spell out.
    if right is None or not draws_all or not _is_made_for(model, tokenizer, dataset):
        return
    answers = {row.id: {answer.strip() for answer in right(row.columns)} for row in rows}
    if (pieces := _pieces(policy, len(tokenizer))) is None or _is_contradicted(ctx, answers):
        return
    written = {row: _written(texts, pieces, policy) for row, texts in answers.items() if texts}
    if all(len(ways) <= _MOST_SPELLINGS for ways in written.values()):
        prompts = dict(zip((row.id for row in rows), encode(ctx, policy, rows), strict=True))
        metrics.write_log_right(ctx.out, _summed(policy, prompts, written))


def anchor_measures(ctx: JobContext) -> dict[str, PromptMeasures]:
    """Return measures of the greedy reference, and of the optimum where known, for the reference's metrics."""
    settings, known = ctx.config.evaluation, log_right(ctx)
    drawn = [folder / formats.GREEDY for folder in ctx.inputs["evaluate"]]
    found = {}
    if folders := [folder for folder in drawn if folder.is_dir()]:  # a greedy reference is its own baseline
        greedy = metrics.read_samples(folders)
        found[formats.GREEDY] = metrics.measure(greedy, settings.common_eta, known)
    if known:
        found["optimum"] = metrics.optimum_columns(known, settings.common_eta, settings.etas)
    return found


def _is_made_for(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, dataset: Dataset) -> bool:
    vocabulary = set(tokenizer.get_vocab())
    size = model.config.get_text_config().vocab_size
    return vocabulary == set(dataset.vocabulary) and len(vocabulary) == len(tokenizer) == size


def _pieces(policy: TextPolicy, size: int) -> dict[int, str] | None:
    """Return the text of every token; None if tokens write something else in context than alone."""
    pieces = dict(enumerate(policy.text([[token] for token in range(size)])))
    return pieces if policy.text([list(pieces)]) == ["".join(pieces.values())] else None


def _is_contradicted(ctx: JobContext, answers: Mapping[int, set[str]]) -> bool:
    """Return whether the reward of a sample contradicts the assumption that these are the right answers."""
    for sample in metrics.read_samples([ctx.out]):
        expected = float(sample.completion.strip() in answers[sample.row]) if answers[sample.row] else None
        if sample.reward != expected:
            said = f"the reward gives {sample.reward} to {sample.completion!r}, against what it says is right"
            print(f"no row for the optimum: {said}", flush=True)  # noqa: T201 - the job's log
            return True
    return False


def _written(texts: set[str], pieces: Mapping[int, str], policy: TextPolicy) -> list[list[int]]:
    """Return all tokenizations of some texts, or one more than the limit."""
    ways = (way for each in sorted(texts) for way in stops.spellings(each, pieces, policy.end_ids, policy.limit))
    return list(islice(ways, _MOST_SPELLINGS + 1))


def _summed(
    policy: TextPolicy, prompts: Mapping[int, Sequence[int]], written: Mapping[int, Sequence[Sequence[int]]]
) -> dict[int, float]:
    pairs = [(row, way) for row, ways in written.items() for way in ways]
    taken = policy.logprobs([prompts[row] for row, _ in pairs], [way for _, way in pairs]) if pairs else []
    found = dict.fromkeys(written, -math.inf)
    for (row, _), each in zip(pairs, taken, strict=True):
        found[row] = float(np.logaddexp(found[row], each.sum(dtype=np.float64)))
    return found
