"""Groups of completions of one prompt: drawn, scored, compared, picked from. Worker side only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations, zip_longest
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from pipeline.learning.algos.base import JobContext
from pipeline.learning.algos.toolbox import encode, round_rows, row_ids, score
from pipeline.learning.datasets.base import Dataset, Row
from pipeline.learning.generation.policy import TextPolicy
from pipeline.learning.generation.sampling import Keys, sample_keys, uniforms
from pipeline.learning.rewards.preference import UNDECIDED, PreferenceConfig, decide
from pipeline.learning.rewards.scoring import Scored
from pipeline.learning.training.distributed import ALONE
from pipeline.learning.training.sequences import Sequences
from pipeline.outputs.formats import Tally

_T = TypeVar("_T")

Judge = Callable[[Sequence[list[int]], Sequence[list[int]], NDArray[np.int64]], Scored]
"""From prompts, completions and the ids of their rows, one of each for each completion, to what they are worth."""
PAIRS = "pairs.safetensors"
_ENDS = ((np.min, np.inf), (np.max, -np.inf))


@dataclass(frozen=True)
class Groups:
    """The completions of one shard, those of a prompt adjacent.

    Attributes:
        size: Completions of each prompt.
        prompts: Token ids, one list for each completion.
        tokens: Token ids of each completion.
        scored: Its scores.
        keys: Streams of draws of the prompts for purposes besides sampling, shape [prompts].
        ids: Of the rows of the prompts, shape [prompts].
    """

    size: int
    prompts: list[list[int]]
    tokens: list[list[int]]
    scored: Scored
    keys: Keys
    ids: NDArray[np.int64]

    @property
    def generated(self) -> int:
        """Tokens in all completions."""
        return sum(map(len, self.tokens))

    def sequences(self, places: Sequence[int], labels: Sequence[float]) -> Sequences:
        """Some of the completions with their prompts, each with a label."""
        return Sequences.of(
            [self.prompts[place] + self.tokens[place] for place in places],
            [len(self.prompts[place]) for place in places],
            labels,
            self.rows_of(places),
        )

    def pairs(self, settings: PreferenceConfig) -> Sequences:
        """Preferred and other completions of pairs, one after the other, labelled 1 and 0; see `pair_places`."""
        places = self.pair_places(settings)
        return self.sequences(places, [1.0, 0.0] * (len(places) // 2))

    def rows_of(self, places: Sequence[int]) -> list[int]:
        """Ids of the rows that completions are of."""
        return [int(self.ids[place // self.size]) for place in places]

    def pair_places(self, settings: PreferenceConfig) -> list[int]:
        """Places of the preferred and the other completion of pairs, one after the other.

        Of each prompt the first `pairs_per_prompt` that can be decided, counting (0, 1), (0, 2), ..., (1, 2), ...,
        or from the largest difference of rewards down.
        Completions of the same tokens are no pair.
        """
        sides = np.array(list(combinations(range(self.size), 2)), np.int64).reshape(-1, 2)
        count = len(self.keys)
        first, second = (np.arange(count)[:, None] * self.size + sides[:, side] for side in (0, 1))
        decided = decide(
            self.scored.some(first.reshape(-1)),
            self.scored.some(second.reshape(-1)),
            uniforms(self.keys, len(sides)).reshape(-1),
            settings,
        ).reshape(count, -1)
        width = np.nan_to_num(np.abs(self.scored.values[first] - self.scored.values[second]))
        order = np.argsort(-width, axis=1, kind="stable")
        places: list[int] = []
        for prompt in range(count):
            wanted = settings.pairs_per_prompt
            for pair in order[prompt] if settings.widest_first else range(len(sides)):
                if wanted == 0:
                    break
                one, other, verdict = first[prompt, pair], second[prompt, pair], decided[prompt, pair]
                if verdict != UNDECIDED and self.tokens[one] != self.tokens[other]:
                    places += [one, other] if verdict == 1 else [other, one]
                    wanted -= 1
        return places

    def labels(self) -> list[bool | None]:
        """Of each completion whether it is right; else whether it scored above the mean of its prompt's.

        None where neither can be said: the reward failed or does not apply, or scored just the mean.
        """
        table = self.scored.values.reshape(-1, self.size)
        known = ~np.isnan(table)
        mean = np.nansum(table, 1, keepdims=True) / np.maximum(1, known.sum(1, keepdims=True))
        # Equal scores may be off their mean by rounding.
        apart = known & (np.abs(table - mean) > 1e-9 * np.abs(np.nan_to_num(table)).max(1, keepdims=True))
        better = [bool(one) if told else None for one, told in zip((table > mean).flat, apart.flat, strict=True)]
        return [
            None if fault is not None else score if right is None else right
            for fault, right, score in zip(self.scored.faults, self.scored.correct, better, strict=True)
        ]

    def some(self, prompts: NDArray[np.bool_]) -> Groups:
        """The groups of those of the prompts that are picked, shape [prompts]."""
        places = np.flatnonzero(prompts.repeat(self.size))
        prompts_of, tokens = ([listed[place] for place in places] for listed in (self.prompts, self.tokens))
        return Groups(
            self.size, prompts_of, tokens, self.scored.some(places), self.keys[prompts], self.ids[prompts]
        )

    def signal(self) -> NDArray[np.bool_]:
        """Whether any two completions of a prompt have scores that differ, shape [prompts]."""
        table = self.scored.values.reshape(-1, self.size)
        low, high = (pick(np.where(np.isnan(table), fill, table), axis=1) for pick, fill in _ENDS)
        return np.asarray(low < high)

    def tally(self) -> Tally:
        """Prompts whose completions have no score, score all alike, or are all wrong."""
        unscored = np.isnan(self.scored.values.reshape(-1, self.size)).all(1)
        judged = self._by_prompt(self.scored.correct)
        return Tally(
            "prompts",
            len(self.keys),
            unscored=int(unscored.sum()),
            equal=int((~self.signal() & ~unscored).sum()),
            wrong=sum(all(one is False for one in group) for group in judged),
            same=sum(len(set(map(tuple, group))) == 1 for group in self._by_prompt(self.tokens)),
        )

    def _by_prompt(self, listed: Sequence[_T]) -> list[Sequence[_T]]:
        return [listed[at : at + self.size] for at in range(0, len(listed), self.size)]

    def best(self) -> list[int]:
        """The highest-scored completion of each prompt, the first of equals; none where none has a score."""
        table = self.scored.values.reshape(-1, self.size)
        scored = np.flatnonzero(~np.isnan(table).all(1))
        picked = np.nan_to_num(table[scored], nan=-np.inf).argmax(1)
        return [int(place) for place in scored * self.size + picked]


def draw_groups(
    ctx: JobContext,
    dataset: Dataset,
    policy: TextPolicy,
    size: int,
    rows: Sequence[Row] | None = None,
    stream: str = "",
    judge: Judge | None = None,
) -> Groups:
    """Draw completions of training prompts, and score them.

    Args:
        ctx: Of the stage.
        dataset: The dataset of the chain.
        policy: Who draws.
        size: Completions of each prompt.
        rows: Whose prompts; None takes those of this shard.
        stream: Names the draws, where prompts of a round are drawn more than once.
        judge: What scores; None for the rewards of the dataset.
    """
    rows = round_rows(ctx, dataset) if rows is None else rows
    ids, name = row_ids(rows), f"{ctx.algo}/{ctx.round}{stream}"
    encoded = encode(ctx, policy, rows)
    keys, total = sample_keys(ctx.seed, f"{name}/sample", ids, size), len(rows) * size
    # Ranks that each have the whole policy share prompts out; others compute each step of decoding together.
    ranks = ALONE if ctx.ranks.is_sharded or ctx.ranks.splits_tensors else ctx.ranks
    decoded = policy.complete(
        encoded[ranks.rank :: ranks.size],
        keys[ranks.rank :: ranks.size],
        samples=size,
        on_batch=lambda done, tokens: ctx.progress(done * ranks.size, total=total, tokens=tokens * ranks.size),
    )
    drawn = _in_order(ranks.all_of(decoded.tokens), size)
    prompts = [prompt for prompt in encoded for _ in range(size)]
    if judge is None:
        repeated = [row for row in rows for _ in range(size)]
        batch_size = ctx.config.data_collection.reward_batch_size
        scored = score(ctx, repeated, policy.text(drawn, repeated), drawn, batch_size)
    else:
        scored = judge(prompts, drawn, ids.repeat(size))
    return Groups(
        size,
        prompts,
        drawn,
        scored,
        sample_keys(ctx.seed, f"{name}/preference", ids, 1)[:, 0],
        ids,
    )


def _in_order(of_ranks: Sequence[list[list[int]]], size: int) -> list[list[int]]:
    """Completions of prompts that ranks have taken in turn, in the order of the prompts; `size` of each."""
    if len(of_ranks) == 1:
        return of_ranks[0]
    groups = [[found[at : at + size] for at in range(0, len(found), size)] for found in of_ranks]
    taken = zip_longest(*groups)
    return [tokens for turn in taken for group in turn if group is not None for tokens in group]
