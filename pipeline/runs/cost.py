"""Costs of results, from the store: tokens, FLOPs and device time by chain and round.

Costs are in ``compute.json`` and not in ``results.json``, because device time depends on the machine, and a store
may lose costs but keep the outputs.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from pipeline.config.schema import EvaluationConfig
from pipeline.config.tables import is_mean, point_of
from pipeline.engine.store.store import ANSWERS, FLOPS, Store
from pipeline.files import json_text, write_whole
from pipeline.foreign import recall
from pipeline.learning.algos.base import FIND, GENERATE, METRICS, REFERENCE, START_TRAIN, TEACHER_TRAIN, Read
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
    """Cost of a stage in one round of a chain, as far as it ran; each method counts draws that methods share.

    A number is None if it is unknown for some output, since the sum of the others would be too small.

    Attributes:
        dataset: Name of the dataset.
        model: Name of the model.
        reference: Seed of the reference of the chain; None if it has no such seed.
        algo: Algorithm, ``reference``, or ``dataset`` for its preparation.
        seed: Seed of the chain; None for work that all seeds share.
        round: Number of the round.
        stage: Name of the stage.
        tokens: Tokens generated, plus tokens trained on, prompts included, counting every pass.
        device_s: Seconds that devices were in use, without `load_s` and failed attempts; a multi-GPU job counts
            all of its devices, and a job on a shared device counts like one that is alone.
        load_s: Further seconds of importing libraries and loading models; the first job of a worker pays for all.
        answers: Completions that were evaluated.
        flops: FLOPs, see `learning.models.flops`.
        flops_by_purpose: FLOPs by purpose: ``decoding``, ``guidance``, ``scoring``, ``rewards``, ``training``;
            without outputs for which this is unknown.
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
    """Cost of a method's chain up to the end of a round: the mean over the chains of its result.

    What another program spent on a checkpoint is unknown.

    Attributes:
        dataset: Name of the dataset.
        model: Name of the model.
        algo: The method.
        round: Number of the round; 0 for the reference.
        flops: FLOPs without evaluation; None if unknown.
        answer: FLOPs of one answer after that round; None if unknown.
        device_s: Seconds that devices were in use, without evaluation and loading; None if unknown.
        load_s: Further seconds of loading; None if unknown.
        tokens: Tokens drawn, plus tokens trained on with their prompts, without evaluation; None if unknown.
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
    """A method's last round whose cumulative training FLOPs fit the budget.

    Attributes:
        dataset: Name of the dataset.
        model: Name of the model.
        algo: The method.
        budget: FLOPs per chain.
        is_known: Whether FLOPs are known for every round that may fit; if not, later fields are None.
        round: The round; None if the first one exceeds the budget.
        flops: Its cumulative FLOPs, the mean over the chains.
        metric: Metric by which methods are judged.
        value: The result after that round.
        ci_low: Lower end of its interval.
        ci_high: Upper end.
        kl: KL divergence from the reference in nats per sequence.
        over: Scope of the interval.
        references: Number of references in the mean; None without a value, like the next two.
        seeds: Number of seeds of each reference.
        n: Number of prompts.
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
    """Content of ``compute.json``.

    Attributes:
        rows: Costs of stages.
        costs: Costs of methods by round.
        budgets: Methods at training budgets.
    """

    rows: list[ComputeRow] = field(default_factory=list)
    costs: list[CostRow] = field(default_factory=list)
    budgets: list[BudgetRow] = field(default_factory=list)


def collect_compute(store: Store, jobs: Iterable[Job]) -> list[ComputeRow]:
    """Add up the costs of each stage over the shards that ran."""
    every = list(jobs)
    made = _made(store, every)
    every += _drawn_for_others(every)
    every += _rounds_of_others(every)
    by_stage: dict[tuple[int | None, _Where], list[tuple[Job, Mapping[str, float]]]] = {}
    for job in every:
        if job.key in made:
            where = (job.dataset, job.model, job.algo, job.seed, job.round, job.stage)
            by_stage.setdefault((job.reference, where), []).append((job, store.costs.of(job.key)))
    rows = [_row(where, reference, shards) for (reference, where), shards in by_stage.items()]
    return sorted(rows, key=lambda row: tuple(str(value) for value in asdict(row).values()))


def _drawn_for_others(jobs: Sequence[Job]) -> list[Job]:
    """Return jobs that draw for several methods, copied for each method but the one in their name."""
    draws = {job.key: job for job in jobs if job.stage == GENERATE.name}
    readers = {(key, job.algo) for job in jobs for keys in job.inputs.values() for key in keys if key in draws}
    return [replace(draws[key], algo=algo) for key, algo in sorted(readers) if draws[key].algo != algo]


def _rounds_of_others(jobs: Sequence[Job]) -> list[Job]:
    """Return jobs of rounds that a chain shares with the one that it continues, copied for it."""
    evaluated = {job.key: job for job in jobs if job.stage == "evaluate" and job.algo != REFERENCE}
    shared: dict[tuple[str, str, int | None, int | None, str], tuple[str, int]] = {}
    for job in jobs:
        for key in job.inputs.get("evaluate@previous", ()) if job.stage == METRICS.name else ():
            if key in evaluated and evaluated[key].algo != job.algo:
                at = (point_of(job.dataset)[0], job.model, job.reference, job.seed, job.algo)
                shared[at] = (evaluated[key].algo, evaluated[key].round)
    copies: dict[tuple[str, str], Job] = {}
    known = {(job.key, job.algo) for job in jobs}
    for (*place, algo), (other, last) in sorted(shared.items(), key=lambda of: of[1][1]):
        for job in [*jobs, *copies.values()]:  # as the other may continue a third, from an earlier round
            is_there = [job.dataset, job.model, job.algo] == [*place[:2], other] and job.round <= last
            is_its = job.reference in (None, place[2]) and job.seed in (None, place[3])
            if is_there and is_its and job.stage not in EVALUATION and (job.key, algo) not in known:
                copies[job.key, algo] = replace(job, algo=algo)
    return list(copies.values())


def total(amounts: Iterable[float | None]) -> float | None:
    """Return the sum, 0 for no amounts; None if one is unknown."""
    every = list(amounts)
    measured = [amount for amount in every if amount is not None]
    return sum(measured) if len(measured) == len(every) else None


def _made(store: Store, jobs: Iterable[Job]) -> set[str]:
    """Return the keys of stored outputs, and of their inputs, which may have been removed since."""
    inputs = {job.key: [key for keys in job.inputs.values() for key in keys] for job in jobs}
    made: set[str] = set()
    pending = [key for key in inputs if store.is_committed(key)]
    while pending:
        key = pending.pop()
        if key not in made:
            made.add(key)
            pending += inputs.get(key, [])
    return made


def _row(where: _Where, reference: int | None, shards: Sequence[tuple[Job, Mapping[str, float]]]) -> ComputeRow:
    def whole(name: str) -> float | None:
        return total(cost.get(name) for _, cost in shards)

    tokens, answers = whole("tokens"), whole(ANSWERS)
    timed = all("run_s" in cost and "load_s" in cost for _, cost in shards)
    load_s = total(cost["load_s"] * job.devices if "load_s" in cost else None for job, cost in shards)
    work_s = sum(max(0.0, cost["run_s"] - cost["load_s"]) * job.devices for job, cost in shards) if timed else None
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
    """Write ``compute.json`` to the folder of a run: costs, and the versions that made the outputs."""
    data = {**asdict(compute), "made_with": [asdict(maker) for maker in makers]}
    write_whole(folder / FILE, json_text(data, indent=1) + "\n")


def read_compute(folder: Path) -> Compute:
    """Read ``compute.json`` of a run; empty if it is missing or invalid, as it is for people only."""
    return recall(folder / FILE, Compute, follow=True) or Compute()


# -- of chains and methods -------------------------------------------------------------------------------------
# Costs of methods: the mean over the chains of their results. A failed or interrupted chain has no result after
# that round, so its cost does not count.


_Method = tuple[str, str, str]


def costs_of(
    results: Iterable[record.ResultRow], compute: Iterable[ComputeRow], *taken: Mapping[str, str]
) -> list[CostRow]:
    """Return the costs of every method up to each round; methods without known costs are left out.

    Args:
        results: Rows of all chains.
        compute: Costs of their stages.
        *taken: Method -> a method whose last model it uses, whose whole cost it includes.
    """
    from pipeline.runs.pooling import whole_grid  # numpy too, which reading costs does not need

    spent = record.grouped(((row.dataset, row.model, row.algo), row) for row in compute)
    cells = record.grouped(
        (((row.dataset, row.model, row.algo), row.round), (record.place_of(row)[2], row.seed)) for row in results
    )

    def of_chain(method: _Method, cell: tuple[int, int], number: float) -> list[ComputeRow]:
        """Return the rows of a chain up to a round: its own, those shared by seeds, and of models that it uses."""
        (reference, seed), (dataset, model, algo) = cell, method
        trained_on, test_set = point_of(dataset)
        every = list(spent.get(method, ()))
        if test_set:  # where it is evaluated alone
            every += [row for row in spent.get((trained_on, model, algo), ()) if row.stage not in EVALUATION]
        own = [
            row
            for row in every
            if (-1 if row.reference is None else row.reference) == reference
            and row.seed in (None, seed)
            and row.round <= number
        ]
        others = dict.fromkeys(of[algo] for of in taken if algo in of)
        before = [row for other in others for row in of_chain((dataset, model, other), cell, math.inf)]
        return [*own, *(row for row in before if row.stage not in EVALUATION)]

    return [
        _cost(method, number, [of_chain(method, cell, number) for cell in whole_grid(evaluated).cells])
        for (method, number), evaluated in sorted(cells.items())
        if method in spent
    ]


def _cost(method: _Method, number: int, chains: Sequence[Sequence[ComputeRow]]) -> CostRow:
    dataset, model, algo = method
    trained = [row for chain in chains for row in chain if row.stage not in EVALUATION]
    is_outside = bool(trained) and all(row.stage == FIND.name for row in trained)
    evaluated = [row for chain in chains for row in chain if (row.round, row.stage) == (number, "evaluate")]

    def mean(name: str) -> float | None:
        amount = None if is_outside else total(getattr(row, name) for row in trained)
        return None if amount is None else amount / len(chains)

    # Guidance and selection of an answer count, and all completions from which it is selected.
    answers, answer = total(row.answers for row in evaluated), None
    if answers and all(row.flops is not None for row in evaluated):
        answer = sum(row.flops_by_purpose.get(name, 0) for row in evaluated for name in ANSWERING) / answers
    means = {name: mean(name) for name in ("flops", "device_s", "load_s", "tokens")}
    return CostRow(dataset=dataset, model=model, algo=algo, round=number, answer=answer, **means)


def at_budgets(
    pooled: Iterable[record.PooledRow], costs: Iterable[CostRow], budgets: Sequence[float]
) -> list[BudgetRow]:
    """Return each method's last round within each budget; rounds are never interpolated.

    Args:
        pooled: Numbers of methods.
        costs: Costs of methods.
        budgets: Training FLOPs of one chain, all rounds together.
    """
    spent = {(row.dataset, row.model, row.algo, row.round): row.flops for row in costs}
    rows: list[BudgetRow] = []
    for (dataset, model), methods in sorted(
        record.by_method(row for row in pooled if not is_mean(row.dataset)).items()
    ):
        primary = record.primary_metric(record.cells_of(methods))
        for budget in sorted(budgets):
            for algo, rounds in sorted(methods.items()):
                taken = {number: spent.get((dataset, model, algo, number)) for number in rounds}
                bare = BudgetRow(dataset=dataset, model=model, algo=algo, budget=budget)
                last = _last_within(taken, budget)
                if algo != REFERENCE:
                    rows.append(bare if last is None else _after(bare, last, taken[last], rounds[last], primary))
    return rows


def _last_within(taken: Mapping[int, float | None], budget: float) -> int | None:
    """Return the last round that is, or may be, within a budget; None if each is known to exceed it.

    A round of unknown cost takes at least as much as the rounds before it.
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
    reached, row, kl = replace(bare, round=number, flops=flops), cell.get(primary or ""), cell.get(record.KL)
    if row is None:
        return reached
    same = ("metric", "value", "ci_low", "ci_high", "over", "references", "seeds", "n")
    return replace(reached, kl=None if kl is None else kl.value, **{name: getattr(row, name) for name in same})


# -- of a run --------------------------------------------------------------------------------------------------
# Shared by the end of a run and by readers of a run in progress, so that both show the same.


def results_of(
    store: Store,
    jobs: Sequence[Job],
    last_round: int,
    settings: EvaluationConfig,
    *,
    bounded: Iterable[str],
    tell: record.Told | None = None,
) -> record.Results:
    """Return the results of the stored jobs.

    Args:
        store: The store.
        jobs: Jobs of a plan.
        last_round: Last round of the run.
        settings: Evaluation settings of the run.
        bounded: Algorithms whose KL divergence is an upper bound.
        tell: Called with a message for an unreadable stored output.
    """
    # Imported here: scipy is slow to load, and commands without pooling do not need it.
    from pipeline.runs.pooling import fronts, pooled

    rows = record.collect_rows(store, jobs, tell)
    methods, comparisons = pooled(rows, record.prompt_reader(store, jobs, tell), last_round, settings.confidence)
    points, matched = fronts(methods, settings.matched_kl, settings.split)
    return record.Results(
        rows=rows,
        pooled=methods,
        comparisons=comparisons,
        confidence=settings.confidence,
        common_eta=settings.common_eta,
        split=settings.split,
        fronts=points,
        matched=matched,
        bounded=list(bounded),
        grown_from=settings.grown_from,
        starts=_taken(jobs, START_TRAIN),
        teachers=_taken(jobs, TEACHER_TRAIN),
    )


def _taken(jobs: Sequence[Job], read: Read) -> dict[str, str]:
    """Return the methods that read the model of another method, and that method."""
    made_by = {job.key: job.algo for job in jobs}
    return {job.algo: made_by[key] for job in jobs for key in job.inputs.get(read.name, ()) if key in made_by}


def compute_of(store: Store, jobs: Iterable[Job], results: record.Results, budgets: Sequence[float]) -> Compute:
    """Return the costs of the results, as far as the store has them.

    Args:
        store: The store.
        jobs: All jobs of the plan.
        results: The results.
        budgets: FLOPs of training at which methods are compared.
    """
    rows = collect_compute(store, jobs)
    costs = costs_of(results.rows, rows, results.starts, results.teachers)
    return Compute(rows=rows, costs=costs, budgets=at_budgets(results.pooled, costs, budgets))
