"""Groups of completions: which pairs are made of them, and which one is the best."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pipeline.config.schema import AlgoConfig, DatasetConfig, GenerationConfig, StageConfig
from pipeline.errors import DataError
from pipeline.learning.algos import dpo, opening
from pipeline.learning.algos.groups import Groups, Rollouts
from pipeline.learning.algos.opening import reference_model, score
from pipeline.learning.datasets import base, shipped
from pipeline.learning.generation import sampling
from pipeline.learning.generation.policy import TextPolicy, by_majority, by_score
from pipeline.learning.models import kinds, tiny
from pipeline.learning.models.cache import ModelCache
from pipeline.learning.rewards import scoring, traits
from pipeline.learning.rewards.preference import Preference, PreferenceConfig, PreferenceSource
from pipeline.learning.training.sequences import Sequences
from pipeline.outputs.formats import read_faults
from tests.doubles.contexts import context
from tests.doubles.models import groups_of, tiny_policy


def groups(rewards: Sequence[Sequence[float]], tokens: Sequence[Sequence[int]] | None = None) -> Groups:
    values = np.array(rewards, np.float64).reshape(-1)
    size = len(rewards[0])
    count = len(values)
    return groups_of(
        size,
        [[90 + place // size] for place in range(count)],
        [[place] for place in range(count)] if tokens is None else [[one] for row in tokens for one in row],
        scoring.Scored(
            values, {}, [None if np.isnan(v) else bool(v >= 1) for v in values], [None] * count, [None] * count
        ),
        ids=np.arange(len(rewards)) + 70,
        keys=sampling.sample_keys(0, "preference", np.arange(len(rewards)), 1)[:, 0],
    )


def pairs(found: Sequences) -> list[tuple[int, int]]:
    assert found.labels.tolist() == [1.0, 0.0] * (len(found) // 2)
    assert found.starts.tolist() == [1] * len(found)
    last = found.ids[:, 1].tolist()
    return list(zip(last[0::2], last[1::2], strict=True))


def test_the_first_decided_pairs_of_each_prompt() -> None:
    drawn = groups([[0, 1, 0, 1], [1, 1, 1, 1], [0, 0.5, np.nan, 0.2]])
    settings = PreferenceConfig(pairs_per_prompt=2)
    assert pairs(drawn.pairs(settings)) == [(1, 0), (3, 0), (9, 8), (11, 8)]
    everything = pairs(drawn.pairs(PreferenceConfig(pairs_per_prompt=99)))
    assert everything == [(1, 0), (3, 0), (1, 2), (3, 2), (9, 8), (11, 8), (9, 11)]
    only = PreferenceConfig(pairs_per_prompt=99, source=PreferenceSource.correctness)
    assert pairs(drawn.pairs(only)) == everything[:4]


def test_the_widest_pairs_of_each_prompt() -> None:
    drawn = groups([[0.2, 0.5, 0.1, 0.9], [0.3, np.nan, 0.3, 0.4]])
    settings = PreferenceConfig(pairs_per_prompt=2, source=PreferenceSource.reward, widest_first=True)
    assert pairs(drawn.pairs(settings)) == [(3, 2), (3, 0), (7, 4), (7, 6)]


def test_equal_completions_are_no_pair() -> None:
    drawn = groups([[0.1, 0.9, 0.3]], tokens=[[7, 7, 8]])
    assert pairs(drawn.pairs(PreferenceConfig(pairs_per_prompt=9))) == [(8, 7), (7, 8)]


def test_a_drawn_preference_depends_on_no_other_prompt() -> None:
    rewards = [[0.1, 0.4], [0.3, 0.2], [0.5, 0.6]]
    settings = PreferenceConfig(preference=Preference.bradley_terry, beta=0.5, pairs_per_prompt=1)
    whole = pairs(groups(rewards).pairs(settings))
    assert len(whole) == 3
    first = pairs(groups(rewards[:1]).pairs(settings))
    assert whole[:1] == first


def test_the_best_is_the_first_of_equals() -> None:
    assert groups([[0, 1, 1], [np.nan, 0.2, 0.1], [np.nan] * 3, [0, 0, 0]]).best() == [1, 4, 9]


def test_picking_by_score_and_by_majority() -> None:
    completions = [[3], [5], [5], [4], [2], [2], [9], [9]]
    prompts = [[1]] * 8
    highest = by_score(lambda data: data.ids[:, -1].astype(np.float64))
    assert highest(prompts, completions, 4).tolist() == [1, 2]
    votes = by_majority(lambda tokens: None if tokens == [3] else str(tokens[0]))
    assert votes(prompts, completions, 4).tolist() == [1, 0]
    assert by_majority(lambda tokens: None)(prompts, completions, 4).tolist() == [0, 0]


def test_completions_are_labelled_by_correctness_and_else_by_the_mean_of_their_prompts() -> None:
    drawn = groups([[0, 1, 0, 1], [1, 1, 1, 1], [0, 0.5, np.nan, 0.3]])
    assert drawn.labels() == [False, True, False, True, *[True] * 4, False, False, None, False]
    judged = replace(drawn, scored=replace(drawn.scored, correct=[None] * 12))
    assert judged.labels() == [False, True, False, True, *[None] * 4, False, True, None, True]
    # Their mean is another number than they are.
    alike = groups([[0.1] * 3])
    assert replace(alike, scored=replace(alike.scored, correct=[None] * 3)).labels() == [None] * 3


def test_completions_that_a_dataset_labels() -> None:
    tokenizer = tiny.make_tokenizer(shipped.Addition(shipped.AdditionConfig(kind="addition")))
    rows = [
        base.Row(3, "321+654=", {"label": False}, completion="4790"),
        base.Row(5, "1+1=", {"label": 1}, completion="2"),
        base.Row(8, "1+2=", {}, chosen="3", rejected="4"),
    ]
    found, parted, _ = dpo.labelled_sequences(rows, dpo.Encoding(tokenizer))
    assert (found.labels.tolist(), found.prompts.tolist()) == ([0, 1, 1, 0], [3, 5, 8, 8])
    assert parted == 0
    with pytest.raises(DataError, match="row 9: its label is 'good'; must be true or false"):
        dpo.labelled_sequences([base.Row(9, "1+1=", {"label": "good"}, completion="2")], dpo.Encoding(tokenizer))


@pytest.mark.parametrize("in_columns", [True, False])
def test_pairs_that_a_dataset_has(in_columns: bool) -> None:
    tokenizer = tiny.make_tokenizer(shipped.Addition(shipped.AdditionConfig(kind="addition")))
    answers = {"chosen": "5790", "rejected": "4790"}
    same = {"chosen": "1", "rejected": "1"}
    rows = [
        base.Row(number, "321+654=", texts) if in_columns else base.Row(number, "321+654=", {}, **texts)
        for number, texts in enumerate((answers, same))
    ]
    found, parted, _ = dpo.existing_sequences(rows, dpo.Encoding(tokenizer, context=13))
    assert parted == 0
    with pytest.raises(DataError, match=r"'321\+654=' and an answer to it are 13 tokens, .* room for 12"):
        dpo.existing_sequences(rows, dpo.Encoding(tokenizer, context=12))
    assert found.labels.tolist() == [1, 0]
    assert found.starts.tolist() == [9, 9]
    assert found.ids.tolist() == [[10, 3, 2, 1, 11, 6, 5, 4, 12, *map(int, text)] for text in answers.values()]


# -- test rollouts -----------------------------------------------------------------------------------------------
# Completions of the same text so far, which is read once, are those that they would be by themselves.


DATASET = base.load_dataset(shipped.AdditionConfig(kind="addition"))
SAMPLES = 3


def policy() -> TextPolicy:
    return TextPolicy(tiny_policy(), tiny.make_tokenizer(DATASET), GenerationConfig(batch_size=16), DATASET, "cpu")


@pytest.fixture
def rolled(monkeypatch: pytest.MonkeyPatch) -> Rollouts:
    """Three roll-ins of each of four prompts."""
    rows: Any = [DATASET.row(index) for index in range(4)]
    monkeypatch.setattr(opening, "round_rows", lambda *_: rows)
    monkeypatch.setattr(opening, "encode", lambda _, policy, rows: policy.encode([row.prompt for row in rows]))
    told: list[int] = []
    ctx: Any = SimpleNamespace(
        algo="PITA",
        round=1,
        seed=0,
        told=told,
        progress=lambda done, total, tokens: told.append(done / total),
        config=SimpleNamespace(data_collection=SimpleNamespace(samples_per_example=SAMPLES)),
    )
    return Rollouts(ctx, DATASET, policy(), finishes=2)


@pytest.mark.parametrize(
    ("streams", "cut"),
    [((None, "second"), "drawn"), (("first", "second"), 0)],
)
def test_what_is_the_same_so_far_is_completed_as_by_itself(
    rolled: Rollouts, streams: tuple[str | None, ...], cut: int | str
) -> None:
    cuts = rolled.cut() if cut == "drawn" else [int(cut)] * len(rolled.tokens)
    prefixes = [tokens[:end] for tokens, end in zip(rolled.tokens, cuts, strict=True)]
    alone, apart = policy(), []
    for stream in streams:
        keys = None if stream is None else rolled.keys(stream).reshape(-1)
        side = []
        for index, prefix in enumerate(prefixes):
            own = None if keys is None else keys[[index]][:, None]
            whole = [rolled.prompts[index] + prefix]
            limit = np.array([alone.limit - len(prefix)])
            side.append(prefix + alone.complete(whole, own, budgets=limit).tokens[0])
        apart.append(side)
    assert rolled.finish_each(policy(), prefixes, streams) == apart
    assert rolled._ctx.told[-1] == (1 + len(streams)) / 3


# -- test opening ------------------------------------------------------------------------------------------------
# What stages that work with text share: scoring leaves in the output what rewards failed at.


@traits.reward(traits.RewardTraits(isolated=False))
def as_numbers(completions: Sequence[str], **_: Any) -> list[float]:
    return [float(text) for text in completions]


def test_scoring_leaves_in_the_output_what_a_reward_failed_at(tmp_path: Path) -> None:
    dataset = DatasetConfig(kind="x", reward=f"{__name__}.as_numbers")
    ctx = replace(
        context(AlgoConfig(), tmp_path),
        config=StageConfig(dataset=dataset),
        models=ModelCache(1),
        loading=nullcontext,
    )
    rows = [base.Row(number, "p") for number in range(2)]
    score(ctx, rows, ["1", "2"], [[0], [0]], 8)
    assert not (tmp_path / "faults.json").exists()
    score(ctx, rows, ["1", "inf"], [[0], [0]], 8)
    assert (faults := read_faults(tmp_path / "faults.json")).failed == 1
    assert (faults.completions, faults.first) == (4, f"reward '{__name__}.as_numbers': the reward is infinite")


def test_a_reference_that_is_read_in_few_bits_is_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int | None] = []
    monkeypatch.setattr(opening, "reference_source", lambda _: "folder")
    monkeypatch.setattr(opening, "load_policy", lambda *_, bits, **__: read.append(bits))
    monkeypatch.setattr(opening, "load_tokenizer", lambda *_, **__: None)
    cache = ModelCache(9)
    for quantization in ("4bit", None, "8bit", "4bit"):
        config = StageConfig(model=kinds.HFModelConfig(kind="hf", path="x", quantization=quantization))
        made = context(AlgoConfig(), tmp_path)
        reference_model(replace(made, config=config, models=cache, loading=nullcontext))
    assert read == [4, None, 8]
