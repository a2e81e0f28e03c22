"""What policies are evaluated at: their completions of held-out prompts, and the numbers that come of these.

Besides, strengths of guidance that a policy is tried at on the validation split, one of which it is then tested
at: what is chosen by must not be what is reported. And what results are held against: the reference's greedy
decoding, and the optimum, which the evaluation of the reference makes. Worker side only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from pipeline.config.plain import short
from pipeline.config.schema import DatasetConfig, EvaluationConfig
from pipeline.files import json_text
from pipeline.learning.algos import opening
from pipeline.learning.algos.base import JobContext
from pipeline.learning.datasets.base import Dataset, Row, plain_text
from pipeline.learning.evaluation import metrics
from pipeline.learning.generation.decode import Decoded
from pipeline.learning.generation.policy import GreedyPolicy, TextPolicy
from pipeline.learning.generation.sampling import sample_keys
from pipeline.learning.generation.stops import spellings
from pipeline.learning.models.flops import answered, metered, spend
from pipeline.learning.rewards.registry import known_rewards
from pipeline.learning.rewards.scoring import Scored
from pipeline.learning.rewards.traits import RewardTraits
from pipeline.outputs.formats import ANSWERING, ETA, GREEDY, METRICS, SAMPLES, Sample
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
        ctx: Of the stage.
        policy: That completes.
        dataset: Of the chain.
        folder: Where to write.
        split: Of the dataset; None takes `evaluation.split`.
        samples: Completions of each prompt; None takes `evaluation.num_samples`.
        before: Completions that the stage has drawn already, for other policies, and their tokens.
        total: Completions that the stage draws in all; None where these are the last.

    Returns:
        What the stage has drawn by now, as `before`.
    """
    samples = samples or ctx.config.evaluation.num_samples
    rows = opening.held_out_rows(ctx, dataset, split)
    # The stream has no name of an algorithm or round in it: all are compared on the same draws.
    keys = sample_keys(ctx.seed, "evaluate", opening.row_ids(rows), samples)
    done, tokens = before
    whole = done + len(rows) * samples if total is None else total
    decoded = policy.complete(
        opening.encode(ctx, policy, rows),
        keys,
        samples=samples,
        on_batch=lambda more, of_more: ctx.progress(done + more, total=whole, tokens=tokens + of_more),
    )
    answered(len(decoded.tokens))
    repeated = [row for row in rows for _ in range(samples)]
    texts = policy.text(decoded.tokens, repeated)
    scored = opening.score(ctx, repeated, texts, decoded.tokens, ctx.config.evaluation.reward_batch_size)
    metrics.write_samples(folder / SAMPLES, _samples(policy, repeated, decoded, texts, scored, samples))
    return done + len(decoded.tokens), tokens + sum(map(len, decoded.tokens))


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


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def write_metrics(ctx: JobContext, anchors: Mapping[str, PromptMeasures] | None = None) -> None:
    """Turn the evaluated samples of all shards into metrics, and pick some samples to show.

    Args:
        ctx: Of the stage.
        anchors: Name -> what another policy does on the same prompts, for metrics called ``NAME/METRIC``.
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
    (ctx.out / METRICS).write_text(json_text({"rows": rows}, indent=1) + "\n")
    write_prompts(ctx.out, with_sweep(measured, tried))
    shown = metrics.shown_samples(samples, settings.sample_prompts)
    lines = (json_text(entry, ensure_ascii=False) + "\n" for entry in shown)
    (ctx.out / SAMPLES).write_text("".join(lines), encoding="utf-8")


def log_right(ctx: JobContext) -> dict[int, float]:
    """What the evaluation of the reference says of the optimum; see `learning.evaluation.metrics`."""
    return metrics.read_log_right(ctx.inputs.get("reference.evaluate") or ctx.inputs["evaluate"])


# -- strengths -------------------------------------------------------------------------------------------------


SWEEP = "sweep"
_TOLD = ("pass@1", "reward", "kl_per_sequence", "kl_per_token", metrics.J)


Tried = Mapping[str, tuple[Sequence[Sample], PromptMeasures]]
"""Name of a strength -> evaluated completions of the validation split, and their measures by prompt."""


def eta_folder(eta: float) -> str:
    """Folder of the samples at a strength, in the output of a sweep; it names the strength in results too."""
    return f"{ETA}{short(eta)}"


def strengths(own: float, further: Iterable[float]) -> dict[str, float]:
    """Those to try: the method's own and the further ones, by the names of their folders."""
    return {eta_folder(eta): eta for eta in (own, *further)}


def swept(ctx: JobContext) -> Tried:
    """What the sweep of this round has seen, by the names of folders; nothing where there was none."""
    outputs = ctx.inputs.get(SWEEP, ())
    names = sorted(path.name for path in outputs[0].glob(f"{ETA}*")) if outputs else []
    drawn = {name: metrics.read_samples([output / name for output in outputs]) for name in names}
    eta = ctx.config.evaluation.common_eta
    # A dataset may have no such split.
    return {name: (samples, metrics.measure(samples, eta)) for name, samples in drawn.items() if samples}


def chosen(tried: Tried, settings: EvaluationConfig) -> str | None:
    """The name of the best strength: the highest mean reward within the limit of divergence; None without any."""
    best = metrics.chosen_point(_points(tried), settings.kl_limit)
    return None if best is None else best.label


def sweep_rows(tried: Tried, settings: EvaluationConfig) -> list[dict[str, Any]]:
    """Reward and KL at every strength, which of them no other beats in both, and which one is taken."""
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
    """Measures of a policy and those of its sweep; a prompt of one split says nothing of the other."""
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
        """Over prompts and samples; NaN where nothing is known."""
        above, below = measures.sums.get(name, (np.zeros(1), np.zeros(1)))
        return float(above.sum() / below.sum()) if below.sum() > 0 else math.nan

    return [
        metrics.FrontPoint(mean(each, "kl_per_sequence"), mean(each, "reward"), name)
        for name, (_, each) in tried.items()
    ]


# -- anchors ---------------------------------------------------------------------------------------------------

GREEDY_SAMPLES = 1
"""Greedy completions of a prompt: all would be the same."""
_MOST_SPELLINGS = 100
"""Ways to write a right completion beyond which they are not looked through."""


def evaluate_greedy(ctx: JobContext, dataset: Dataset, drawn: tuple[int, int]) -> None:
    """Complete the held-out prompts with the likeliest tokens, `GREEDY_SAMPLES` each.

    Args:
        ctx: Of the reference's evaluation.
        dataset: Of the chain.
        drawn: What the stage has drawn already.
    """
    folder = ctx.out / GREEDY
    folder.mkdir()
    policy = opening.reference_policy(ctx, dataset, kind=GreedyPolicy)
    with metered() as meter:  # an answer of the reference is a sample, and takes nothing of this
        evaluate(ctx, policy, dataset, folder, samples=GREEDY_SAMPLES, before=drawn)
    for purpose, flops in meter.flops.items():
        spend("scoring" if purpose in ANSWERING else purpose, flops)


def evaluate_right(ctx: JobContext, dataset: Dataset, policy: TextPolicy) -> None:
    """Write how likely the reference is to be right at every prompt, or say in the log why it cannot be known.

    Args:
        ctx: Of the reference's evaluation, which has written its samples.
        dataset: Of the chain.
        policy: The reference.
    """
    rows = opening.held_out_rows(ctx, dataset)
    found = _log_right(ctx, dataset, policy, rows)
    if isinstance(found, str):
        print(f"no row for the optimum: {found}", flush=True)  # noqa: T201 - the job's log
        return
    metrics.write_log_right(ctx.out, found)


def anchor_measures(ctx: JobContext) -> dict[str, PromptMeasures]:
    """Measures of the greedy reference, and of the optimum where it is known, for the reference's metrics."""
    settings, known = ctx.config.evaluation, log_right(ctx)
    greedy = metrics.read_samples([folder / GREEDY for folder in ctx.inputs["evaluate"]])
    found = {GREEDY: metrics.measure(greedy, settings.common_eta, known)}
    if known:
        found["optimum"] = metrics.optimum_columns(known, settings.common_eta, settings.etas)
    return found


def _log_right(
    ctx: JobContext, dataset: Dataset, policy: TextPolicy, rows: Sequence[Row]
) -> dict[int, float] | str:
    """Id of a prompt -> log-probability of its right completions together; or why that is not known."""
    traits = _only_reward(ctx.config.dataset)
    if traits is None or traits.right is None:
        return "it is known where the one reward says which completions are right, as exact_match does"
    if ctx.config.generation.top_p < 1:
        return "it is known where the whole vocabulary may be drawn (generation.top_p=1)"
    if policy.stops is not None:
        return "it is known where tokens alone end a completion, and no text does (generation.stop)"
    model, tokenizer = opening.reference_model(ctx)
    # The cheap question comes first: a pretrained tokenizer has 100,000 tokens and more to spell out.
    pieces = _pieces(policy, len(tokenizer)) if _is_made_for(model, tokenizer, dataset) else None
    if pieces is None:
        return "it is known where a text can be written in few ways, by a tokenizer made for the dataset"
    answers = {row.id: {answer.strip() for answer in traits.right(row.columns)} for row in rows}
    if problem := _contradiction(ctx, answers):
        return problem
    written = {row: _written(texts, pieces, policy) for row, texts in answers.items() if texts}
    if any(len(ways) > _MOST_SPELLINGS for ways in written.values()):
        return f"a right completion can be written in more than {_MOST_SPELLINGS} ways"
    return _summed(
        policy, dict(zip((row.id for row in rows), opening.encode(ctx, policy, rows), strict=True)), written
    )


def _only_reward(dataset: DatasetConfig) -> RewardTraits | None:
    rewards = known_rewards(dataset)
    return rewards[0].traits if len(rewards) == 1 and rewards[0].weight == 1 else None


def _is_made_for(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, dataset: Dataset) -> bool:
    vocabulary = set(tokenizer.get_vocab())
    size = model.config.get_text_config().vocab_size
    return vocabulary == set(dataset.vocabulary) and len(vocabulary) == len(tokenizer) == size


def _pieces(policy: TextPolicy, size: int) -> dict[int, str] | None:
    """What every token writes; None where tokens write something else beside each other than alone."""
    pieces = dict(enumerate(policy.text([[token] for token in range(size)])))
    return pieces if policy.text([list(pieces)]) == ["".join(pieces.values())] else None


def _contradiction(ctx: JobContext, answers: Mapping[int, set[str]]) -> str | None:
    """What the reward has said of the samples that it could not have said were these the right answers."""
    for sample in metrics.read_samples([ctx.out]):
        expected = float(sample.completion.strip() in answers[sample.row]) if answers[sample.row] else None
        if sample.reward != expected:
            return (
                f"the reward gives {sample.reward} to {sample.completion!r}, which is "
                f"{'one' if expected else 'none'} of those that it says are right"
            )
    return None


def _written(texts: set[str], pieces: Mapping[int, str], policy: TextPolicy) -> list[list[int]]:
    """All ways to write some texts, or one more than are looked through."""
    ways = (way for each in sorted(texts) for way in spellings(each, pieces, policy.end_ids, policy.limit))
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
