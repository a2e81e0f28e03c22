"""Check a bundle: compute the numbers of its tables anew, and compare outputs and outcomes of jobs that ran again.

Numbers follow from outcomes by the stage `metrics` as it ships and by `results_of`, so both sides come from
the same code. Keys follow from settings and from keys of inputs. No code that a bundle names is looked for.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from pipeline.config import tables
from pipeline.config.plain import value_problems
from pipeline.config.schema import DatasetConfig, EvaluationConfig, StageConfig
from pipeline.engine.store.store import Store
from pipeline.errors import PipelineError, StoreError
from pipeline.foreign import ForeignDataError, converted
from pipeline.learning.algos import parts
from pipeline.learning.algos.base import REFERENCE, JobContext
from pipeline.learning.algos.registry import load_algorithm
from pipeline.learning.datasets.base import Dataset, plain_text
from pipeline.learning.evaluation.statistics import paired_intervals
from pipeline.learning.rewards.registry import known_rewards
from pipeline.learning.rewards.scoring import Scorer
from pipeline.outputs import formats
from pipeline.outputs.formats import Sample
from pipeline.plan.contents import STATISTICS
from pipeline.plan.graph import Job, Plan, ResultKeys
from pipeline.plan.recorded import RecordedPlan
from pipeline.runs.bundle import OUTCOMES, SAMPLES, SETTINGS, Bundle, BundleError, Made
from pipeline.runs.cost import results_of
from pipeline.runs.record import METRICS_STAGE, Results, place_of
from pipeline.runs.report.format import count

_IDENTITY: Mapping[str, Sequence[str]] = {
    "rows": ("dataset", "model", "reference", "algo", "seed", "round", "metric"),
    "pooled": ("dataset", "model", "algo", "round", "metric"),
    "comparisons": ("dataset", "model", "round", "metric", "first", "second"),
    "fronts": ("dataset", "model", "round", "front", "point", "split", "metric"),
    "matched": ("dataset", "model", "round", "front", "split", "metric"),
}
"""Part of the results -> fields that name an object of it."""
_ALIKE = 1e-8
"""Relative deviation that is attributed to rounding: results have ten digits."""
_MOST_TOKENS = 1_000_000

# -- recompute ---------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Recomputed:
    """What came of the numbers of a bundle.

    Attributes:
        results: The recorded results.
        alike: How many of the recorded objects are as they should be.
        differing: What is not: an object with the fields that differ.
        unknown: Objects that nothing in the bundle could be computed from.
        altered: Outcomes that are not those that the run stored.
        problems: What else went wrong, in words.
        absent: Policies of the plan without numbers, as of jobs that failed.
    """

    results: Results
    alike: int = 0
    differing: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    altered: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        """Whether every number follows from the outcomes."""
        return not (self.differing or self.unknown or self.altered or self.problems)


def recompute(bundle: Bundle, folder: Path) -> Recomputed:
    """Compute every number of the tables from the outcomes, and compare.

    Args:
        bundle: The bundle.
        folder: An empty folder for what is computed.

    Raises:
        BundleError: A part of the bundle cannot be used.
        StoreError: The folder cannot be written to.
    """
    plan, plain, store = bundle.plan(), bundle.settings(), Store(folder)
    found = Recomputed(results=bundle.results())
    bundle.source()  # refused here, not after all that is computed
    found.altered = list(_altered(bundle))
    found.problems += list(_odd_keys(plan)) if has_settings(bundle) else []
    evaluation, rounds = _evaluation(bundle, plain)
    measured = {place_of(row) for row in found.results.rows}
    own = {job.algo for job in plan.jobs.values() if has_own_code(job)}
    every = [job for job in plan.jobs.values() if job.stage == METRICS_STAGE]
    found.absent = [f"{job.chain}, round {job.round}" for job in every if place_of(job) not in measured]
    jobs, done = [job for job in every if place_of(job) in measured], list[Job]()
    read = {key for job in jobs for keys in job.inputs.values() for key in keys}
    beside = [name for name, key, _ in bundle.outcomes if key not in read]
    if beside:  # not written, as a stranger may list a million
        found.problems.append(f"no number rests on {count(len(beside), 'file')} of outcomes, first {beside[0]}")
    for name, key, file in bundle.outcomes:
        if key in read:
            target = store.path(key) / file  # of a key and one of few names, as the pattern of members has them
            data = bundle.read(name)
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)
            except OSError as error:
                problem = f"outcomes of {bundle.path} cannot be written to {folder} ({error.strerror})"
                raise StoreError(f"{problem}. The variable TMPDIR names another folder to work in") from error
    for job in jobs:
        try:
            _measure(job, store, _of_job(plan, job, evaluation), plan.by_key)
            done.append(job)
        except (PipelineError, ForeignDataError, OSError, ValueError, LookupError, ArithmeticError) as error:
            if has_own_code(job):
                continue  # which may measure in its own way: its rows are not known
            said = " ".join(str(error).replace(str(folder), OUTCOMES).split())
            found.problems.append(f"{job.id}: its numbers cannot be computed: {said}")
    lacking = measured - {place_of(job) for job in done}
    told: list[str] = []
    others = [job for job in plan.jobs.values() if job.stage != METRICS_STAGE]
    results = results_of(
        store,
        [*others, *done],
        rounds,
        evaluation,
        bounded=found.results.bounded,
        tell=lambda job, problem: told.append(f"{job.id}: {problem}"),
    )
    found.problems += told
    _compare(found, results, own, {place[3] for place in lacking})
    shipped = {tables.point_of(job.algo)[0]: path for job in every if (path := _shipped(job))}
    found.differing += list(_bounds(found.results, shipped))
    if found.differing and (other := _other_statistics(plan)):
        found.problems.append(other)
    return found


def has_own_code(job: Job) -> bool:
    """Return whether a job is one of an algorithm that does not ship."""
    path = job.determined_by.get("class_path")
    return tables.is_own_code(None if path is None else str(path))


def _shipped(job: Job) -> str | None:
    """Return the class path of the shipped method of a job or its clone; None for others and for checkpoints."""
    path = job.determined_by.get("class_path") or tables.ALGORITHMS.get(tables.point_of(job.algo)[0])
    return None if path is None or path == tables.CHECKPOINT or tables.is_own_code(str(path)) else str(path)


def has_settings(bundle: Bundle) -> bool:
    """Return whether a bundle has the settings that a repetition needs."""
    return SETTINGS not in bundle.contents.left_out


def _odd_keys(plan: RecordedPlan) -> Iterator[str]:
    """Yield a line for keys that do not follow from settings and inputs, and for jobs under other names."""
    keys, odd = ResultKeys(), []
    for job in plan.jobs.values():
        inputs = {name: list(of) for name, of in {**job.inputs, **job.keyed}.items()}
        read = {name: tuple(key for key in of if key in plan.by_key) for name, of in job.keyed.items()}
        known = {name: value for name, value in job.determined_by.items() if name != "config"}
        labels = {"algo": job.algo, "round": job.round, "seed": job.seed or 0, "stage": job.stage}
        own = {name: known.get(name) or value for name, value in labels.items()}  # None where methods share a job
        is_odd = own != labels or {**job.inputs, **read} != job.inputs  # it reads all that has a job
        if is_odd or keys.key({**known, "inputs": inputs}, plan.config(job.id)) != job.key:
            odd.append(job.id)
    if odd:
        yield f"{count(len(odd), 'job')} of which the key does not follow from settings and inputs, first {odd[0]}"


def _of_job(plan: RecordedPlan, job: Job, evaluation: EvaluationConfig) -> EvaluationConfig:
    """Return the settings of the statistics that the key of a job covers.

    Raises:
        BundleError: They contradict those of the run.
    """
    section = plan.config(job.id).get("evaluation", {})
    for name in ("confidence", "common_eta", "bootstrap_samples", "etas", "kl_limit", "split"):
        if name in section and section[name] != getattr(evaluation, name):
            raise BundleError(f"evaluation.{name} is {section[name]} in its key, and another in the settings")
    return replace(evaluation, sample_prompts=0)  # samples to show would take room, and no number rests on them


def _altered(bundle: Bundle) -> Iterator[str]:
    outputs = bundle.outputs()
    for name, key, file in bundle.outcomes:
        known = outputs[key].files.get(file) if key in outputs else None
        is_whole = SAMPLES not in bundle.contents.left_out or not file.endswith(formats.SAMPLES)
        if known is None or (is_whole and known != bundle.contents.files[name]):
            yield f"{name} is not the file that the run stored, by its sum in outputs.json"


def _evaluation(bundle: Bundle, plain: Mapping[str, Any]) -> tuple[EvaluationConfig, int]:
    try:
        evaluation = converted(plain.get("evaluation") or {}, EvaluationConfig)
        rounds = converted(plain.get("rounds_of_training"), int)
    except ForeignDataError as error:
        raise BundleError(f"{bundle.path}: its settings of the evaluation cannot be used: {error}") from error
    if problems := list(value_problems(evaluation)):
        raise BundleError(f"{bundle.path}: its settings of the evaluation cannot be used: {problems[0]}")
    return evaluation, rounds


def _measure(job: Job, store: Store, evaluation: EvaluationConfig, jobs: Mapping[str, str]) -> None:
    """Write the metrics of a job from the outcomes of its inputs.

    Raises:
        BundleError: The outcomes of one are not there.
    """
    for keys in (job.inputs.get(name, ()) for name in ("evaluate", "evaluate@previous", "reference.evaluate")):
        # A shard that is known to be empty has a key and no job.
        if absent := [jobs[key] for key in keys if key in jobs and not store.path(key).is_dir()]:
            raise BundleError(f"the bundle has no outcomes of {absent[0]}")
    out = store.path(job.key)
    out.mkdir(parents=True)
    context = JobContext(
        job_id=job.id,
        algo=job.algo,
        seed=job.seed or 0,
        round=job.round,
        rows=(0, 0),
        config=StageConfig(evaluation=evaluation),
        inputs={
            name: tuple(store.path(key) for key in keys if key in jobs or store.path(key).is_dir())
            for name, keys in job.inputs.items()
        },
        out=out,
        device="cpu",
        checkpoints=out,
        checkpoint_every_steps=0,
        checkpoint_every_minutes=0.0,
        hints=out,
        joined=None,
        models=cast("Any", None),
        loading=nullcontext,
        progress=lambda *_, **__: None,
        stopping=lambda: False,
    )
    if (path := _shipped(job)) or job.algo == REFERENCE:
        cast("Any", load_algorithm(job.algo, path)()).metrics(context)
    else:  # as most methods do, and every checkpoint
        parts.write_metrics(context)


def _compare(found: Recomputed, results: Results, own: Collection[str], lacking: Collection[str]) -> None:
    """Compare results part by part; those of code that does not ship are unknown where they differ."""
    recorded, computed = asdict(found.results), asdict(results)
    for part, names in _IDENTITY.items():
        before, after = _named(recorded[part], names), _named(computed[part], names)
        for name in dict.fromkeys([*before, *after]):
            was, now = before.get(name), after.get(name)
            fields = [] if was is None or now is None else _differing(was, now)
            if was is not None and now is not None and not fields:
                found.alike += 1
                continue
            what = f"{part}: {' '.join(str(each) for each in name if each is not None)}"
            methods = {str((was or now or {}).get(each)) for each in ("algo", "first", "second", "front")}
            if now is None and methods & {*own, *lacking}:
                found.unknown.append(what)
            elif methods & set(own):
                found.unknown.append(f"{what}: of code that does not ship")
            elif was is None or now is None:
                found.differing.append(f"{what}: {'not recorded' if was is None else 'does not follow'}")
            else:
                told = "; ".join(f"{each} {was[each]} is recorded, {now[each]} follows" for each in fields)
                found.differing.append(f"{what}: {told}")
    for part in ("confidence", "common_eta", "split", "starts", "teachers", "grown_from"):
        if recorded[part] != computed[part]:
            found.differing.append(f"{part}: {recorded[part]} is recorded, {computed[part]} follows")


def _bounds(results: Results, shipped: Mapping[str, str]) -> Iterator[str]:
    """Yield methods whose divergence is an upper bound but is told as exact, or the other way round."""
    methods = {tables.point_of(row.algo)[0] for row in results.rows}
    for name in sorted(methods & shipped.keys()):
        if load_algorithm(name, shipped[name]).kl_is_bound is not (name in results.bounded):
            yield f"bounded: whether KL is a bound for {name} is told wrongly"


def _named(
    objects: Iterable[Mapping[str, Any]], names: Sequence[str]
) -> dict[tuple[object, ...], Mapping[str, Any]]:
    seen = Counter[tuple[object, ...]]()
    found = {}
    for each in objects:
        name = tuple(each[field] for field in names)
        found[*name, seen[name] or None] = each
        seen[name] += 1
    return found


def _differing(was: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    return [name for name in was if not _are_alike(was[name], now.get(name))]


def _are_alike(was: object, now: object) -> bool:
    if isinstance(was, float) and isinstance(now, float):
        return math.isclose(was, now, rel_tol=_ALIKE, abs_tol=_ALIKE)
    return was == now


def _other_statistics(plan: RecordedPlan) -> str:
    versions = {section.get("version", {}).get("statistics") for section in plan.sections.values()} - {None}
    if not versions or versions == {STATISTICS}:
        return ""
    was = ", ".join(map(str, sorted(versions, key=str)))
    return f"the run used version {was} of our statistics, and this is version {STATISTICS}: take that package"


# -- run again ---------------------------------------------------------------------------------------------------


CONFIDENCE = 0.99
"""Level at which all differences of outcomes together are shown."""
TOLERANCE = 0.02
"""Difference of a mean outcome, in parts of the range of outcomes, that other arithmetic may make."""


@dataclass(frozen=True, kw_only=True)
class Apart:
    """Outcomes of a policy that ran again, less the recorded ones.

    Attributes:
        policy: Chain and round.
        metric: ``pass@1`` or ``reward``.
        difference: Mean over prompts, in parts of the range of the recorded outcomes.
        low: Lower end of its interval, at `CONFIDENCE` for all together.
        high: Upper end.
        prompts: Number of prompts.
    """

    policy: str
    metric: str
    difference: float
    low: float
    high: float
    prompts: int

    def exceeds(self, tolerance: float) -> bool:
        """Return whether the interval leaves out all that is within the tolerance."""
        return self.low > tolerance or self.high < -tolerance


@dataclass(frozen=True, kw_only=True)
class Repeated:
    """What came of jobs that ran again.

    Attributes:
        jobs: How many ran.
        alike: How many of them have the recorded bytes.
        unlike: Those that do not, though their arithmetic and that of all they rest on has the recorded name.
        apart: Differences of outcomes where bytes differ.
        problems: What could not be compared, in words.
        makers: Versions and arithmetic here that differ from the recorded ones, in words.
    """

    jobs: int
    alike: int
    unlike: list[str]
    apart: list[Apart]
    problems: list[str]
    makers: list[str]

    def is_sound(self, tolerance: float) -> bool:
        """Return whether nothing speaks against the bundle."""
        return not (self.unlike or self.problems or any(one.exceeds(tolerance) for one in self.apart))


def compare_outputs(
    bundle: Bundle, plan: Plan, made: Callable[[Job], Made], read: Callable[[Job], Sequence[Sample]]
) -> Repeated:
    """Compare outputs of jobs that ran again with the recorded ones: bytes, else outcomes.

    Args:
        bundle: The bundle.
        plan: The jobs that ran, with all that they rest on.
        made: Returns the output of a job.
        read: Returns the samples of a job that evaluates.
    """
    recorded, exact, unlike, problems = bundle.outputs(), dict[str, bool](), list[str](), list[str]()
    evaluated = {key: name for name, key, file in bundle.outcomes if file == formats.SAMPLES}
    alike, makers = 0, dict[str, None]()
    pairs: dict[str, tuple[list[Sample], list[Sample]]] = {}
    for job in in_order(plan):
        was, now = recorded.get(job.key), made(job)  # the bundle may say nothing of what was removed before
        is_same = was is not None and was.maker == now.maker
        exact[job.id] = is_same and all(exact[each] for each in plan.inputs(job.id))
        if was is not None and not is_same:
            makers[f"recorded: {_maker(was)}; here: {_maker(now)}"] = None
        if was is not None and was.files == now.files:
            alike += 1
        else:
            if exact[job.id]:
                unlike.append(job.id)
            if job.key in evaluated:
                policy = pairs.setdefault(f"{job.chain}, round {job.round}", ([], []))
                policy[0].extend(bundle.samples(evaluated[job.key]))
                policy[1].extend(read(job))
    apart, wrong = differences(pairs)
    return Repeated(
        jobs=len(plan.jobs),
        alike=alike,
        unlike=unlike,
        apart=apart,
        problems=[*problems, *wrong],
        makers=list(makers),
    )


def scored_otherwise(
    samples: Sequence[Sample], dataset: Dataset, settings: DatasetConfig, batch_size: int
) -> list[Sample] | None:
    """Score recorded completions again, and return those whose prompt, reward or verdict is another one.

    Args:
        samples: Completions with their texts.
        dataset: The rows.
        settings: Its rewards.
        batch_size: The setting `evaluation.reward_batch_size`.

    Returns:
        None if a reward is a model or a judge, which a repetition need not agree with.
    """
    if any(reward.path in tables.MODEL_REWARDS for reward in known_rewards(settings)):
        return None
    rows = [dataset.row(sample.row) for sample in samples]
    # Not the tokens that were drawn, but as many: no shipped reward looks at more.
    tokens = [[0] * min(sample.tokens, _MOST_TOKENS) for sample in samples]
    with Scorer(settings) as scorer:
        scored = scorer.score(rows, [sample.completion for sample in samples], tokens, batch_size)
    values = [None if math.isnan(value) else float(value) for value in scored.values]
    return [
        sample
        for sample, row, value, correct, answer in zip(
            samples, rows, values, scored.correct, scored.answers, strict=True
        )
        if not _are_alike(sample.reward, value)
        or (sample.correct, sample.answer, sample.prompt) != (correct, answer, plain_text(row.prompt))
    ]


def in_order(plan: Plan) -> list[Job]:
    """Return the jobs of a plan, each after those that it reads."""
    import networkx as nx

    return [plan.jobs[job_id] for job_id in nx.topological_sort(plan.graph)]


def _maker(made: Made) -> str:
    maker = made.maker
    return f"{maker.arithmetic}, torch {maker.torch}, transformers {maker.transformers}, pipeline {maker.pipeline}"


def differences(pairs: Mapping[str, tuple[Sequence[Sample], Sequence[Sample]]]) -> tuple[list[Apart], list[str]]:
    """Return how outcomes differ by policy, paired by prompt, and what cannot be compared.

    Args:
        pairs: Policy -> its recorded samples, and those of the repetition.
    """
    values: dict[tuple[str, str], np.ndarray[Any, np.dtype[np.float64]]] = {}
    problems = []
    for policy, (was, now) in pairs.items():
        if Counter(sample.row for sample in was) != Counter(sample.row for sample in now):
            problems.append(f"{policy}: other prompts, or another number of completions, than the recorded ones")
            continue
        for metric, of in (("pass@1", lambda sample: sample.correct), ("reward", lambda sample: sample.reward)):
            known, again = _means(was, of), _means(now, of)
            if known.keys() != again.keys():
                problems.append(f"{policy}: {metric} is known of other prompts than recorded")
            elif known:
                range_ = 1.0 if metric == "pass@1" else _range(sample.reward for sample in (*was, *now))
                each = [(again[row] - known[row]) / range_ for row in sorted(known)]
                values[policy, metric] = np.array(each, np.float64)
    level = 1 - (1 - CONFIDENCE) / max(1, len(values))
    ends = paired_intervals(list(values.values()), [1.0] * len(values), level)
    apart = [
        Apart(policy=policy, metric=metric, difference=float(own.mean()), low=low, high=high, prompts=len(own))
        for ((policy, metric), own), (low, high) in zip(values.items(), ends, strict=True)
    ]
    return apart, problems


def _means(samples: Sequence[Sample], of: Callable[[Sample], float | None]) -> dict[int, float]:
    by_prompt: dict[int, list[float]] = {}
    for sample in samples:
        if (value := of(sample)) is not None:
            by_prompt.setdefault(sample.row, []).append(float(value))
    return {row: sum(own) / len(own) for row, own in by_prompt.items()}


def _range(values: Iterable[float | None]) -> float:
    known = [value for value in values if value is not None]
    return (max(known) - min(known)) or 1.0
