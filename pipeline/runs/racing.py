"""Judge a race: which chains are evaluated on how many prompts, and which end early, by what is stored.

    plan of everything, stored outcomes  -->  standing: looks, chains that end, pairs  -->  plan of what is wanted

A standing depends on outcomes alone, never on time: each look is judged once all chains that are left have it, and
rounds in order. So a run that was killed, or is repeated, decides alike.

Each two chains of one dataset, model, reference and seed are a pair, and all pairs and rounds are one family: a
pair is settled once its interval leaves out 0 at its share of alpha, see `Entry`. All rounds see the same prompts
in the same order, which is why evidence is not pooled over rounds or pairs: the union bound holds all the same.
Claims are about other prompts like these, as those of the tables are.

Chains may be added at any time, for any reason. Claims on them count only prompts that nobody had seen then: given
all that was seen, these are as good as new, and the chain is one that was fixed before. So a claim on the k-th
addition is false with a probability of at most its share, whatever came before, and all shares together are alpha.
Nothing that is decided between older chains depends on later ones. The policies of a round do not depend on
evaluations, so the shares of rounds that are added are as good as fixed before, and they count all prompts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import combinations
from pathlib import Path

import numpy as np

from pipeline.config.schema import Config, RaceConfig, Until, continued_from
from pipeline.engine.store.store import Store
from pipeline.errors import JobError
from pipeline.foreign import ForeignDataError
from pipeline.learning.algos.base import REFERENCE
from pipeline.learning.algos.policy_config import taken_from
from pipeline.learning.evaluation import anytime, metrics
from pipeline.learning.evaluation.statistics import Floats
from pipeline.plan.contents import EVALUATE
from pipeline.plan.graph import Job, Plan
from pipeline.runs.race import Look, Pair, Standing

SMALL = 0.03
"""A difference of shares that people ask of a race."""
DISCORDANT = 0.2
"""Assumed share of prompts that only one of two policies answers rightly."""


# -- decisions ---------------------------------------------------------------------------------------------------


Outcomes = Callable[[str, int], Floats]
"""Given a chain and a round: the outcome of each prompt that it has answered, in the order of the prompts, up to
the first gap; NaN for one that is not judged."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Rules of a race between chains of one dataset, model, reference and seed.

    Attributes:
        look: Prompts between two looks.
        num_prompts: Largest number of prompts.
        until: When a round is over.
        alpha: Probability of any false claim.
        num_rounds: Number of rounds of which claims may be made.
        kept: Chains that are never stopped, as others start from them.
        entries: Algorithm of which claims may be made, with those that were left out since -> prompts that were
            seen before it was added; 0 for those of the start, as others that race are.
        first_rounds: Number of rounds at the start; 0 for all.
    """

    look: int
    num_prompts: int
    until: Until
    alpha: float
    num_rounds: int
    kept: Collection[str] = ()
    entries: Mapping[str, int] = field(default_factory=dict)
    first_rounds: int = 0


_FIRST = 0.95
"""Share of what a race begins with; what is added k-th has (1 - _FIRST) / 2^k."""


def share(order: int) -> float:
    """Return the share of what is added in this order, 0 for what a race begins with; all together have 1."""
    return _FIRST if order == 0 else (1 - _FIRST) / 2**order


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Chains that come into a race together, and the pairs that they make with each other and with older ones.

    Attributes:
        algos: Their algorithms.
        seen: Prompts that were seen before.
        level: Level of each of the pairs in all rounds together.
    """

    algos: Collection[str]
    seen: int
    level: float


def entries_of(entries: Mapping[str, int], alpha: float) -> list[Entry]:
    """Return who comes into a race when: algorithms added after the same number of prompts come together."""
    found, before = list[Entry](), 0
    for order, seen in enumerate(sorted({0, *entries.values()})):
        algos = [algo for algo, at in entries.items() if at == seen]
        pairs = math.comb(before + len(algos), 2) - math.comb(before, 2)
        found.append(Entry(algos=algos, seen=seen, level=alpha * share(order) / max(1, pairs)))
        before += len(algos)
    return found


def round_share(number: int, first_rounds: int) -> float:
    """Return the share that a round has of the level of a pair."""
    return share(0) / first_rounds if number <= first_rounds else share(number - first_rounds)


def decide(
    found: Standing, place: str, rounds: Mapping[str, Collection[int]], rules: Rules, outcomes: Outcomes
) -> Standing:
    """Add to a standing that of the chains of one dataset, model, reference and seed, by all outcomes so far.

    Args:
        found: The standing, of chains of other places so far.
        place: Name of these, see `Pair`.
        rounds: Chain -> its rounds; all chains of the race.
        rules: The rules.
        outcomes: The outcomes. Those beyond the looks that are decided change nothing.
    """
    older = list[str]()
    for entry in entries_of(dict.fromkeys(map(_algo, rounds), 0) | dict(rules.entries), rules.alpha):
        own = [name for name in rounds if _algo(name) in entry.algos]
        _decide_entry(
            found,
            rounds,
            _Field(place=place, older=tuple(older), own=dict.fromkeys(own).keys(), entry=entry),
            rules,
            outcomes,
        )
        older += own
    return found


def _algo(name: str) -> str:
    return name.rpartition("/")[2]


@dataclass(frozen=True, kw_only=True)
class _Field:
    """Chains of an entry among older ones."""

    place: str
    older: Collection[str]
    own: Set[str]
    entry: Entry


def _decide_entry(
    found: Standing, rounds: Mapping[str, Collection[int]], there: _Field, rules: Rules, outcomes: Outcomes
) -> None:
    """Judge all rounds of the chains of an entry; older ones are judged, and nothing changes that but looks."""
    for number in range(1, rules.num_rounds + 1):
        left = [
            name
            for name in (*there.older, *there.own)
            if number in rounds[name] and number <= found.stopped.get(name, number)
        ]
        own = [name for name in left if name in there.own]
        for name in own:  # rounds before its own first one are another chain's
            found.looks.setdefault(name, [rules.look] * (number - 1)).append(rules.num_prompts)
        if rules.until is Until.best:
            at = there.place, number
            gone = {f"{pair.place}/{pair.worse}" for pair in found.pairs if (pair.place, pair.round) == at}
            left = [name for name in left if name in own or name not in gone]
        if not own or len(left) < 2 or there.entry.seen >= rules.num_prompts:
            continue
        later = [name for name in there.own if any(one > number for one in rounds[name])]
        beaten = None
        if any(found.racing.get(name, number + 1) <= number for name in left if name not in own):
            for name in own:  # older ones come first
                found.looks[name][-1] = min(there.entry.seen + rules.look, rules.num_prompts)
        else:
            beaten = _decide_round(found, there, number, left, rules, outcomes)
            if beaten is None:
                found.awaited.append(dict.fromkeys(left, number))
        if beaten is None:
            alive = {name: number + 1 for name in later if name not in found.stopped}
            # Until the round is over, a stop of one chain may change how many prompts the others needed.
            found.racing.update({**alive, **dict.fromkeys(own, number)})
            for name in left:
                if name not in own:
                    found.grows[name] = min(number, found.grows.get(name, number))
            return
        if rules.until is Until.best:
            found.stopped.update({name: number for name in later if name in beaten and name not in rules.kept})


def _decide_round(
    found: Standing, there: _Field, number: int, left: Sequence[str], rules: Rules, outcomes: Outcomes
) -> set[str] | None:
    """Add a round to a standing, look by look; return the chains that are shown worse, or None if it goes on."""
    values = {name: outcomes(name, number) for name in left}
    level = there.entry.level * round_share(number, rules.first_rounds or rules.num_rounds)
    at = since = there.entry.seen
    tests = {
        (one, two): _Test(values[one][since:], values[two][since:], level)
        for one, two in combinations(left, 2)
        if two in there.own  # older ones come first
    }
    looks: dict[tuple[str, str], list[int]] = {pair: [] for pair in tests}
    active, is_over = list(left), False
    beaten: set[str] = set()
    while not is_over:
        upto = min(at + rules.look, rules.num_prompts)
        for name in active:
            of = found.looks[name]
            of[number - 1] = upto if name in there.own else max(of[number - 1], upto)
        if any(len(values[name]) < upto for name in active):
            break
        at = upto
        for pair, seen in looks.items():
            if {*pair} <= {*active}:
                seen.append(at)
        better = {pair: tests[pair].better(seen[-1] - since) for pair, seen in looks.items()}
        beaten = {name for pair, sign in better.items() if sign for name in (pair[1] if sign > 0 else pair[0],)}
        busy = {
            Until.separated: {name for pair, sign in better.items() if not sign for name in pair},
            Until.best: set(left) - beaten,
            Until.budget: set(left),
        }[rules.until]
        active = [name for name in active if name in busy]
        is_over = at >= rules.num_prompts or len(active) < 2 or there.own.isdisjoint(active)
    for (one, two), seen in looks.items():
        if seen:
            test, algos = tests[one, two], [_algo(name) for name in (one, two)]
            sign = test.better(seen[-1] - since)
            found.pairs.append(
                Pair(
                    place=there.place,
                    round=number,
                    first=algos[0],
                    second=algos[1],
                    better="" if not sign else algos[sign < 0],
                    looks=[replace(test.look(prompts - since), prompts=prompts) for prompts in seen],
                    since=since,
                )
            )
    return beaten if is_over else None


class _Test:
    """A pair of chains at any number of prompts."""

    def __init__(self, first: Floats, second: Floats, level: float) -> None:
        shared = min(len(first), len(second))
        # A prompt that one has no outcome for says nothing of the two.
        self._differences = np.nan_to_num(first[:shared] - second[:shared])
        self._level = level
        self._evidence = [np.maximum.accumulate(of) for of in anytime.e_values(self._differences)]

    def better(self, prompts: int) -> int:
        """Return the sign of the difference; 0 while it is open."""
        up, down = (of[: min(prompts, len(of))][-1] >= 2 / self._level for of in self._evidence)
        return int(up) - int(down)

    def look(self, prompts: int) -> Look:
        seen = self._differences[:prompts]
        low, high = _interval(seen.tobytes(), self._level)
        return Look(prompts=len(seen), difference=float(seen.mean()), low=low, high=high)


@lru_cache(maxsize=10_000)
def _interval(differences: bytes, level: float) -> tuple[float, float]:
    low, high = anytime.confidence_sequence(np.frombuffer(differences, np.float64), level)
    return float(low[-1]), float(high[-1])


# -- of a plan ---------------------------------------------------------------------------------------------------


def stand(config: Config, plan: Plan, store: Store, rows: Mapping[str, Mapping[str, int]]) -> Standing:
    """Judge a race by what is stored.

    Args:
        config: The request.
        plan: What it asks for without the race.
        store: The store.
        rows: Dataset -> rows of each split, as far as they are known.
    """
    race = config.experiment.race
    assert race is not None
    shards: dict[str, dict[int, list[Job]]] = {}
    for job in _evaluations(config, plan):
        shards.setdefault(job.chain, {}).setdefault(job.round, []).append(job)
    everything = config.evaluation.num_prompts
    rules = Rules(
        look=race.look or config.execution.shard_size,
        num_prompts=everything,
        until=race.until,
        alpha=race.alpha,
        num_rounds=config.rounds_of_training,
        entries=_entries(race, config),
        first_rounds=race.rounds or config.rounds_of_training,
    )
    others = {of for algo in config.algos.values() if algo.enabled for of in taken_from(algo).values()}
    others |= {continued_from(algo)[0] or "" for algo in config.algos.values() if algo.enabled}

    def outcomes(name: str, number: int) -> Floats:
        parts = [np.zeros(0)]
        for job in sorted(shards[name][number], key=lambda job: job.shard or 0):
            try:
                parts.append(shard_outcomes(store.root, job.key, race.metric))
            except (JobError, ForeignDataError, OSError):  # not stored, or not whole
                return np.concatenate(parts)
        values = np.concatenate(parts)
        return np.concatenate([values, np.full(max(0, everything - len(values)), np.nan)])

    settings = f"{race.metric}, alpha {race.alpha:g}, until {race.until.name}"
    found = Standing(settings=settings, num_prompts=everything, added=race.added)
    for place in dict.fromkeys(name.rpartition("/")[0] for name in shards):
        own = {name: rounds for name, rounds in shards.items() if name.rpartition("/")[0] == place}
        kept = [name for name in own if name.rpartition("/")[2] in others]
        there = rows.get(place.partition("/")[0], {}).get(config.evaluation.split, everything)
        decide(found, place, own, replace(rules, kept=kept, num_prompts=min(everything, there)), outcomes)
    return found


def _entries(race: RaceConfig, config: Config) -> dict[str, int]:
    """Return the algorithms of a race -> prompts that were seen before each was added."""
    chosen = [name for name, algo in config.algos.items() if algo.enabled and name not in config.evaluation.also]
    return {name: race.added.get(name, 0) for name in chosen}


def _evaluations(config: Config, plan: Plan) -> Iterable[Job]:
    """Return the jobs that evaluate chains of the race on their own dataset."""
    return (
        job
        for job in plan.jobs.values()
        if job.stage == EVALUATE
        and job.algo not in (REFERENCE, *config.evaluation.also)
        and config.datasets.get(job.dataset) is not None
    )


@lru_cache(maxsize=100_000)
def shard_outcomes(root: Path, key: str, metric: str) -> Floats:
    """Return the outcomes of a shard in the order of its prompts.

    Raises:
        JobError: It is malformed.
        OSError: It is not stored, or not whole.
    """
    store = Store(root)
    if (problem := store.problem(key)) is not None:
        raise OSError(problem)
    samples = metrics.read_samples([store.path(key)])
    measured = metrics.measure(samples)
    above, below = measured.sums.get(metric, (np.zeros(len(measured.rows)), np.zeros(len(measured.rows))))
    values = np.divide(above, below, out=np.full(len(above), np.nan), where=below > 0)
    order = list(dict.fromkeys(sample.row for sample in samples))
    return np.asarray(values[np.searchsorted(measured.rows, order)])


def expected(race: RaceConfig, config: Config) -> list[str]:
    """Say what a race can settle, with a warning where the test set is too small for a small difference."""
    prompts, look = config.evaluation.num_prompts, race.look or config.execution.shard_size
    chains = sum(not seen for seen in _entries(race, config).values())
    hypotheses = 2 * math.comb(chains, 2) * (race.rounds or config.rounds_of_training)
    alpha = race.alpha * share(0) ** 2
    needed = partial(anytime.prompts_needed, hypotheses=hypotheses, alpha=alpha, discordant=DISCORDANT)
    told = ", ".join(f"{size:g} at some {needed(size) or math.inf:,}" for size in (0.1, 0.05, SMALL))
    lines = [
        f"race: prompts that settle a difference of {race.metric}: {told}, if {DISCORDANT:.0%} of the prompts "
        f"tell two policies apart; evaluation.num_prompts={prompts:,}, looks of {look:,}; "
        "the plan has the looks that are wanted so far"
    ]
    if (least := needed(SMALL)) is None or least > prompts:
        lines.append(
            f"warning: evaluation.num_prompts={prompts:,} are too few to settle a difference of {SMALL:g}; such "
            "chains go on, and are evaluated on all prompts"
        )
    if look >= prompts:
        lines.append(
            f"warning: the only look is at all {prompts:,} prompts: set execution.shard_size to what a look takes"
        )
    return lines
