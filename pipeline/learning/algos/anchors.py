"""What the results of methods are held against, besides the reference: its greedy decoding, and the optimum.

The evaluation of the reference makes both; `optimum` says what is computed of the latter. Worker side only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import islice

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from pipeline.config.bases import DatasetConfig
from pipeline.learning.algos import toolbox
from pipeline.learning.algos.base import JobContext
from pipeline.learning.datasets.base import Dataset, Row
from pipeline.learning.evaluation.metrics import measure, read_samples
from pipeline.learning.evaluation.optimum import optimum_columns, write_log_right
from pipeline.learning.generation.policy import GreedyPolicy, TextPolicy
from pipeline.learning.generation.spellings import spellings
from pipeline.learning.models.flops import metered, spend
from pipeline.learning.rewards.registry import known_rewards
from pipeline.learning.rewards.traits import RewardTraits
from pipeline.outputs.formats import ANSWERING, GREEDY
from pipeline.outputs.prompts import PromptMeasures

GREEDY_SAMPLES = 1
"""Greedy completions of a prompt: all would be the same."""
_MOST_SPELLINGS = 100
"""Ways to write a right completion beyond which they are not looked through."""


def evaluate_greedy(ctx: JobContext, dataset: Dataset, drawn: toolbox.Drawn) -> None:
    """Complete the held-out prompts with the likeliest tokens, `GREEDY_SAMPLES` each.

    Args:
        ctx: Of the reference's evaluation.
        dataset: Of the chain.
        drawn: What the stage has drawn already.
    """
    folder = ctx.out / GREEDY
    folder.mkdir()
    policy = toolbox.reference_policy(ctx, dataset, kind=GreedyPolicy)
    with metered() as meter:  # an answer of the reference is a sample, and takes nothing of this
        toolbox.evaluate(ctx, policy, dataset, folder, samples=GREEDY_SAMPLES, before=drawn)
    for purpose, flops in meter.flops.items():
        spend("scoring" if purpose in ANSWERING else purpose, flops)


def evaluate_right(ctx: JobContext, dataset: Dataset, policy: TextPolicy) -> None:
    """Write how likely the reference is to be right at every prompt, or say in the log why it cannot be known.

    Args:
        ctx: Of the reference's evaluation, which has written its samples.
        dataset: Of the chain.
        policy: The reference.
    """
    rows = toolbox.held_out_rows(ctx, dataset)
    found = _log_right(ctx, dataset, policy, rows)
    if isinstance(found, str):
        print(f"no row for the optimum: {found}", flush=True)  # noqa: T201 - the job's log
        return
    write_log_right(ctx.out, found)


def measures(ctx: JobContext) -> dict[str, PromptMeasures]:
    """Measures of the greedy reference, and of the optimum where it is known, for the reference's metrics."""
    settings, known = ctx.config.evaluation, toolbox.log_right(ctx)
    greedy = read_samples([folder / GREEDY for folder in ctx.inputs["evaluate"]])
    found = {GREEDY: measure(greedy, settings.common_eta, known).by_metric()}
    if known:
        found["optimum"] = optimum_columns(known, settings.common_eta, settings.etas)
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
    model, tokenizer = toolbox.reference_model(ctx)
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
        policy, dict(zip((row.id for row in rows), toolbox.encode(ctx, policy, rows), strict=True)), written
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
    for sample in read_samples([ctx.out]):
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
