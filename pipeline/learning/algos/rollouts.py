"""Roll-ins, cuts and roll-outs: how value-guided methods collect data. Worker side only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from pipeline.learning.algos.base import JobContext
from pipeline.learning.algos.groups import Drawn
from pipeline.learning.algos.toolbox import encode, round_rows, row_ids
from pipeline.learning.datasets.base import Dataset
from pipeline.learning.generation.policy import TextPolicy
from pipeline.learning.generation.sampling import LIKELIEST, Keys, sample_keys, uniforms


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

    def pairs(self, reference: TextPolicy, *, greedy_first: bool = False) -> Drawn:
        """Cut every roll-in, and complete what is before the cut twice.

        Args:
            reference: Completes them.
            greedy_first: Whether the first of the two takes the likeliest tokens instead of being sampled.
        """
        cuts = self.cut()
        prefixes = [tokens[:cut] for tokens, cut in zip(self.tokens, cuts, strict=True)]
        streams = (None if greedy_first else "first", "second")
        return self.drawn(reference, self.finish_each(reference, prefixes, streams), cuts)

    def drawn(
        self, policy: TextPolicy, sides: Sequence[list[list[int]]], cuts: NDArray[np.int64] | None = None
    ) -> Drawn:
        """What was drawn, for a stage that scores it: a group for each roll-in.

        Args:
            policy: Says what texts are.
            sides: Completions of each roll-in, a list for each of several.
            cuts: Tokens of a roll-in's completions that are only read; None for none, shape [roll-ins].
        """
        tokens = [one for of_roll_in in zip(*sides, strict=True) for one in of_roll_in]
        return Drawn(
            size=len(sides),
            prompts=[prompt for prompt in self.prompts for _ in sides],
            tokens=tokens,
            texts=policy.text(tokens, [row for row in self.rows for _ in sides]),
            ids=row_ids(self.rows),
            cuts=np.zeros(len(self.rows), np.int64) if cuts is None else cuts,
            truncated=np.array([*map(policy.truncated, tokens)], np.bool_),
            generated=self._generated,
        )

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
