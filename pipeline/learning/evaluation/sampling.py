"""pass@k and maj@k of k samples, estimated without bias from n >= k samples of a prompt.

Both are the exact mean over all subsets of k of the n samples, by counting instead of drawing subsets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from math import comb

import numpy as np
from numpy.typing import NDArray


def pass_at_k(totals: NDArray[np.int64], correct: NDArray[np.int64], k: int) -> NDArray[np.float64]:
    """The chance that at least one of k samples is correct (Chen et al. 2021, arXiv 2107.03374).

    It is 1 - C(n-c, k) / C(n, k), computed as a product so that nothing overflows or cancels.

    Args:
        totals: Samples per prompt, n; shape [P].
        correct: Correct ones among them, c; shape [P].
        k: Samples that are looked at.

    Returns:
        Shape [P]; NaN for prompts with fewer than k samples.
    """
    pairs, places = np.unique(np.stack([totals, correct], 1), axis=0, return_inverse=True)
    values = np.array([_pass_at_k(int(n), int(c), k) for n, c in pairs], np.float64)
    return values[places.reshape(-1)]


def _pass_at_k(n: int, c: int, k: int) -> float:
    if k > n:
        return float("nan")
    if n - c < k:
        return 1.0
    return float(1 - np.prod(1 - k / np.arange(n - c + 1, n + 1)))


def majority_at_k(
    answers: Sequence[Sequence[str | None]], correct: Sequence[Sequence[bool]], ks: Sequence[int]
) -> NDArray[np.float64]:
    """The chance that the most frequent answer among k samples is correct.

    Answers that tie share the vote: m of them count 1/m each. A sample without an answer does not vote; where
    none votes, nothing is right. Where samples with the same answer are not all correct or all wrong, the answer
    counts as correct to their share.

    Args:
        answers: Of each prompt's samples; P lists.
        correct: Whether each sample is correct, in the same shape.
        ks: Numbers of samples that vote.

    Returns:
        Shape [P, len(ks)]; NaN where a prompt has fewer samples than k.
    """
    values = np.full((len(answers), len(ks)), np.nan)
    for prompt, (votes, right) in enumerate(zip(answers, correct, strict=True)):
        sizes = Counter(vote for vote in votes if vote is not None)
        credit: Counter[str] = Counter()
        for vote, is_right in zip(votes, right, strict=True):
            if vote is not None and is_right:
                credit[vote] += 1
        pattern = tuple(sorted(sizes.values(), reverse=True))
        shares = winning_shares(pattern, len(votes) - sum(pattern))
        for place, k in enumerate(ks):
            if k <= len(votes):
                values[prompt, place] = sum(
                    shares[sizes[vote]][k] * count / sizes[vote] for vote, count in sorted(credit.items())
                )
    return values


@lru_cache(maxsize=4096)
def winning_shares(sizes: tuple[int, ...], silent: int) -> dict[int, NDArray[np.float64]]:
    """The share of the vote that an answer wins on average, over all subsets of k samples.

    Args:
        sizes: How many samples gave each answer.
        silent: Samples without an answer.

    Returns:
        Size of an answer -> its share by k, shape [n + 1] for k = 0 .. n.
    """
    n = sum(sizes) + silent
    subsets = np.array([float(comb(n, k)) for k in range(n + 1)])
    shares = {}
    for size in set(sizes):
        others = list(sizes)
        others.remove(size)
        won = np.zeros(n + 1)
        for votes in range(1, size + 1):
            # It has `votes`; so no other may have more, and those that have as many share with it.
            won[votes:] += comb(size, votes) * _ways(tuple(others), silent, votes, n)[: n + 1 - votes]
        shares[size] = won / subsets
    return shares


def _ways(others: tuple[int, ...], silent: int, votes: int, n: int) -> NDArray[np.float64]:
    """Ways to pick samples of the others so that none has more than `votes`, by how many are picked.

    A way with m answers at exactly `votes` weighs 1 / (1 + m).

    Returns:
        Shape [n + 1].
    """
    free = silent + sum(size for size in others if size < votes)  # these cannot reach so many
    rivals = [size for size in others if size >= votes]
    # ways[m, j]: m rivals at exactly `votes`, j samples picked in all.
    ways = np.zeros((len(rivals) + 1, n + 1))
    ways[0, : free + 1] = [comb(free, j) for j in range(free + 1)]
    for size in rivals:
        grown = np.zeros_like(ways)
        for picked in range(votes):
            grown[:, picked:] += comb(size, picked) * ways[:, : n + 1 - picked]
        grown[1:, votes:] += comb(size, votes) * ways[:-1, : n + 1 - votes]
        ways = grown
    weighed: NDArray[np.float64] = (ways / (1 + np.arange(len(rivals) + 1))[:, None]).sum(0)
    return weighed
