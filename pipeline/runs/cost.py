"""What results took to make, as the store remembers it: tokens, FLOPs and device time by chain and round.

Device time depends on the machine, and what a store remembers may be lost where its outputs are not, so none of
this is in ``results.json``; it goes to ``compute.json``.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from pipeline.config.schema import EvaluationConfig
from pipeline.engine.store.store import ANSWERS, FLOPS, Store
from pipeline.files import json_text, write_whole
from pipeline.foreign import recall
from pipeline.learning.algos.base import GENERATE, REFERENCE, START_TRAIN
from pipeline.outputs.formats import ANSWERING
from pipeline.plan.graph import Job
from pipeline.runs import record
from pipeline.runs.origin import Maker

FILE = "compute.json"
EVALUATION = ("evaluate", "metrics", "sweep")
"""Stages that measure and do not train."""
_Count = Annotated[int, Meta(ge=0, le=10**18)]
_Amount = Annotated[float, Meta(ge=0, le=1e18)]
_Flops = Annotated[float, Meta(ge=0, le=1e36)]

_Where = tuple[str, str, str, int | None, int, str]


@dataclass(frozen=True, order=True)
class ComputeRow:
    """What a stage of one round of a chain took, as far as it was carried out; what methods draw once, each took.

    A number is None where it is not known of some output, as its cost was lost: the rest would be too little.

    Attributes:
        dataset: Name of the dataset.
        model: Name of the model.
        reference: Seed of the reference that the chain rests on; None where there is no such seed.
        algo: Algorithm, ``reference``, or ``dataset`` for its preparation.
        seed: Seed of the chain; None for work that all seeds share.
        round: Of the chain.
        stage: Of the round.
        tokens: Generated, and those that trainings go over, prompts included, as often as they do.
        device_s: Seconds that a device was held, without `load_s` and attempts that failed; a job on several
            devices holds all of them, and one that shares a device counts as if it did not.
        load_s: Seconds besides that it was held for importing libraries and loading models, which whoever comes
            first to a worker pays for all.
        answers: Completions that were evaluated.
        flops: What was computed, see `learning.models.flops`.
        flops_by_purpose: The same by what they went into: ``decoding``, ``guidance``, ``scoring``, ``rewards``,
            ``training``; without outputs of which it is not known.
    """

    dataset: str
    model: str
    reference: int | None = field(default=None, kw_only=True)
    algo: str
    seed: int | None
    round: int
    stage: str
    tokens: _Count | None
    device_s: _Amount | None
    load_s: _Amount | None
    answers: _Count | None = None
    flops: _Flops | None = None
    flops_by_purpose: Mapping[str, _Flops] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class CostRow:
    """What a chain of a method takes up to the end of a round: the mean over those that its result rests on.

    Attributes:
        dataset: Name of the dataset.
        model: Name of the model.
        algo: The method.
        round: Of the chains; 0 for the reference.
        flops: Without evaluation; None where they are not known.
        answer: FLOPs of an answer after that round, likewise.
        device_s: Seconds that a device was held, without evaluation and loading, likewise.
        load_s: Seconds besides, for loading, likewise.
        tokens: Drawn, and gone over by trainings with their prompts; without evaluation, likewise.
    """

    dataset: str
    model: str
    algo: str
    round: int
    flops: _Flops | None
    answer: _Flops | None
    device_s: _Amount | None
    load_s: _Amount | None = None
    tokens: _Amount | None = None


@dataclass(frozen=True, kw_only=True)
class BudgetRow:
    """A method at a training budget: after its last round whose training, all rounds before included, is within.

    Attributes:
        dataset: Name of the dataset.
        model: Name of the model.
        algo: The method.
        budget: FLOPs that a chain may take.
        is_known: Whether FLOPs are known of every round that may be within; where they are not, no later field is.
        round: The round; None where the first one takes more.
        flops: What it has taken, the mean over the chains.
        metric: What methods are judged by.
        value: The result after that round.
        ci_low: Lower end of its interval.
        ci_high: Upper end.
        kl: Divergence from the reference in nats per sequence.
        over: What the interval holds for.
        references: Number of references that the value is over; None where there is no value, as are the next two.
        seeds: Number of seeds, which every one of the references has.
        n: Prompts.
    """

    dataset: str
    model: str
    algo: str
    budget: _Flops
    is_known: bool = True
    round: int | None = None
    flops: _Flops | None = None
    metric: str = ""
    value: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    kl: float | None = None
    over: record.Scope | None = None
    references: _Count | None = None
    seeds: _Count | None = None
    n: _Count | None = None


@dataclass(frozen=True, kw_only=True)
class Compute:
    """What ``compute.json`` says.

    Attributes:
        rows: Of stages.
        costs: Of methods by round.
        budgets: Of methods at training budgets.
    """

    rows: list[ComputeRow] = field(default_factory=list)
    costs: list[CostRow] = field(default_factory=list)
    budgets: list[BudgetRow] = field(default_factory=list)


def collect_compute(store: Store, jobs: Iterable[Job]) -> list[ComputeRow]:
    """Add up the shards of every stage, those that were carried out."""
    every = list(jobs)
    made = _made(store, every)
    every += _drawn_for_others(every)
    found: dict[tuple[int | None, _Where], list[tuple[Job, Mapping[str, float]]]] = {}
    for job in every:
        if job.key in made:
            where = (job.dataset, job.model, job.algo, job.seed, job.round, job.stage)
            found.setdefault((job.reference, where), []).append((job, store.costs.of(job.key)))
    rows = [_row(where, reference, shards) for (reference, where), shards in found.items()]
    return sorted(rows, key=lambda row: tuple(str(value) for value in asdict(row).values()))


def _drawn_for_others(jobs: Sequence[Job]) -> list[Job]:
    """Jobs that draw for several methods, as those of the methods that they are not named after."""
    draws = {job.key: job for job in jobs if job.stage == GENERATE.name}
    found = {(key, job.algo) for job in jobs for keys in job.inputs.values() for key in keys if key in draws}
    return [replace(draws[key], algo=algo) for key, algo in sorted(found) if draws[key].algo != algo]


def total(amounts: Iterable[float | None]) -> float | None:
    """Their sum, 0 of none; None where one is not known."""
    found = list(amounts)
    known = [amount for amount in found if amount is not None]
    return sum(known) if len(known) == len(found) else None


def _made(store: Store, jobs: Iterable[Job]) -> set[str]:
    """Keys of outputs that are stored, and of those that they rest on, which may have been lost since."""
    inputs = {job.key: [key for keys in job.inputs.values() for key in keys] for job in jobs}
    made: set[str] = set()
    left = [key for key in inputs if store.is_committed(key)]
    while left:
        key = left.pop()
        if key not in made:
            made.add(key)
            left += inputs.get(key, [])
    return made


def _row(where: _Where, reference: int | None, shards: Sequence[tuple[Job, Mapping[str, float]]]) -> ComputeRow:
    def whole(name: str) -> float | None:
        return total(cost.get(name) for _, cost in shards)

    tokens, answers = whole("tokens"), whole(ANSWERS)
    known = all("run_s" in cost and "load_s" in cost for _, cost in shards)
    load_s = total(cost["load_s"] * job.devices if "load_s" in cost else None for job, cost in shards)
    work_s = sum(max(0.0, cost["run_s"] - cost["load_s"]) * job.devices for job, cost in shards) if known else None
    purposes = sorted({name for _, cost in shards for name in cost if name.startswith(f"{FLOPS}/")})
    return ComputeRow(
        *where,
        None if tokens is None else int(tokens),
        None if work_s is None else round(work_s, 3),
        None if load_s is None else round(load_s, 3),
        None if answers is None else int(answers),
        whole(FLOPS),
        {name.partition("/")[2]: sum(cost.get(name, 0) for _, cost in shards) for name in purposes},
        reference=reference,
    )


def write_compute(folder: Path, compute: Compute, makers: Iterable[Maker] = ()) -> None:
    """Write ``compute.json`` to the folder of a run: what was spent, and what the outputs were made with."""
    found = {**asdict(compute), "made_with": [asdict(maker) for maker in makers]}
    write_whole(folder / FILE, json_text(found, indent=1) + "\n")


def read_compute(folder: Path) -> Compute:
    """Read ``compute.json`` of a run; empty where it has none that can be used, as it is for people only."""
    return recall(folder / FILE, Compute, follow=True) or Compute()


# -- of chains and methods -------------------------------------------------------------------------------------
# What methods take: the mean over the chains that their results rest on. A chain that has failed or was
# interrupted has no result after that round, so what it has taken until then counts for none.


_Method = tuple[str, str, str]
_KL = "kl_per_sequence"


def costs_of(
    results: Iterable[record.ResultRow], compute: Iterable[ComputeRow], starts: Mapping[str, str]
) -> list[CostRow]:
    """What every method takes up to the end of each round; methods of which nothing is known are left out.

    Args:
        results: Rows of all chains.
        compute: What their stages took.
        starts: Method -> that whose last policy it begins with, so that it takes all that that one takes.
    """
    from pipeline.runs.pooling import whole_grid  # and numpy, which reading costs does without

    spent: dict[_Method, list[ComputeRow]] = {}
    for row in compute:
        spent.setdefault((row.dataset, row.model, row.algo), []).append(row)
    cells: dict[tuple[_Method, int], set[tuple[int, int]]] = {}
    for result in results:
        method = (result.dataset, result.model, result.algo)
        cells.setdefault((method, result.round), set()).add((record.place_of(result)[2], result.seed))

    def of_chain(method: _Method, cell: tuple[int, int], number: float) -> list[ComputeRow]:
        """What a chain has taken up to a round: of its own, what all seeds share, and what it began with."""
        (reference, seed), (dataset, model, algo) = cell, method
        own = [
            row
            for row in spent.get(method, ())
            if (-1 if row.reference is None else row.reference) == reference
            and row.seed in (None, seed)
            and row.round <= number
        ]
        before = of_chain((dataset, model, starts[algo]), cell, math.inf) if algo in starts else []
        return [*own, *(row for row in before if row.stage not in EVALUATION)]

    return [
        _cost(method, number, [of_chain(method, cell, number) for cell in whole_grid(found).cells])
        for (method, number), found in sorted(cells.items())
        if method in spent
    ]


def _cost(method: _Method, number: int, chains: Sequence[Sequence[ComputeRow]]) -> CostRow:
    dataset, model, algo = method
    trained = [row for chain in chains for row in chain if row.stage not in EVALUATION]
    evaluated = [row for chain in chains for row in chain if (row.round, row.stage) == (number, "evaluate")]

    def mean(name: str) -> float | None:
        found = total(getattr(row, name) for row in trained)
        return None if found is None else found / len(chains)

    # What guides an answer or picks it counts, and further completions that it is picked from.
    answers, answer = total(row.answers for row in evaluated), None
    if answers and all(row.flops is not None for row in evaluated):
        answer = sum(row.flops_by_purpose.get(name, 0) for row in evaluated for name in ANSWERING) / answers
    means = {name: mean(name) for name in ("flops", "device_s", "load_s", "tokens")}
    return CostRow(dataset=dataset, model=model, algo=algo, round=number, answer=answer, **means)


def at_budgets(
    pooled: Iterable[record.PooledRow], costs: Iterable[CostRow], budgets: Sequence[float]
) -> list[BudgetRow]:
    """What every method has reached within each budget after its last round; rounds are never interpolated.

    Args:
        pooled: Numbers of methods.
        costs: What they took.
        budgets: FLOPs that the training of one chain may take, all rounds together.
    """
    spent = {(row.dataset, row.model, row.algo, row.round): row.flops for row in costs}
    found: list[BudgetRow] = []
    for (dataset, model), methods in sorted(record.by_method(pooled).items()):
        primary = record.primary_metric(record.cells_of(methods))
        for budget in sorted(budgets):
            for algo, rounds in sorted(methods.items()):
                taken = {number: spent.get((dataset, model, algo, number)) for number in rounds}
                bare = BudgetRow(dataset=dataset, model=model, algo=algo, budget=budget)
                last = _last_within(taken, budget)
                if algo != REFERENCE:
                    found.append(bare if last is None else _after(bare, last, taken[last], rounds[last], primary))
    return found


def _last_within(taken: Mapping[int, float | None], budget: float) -> int | None:
    """The last round that is within a budget, or may be; None where each is known to take more.

    A round that is not known takes no less than the rounds before it.
    """
    beyond = [number for number, flops in taken.items() if flops is not None and flops > budget]
    too_much = min(beyond, default=math.inf)
    return max(
        (n for n, flops in taken.items() if (n < too_much if flops is None else flops <= budget)), default=None
    )


def _after(
    bare: BudgetRow, number: int, flops: float | None, cell: record.ByMetric, primary: str | None
) -> BudgetRow:
    if flops is None:
        return replace(bare, is_known=False)
    reached, row, kl = replace(bare, round=number, flops=flops), cell.get(primary or ""), cell.get(_KL)
    if row is None:
        return reached
    same = ("metric", "value", "ci_low", "ci_high", "over", "references", "seeds", "n")
    return replace(reached, kl=None if kl is None else kl.value, **{name: getattr(row, name) for name in same})


# -- of a run --------------------------------------------------------------------------------------------------
# The end of a run and whoever looks at one that is not over come here, so that both tell the same.


def results_of(
    store: Store,
    jobs: Sequence[Job],
    last_round: int,
    settings: EvaluationConfig,
    *,
    bounded: Iterable[str],
    tell: record.Told | None = None,
) -> record.Results:
    """The results of the jobs that are stored.

    Args:
        store: The store.
        jobs: Jobs of a plan.
        last_round: Of the run.
        settings: How the run judges.
        bounded: Algorithms whose divergence is an upper bound.
        tell: Takes what cannot be read of a job's stored output, in words.
    """
    # Not with the other imports: scipy takes time to load, which commands that pool nothing need not wait for.
    from pipeline.runs.pooling import fronts, pooled

    rows = record.collect_rows(store, jobs, tell)
    found, comparisons = pooled(rows, record.prompt_reader(store, jobs, tell), last_round, settings.confidence)
    points, matched = fronts(found, settings.matched_kl, settings.split)
    made_by = {job.key: job.algo for job in jobs}
    return record.Results(
        rows=rows,
        pooled=found,
        comparisons=comparisons,
        confidence=settings.confidence,
        common_eta=settings.common_eta,
        split=settings.split,
        fronts=points,
        matched=matched,
        bounded=list(bounded),
        starts={
            job.algo: made_by[key]
            for job in jobs
            for key in job.inputs.get(START_TRAIN.name, ())
            if key in made_by
        },
    )


def compute_of(store: Store, jobs: Iterable[Job], results: record.Results, budgets: Sequence[float]) -> Compute:
    """What the results took, as far as the store remembers it.

    Args:
        store: The store.
        jobs: All jobs of the plan.
        results: What came out.
        budgets: FLOPs of training at which methods are compared.
    """
    rows = collect_compute(store, jobs)
    costs = costs_of(results.rows, rows, results.starts)
    return Compute(rows=rows, costs=costs, budgets=at_budgets(results.pooled, costs, budgets))
