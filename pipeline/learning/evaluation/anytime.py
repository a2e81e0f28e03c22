"""Compare policies while prompts are still being answered: tests and intervals that hold at any look.

An e-process is capital that bets against a hypothesis: if the hypothesis is true, the capital exceeds 1 / alpha at
any time with a probability of at most alpha (Ville 1939). So one may look after every prompt and stop at any of
them. Bets are as in Waudby-Smith and Ramdas (arXiv 2010.09686). Closed testing with means of e-processes judges a
race (Vovk and Wang 2021). docs/evaluation.md says what is claimed, and what is not.

The prompts of a round come in a random order that is fixed before and is new in every round; each has a number of
samples that is fixed before. A test set of N prompts is drawn without replacement: claims are then about the mean
that the whole set would show with these samples. Without N, claims are about the population that prompts are drawn
from, and no prompt may come twice.

Legend: T prompts, N prompts of the whole test set, H hypotheses, L looks, S seeds; leading axes ``...`` are pairs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.learning.evaluation.statistics import Floats

Until = Literal["separated", "best", "budget"]
"""When a race is over: every pair is settled; one policy is shown better than all others; all prompts are used."""

BETS = 2.0 ** -np.arange(7)
"""Shares of the capital that are put on a higher mean; the capital is the mean over these bettors."""
_ROUNDING = 1e-9
"""Sums of T differences are known up to T times this."""
_HALVINGS = 24
_MOST = 10_000_000
_SPREAD = 4.0
"""Variance of standardised differences of seeds, as `seed_tests` bets on them."""


# -- pairs -------------------------------------------------------------------------------------------------------


def e_values(differences: Floats, population: int | None = None) -> tuple[Floats, Floats]:
    """Return the e-processes of two hypotheses after each prompt: that the mean is at most 0, and at least 0.

    Args:
        differences: Paired differences in [-1, 1], shape [..., T].
        population: N, for prompts drawn without replacement; None for independent prompts.

    Returns:
        Two arrays of shape [..., T]; infinite where the prompts so far refute a hypothesis whatever follows.

    Raises:
        ValueError: A difference is outside [-1, 1], or there are more than N.
    """
    _check(differences, population)
    zero = np.zeros(differences.shape[:-1])
    return _capital(differences, zero, population), _capital(-differences, zero, population)


def _check(differences: Floats, population: int | None) -> None:
    if not (np.abs(differences) <= 1 + _ROUNDING).all():
        raise ValueError("differences must lie between -1 and 1; scale them by the bounds of the metric")
    if population is not None and differences.shape[-1] > population:
        raise ValueError(f"{differences.shape[-1]} prompts are more than the {population} of the whole test set")


def _capital(differences: Floats, mean: Floats, population: int | None) -> Floats:
    """Bet against means of at most `mean`, shape [...]; the capital never grows with `mean`.

    A bettor holds a share of the capital in an asset that returns (1 + D_t) / (1 + m_t), where m_t is the most
    that the hypothesis lets one expect of D_t: m, or of a whole test set (N m - S_{t-1}) / (N - t + 1).
    """
    asset = np.clip(1 + differences, 0, 2)
    fair = np.broadcast_to(1 + mean[..., None], asset.shape)
    refuted: NDArray[np.bool_] = np.zeros(asset.shape, np.bool_)
    if population is not None:
        total, left = asset.cumsum(-1), population - np.arange(asset.shape[-1])
        refuted = total > population * (fair + _ROUNDING)
        fair = (population * fair - (total - asset)) / left
    gain = np.divide(asset, fair, out=np.ones_like(asset), where=fair > _ROUNDING)
    with np.errstate(over="ignore", invalid="ignore"):
        # Capital that was lost entirely stays lost, also where it was too large for a number.
        each = [np.nan_to_num(np.cumprod(1 - bet + bet * gain, -1), posinf=np.inf) for bet in BETS]
    return np.where(refuted, np.inf, np.sum(each, 0) / len(BETS))


def confidence_sequence(
    differences: Floats, alpha: float, *, population: int | None = None, looks: Sequence[int] | None = None
) -> tuple[Floats, Floats]:
    """Return intervals of the mean that all hold together, at every prompt, with a probability of 1 - alpha.

    An interval has all means that the hedged capital has not refuted so far: it is the intersection of the
    intervals after each prompt. After all N prompts it is the mean itself.

    Args:
        differences: As in `e_values`, with T of at least 1.
        alpha: 1 minus the level.
        population: As in `e_values`.
        looks: Numbers of prompts after which to give the interval; the last one by default.

    Returns:
        Lower and upper ends, each of shape [..., L].
    """
    _check(differences, population)
    at = np.array([differences.shape[-1]] if looks is None else looks)
    low = _lowest(differences, alpha, population, at)
    high = -_lowest(-differences, alpha, population, at)
    if population is not None:
        whole, exact = at == population, differences.mean(-1)[..., None]
        low, high = np.where(whole, exact, low), np.where(whole, exact, high)
    crossed = low > high  # no mean is left, which happens with a probability of at most alpha
    return np.where(crossed, -1.0, low), np.where(crossed, 1.0, high)


def _lowest(differences: Floats, alpha: float, population: int | None, looks: NDArray[np.int_]) -> Floats:
    """Return the largest mean such that it and all below it are refuted, shape [..., L], from below."""
    found = []
    for look in looks:
        seen = differences[..., :look]
        low, high = np.full(seen.shape[:-1], -1.0), np.full(seen.shape[:-1], 1.0)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            refuted = (_capital(seen, middle, population) >= 2 / alpha).any(-1)
            low, high = np.where(refuted, middle, low), np.where(refuted, high, middle)
        found.append(low)
    return np.stack(found, -1)


# -- many hypotheses ---------------------------------------------------------------------------------------------


def settled(evidence: Floats, alpha: float) -> NDArray[np.int_]:
    """Reject hypotheses by closed testing: at most alpha is the probability of ever rejecting one that is true.

    A set of hypotheses is refuted once the mean of its e-processes reaches 1 / alpha. A hypothesis is rejected for
    good after a row that refutes all sets of it and others which are not rejected yet. E-processes may depend on
    each other, but all must be e-processes when everything is known that was seen of the others.

    Args:
        evidence: E-processes, shape [T, H]; 1 for a hypothesis that is not tested yet, constant for one no longer.
        alpha: Level of the family.

    Returns:
        The first row after which each hypothesis is rejected, shape [H]; -1 if none.
    """
    since = np.full(evidence.shape[1], -1)
    if not evidence.size:
        return since
    for row in np.flatnonzero(evidence.max(1) >= 1 / alpha):
        left = np.flatnonzero(since < 0)
        order = left[np.argsort(evidence[row, left], kind="stable")]
        ranked = evidence[row, order]
        below = np.concatenate([[0.0], ranked.cumsum()[:-1]])
        # From the largest on: with each one, the k smallest of the others make the smallest mean.
        for place in range(len(order) - 1, -1, -1):
            sizes = np.arange(1, place + 2)
            if ((ranked[place] + below[: place + 1]) / sizes).min() < 1 / alpha:
                break
            since[order[place]] = row
    return since


# -- races -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pair:
    """Two policies of one round.

    Attributes:
        round: Their round, from 0.
        first: Name of a chain.
        second: Name of another.
        prompts: Number of prompts that both have answered.
        difference: Mean of first minus second over these, in units of the metric.
        low: Lower end of the interval; the intervals of all pairs and rounds hold together, at every prompt.
        high: Upper end.
        better: Which is shown better; None if that is open.
        is_exact: Whether both have answered the whole test set, so that nothing is open.
    """

    round: int
    first: str
    second: str
    prompts: int
    difference: float
    low: float
    high: float
    better: str | None
    is_exact: bool


@dataclass(frozen=True)
class Race:
    """What is known after some prompts.

    Attributes:
        pairs: All pairs of all rounds so far.
        lost: Chain of this round -> those that are shown better than it in this round.
        leaves: Chains that need no further prompts in this round.
        is_over: Whether this round needs no further prompts.
        stopped: Chains without this round: stopped, not shown worse at the end. No claim is about their later
            rounds.
    """

    pairs: tuple[Pair, ...]
    lost: Mapping[str, tuple[str, ...]]
    leaves: tuple[str, ...]
    is_over: bool
    stopped: tuple[str, ...]


def race(
    rounds: Sequence[Mapping[str, Floats]],
    *,
    bounds: tuple[float, float] | None,
    population: int | None,
    num_rounds: int | None = None,
    alpha: float = 0.05,
    until: Until = "separated",
    budget: int | None = None,
) -> Race:
    """Judge a race by all outcomes so far; equal outcomes give equal decisions.

    A chain with fewer outcomes than others in a round has left that round, and its e-processes stand still.

    Args:
        rounds: For each round so far: chain -> outcome of each prompt, shape [T], in the order of the prompts. All
            chains take part in the first round.
        bounds: Least and largest possible outcome of a prompt; None, if these are not known, is refused.
        population: N; None if prompts are drawn from an endless population.
        num_rounds: Number of rounds of which claims may be made, fixed before; those so far by default.
        alpha: Probability that any claim on any pair, in any round and at any prompt, is false.
        until: When a round is over.
        budget: Largest number of prompts in a round, at most N; N by default.

    Raises:
        ValueError: The metric has no known bounds, outcomes are not within them, or a chain came later.
    """
    if bounds is None or not (math.isfinite(scale := bounds[1] - bounds[0]) and scale > 0):
        raise ValueError(f"a race needs a metric with known bounds, low < high, as (0, 1) of pass@k; got {bounds}")
    if unknown := sorted({name for outcomes in rounds for name in outcomes} - set(rounds[0])):
        raise ValueError(f"all chains of a race take part in its first round, but not {', '.join(unknown)}")
    chains, total = list(rounds[0]), max(num_rounds or 0, len(rounds))
    limit = min(population or math.inf, budget or math.inf)
    family = total * math.comb(len(chains), 2)
    pairs: list[Pair] = []
    since = _rejections(rounds, bounds, population, total, alpha)
    for number, outcomes in enumerate(rounds):
        for first, second in combinations(chains, 2):
            difference = _difference(outcomes, first, second, bounds)
            if not len(difference):
                continue
            low, high = confidence_sequence(difference, alpha / family, population=population)
            mean = float(difference.mean())
            is_exact = len(difference) == population
            better = [name for name, other in ((first, second), (second, first)) if (number, name, other) in since]
            if is_exact:
                better = [] if abs(mean) <= _ROUNDING else [first if mean > 0 else second]
            winner = better[0] if len(better) == 1 else None
            mean, least, most = (scale * float(value) for value in (mean, low[0], high[0]))
            pairs.append(Pair(number, first, second, len(difference), mean, least, most, winner, is_exact))
    return _verdict(pairs, rounds[-1], chains, until, len(rounds) - 1, limit)


def _difference(outcomes: Mapping[str, Floats], first: str, second: str, bounds: tuple[float, float]) -> Floats:
    """Return scaled differences at the prompts that both have answered; none if one is not in this round."""
    ours, theirs = (np.asarray(outcomes.get(name, ()), np.float64) for name in (first, second))
    for name, values in ((first, ours), (second, theirs)):
        if not ((values >= bounds[0] - _ROUNDING) & (values <= bounds[1] + _ROUNDING)).all():
            raise ValueError(f"outcomes of {name} must be numbers within {bounds}")
    shared = min(len(ours), len(theirs))
    return np.asarray(np.clip((ours[:shared] - theirs[:shared]) / (bounds[1] - bounds[0]), -1, 1))


def _rejections(
    rounds: Sequence[Mapping[str, Floats]],
    bounds: tuple[float, float],
    population: int | None,
    num_rounds: int,
    alpha: float,
) -> set[tuple[int, str, str]]:
    """Return (round, better, worse) of all that closed testing has shown."""
    pairs = list(combinations(rounds[0], 2))
    each = 2 * len(pairs)
    lengths = [max(map(len, outcomes.values()), default=0) for outcomes in rounds]
    evidence = np.ones((sum(lengths), num_rounds * each))
    for number, outcomes in enumerate(rounds):
        start = sum(lengths[:number])
        for place, (first, second) in enumerate(pairs):
            found = e_values(_difference(outcomes, first, second, bounds), population)
            for column, values in enumerate(found, number * each + 2 * place):
                evidence[start : start + len(values), column] = values
                evidence[start + len(values) :, column] = values[-1] if len(values) else 1.0
    since = settled(evidence, alpha)
    names = [(number, *way) for number in range(num_rounds) for pair in pairs for way in (pair, pair[::-1])]
    return {name for name, row in zip(names, since, strict=True) if row >= 0}


def _verdict(
    pairs: list[Pair], outcomes: Mapping[str, Floats], chains: list[str], until: Until, last: int, limit: float
) -> Race:
    longest = max(map(len, outcomes.values()), default=0)
    beaten: dict[str, list[str]] = {name: [] for name in outcomes}
    unsettled = {name for name in outcomes if not longest}
    for pair in pairs:
        both = {pair.first, pair.second}
        if pair.round == last and pair.better:
            beaten[(both - {pair.better}).pop()].append(pair.better)
        elif pair.round == last and pair.prompts == longest and not pair.is_exact:
            unsettled |= both
    contend = {name for name in outcomes if not beaten[name]}
    busy = {"separated": unsettled, "best": contend, "budget": set(outcomes)}[until]
    return Race(
        tuple(pairs),
        {name: tuple(by) for name, by in beaten.items() if by},
        tuple(name for name in outcomes if name not in busy),
        longest >= limit or len(busy) < 2,
        tuple(name for name in chains if name not in outcomes),
    )


# -- what it takes -----------------------------------------------------------------------------------------------


def prompts_needed(
    difference: float, hypotheses: int, alpha: float, *, discordant: float = 0.2, population: int | None = None
) -> int | None:
    """Return about how many prompts settle the first pair of a family, where answers are right or wrong.

    Args:
        difference: The true difference of two shares, above 0.
        hypotheses: Size of the family: twice the number of pairs, times the number of rounds.
        alpha: Level of the family.
        discordant: Share of prompts that only one of the two answers rightly.
        population: N, at most which is returned, as the whole test set leaves nothing open.

    Returns:
        The number after which the capital reaches its goal if every prompt adds the expected growth; None for more
        than ten million.
    """
    goal, apart = math.log(hypotheses / alpha), max(discordant, difference)
    chances = {0.0: (apart - difference) / 2, 1.0: 1 - apart, 2.0: (apart + difference) / 2}

    def growth(bet: float, fair: Floats) -> Floats:
        with np.errstate(divide="ignore"):
            terms = [
                chance * np.log(1 - bet + bet * asset / fair) for asset, chance in chances.items() if chance > 0
            ]
        return np.asarray(sum(terms))

    rate = max(float(growth(bet, np.ones(1))[0]) for bet in BETS)
    steps = _MOST if rate <= 0 else math.ceil((goal + math.log(len(BETS))) / rate)
    if population is None and steps >= _MOST:
        return None
    steps = min(steps, population or steps)
    gone, fair = np.arange(steps), np.ones(steps)
    if population is not None:
        fair = (population - (1 + difference) * gone) / (population - gone)
        fair = fair[fair > 0]
    capital = np.logaddexp.reduce([growth(bet, fair).cumsum() for bet in BETS]) - math.log(len(BETS))
    reached = np.flatnonzero(capital >= goal)
    return int(reached[0]) + 1 if len(reached) else min(len(fair) + 1, population or steps)


class SeedsNeeded(NamedTuple):
    """Least numbers of seeds with which a test can settle a pair at all, however clear the difference is.

    Attributes:
        normal: With differences of seeds that are normal, as `seed_tests` assumes.
        bounded: With nothing assumed but that differences lie in [-1, 1], if every seed shows the same one.
    """

    normal: int
    bounded: int


def seeds_needed(alpha: float, pairs: int, difference: float = 0.05) -> SeedsNeeded:
    """Compute the least numbers of seeds that can settle a pair of a family; `difference` is in (0, 1]."""
    normal = bounded = 1
    while (1 + normal * _SPREAD) ** ((normal - 1) / 2) < pairs / alpha:
        normal += 1
    while ((1 + BETS * difference) ** bounded).mean() < 2 * pairs / alpha:
        bounded += 1
    return SeedsNeeded(normal, bounded)


# -- seeds -------------------------------------------------------------------------------------------------------


def seed_tests(differences: Floats, alpha: float) -> NDArray[np.int_]:
    """Test which of two methods is better, with seeds as units, at any number of seeds.

    This assumes that the differences of a pair are independent and normal over seeds. The e-process is that of the
    t-test with a normal mixture over standardised differences (Wang and Ramdas, arXiv 2310.03722). It depends on
    the data through t alone, and a higher mean raises t at every number of seeds. So a wrong direction is claimed
    no more often than any direction is for equal methods. Each pair is tested at alpha / pairs.

    Args:
        differences: Mean difference of each pair at each seed, shape [P, S], in an order of seeds fixed before.
        alpha: Probability of any false claim.

    Returns:
        Sign of the difference, shape [P]; 0 if it is open.

    Raises:
        ValueError: There are too few seeds to settle anything.
    """
    pairs, seeds = differences.shape
    if seeds < (needed := seeds_needed(alpha, pairs).normal):
        raise ValueError(
            f"{pairs} pairs of methods need at least {needed} seeds at a level of {alpha}; got {seeds}"
        )
    evidence, sign = seed_evidence(differences), np.sign(differences.cumsum(-1))
    up, down = (((evidence >= pairs / alpha) & (sign == way)).any(-1) for way in (1, -1))
    return np.asarray(up.astype(int) - down.astype(int))


def seed_evidence(differences: Floats) -> Floats:
    """Return the e-process of `seed_tests` after each seed, shape [..., S]; 1 while differences do not vary."""
    number = np.arange(1, differences.shape[-1] + 1)
    mean = differences.cumsum(-1) / number
    apart = differences - differences[..., :1]  # exactly 0 if all are the same
    scatter = np.maximum((apart**2).cumsum(-1) - apart.cumsum(-1) ** 2 / number, 0)
    varies = scatter > _ROUNDING**2 * (differences**2).cumsum(-1)
    square = np.divide(number * mean**2, scatter, out=np.zeros_like(mean), where=varies)  # t^2 / (S - 1)
    wide = 1 + number * _SPREAD
    found = (number * np.log((1 + square) / (1 + square / wide)) - np.log(wide)) / 2
    return np.where(varies & (number > 1), np.exp(found), 1.0)
