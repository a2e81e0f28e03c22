"""GRPO: the loss is TRL's, and nothing of it depends on how groups are batched."""

from __future__ import annotations

import inspect
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GPT2LMHeadModel

from examples.gspo import GSPO, GSPOConfig
from examples.pass_at_k import PassAtK, PassAtKConfig
from pipeline.errors import JobError
from pipeline.learning.algos.grpo import GRPO, GRPOConfig, REINFORCEpp, REINFORCEppConfig
from pipeline.learning.algos.policy_config import Sampling
from pipeline.learning.choices import ImportanceSampling, ScaleRewards
from pipeline.learning.rewards.scoring import Scored
from pipeline.learning.training import grpo, scoring, sequences
from tests.doubles.contexts import context
from tests.doubles.models import groups_of, of_grpo, samples_of, tiny_policy
from tests.doubles.own_methods import RewardWeighted


def test_gspo_as_a_user_writes_it_is_what_the_setting_gives() -> None:
    """And so, as training beside TRL's trainer has it, TRL's; also of completions of which no token counts."""
    generator = torch.Generator().manual_seed(3)
    mask = torch.arange(9)[None] < torch.randint(0, 10, (8,), generator=generator)[:, None]
    logprobs, old = (-torch.rand(8, 9, generator=generator) for _ in range(2))
    tokens = grpo.TokenBatch(mask=mask, logprobs=logprobs, old=old, anchor=None, advantages=torch.ones(8, 1))
    found = GSPO().ratio(context(GSPOConfig()), tokens).expand_as(mask)
    assert torch.equal(found, grpo.importance_ratio(tokens, ImportanceSampling.sequence))


@pytest.mark.parametrize("normalizes", [False, True])
def test_advantages_of_rloo_are_those_of_trl(normalizes: bool) -> None:
    """As `RLOOTrainer._generate_and_score_completions` has it, which cannot be called without generating."""
    from trl.trainer.utils import nanstd

    rewards = torch.from_numpy(rewards_with_gaps())
    table = rewards.view(-1, 4)
    count = (~torch.isnan(table)).sum(dim=1, keepdim=True)
    expected = rewards - ((torch.nansum(table, dim=1, keepdim=True) - table) / (count - 1)).view(-1)
    if normalizes:
        expected = (expected - torch.nanmean(expected)) / (nanstd(expected) + 1e-4)
    expected = torch.nan_to_num(expected, nan=0.0)
    assert grpo.leave_one_out(rewards.numpy(), 4, normalizes=normalizes) == pytest.approx(
        expected.numpy(), abs=1e-6
    )


def rewards_with_gaps() -> np.ndarray:
    rewards = np.random.default_rng(0).normal(size=24)
    rewards[[1, 4, 5, 6, 7]] = np.nan  # one of the first group, all of the second
    rewards[8:12] = 0.5  # nothing to choose
    return rewards


@pytest.mark.parametrize("scale", sorted({*ScaleRewards} - {ScaleRewards.mean}, key=str))
def test_advantages_are_those_of_trl(scale: ScaleRewards) -> None:
    """As `GRPOTrainer._generate_and_score_completions` has it, which cannot be called without generating."""
    from trl.trainer.utils import nanstd

    rewards = torch.from_numpy(rewards_with_gaps())
    table = rewards.view(-1, 4)
    expected = rewards - torch.nanmean(table, dim=1).repeat_interleave(4)
    if scale is not ScaleRewards.none:
        group = nanstd(table, dim=1).repeat_interleave(4)
        expected = expected / ((group if scale is ScaleRewards.group else nanstd(rewards)) + 1e-4)
    expected = torch.nan_to_num(expected, nan=0.0)
    assert grpo.group_advantages(rewards.numpy(), 4, scale) == pytest.approx(expected.numpy(), abs=1e-5)


def test_advantages_of_maxrl_are_those_of_the_paper() -> None:
    """Theorem 1 of arXiv 2602.02710, less the mean score: of N completions K are right, each weighs 1/K - 1/N."""
    rewards = np.array([1, 0, 0, 0, 1, 1, 0, 1, 0, 0, 0, 0, 1, 1, 1, 1], np.float64)
    expected = []
    for group in rewards.reshape(-1, 4):
        expected += [4 * (one / group.sum() - 1 / 4) if group.any() else 0.0 for one in group]
    assert grpo.group_advantages(rewards, 4, ScaleRewards.mean) == pytest.approx(np.array(expected), abs=1e-6)
    with pytest.raises(JobError, match=r"a reward is -0\.5"):
        grpo.group_advantages(rewards - 0.5, 4, ScaleRewards.mean)


def samples(model: GPT2LMHeadModel, count: int = 24) -> grpo.Samples:
    generator = np.random.default_rng(1)
    prompts = [generator.integers(0, 10, 3 + row // 4 % 3).tolist() for row in range(count)]
    completions = [generator.integers(0, 10, generator.integers(1, 6)).tolist() for _ in range(count)]
    rewards = np.array([float(tokens[0] % 2) for tokens in completions])
    bare = samples_of(prompts, completions, rewards)
    batch = sequences.batch_of(bare.sequences, np.arange(count), "cpu")
    with torch.no_grad():
        table = scoring.completion_logprobs(model, batch).double().numpy()
    return samples_of(prompts, completions, rewards, grpo.supervised_columns(table, bare.sequences))


# -- test hooks --------------------------------------------------------------------------------------------------
# What a variant of a method may answer in another way, and what it then may rely on.


NONE = float("nan")


def scored_samples(rewards: list[float]) -> grpo.Samples:
    """Completions of two tokens each, with these rewards."""
    count = len(rewards)
    logprobs = [np.full(2, -0.5, np.float32)] * count
    return samples_of([[1]] * count, [[2, 3]] * count, np.array(rewards), logprobs)


@pytest.mark.parametrize("sampling", list(Sampling))
def test_completions_that_were_cut_off_are_kept_without_a_part_in_the_loss(
    sampling: Sampling, tmp_path: Path
) -> None:
    rewards, tokens = np.array([1.0, 0.0, 0.5, 0.0]), [[5, 6], [7, 8], [9, 6], [8]]
    scored = Scored(rewards, {}, [None] * 4, [None] * 4, [None] * 4)
    cut_off = np.array([False, True, False, False])
    logprobs = [np.full(len(each), -0.5, "f4") for each in tokens] if sampling is Sampling.round else None
    groups = groups_of(2, [[1]] * 4, tokens, scored, truncated=cut_off, logprobs=logprobs)
    GRPO().keep(context(GRPOConfig(sampling=sampling, mask_truncated_completions=True), tmp_path), groups)
    found = grpo.Samples.load([tmp_path])
    assert found.sequences.supervised.tolist() == [2, 0, 2, 1]
    advantages = np.float32([1, -1, 0, 0])
    made = grpo.grpo_set(tiny_policy(), found, advantages, None, of_grpo(num_generations=2), "cpu", longest=2)
    assert made.about == {"groups": 2, "groups_without_signal": 1, "completions_masked": 1}


@pytest.mark.parametrize("baseline", [False, True])
@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_advantages_of_reinforce_pp_are_those_of_the_paper(
    baseline: bool, beta: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arithmetic of arXiv 2501.03262, token by token, with one completion without a reward and one left out."""
    random = np.random.default_rng(3)
    lengths, rewards = [1, 3, 2, 4, 2, 3, 1, 2], random.normal(size=8)
    rewards[2] = NONE
    logprobs, anchor = ([random.normal(size=length).astype("f4") for length in lengths] for _ in range(2))
    given = samples_of([[1]] * 8, [[2] * length for length in lengths], rewards, logprobs)
    given = given.silenced(np.arange(8) == 5)
    monkeypatch.setattr(REINFORCEpp, "anchor_logprobs", lambda *_: grpo.padded(anchor))
    ctx = context(REINFORCEppConfig(num_generations=4, baseline=baseline, beta=beta))
    found = grpo.checked_advantages(REINFORCEpp().advantages(ctx, given), given)

    values: dict[tuple[int, int], float] = {}
    for row, length in enumerate(lengths):
        group = rewards[row // 4 * 4 : row // 4 * 4 + 4]
        for place in range(length) if row not in (2, 5) else ():
            kl = sum(float(logprobs[row][at]) - float(anchor[row][at]) for at in range(place, length))
            values[row, place] = rewards[row] - baseline * np.nanmean(group) - beta * kl
    mean, deviation = np.mean(list(values.values())), np.std(list(values.values()))
    expected = np.zeros((8, 4))
    for at, value in values.items():
        expected[at] = (value - mean) / deviation
    assert found == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("right", "k"), [(1, 2), (2, 2), (3, 3), (2, 5)])
def test_advantages_for_the_best_of_k_are_those_of_the_paper(right: int, k: int) -> None:
    """Equations of arXiv 2508.10751, for rewards of 0 and 1."""
    size, wrong = 8, 8 - right
    ctx = context(PassAtKConfig(num_generations=size, k=k))
    found = PassAtK().advantages(ctx, scored_samples([1.0] * right + [0.0] * wrong))
    mean = 1 - comb(wrong, k) / comb(size, k)
    deviation = (mean * (1 - mean)) ** 0.5 + 1e-4
    none_besides = comb(wrong - 1, k - 1) / comb(size - 1, k - 1)
    expected = [(1 - mean) / deviation] * right + [(1 - mean - none_besides) / deviation] * wrong
    assert found == pytest.approx(np.array(expected), abs=1e-5)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (np.zeros((4, 1)), r"an array of shape \[4, 1\]; it must be \[4\], one each, or \[4, 2\], one each token"),
        (np.zeros(3), r"an array of shape \[3\]; it must be \[4\]"),
        (None, r"an array of shape \[\]; it must be \[4\]"),
        ([0.0, NONE, 1.0, NONE], "gave nan for completion 1 and 2 in all that are no number"),
        ([0.0, 1.0, 2.0, np.inf], "gave inf for completion 3 and 1 in all"),
    ],
)
def test_advantages_that_cannot_be_trained_on_are_one_message(found: Any, said: str) -> None:
    with pytest.raises(JobError, match=said):
        grpo.checked_advantages(found, scored_samples([0.0] * 4))


def test_the_method_that_the_page_shows_is_the_one_that_is_tested() -> None:
    shown = (Path(__file__).parents[4] / "docs" / "extending.md").read_text()
    written = inspect.getsource(RewardWeighted.training_set).splitlines()
    lines = [line.strip() for line in written if line.strip() and not line.strip().startswith("def ")]
    assert len(lines) > 3
    assert [line for line in lines if line not in shown] == []
