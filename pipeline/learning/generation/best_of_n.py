"""Best of n as a policy: n completions of the reference for each one that is asked for.

It picks by a reward model or by a majority, never by the reward that it is evaluated with.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.learning.generation.decode import Decoded
from pipeline.learning.generation.likelihood import whole_texts
from pipeline.learning.generation.policy import TextPolicy
from pipeline.learning.generation.sampling import Keys, split_keys

Picker = Callable[[Sequence[Sequence[int]], Sequence[Sequence[int]], int], NDArray[np.int64]]
"""From prompts, completions and the size of groups to the place of the picked completion in each group."""


class BestOfNPolicy(TextPolicy):
    """Draws n completions and gives the best of them.

    Attributes:
        count: Completions that are drawn for one, n.
        pick: Which of them is given.
    """

    count: int = 1
    pick: Picker

    def complete(
        self,
        prompts: Sequence[Sequence[int]],
        keys: Keys | None,
        *,
        samples: int = 1,
        budgets: NDArray[np.int64] | None = None,
        on_batch: Callable[[int, int], None] | None = None,
    ) -> Decoded:
        """Complete prompts; see `TextPolicy.complete`.

        What it gives as divergence from the reference is a bound: the divergence itself has no closed form. From
        what completions are drawn from, it is at most ``log n - (n - 1) / n`` for a whole completion (Beirami et
        al., arXiv 2401.01879), whatever picks: no set of completions is given more often than one of n lies in
        it. Where that is a nucleus, its tokens have gained a known factor at every step of the completion that is
        given, and the mean logarithm of these factors is how much farther the whole reference is.
        """
        if keys is None:
            raise ValueError("the likeliest completion is the same however often it is drawn")
        split = split_keys(keys, self.count).reshape(len(prompts), samples * self.count)
        drawn = super().complete(
            prompts,
            split,
            samples=samples * self.count,
            budgets=budgets,
            on_batch=None if on_batch is None else lambda done, tokens: on_batch(done // self.count, tokens),
        )
        repeated = [prompt for prompt in prompts for _ in range(samples * self.count)]
        picked = self.pick(repeated, drawn.tokens, self.count)
        places = np.arange(len(picked)) * self.count + picked
        bound = math.log(self.count) - (self.count - 1) / self.count
        return Decoded([drawn.tokens[place] for place in places], drawn.kl[places] + bound)


def by_score(score: Callable[..., NDArray[np.float64]]) -> Picker:
    """Pick the highest score, the first of equals.

    Args:
        score: From sequences to their scores.
    """

    def pick(
        prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]], count: int
    ) -> NDArray[np.int64]:
        with torch.inference_mode():
            scores = score(whole_texts(prompts, completions))
        picked: NDArray[np.int64] = scores.reshape(-1, count).argmax(1)
        return picked

    return pick


def by_majority(answer: Callable[[Sequence[int]], str | None]) -> Picker:
    """Pick the first completion that gives the commonest answer, of equally common ones the one given first.

    Args:
        answer: What a completion votes for; None for no vote.
    """

    def pick(
        prompts: Sequence[Sequence[int]],  # noqa: ARG001 - votes are of answers alone
        completions: Sequence[Sequence[int]],
        count: int,
    ) -> NDArray[np.int64]:
        picked = []
        for start in range(0, len(completions), count):
            votes = [answer(completion) for completion in completions[start : start + count]]
            counted = Counter(vote for vote in votes if vote is not None)
            # Equally common ones stay in the order in which they were met.
            picked.append(votes.index(counted.most_common(1)[0][0]) if counted else 0)
        return np.array(picked, np.int64)

    return pick
