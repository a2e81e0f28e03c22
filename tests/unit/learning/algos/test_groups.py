"""Groups of completions: which pairs are made of them, and which one is the best."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from pipeline.errors import DataError
from pipeline.learning.algos.dpo import existing_sequences, labelled_sequences
from pipeline.learning.algos.groups import Groups
from pipeline.learning.datasets.base import Row
from pipeline.learning.datasets.made import Addition, AdditionConfig
from pipeline.learning.generation.policy import by_majority, by_score
from pipeline.learning.generation.sampling import sample_keys
from pipeline.learning.models.tiny import make_tokenizer
from pipeline.learning.rewards.preference import Preference, PreferenceConfig, PreferenceSource
from pipeline.learning.rewards.scoring import Scored
from pipeline.learning.training.sequences import Sequences
from tests.doubles.groups import groups_of


def groups(rewards: Sequence[Sequence[float]], tokens: Sequence[Sequence[int]] | None = None) -> Groups:
    values = np.array(rewards, np.float64).reshape(-1)
    size = len(rewards[0])
    count = len(values)
    return groups_of(
        size,
        [[90 + place // size] for place in range(count)],
        [[place] for place in range(count)] if tokens is None else [[one] for row in tokens for one in row],
        Scored(
            values, {}, [None if np.isnan(v) else bool(v >= 1) for v in values], [None] * count, [None] * count
        ),
        ids=np.arange(len(rewards)) + 70,
        keys=sample_keys(0, "preference", np.arange(len(rewards)), 1)[:, 0],
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
    tokenizer = make_tokenizer(Addition(AdditionConfig(kind="addition")))
    rows = [
        Row(3, "321+654=", {"label": False}, completion="4790"),
        Row(5, "1+1=", {"label": 1}, completion="2"),
        Row(8, "1+2=", {}, chosen="3", rejected="4"),
    ]
    found, parted, _ = labelled_sequences(rows, tokenizer)
    assert (found.labels.tolist(), found.prompts.tolist()) == ([0, 1, 1, 0], [3, 5, 8, 8])
    assert parted == 0
    with pytest.raises(DataError, match="row 9: its label is 'good'; must be true or false"):
        labelled_sequences([Row(9, "1+1=", {"label": "good"}, completion="2")], tokenizer)


@pytest.mark.parametrize("in_columns", [True, False])
def test_pairs_that_a_dataset_has(in_columns: bool) -> None:
    tokenizer = make_tokenizer(Addition(AdditionConfig(kind="addition")))
    answers = {"chosen": "5790", "rejected": "4790"}
    same = {"chosen": "1", "rejected": "1"}
    rows = [
        Row(number, "321+654=", texts) if in_columns else Row(number, "321+654=", {}, **texts)
        for number, texts in enumerate((answers, same))
    ]
    found, parted, _ = existing_sequences(rows, tokenizer, context=13)
    assert parted == 0
    with pytest.raises(DataError, match=r"'321\+654=' and an answer to it are 13 tokens, .* room for 12"):
        existing_sequences(rows, tokenizer, context=12)
    assert found.labels.tolist() == [1, 0]
    assert found.starts.tolist() == [9, 9]
    assert found.ids.tolist() == [[10, 3, 2, 1, 11, 6, 5, 4, 12, *map(int, text)] for text in answers.values()]
