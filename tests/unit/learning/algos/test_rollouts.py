"""Completions of the same text so far read it once, and are those that they would be by themselves."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.config.schema import GenerationConfig
from pipeline.learning.algos import groups
from pipeline.learning.algos import groups as groups_module
from pipeline.learning.algos.groups import Drawn, Rollouts, score_groups
from pipeline.learning.choices import HeadType
from pipeline.learning.datasets.base import load_dataset
from pipeline.learning.datasets.made import AdditionConfig
from pipeline.learning.generation.decode import Guidance
from pipeline.learning.generation.policy import TextPolicy
from pipeline.learning.generation.tilt import Tilt, preference_offset
from pipeline.learning.models.tiny import make_tokenizer
from pipeline.learning.models.value import value_model_from
from pipeline.learning.rewards.preference import PreferenceRule, PreferenceSource
from pipeline.learning.rewards.scoring import Scored
from tests.doubles.models import cache_in, tiny_policy

DATASET = load_dataset(AdditionConfig(kind="addition"))
SAMPLES = 3
BOS = 10
"""Fills up short prompts, too."""


def policy(*, guided: bool = False) -> TextPolicy:
    model = tiny_policy()
    guidance = None
    if guided:
        value = value_model_from(model, HeadType.q).eval()
        guidance = Guidance(value, Tilt(preference_offset(1.0), top_k=3))
    return TextPolicy(
        model, make_tokenizer(DATASET), GenerationConfig(batch_size=16), DATASET, "cpu", guidance=guidance
    )


@pytest.fixture
def rolled(monkeypatch: pytest.MonkeyPatch) -> Rollouts:
    """Three roll-ins of each of four prompts."""
    rows: Any = [DATASET.row(index) for index in range(4)]
    monkeypatch.setattr(groups, "round_rows", lambda *_: rows)
    monkeypatch.setattr(groups, "encode", lambda _, policy, rows: policy.encode([row.prompt for row in rows]))
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


def read_prompts(policy: TextPolicy) -> list[tuple[int, ...]]:
    """Texts that the model is given whole, as they come."""
    read: list[tuple[int, ...]] = []

    def see(_module: object, _args: object, kwargs: dict[str, torch.Tensor]) -> None:
        if not cache_in(kwargs).get_seq_length():
            pads = BOS, BOS
            for row in map(tuple, kwargs["input_ids"].tolist()):
                while row[:2] == pads:
                    row = row[1:]
                while row[-1] == BOS:
                    row = row[:-1]
                read.append(row)

    policy._model.register_forward_pre_hook(see, with_kwargs=True)
    return read


@pytest.mark.parametrize("streams", [(None, "second"), ("first", "second"), (None,), ("first",)])
@pytest.mark.parametrize("cut", [0, 1, "drawn"])
def test_what_is_the_same_so_far_is_read_once(
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
    one = policy()
    read = read_prompts(one)
    assert rolled.finish_each(one, prefixes, streams) == apart
    starts = {tuple(prompt + prefix) for prompt, prefix in zip(rolled.prompts, prefixes, strict=True)}
    assert sorted(read) == sorted(starts)
    assert rolled._ctx.told[-1] == (1 + len(streams)) / 3
    if cut == 0:
        assert len(read) == 4


def test_both_completions_of_a_pair_are_scored_beside_the_others_of_their_prompt(
    rolled: Rollouts, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And as they were drawn: what the stage that scores reads is what the other has written."""
    asked: list[list[int]] = []

    def score(_ctx: object, rows: Any, texts: Sequence[str], completions: Any, size: int) -> Scored:
        asked.append([row.id for row in rows])
        assert size == 5
        assert texts == policy().text(completions, rows)
        values = np.array([float(sum(tokens)) for tokens in completions])
        none: list[None] = [None] * len(values)
        return Scored(values, {}, none, none, none)

    monkeypatch.setattr(groups_module, "score", score)
    rolled._ctx.config.data_collection.reward_batch_size = 5
    drawn = rolled.pairs(policy())
    drawn.save(tmp_path)
    found = score_groups(rolled._ctx, DATASET, Drawn.load(tmp_path))
    assert (found.prompts, found.tokens, found.texts) == (drawn.prompts, drawn.tokens, drawn.texts)
    assert asked == [[row.id for row in rolled.rows for _ in range(2)]]
    assert found.keys.tolist() == rolled.keys("preference").reshape(-1).tolist()
    rule = PreferenceRule(source=PreferenceSource.reward)
    sides = found.scored.values.reshape(-1, 2).tolist()
    for (first, second), decided in zip(sides, found.decided(rule), strict=True):
        assert decided == (-1 if first == second else first > second)
    labelled = found.sequences(range(len(found.tokens)), [0.0] * len(found.tokens))
    assert (
        labelled.starts == [len(one) + cut for one, cut in zip(found.prompts, rolled.cut().repeat(2), strict=True)]
    ).all()
