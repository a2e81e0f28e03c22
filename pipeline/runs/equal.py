"""Compare the methods of a run at equal cost or divergence: the last round of each within limits, and differences.

All numbers come from the results of the run: the costs of stages, the metrics of methods, and the measures by
prompt, by which differences are tested as after the last round.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

from pipeline.config.tables import is_mean
from pipeline.errors import ConfigError, known_names
from pipeline.learning.algos.base import REFERENCE
from pipeline.runs import record
from pipeline.runs.cost import CostRow, costs_of
from pipeline.runs.loaded import LoadedRun
from pipeline.runs.record import KL
from pipeline.runs.report.format import count, decimal, interval, places_of, reading_order, si, title
from pipeline.runs.report.tables import (
    LEAST_NAME,
    about_bounds,
    first_few,
    number_column,
    numbers,
    p_value,
    result_columns,
    what_intervals_hold_for,
)
from pipeline.terminal.columns import EXTRA, Column, FittedTable, Told, told_table

if TYPE_CHECKING:
    from pipeline.runs.pooling import Group

# -- limits ------------------------------------------------------------------------------------------------------


LIMITS: Mapping[str, str] = {
    "flops": "FLOPs of a chain's training, all rounds up to then",
    "tokens": "tokens that a chain has drawn and trained on, all rounds up to then",
    "kl": "nats per sequence from the reference",
    "flops_per_answer": "FLOPs of an evaluated completion",
    "total": "FLOPs of a chain's training and of so many answers together",
}
"""Quantities that can be limited -> what is counted; the mean over the chains of a method."""
_TOTAL = "total"
_GROWING = ("flops", "tokens")
"""Quantities that never decrease from round to round."""
_AND = re.compile(r"\+(?=\s*[^\W\d])")
"""Matches a plus before a name; the plus in 1e+15 is part of a number."""


@dataclass(frozen=True)
class Limit:
    """An upper limit for a method.

    Attributes:
        name: One of `LIMITS`.
        most: The largest amount within the limit.
        answers: Number of answers to count, for ``total``.
    """

    name: str
    most: float
    answers: float = 0.0

    def amount(self, cost: CostRow | None, kl: float | None) -> float | None:
        """Return the limited amount of a method after a round; None if unknown."""
        if self.name == "kl" or cost is None:
            return kl if self.name == "kl" else None
        if self.name == _TOTAL:
            is_known = cost.flops is not None and cost.answer is not None
            return (cost.flops or 0) + self.answers * (cost.answer or 0) if is_known else None
        return {"flops": cost.flops, "tokens": cost.tokens, "flops_per_answer": cost.answer}[self.name]

    def judged(self, amounts: Mapping[int, float | None]) -> dict[int, bool | None]:
        """Return for each round whether it is within the limit, or None if unknown."""
        if self.most == math.inf:
            return dict.fromkeys(amounts, True)
        verdicts = {number: None if amount is None else amount <= self.most for number, amount in amounts.items()}
        beyond = [number for number, is_within in verdicts.items() if is_within is False]
        too_far = min(beyond, default=math.inf) if self.name in _GROWING else math.inf
        return {n: False if is_within is None and n > too_far else is_within for n, is_within in verdicts.items()}


@dataclass(frozen=True)
class Limits:
    """Limits that hold together.

    Attributes:
        text: The limits as typed.
        every: Each of them.
    """

    text: str
    every: tuple[Limit, ...]


def limits_of(options: Iterable[str]) -> list[Limits]:
    """Parse limits as typed: ``flops=1e15`` or ``kl=1.0+tokens=1e6``, separate ones with commas between them.

    Raises:
        ConfigError: The text is no limit.
    """
    texts = dict.fromkeys(text.strip() for option in options for text in option.split(","))
    return [Limits(text, tuple(_limit(term.strip(), text) for term in _AND.split(text))) for text in texts]


def _limit(term: str, text: str) -> Limit:
    name, equals, number = term.partition("=")
    where = f"--at '{text}'"
    if name not in LIMITS:
        raise ConfigError(f"{where}: '{name}' is nothing that can be limited.{known_names(name, LIMITS)}")
    how = f"{name}=FLOPS@ANSWERS, as total=1e15@1e6" if name == _TOTAL else f"{name}=NUMBER, as {name}=1e6"
    most, at, answers = number.partition("@")
    if not equals or bool(at) != (name == _TOTAL):
        raise ConfigError(f"{where}: '{term}' must be {how}")
    limit = Limit(name, _number(most, where, how), _number(answers, where, how) if at else 0.0)
    if limit.answers == math.inf:
        raise ConfigError(f"{where}: 'inf' answers are too many; it must be {how}")
    return limit


def _number(text: str, where: str, how: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not value >= 0:
        raise ConfigError(f"{where}: '{text}' is no number from 0 on; it must be {how}")
    return value


# -- blocks ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Reached:
    """A method within some limits: after the last of its rounds that is within all of them.

    Attributes:
        algo: The method, or ``reference``, which nothing limits.
        state: ``beyond`` where no round is within; ``unknown`` where the cost or divergence of the round that
            would be the last is not known.
        least: Limit -> least amount of all rounds, as far as it is known.
        round: The round; None where there is none, and no later field then.
        result: Result in the metric by which methods are judged.
        kl: Divergence from the reference in nats per sequence.
        cost: Cost up to this round.
        is_tested: Whether its measures by prompt are there to be tested.
        has_weights: Whether all of its weights are stored.
    """

    algo: str
    state: Literal["within", "beyond", "unknown"]
    least: Mapping[str, float]
    round: int | None = None
    result: record.PooledRow | None = None
    kl: float | None = None
    cost: CostRow | None = None
    is_tested: bool = False
    has_weights: bool = True


@dataclass(frozen=True, kw_only=True)
class Block:
    """Results of the methods of a dataset and model within some limits.

    Attributes:
        at: The limits, as they are typed.
        dataset: Name of the dataset.
        model: Name of the model.
        metric: Metric by which methods are judged.
        methods: The reference, then every method.
        comparisons: Comparisons of methods within: each with the reference, then each with each, both corrected
            by themselves; `round` is that of the first.
    """

    at: Limits
    dataset: str
    model: str
    metric: str
    methods: list[Reached]
    comparisons: list[record.Comparison]

    @property
    def within(self) -> list[Reached]:
        """The methods within the limits."""
        return [row for row in self.methods if row.state == "within" and row.algo != REFERENCE]


def blocks_of(run: LoadedRun, limits: Sequence[Limits]) -> list[Block]:
    """Return a block for each of the requested limits, for every dataset and model.

    Raises:
        ConfigError: No method is within some limits.
        StoreError: The results of the run hold something else.
    """
    stored = Stored(run)
    blocks = [stored.block(place, at) for at in limits for place in stored.places]
    for at, own in groupby(blocks, key=lambda block: block.at):
        _refuse_nothing(at, list(own))
    return blocks


Policy = tuple[str, int]
"""A method, or the reference, after a round."""
Tested = dict[tuple[Policy, Policy], record.Comparison]


class Stored:
    """Stored data of a run on its methods."""

    def __init__(self, run: LoadedRun) -> None:
        from pipeline.runs.pooling import Group, compared, compared_at_once  # and scipy, which others do without

        results, jobs = run.results, run.jobs.values()
        self._confidence, self._compared, self._at_once = results.confidence, compared, compared_at_once
        self.places = record.by_method(row for row in results.pooled if not is_mean(row.dataset))
        costs = costs_of(results.rows, run.compute.rows, results.starts, results.teachers)
        self._costs = {(row.dataset, row.model, row.algo, row.round): row for row in costs}
        self._without_weights = {
            (job.dataset, job.model, job.algo, job.round)
            for job in jobs
            if job.weights and (run.store.is_removed(job.key) or not run.store.is_committed(job.key))
        }
        chains = record.grouped(((row.dataset, row.model, row.algo, row.round), row) for row in results.rows)
        read = record.prompt_reader(run.store, jobs, record.log_problem)

        @cache
        def group(dataset: str, model: str, algo: str, number: int) -> Group | None:
            own = chains.get((dataset, model, algo, number))
            return Group(own, read) if own else None

        self._group = group

    def block(self, place: tuple[str, str], at: Limits) -> Block:
        """Return what methods reach within some limits."""
        rounds = self.places[place]
        metric = record.primary_metric(record.cells_of(rounds)) or ""
        methods = [self._reached(place, algo, at, metric) for algo in sorted(rounds)]
        groups = {row.algo: self._group(*place, row.algo, row.round) for row in methods if row.round is not None}
        own = [group for algo, group in groups.items() if group is not None and algo != REFERENCE]
        reference = groups.get(REFERENCE)
        return Block(
            at=at,
            dataset=place[0],
            model=place[1],
            metric=metric,
            methods=sorted(methods, key=lambda row: reading_order(row.algo)),
            comparisons=[] if reference is None else self._compared([(own, reference)], self._confidence),
        )

    def compare(self, place: tuple[str, str], pairs: Iterable[tuple[Policy, Policy]]) -> Tested:
        """Test pairs of policies of a dataset and model as one family, without those that cannot be tested."""
        groups = {pair: tuple(self._group(*place, *policy) for policy in pair) for pair in dict.fromkeys(pairs)}
        named = {(one, other): pair for pair, (one, other) in groups.items() if one and other}
        return {named[pair]: found for pair, found in self._at_once(named, self._confidence).items()}

    def _reached(self, place: tuple[str, str], algo: str, at: Limits, metric: str) -> Reached:
        cells = self.places[place][algo]
        costs = {number: self._costs.get((*place, algo, number)) for number in cells}
        kls = {number: cell[KL].value if KL in cell else None for number, cell in cells.items()}
        judged: list[dict[int, bool | None]] = []
        least: dict[str, float] = {}
        for limit in at.every if algo != REFERENCE else ():
            amounts = {number: limit.amount(costs[number], kls[number]) for number in cells}
            judged.append(limit.judged(amounts))
            measured = [amount for amount in amounts.values() if amount is not None]
            least |= {limit.name: min(measured)} if measured else {}
        last = max((n for n in cells if all(verdicts[n] is not False for verdicts in judged)), default=None)
        if last is None:
            return Reached(algo=algo, state="beyond", least=least)
        if any(verdicts[last] is None for verdicts in judged):
            return Reached(algo=algo, state="unknown", least=least)
        group = self._group(*place, algo, last)
        return Reached(
            algo=algo,
            state="within",
            least=least,
            round=last,
            result=cells[last].get(metric),
            kl=kls[last],
            cost=costs[last],
            is_tested=group is not None and group.stack is not None,
            has_weights=(*place, algo, last) not in self._without_weights,
        )


def _refuse_nothing(at: Limits, blocks: Sequence[Block]) -> None:
    methods = [row for block in blocks for row in block.methods if row.algo != REFERENCE]
    if methods and not any(block.within for block in blocks):
        raise ConfigError(
            f"--at '{at.text}': no method is within that after any round. The least of each: "
            f"{first_few((_least(row) for row in methods), 'methods', '; ')}"
        )


def _least(row: Reached) -> str:
    amounts = ", ".join(f"{name} {amount:.4g}" for name, amount in row.least.items())
    return f"{row.algo} {amounts or 'not known'}"


# -- as tables, as CSV and as plain data --------------------------------------------------------------------------


def block_tables(block: Block, results: record.Results) -> list[FittedTable]:
    """Return tables of what methods have reached, and of which methods differ."""
    return [_methods_table(block, results), _pairs_table(block, 1 - results.confidence)]


def _methods_table(block: Block, results: record.Results) -> FittedTable:
    def of_cost(name: str) -> Callable[[Reached], float | None]:
        return lambda row: None if row.algo == REFERENCE else getattr(row.cost, name, None)

    def in_total(limit: Limit) -> Callable[[Reached], float | None]:
        return lambda row: None if row.algo == REFERENCE else limit.amount(row.cost, row.kl)

    def rank(name: str, else_: int) -> int:
        return 3 if any(limit.name == name for limit in block.at.every) else else_

    totals = [limit for limit in block.at.every if limit.name == _TOTAL]
    columns: list[Told] = [
        (Column(heading="algorithm", least=LEAST_NAME), lambda row: row.algo),
        numbers("round", 2, lambda row: row.round, str, none="-"),
        *result_columns(block.metric, block.methods, lambda row: row.result),
        numbers("KL/seq", rank("kl", 5), lambda row: row.kl),
        numbers("FLOPs", 3, of_cost("flops"), si),
        numbers("per answer", rank("flops_per_answer", 7), lambda row: getattr(row.cost, "answer", None), si),
        *(numbers(_TOTAL, 3, in_total(limit), si) for limit in totals[:1]),
        numbers("tokens", rank("tokens", EXTRA), of_cost("tokens"), si),
    ]
    return told_table(
        columns,
        [block.methods],
        title=title(block.dataset, block.model, f"at {block.at.text}"),
        caption=lambda shown: "\n".join(_about_methods(block, results, shown)),
    )


def _about_methods(block: Block, results: record.Results, shown: Collection[str]) -> Iterator[str]:
    meant = dict.fromkeys(f"{limit.name}: {LIMITS[limit.name]}" for limit in block.at.every)
    yield f"Each method after its last round within the limit. {'; '.join(meant)}."
    for state, words in (
        ("beyond", "Never within it; the least"),
        ("unknown", "Not known to be within it; the least"),
    ):
        if least := [_least(row) for row in block.methods if row.state == state]:
            yield f"{words}: {first_few(least, 'methods', '; ')}."
    there = [row for row in block.methods if row.round is not None]
    rows = {(row.algo, row.round or 0): row.result for row in there if row.result is not None}
    if "interval" in shown and any(row.ci_low is not None for row in rows.values()):
        yield what_intervals_hold_for(rows)
    if gone := [f"{row.algo} round {row.round}" for row in there if not row.has_weights]:
        yield f"Weights are stored no more: {first_few(gone, 'rounds')}."
    yield from about_bounds(results.bounded_among(row.algo for row in there), shown)


def _pairs_table(block: Block, level: float) -> FittedTable:
    places = places_of(end for one in block.comparisons for end in (one.difference, one.ci_low, one.ci_high))
    columns: list[Told] = [
        (Column(heading="first", least=LEAST_NAME), lambda pair: pair.first),
        (Column(heading="second", least=LEAST_NAME), lambda pair: pair.second),
        (number_column("difference", 1), lambda pair: decimal(pair.difference, "+", places)),
        (number_column("difference interval", 3), lambda pair: interval(pair.ci_low, pair.ci_high, "+", places)),
        numbers("p", 2, lambda pair: pair.p, p_value),
        (Column(heading="test", rank=4), lambda pair: pair.test),
    ]
    families = groupby(block.comparisons, key=lambda pair: pair.second == REFERENCE)
    return told_table(columns, (own for _, own in families), caption="\n".join(_about_pairs(block, level)).strip())


def _about_pairs(block: Block, level: float) -> Iterator[str]:
    if tested := block.comparisons:
        pairs = [pair for pair in tested if pair.second != REFERENCE]
        families = [count(len(tested) - len(pairs), "comparison")] + ([count(len(pairs), "pair")] if pairs else [])
        chains = [count(tested[0].references, "reference")] if tested[0].references > 1 else []
        chains += [count(tested[0].seeds, "seed"), count(min(pair.n for pair in tested), "prompt")]
        yield f"p: corrected for {' and for '.join(families)} (Holm), of {', '.join(chains)} that all have."
        if pairs:
            yield f"At the level of {level:.2g}: {_told_apart(pairs, level)}."
    if untested := [
        f"{row.algo} round {row.round}" for row in block.methods if row.round is not None and not row.is_tested
    ]:
        rounds = first_few(untested, "rounds")
        yield f"Not tested, as what was measured prompt by prompt is stored no more: {rounds}."


def _told_apart(pairs: Iterable[record.Comparison], level: float) -> str:
    above: dict[str, list[str]] = {}
    apart = 0
    every = list(pairs)
    for pair in every:
        if pair.p < level:
            apart += 1
            better, worse = (pair.first, pair.second) if pair.difference > 0 else (pair.second, pair.first)
            above.setdefault(better, []).append(worse)
    sentences = [f"{better} is above {first_few(worse, 'methods')}" for better, worse in sorted(above.items())]
    if apart < len(every):
        sentences.append(f"{count(len(every) - apart, 'pair')} not told apart")
    return first_few(sentences, "methods", "; ")


_PLACE = ("at", "dataset", "model", "metric")
_OF_RESULT = ("value", "ci_low", "ci_high", "over", "references", "seeds", "n")
_OF_COST = {"training_flops": "flops", "tokens": "tokens", "flops_per_answer": "answer"}
_OF_PAIR = {
    "difference": "difference",
    "difference_low": "ci_low",
    "difference_high": "ci_high",
    **{f"difference_{name}": name for name in ("over", "references", "seeds", "n")},
    **{name: name for name in ("p", "test", "detectable")},
}
"""Column of a difference in ``pooled.csv`` -> field of a comparison."""


def block_data(block: Block) -> dict[str, Any]:
    """Return a block as plain data."""
    return {
        **dict(zip(_PLACE, (block.at.text, block.dataset, block.model, block.metric), strict=True)),
        "methods": [_method_data(row) for row in block.methods],
        "comparisons": [
            {"first": pair.first, "second": pair.second}
            | {name: getattr(pair, kept) for name, kept in _OF_PAIR.items()}
            for pair in block.comparisons
        ],
    }


def _method_data(row: Reached) -> dict[str, Any]:
    return {
        "algo": row.algo,
        "state": row.state,
        "round": row.round,
        **{name: getattr(row.result, name, None) for name in _OF_RESULT},
        KL: row.kl,
        **{name: getattr(row.cost, kept, None) for name, kept in _OF_COST.items()},
        "has_weights": row.has_weights,
        "is_tested": row.is_tested,
        "least": dict(row.least),
    }


def blocks_csv(blocks: Iterable[Block]) -> str:
    """Return blocks as a table: a row per method, with its difference to the reference, then one per pair."""
    names = [*_PLACE, "algo", "state", "round", *_OF_RESULT, KL, *_OF_COST, "second", "second_round", *_OF_PAIR]
    rows = [row for block in blocks for row in _csv_rows(block_data(block))]
    return record.csv_text(names, ([row.get(name) for name in names] for row in rows))


def _csv_rows(data: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    methods = {row["algo"]: row for row in data["methods"]}
    compared = {(pair["first"], pair["second"]): pair for pair in data["comparisons"]}
    pairs = [(algo, REFERENCE) for algo in methods] + [pair for pair in compared if REFERENCE not in pair]
    for first, second in pairs:
        other = methods.get(second, {}) if first != REFERENCE else {}
        apart = {"second": other.get("algo"), "second_round": other.get("round")}
        yield {**data, **methods[first], **compared.get((first, second), {}), **apart}
