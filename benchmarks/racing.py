"""Races between methods, by simulation: how often a claim is false, and what stopping early saves and loses.

    python benchmarks/racing.py                        20,000 races of each case without a difference, 100 with one
    python benchmarks/racing.py --part claims --repetitions 1000

The level is 0.05. Claims are looked at after every prompt (of races with a difference, 50 times in a round), so a
race may stop at any of them. Of a whole test set, policies that are equal have exactly as many right answers.
Other policies draw each answer by a number that they share with others at three prompts of four, so that two at a
level of one half differ at one prompt of five. Races with a difference have twice the prompts in a round that are
expected to settle the first pair.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from numpy.typing import NDArray
from scipy import special

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.arguments import positive
from pipeline.learning.evaluation import anytime
from pipeline.runs import racing

ALPHA = 0.05
AT_ONCE = 250
ALIKE = 0.775
METHODS, ROUNDS, LOOKS = 8, 4, 50
CASES = ((0.2, False), (0.2, True), (0.05, False), (0.05, True), (0.0, False), (0.02, False))
"""How much better the best method is, and whether it begins as much worse."""

Values = NDArray[np.float64]


def answers(draw: np.random.Generator, levels: Values, prompts: int) -> Values:
    """Right answers, shape [runs, K, T], of policies at levels of shape [K] or [K, T]."""
    shape = (AT_ONCE, len(levels), prompts)
    own, shared = draw.random(shape), draw.random((AT_ONCE, 1, prompts))
    levels = levels if levels.ndim > 1 else levels[:, None]
    return np.asarray(np.where(draw.random(shape) < ALIKE, shared, own) < levels, np.float64)


def test_sets(draw: np.random.Generator, levels: Values, prompts: int, population: int) -> Values:
    """The first answers of whole test sets in which policies at one level have equally many right ones."""
    whole = np.arange(population) < np.round(levels * population)[:, None]
    orders = draw.permuted(np.broadcast_to(whole, (AT_ONCE, *whole.shape)), axis=2)
    return np.asarray(orders[..., :prompts], np.float64)


def evidence_of(right: Values, population: int | None) -> Values:
    """E-processes, shape [runs, T, H]: those of first > second of all pairs, then those of second > first."""
    pairs = np.array(list(combinations(range(right.shape[1]), 2)))
    better, worse = anytime.e_values(right[:, pairs[:, 0]] - right[:, pairs[:, 1]], population)
    return np.concatenate([better, worse], 1).swapaxes(1, 2)


# -- false claims ------------------------------------------------------------------------------------------------


def false_claims(levels: Values, prompts: int, population: int | None, repetitions: int) -> tuple[int, int]:
    """The number of races that ever claim what is not so, and of races."""
    draw = np.random.Generator(np.random.SFC64(len(levels)))
    mean = levels if levels.ndim == 1 else levels.mean(1)
    gap = np.array([mean[one] - mean[two] for one, two in combinations(range(len(mean)), 2)])
    is_true = np.concatenate([gap <= 0, gap >= 0])
    wrong = done = 0
    while done < repetitions:
        right = (
            answers(draw, levels, prompts) if population is None else test_sets(draw, levels, prompts, population)
        )
        evidence = evidence_of(right, population)
        # The first false rejection needs that the set of all true hypotheses is refuted.
        for one in evidence[(evidence[:, :, is_true].mean(2) >= 1 / ALPHA).any(1)]:
            wrong += bool((anytime.settled(one, ALPHA)[is_true] >= 0).any())
        done += AT_ONCE
    return wrong, done


def null_cases() -> Iterator[tuple[str, Values, int, int | None]]:
    for level in (0.5, 0.02, 0.98):
        for population in (None, 300, 3000):
            yield f"2 equal, level {level:g}", np.full(2, level), 300, population
    yield (
        "2 equal, hard and easy prompts in turns of 50",
        np.full((2, 300), np.arange(300) // 50 % 2 * 0.96 + 0.02),
        300,
        None,
    )
    yield "2 equal, few prompts", np.full(2, 0.5), 20, 20
    for level in (0.5, 0.02, 0.98):
        better = level + 0.2 if level < 0.9 else 0.78
        for population in (None, 150):
            yield (
                f"4, two at {level:g}, two at {better:g}",
                np.array([level, level, better, better]),
                150,
                population,
            )
    yield "12 equal, level 0.5", np.full(12, 0.5), 60, None
    yield "12, six at 0.5, six at 0.8", np.repeat([0.5, 0.8], 6), 60, 100


NEARLY, MOST_ADDED, PROMPTS_ADDED, LIKENESS = 0.25, 3, 300, 0.95
"""Share of the evidence of a claim at which a chain is added; how many are; prompts; how alike a clone answers."""


def false_additions(repetitions: int, alpha: float = ALPHA) -> tuple[int, int]:
    """The same where someone adds a clone of the leader each time that a pair is near a claim.

    Two chains begin. All are right at one prompt of two. Pairs have the levels of a run, and those of an added
    chain count the prompts after its addition.
    """
    draw = np.random.Generator(np.random.SFC64(MOST_ADDED))
    wrong = 0
    for _ in range(repetitions):
        luck = draw.random(PROMPTS_ADDED)
        own = [np.where(draw.random(PROMPTS_ADDED) < ALIKE, luck, draw.random(PROMPTS_ADDED)) for _ in range(2)]
        entries, now = {0: 0, 1: 0}, 0
        while True:
            levels = {
                algo: entry
                for entry in racing.entries_of({str(name): at for name, at in entries.items()}, alpha)
                for algo in entry.algos
            }
            near: list[tuple[int, int]] = []
            is_wrong = False
            for one, two in combinations(entries, 2):
                entry = levels[str(two)]
                right = [(own[name][entry.seen :] < 0.5).astype(np.float64) for name in (one, two)]
                if not len(right[0]):
                    continue
                goal = 2 / (entry.level * racing.round_share(1, 1))
                for leader, found in zip((one, two), anytime.e_values(right[0] - right[1]), strict=True):
                    is_wrong |= bool(found.max() >= goal)
                    at = np.flatnonzero(found >= NEARLY * goal)
                    at = at[at + entry.seen >= now]
                    near += [(int(at[0]) + entry.seen + 1, leader)] if len(at) else []
            if len(entries) == 2 + MOST_ADDED or not near:
                break
            now, leader = min(near)
            entries[len(own)] = now
            own.append(np.where(draw.random(PROMPTS_ADDED) < LIKENESS, own[leader], draw.random(PROMPTS_ADDED)))
        wrong += is_wrong
    return wrong, repetitions


def false_seeds(methods: int, seeds: int, repetitions: int) -> tuple[int, int]:
    """The same of claims on equal methods whose levels vary over seeds with a standard deviation of 0.03."""
    draw = np.random.Generator(np.random.SFC64(methods))
    chance = np.clip(0.5 + 0.03 * draw.standard_normal((repetitions, methods, seeds)), 0, 1)
    means = draw.binomial(500, chance) / 500
    found = [means[:, one] - means[:, two] for one, two in combinations(range(methods), 2)]
    level = ALPHA * repetitions  # all races at once, each pair at ALPHA / pairs
    claims = anytime.seed_tests(np.concatenate(found), level)
    return int((claims.reshape(len(found), -1) != 0).any(0).sum()), repetitions


# -- what is saved -----------------------------------------------------------------------------------------------


def curves(difference: float, is_crossing: bool) -> Values:
    """Levels by round and method: the first is best at the end, and worst at the beginning if curves cross."""
    levels = np.full((ROUNDS, METHODS), 0.5)
    levels[:, 0] += difference * (np.linspace(-1, 1, ROUNDS) if is_crossing else 1)
    return levels


def lost(since: NDArray[np.int_], row: int) -> set[int]:
    """Methods that are shown worse than another after a row of evidence; hypotheses of one round."""
    pairs = list(combinations(range(METHODS), 2))
    ways = [*pairs, *(pair[::-1] for pair in pairs)]
    return {worse for (_, worse), at in zip(ways, since, strict=True) if 0 <= at <= row}


def by_claims(right: Values) -> tuple[list[set[int]], float, bool]:
    """Race to the best: who is left in each round, share of answers needed, whether the best is lost."""
    each = METHODS * (METHODS - 1)
    pairs = np.array(list(combinations(range(METHODS), 2)))
    left, alive, used = set(range(METHODS)), [], 0
    looks = np.linspace(right.shape[2] / LOOKS, right.shape[2], LOOKS).astype(int) - 1
    evidence = np.ones((0, ROUNDS * each))
    for number in range(ROUNDS):
        alive.append(set(left))
        rows = np.ones((LOOKS, ROUNDS * each))
        rows[:] = evidence[-1] if len(evidence) else 1.0
        own = slice(number * each, (number + 1) * each)
        if len(left) > 1:
            rows[:, own] = evidence_of(right[None, number], None)[0, looks]
            outside = ~np.isin(pairs, list(left)).all(1)
            rows[:, own][:, np.tile(outside, 2)] = 1.0
            since = None
            for row in range(LOOKS):
                used += len(left) * (looks[row] - (looks[row - 1] if row else -1))
                if since is None:
                    since = anytime.settled(np.concatenate([evidence, rows]), ALPHA)[own]
                gone = left & lost(np.where(since >= 0, np.maximum(since - len(evidence), 0), -1), row)
                if gone:
                    left -= gone
                    frozen = np.tile(~np.isin(pairs, list(left)).all(1), 2)
                    rows[row + 1 :, own][:, frozen] = rows[row, own][frozen]
                    since = None
                if len(left) < 2:
                    break
        evidence = np.concatenate([evidence, rows])
    return alive, used / (right.shape[2] * ROUNDS * METHODS), 0 not in left


def by_ranks(right: Values, keeps: Callable[[int], int]) -> list[set[int]]:
    """Keep so many of the best after each round."""
    left, alive = list(range(METHODS)), []
    for number in range(ROUNDS):
        alive.append(set(left))
        order = sorted(left, key=lambda method: -right[number, method].mean())
        left = order[: max(1, keeps(len(left)))]
    return alive


def by_pruner(right: Values, pruner: optuna.pruners.BasePruner) -> list[set[int]]:
    """Train one method after the other, in a random order, and stop each where a pruner of Optuna says so."""
    study = optuna.create_study(direction="maximize", pruner=pruner)
    alive: list[set[int]] = [set() for _ in range(ROUNDS)]
    for method in np.random.default_rng(int(right.sum())).permutation(METHODS):
        trial = study.ask()
        for number in range(ROUNDS):
            alive[number].add(int(method))
            trial.report(float(right[number, method].mean()), number + 1)
            if number + 1 < ROUNDS and trial.should_prune():
                study.tell(trial, state=optuna.trial.TrialState.PRUNED)
                break
        else:
            study.tell(trial, float(right[-1, method].mean()))
    return alive


PRUNERS: dict[str, Callable[[], optuna.pruners.BasePruner]] = {
    "optuna MedianPruner": lambda: optuna.pruners.MedianPruner(n_startup_trials=0),
    "optuna SuccessiveHalvingPruner": lambda: optuna.pruners.SuccessiveHalvingPruner(
        min_resource=1, reduction_factor=2
    ),
}


def savings(levels: Values, prompts: int, races: int) -> Iterator[tuple[Any, ...]]:
    """By way of stopping: shares of training and of answers saved, and of races that stopped the best."""
    draw = np.random.Generator(np.random.SFC64(prompts))
    found: dict[str, list[tuple[float, float, float]]] = {}

    def add(name: str, alive: list[set[int]], used: float | None = None) -> None:
        rounds = sum(map(len, alive)) / (ROUNDS * METHODS)
        found.setdefault(name, []).append((1 - rounds, 1 - (rounds if used is None else used), 0 not in alive[-1]))

    for _ in range(races):
        shared = draw.random((ROUNDS, 1, prompts))
        shape = (ROUNDS, METHODS, prompts)
        drawn = np.where(draw.random(shape) < ALIKE, shared, draw.random(shape))
        right = np.asarray(drawn < levels[..., None], np.float64)
        alive, used, _ = by_claims(right)
        add("race", alive, used)
        add("successive halving", by_ranks(right, lambda number: number // 2))
        add("best after round 1", by_ranks(right, lambda _: 1))
        for name, pruner in PRUNERS.items():
            add(name, by_pruner(right, pruner()))
    for name, numbers in found.items():
        yield name, *np.mean(numbers, 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=positive, default=20_000)
    parser.add_argument(
        "--races", type=positive, default=100, help="of each case with a difference, fewer of long ones"
    )
    parser.add_argument("--part", choices=("claims", "savings"), help="one of the two tables")
    arguments = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)

    if arguments.part != "savings":
        print("| methods | races | false claims | at most (99 %) |\n|---|---|---|---|")
        for name, levels, prompts, population in null_cases():
            of = f"{prompts} prompts" if population is None else f"{prompts} of {population} prompts"
            told(f"{name}; {of}", false_claims(levels, prompts, population, arguments.repetitions))
        name = f"2 equal, and up to {MOST_ADDED} clones of the leader, each when a pair is near a claim"
        told(f"{name}; {PROMPTS_ADDED} prompts", false_additions(arguments.repetitions))
        for methods in (2, METHODS):
            told(f"{methods} equal, 10 seeds as units", false_seeds(methods, 10, arguments.repetitions))
    if arguments.part != "claims":
        print("\n| curves | prompts | races | stopped by | training saved | answers saved | best stopped |")
        print("|---|---|---|---|---|---|---|")
        family = ROUNDS * METHODS * (METHODS - 1)
        for difference, is_crossing in CASES:
            prompts = 2 * (anytime.prompts_needed(difference or 0.05, family, ALPHA) or 0)
            races = max(10, min(arguments.races, arguments.races * 3000 // prompts))
            kind = "crossing" if is_crossing else "steady" if difference else "equal"
            for name, *numbers in savings(curves(difference, is_crossing), prompts, races):
                cells = " | ".join(f"{number:.0%}" for number in numbers)
                print(f"| {kind}, {difference:g} | {prompts:,} | {races} | {name} | {cells} |", flush=True)


def told(name: str, counted: tuple[int, int]) -> None:
    """Print a row: races, the share with a false claim, and a bound of it."""
    wrong, of = counted
    high = special.betaincinv(wrong + 1, of - wrong, 0.99) if wrong < of else 1.0
    print(f"| {name} | {of:,} | {wrong / of:.4f} | {high:.4f} |", flush=True)


if __name__ == "__main__":
    main()
