"""Roll-ins, cuts and roll-outs: how value-guided methods collect data. Worker side only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.learning.algos.base import JobContext
from pipeline.learning.algos.rounds import write_generation
from pipeline.learning.algos.toolbox import encode, round_rows, row_ids, score
from pipeline.learning.datasets.base import Dataset
from pipeline.learning.generation.policy import TextPolicy
from pipeline.learning.generation.sampling import LIKELIEST, Keys, sample_keys, uniforms
from pipeline.learning.rewards.preference import UNDECIDED, PreferenceRule, decide
from pipeline.learning.rewards.scoring import Scored
from pipeline.learning.training.sequences import Sequences
from pipeline.outputs.formats import Tally


class Rollouts:
    """The roll-ins of one shard: `samples_per_example` for each prompt.

    Attributes:
        rows: The row of each roll-in.
        prompts: Its prompt's token ids.
        tokens: The roll-in's token ids.
    """

    def __init__(self, ctx: JobContext, dataset: Dataset, policy: TextPolicy, *, finishes: int = 0) -> None:
        """Sample the roll-ins by the current policy.

        Args:
            ctx: Of the stage.
            dataset: Of the chain.
            policy: That samples.
            finishes: How often `finish` will be called: progress counts the roll-ins once more for each.
        """
        self._ctx = ctx
        self._samples = ctx.config.data_collection.samples_per_example
        rows = round_rows(ctx, dataset)
        self._ids = row_ids(rows)
        self._total = len(rows) * self._samples * (1 + finishes)
        self._done = self._generated = 0
        encoded = encode(ctx, policy, rows)
        self.tokens = self._complete(policy, encoded, self.keys("roll_in"), samples=self._samples)
        self.rows = [row for row in rows for _ in range(self._samples)]
        self.prompts = [prompt for prompt in encoded for _ in range(self._samples)]

    def note_cost(self, tally: Tally | None = None) -> None:
        """Write down what all of it has taken, and what became of it."""
        write_generation(self._ctx, len(self._ids), len(self.rows), self._generated, tally)

    def keys(self, stream: str) -> Keys:
        """Streams of draws for a purpose, shape [prompts, samples]; every round has its own."""
        name = f"{self._ctx.algo}/{self._ctx.round}/{stream}"
        return sample_keys(self._ctx.seed, name, self._ids, self._samples)

    def draws(self, stream: str) -> NDArray[np.float64]:
        """One draw per roll-in, shape [roll-ins]."""
        return uniforms(self.keys(stream), 1).reshape(-1)

    def cut(self) -> NDArray[np.int64]:
        """A token of each roll-in, drawn uniformly: its index, shape [roll-ins]."""
        lengths = np.array([len(tokens) for tokens in self.tokens])
        cuts: NDArray[np.int64] = np.minimum((self.draws("cut") * lengths).astype(np.int64), lengths - 1)
        return cuts

    def finish(self, policy: TextPolicy, prefixes: Sequence[Sequence[int]], stream: str | None) -> list[list[int]]:
        """Complete prefixes of the roll-ins.

        Args:
            policy: Writes the rest.
            prefixes: Tokens that are kept of each roll-in; one that is complete already stays as it is.
            stream: Name of the draws; None takes the likeliest tokens.

        Returns:
            Whole completions: prefix and rest.
        """
        (finished,) = self.finish_each(policy, prefixes, [stream])
        return finished

    def finish_each(
        self, policy: TextPolicy, prefixes: Sequence[Sequence[int]], streams: Sequence[str | None]
    ) -> list[list[list[int]]]:
        """Complete each prefix several times, once by every stream; a text that is the same so far is read once.

        Args:
            policy: Writes the rest. A guided one reads texts for each stream anew.
            prefixes: As in `finish`.
            streams: As in `finish`.

        Returns:
            Whole completions of each stream.
        """
        if policy.is_guided and len(streams) > 1:
            return [self.finish(policy, prefixes, stream) for stream in streams]
        limits = [0 if policy.ended(prefix) else policy.limit - len(prefix) for prefix in prefixes]
        alike: dict[tuple[tuple[int, ...], int], list[int]] = {}
        for index, limit in enumerate(limits):
            if limit > 0:
                alike.setdefault((tuple(self.prompts[index]) + tuple(prefixes[index]), limit), []).append(index)
        self._done += sum(limit <= 0 for limit in limits) * len(streams)
        self._report(0, 0)
        finished = [[list(prefix) for prefix in prefixes] for _ in streams]
        keys = [None if stream is None else self.keys(stream).reshape(-1) for stream in streams]
        # As many samples of every prompt go together.
        for size in sorted({len(places) for places in alike.values()}):
            some = {start: places for start, places in alike.items() if len(places) == size}
            self._finish_some(policy, some, keys, finished)
        return finished

    def _finish_some(
        self,
        policy: TextPolicy,
        alike: Mapping[tuple[tuple[int, ...], int], Sequence[int]],
        keys: Sequence[Keys | None],
        finished: Sequence[list[list[int]]],
    ) -> None:
        """Complete texts, each for as many roll-ins; the likeliest tokens are taken once for all of these."""
        places = np.array(list(alike.values()))
        likeliest = np.full((len(places), 1), LIKELIEST)
        columns = np.concatenate([likeliest if one is None else one[places] for one in keys], 1)
        rests = self._complete(
            policy,
            [list(text) for text, _ in alike],
            None if all(one is None for one in keys) else columns,
            samples=columns.shape[1],
            budgets=np.array([limit for _, limit in alike], np.int64),
        )
        self._done += places.size * len(keys) - len(rests)
        self._report(0, 0)
        for row, several in enumerate(places.tolist()):
            of_text = iter(rests[row * columns.shape[1] :])
            for side, one in zip(finished, keys, strict=True):
                shared = next(of_text) if one is None else None
                for index in several:
                    side[index] += next(of_text) if shared is None else shared

    def pairs(self, reference: TextPolicy, rule: PreferenceRule, *, greedy_first: bool = False) -> Pairs:
        """Cut every roll-in, complete what is before the cut twice, and decide which of the two is preferred.

        Args:
            reference: Completes them.
            rule: Decides.
            greedy_first: Whether the first of the two takes the likeliest tokens instead of being sampled.
        """
        cuts = self.cut()
        prefixes = [tokens[:cut] for tokens, cut in zip(self.tokens, cuts, strict=True)]
        streams = (None if greedy_first else "first", "second")
        first, second = self.finish_each(reference, prefixes, streams)
        size = self._ctx.config.data_collection.reward_batch_size
        # The completions of a prompt side by side, as rewards may compare them.
        both = [tokens for pair in zip(first, second, strict=True) for tokens in pair]
        rows = [row for row in self.rows for _ in range(2)]
        whole = score(self._ctx, rows, reference.text(both, rows), both, size)
        scored = [whole.some(np.arange(side, len(rows), 2)) for side in range(2)]
        decided = decide(scored[0], scored[1], self.draws("preference"), rule)
        self.note_cost(_tally(scored[0], scored[1], decided))
        return Pairs(self, cuts, (first, second), decided)

    def _complete(
        self,
        policy: TextPolicy,
        starts: Sequence[Sequence[int]],
        keys: Keys | None,
        *,
        samples: int = 1,
        budgets: NDArray[np.int64] | None = None,
    ) -> list[list[int]]:
        decoded = policy.complete(starts, keys, samples=samples, budgets=budgets, on_batch=self._report)
        self._done += len(decoded.tokens)
        self._generated += sum(map(len, decoded.tokens))
        return decoded.tokens

    def _report(self, done: int, tokens: int) -> None:
        done = min(self._done + done, self._total)
        self._ctx.progress(done, total=self._total, tokens=self._generated + tokens)


@dataclass(frozen=True)
class Pairs:
    """Two completions of every roll-in, the same up to where it was cut.

    Attributes:
        rollouts: The roll-ins.
        cuts: Tokens before the cut, shape [roll-ins].
        sides: The first completion of each, and the second.
        decided: 1 where the first is preferred, 0 where the second is, -1 where nothing can be said.
    """

    rollouts: Rollouts
    cuts: NDArray[np.int64]
    sides: tuple[list[list[int]], list[list[int]]]
    decided: NDArray[np.int8]

    def sequences(self, places: Sequence[tuple[int, int]], labels: Sequence[float]) -> Sequences:
        """Completions by number of the roll-in and side, a label each; what is before the cut is only read."""
        made = self.rollouts
        return Sequences.of(
            [made.prompts[index] + self.sides[side][index] for index, side in places],
            [len(made.prompts[index]) + int(self.cuts[index]) for index, _ in places],
            labels,
            [made.rows[index].id for index, _ in places],
        )


def _tally(first: Scored, second: Scored, decided: NDArray[np.int8]) -> Tally:
    """Pairs of which nothing can be said, and whether that is for want of a score or of a difference."""
    failed = [a is not None or b is not None for a, b in zip(first.faults, second.faults, strict=True)]
    unscored = np.isnan(first.values) | np.isnan(second.values) | np.array(failed, bool)
    open_ones = decided == UNDECIDED
    return Tally(
        "pairs", len(decided), unscored=int((open_ones & unscored).sum()), equal=int((open_ones & ~unscored).sum())
    )
