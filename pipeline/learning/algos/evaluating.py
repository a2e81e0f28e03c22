"""Evaluate policies: draw and score completions of held-out prompts, and turn them into metrics.

The evaluation of the reference also computes the anchors: the greedy reference, and the optimum where it is known.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from pipeline.config import plain, schema
from pipeline.files import json_text
from pipeline.learning.algos.base import JobContext
from pipeline.learning.algos.opening import (
    encode,
    held_out_rows,
    reference_model,
    reference_policy,
    row_ids,
    score,
)
from pipeline.learning.datasets.base import Dataset, Row, plain_text
from pipeline.learning.evaluation import metrics
from pipeline.learning.generation import sampling, stops
from pipeline.learning.generation.decode import Decoded
from pipeline.learning.generation.policy import GreedyPolicy, TextPolicy
from pipeline.learning.models.flops import answered, metered, spend
from pipeline.learning.rewards.registry import known_rewards
from pipeline.learning.rewards.scoring import Scored
from pipeline.outputs import formats
from pipeline.outputs.formats import Sample
from pipeline.outputs.prompts import PromptMeasures, Sums, write_prompts


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
# A sweep tries several strengths of guidance on the validation split. The policy is tested at one of them, so the
# choice does not use the reported data.


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
    each = own, *parts.values()
    every, first = np.unique(np.concatenate([one.rows for one in each]), return_index=True)

    def spread(part: PromptMeasures, sums: Sums) -> Sums:
        above, below = np.zeros(len(every)), np.zeros(len(every))
        places = np.searchsorted(every, part.rows)
        above[places], below[places] = sums
        return above, below

    found = {name: spread(own, sums) for name, sums in own.sums.items()}
    for label, part in parts.items():
        found |= {f"{name}/{label}": spread(part, part.sums[name]) for name in _TOLD if name in part.sums}
    return PromptMeasures(every, found, np.concatenate([one.texts for one in each])[first])


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
