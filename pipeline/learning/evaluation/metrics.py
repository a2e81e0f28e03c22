"""Compute metrics of samples, each with an interval clustered by prompt, and the optimum over all policies."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from hashlib import blake2b
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.config import plain, schema
from pipeline.files import json_text
from pipeline.learning.evaluation import statistics
from pipeline.outputs.formats import HELD_OUT, LARGEST, PROMPTS, SAMPLES, Sample, read_input, read_lines
from pipeline.outputs.prompts import Floats, PromptMeasures, Sums, read_prompts, write_prompts

# -- sampling ----------------------------------------------------------------------------------------------------
# pass@k and maj@k for k samples, estimated without bias from n >= k samples of a prompt. Both are the exact mean
# over all subsets of k of the n samples, by counting instead of drawing subsets.


_MOST_VOTES = 1000
"""Most samples of a prompt for maj@k: floating point has no room for the numbers of subsets of more."""


def pass_at_k(totals: NDArray[np.int64], correct: NDArray[np.int64], k: int) -> Floats:
    """Estimate the probability that at least one of k samples is correct (Chen et al. 2021, arXiv 2107.03374).

    It is 1 - C(n-c, k) / C(n, k), computed as a product so that nothing overflows or cancels.

    Args:
        totals: Number of samples per prompt, n; shape [P].
        correct: Number of correct samples per prompt, c; shape [P].
        k: Size of the subset.

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
) -> Floats:
    """Estimate the probability that the most frequent answer among k samples is correct.

    Answers that tie share the vote: m of them count 1/m each. A sample without an answer does not vote; if no
    sample votes, the result is wrong. If samples with the same answer are partly correct, the answer counts by the
    share of correct ones.

    Args:
        answers: Answers of each prompt's samples; P lists.
        correct: Whether each sample is correct, in the same shape.
        ks: Numbers of voting samples.

    Returns:
        Shape [P, len(ks)]; NaN for prompts with fewer than k samples, or with more than `_MOST_VOTES`.
    """
    values = np.full((len(answers), len(ks)), np.nan)
    for prompt, (votes, right) in enumerate(zip(answers, correct, strict=True)):
        if len(votes) > _MOST_VOTES:
            continue
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
def winning_shares(sizes: tuple[int, ...], silent: int) -> dict[int, Floats]:
    """Return the mean share of the vote that an answer wins, over all subsets of k samples.

    Args:
        sizes: Number of samples for each answer.
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
            # This answer has `votes`; so no other may have more, and others with as many share the win.
            won[votes:] += comb(size, votes) * _ways(tuple(others), silent, votes, n)[: n + 1 - votes]
        shares[size] = won / subsets
    return shares


def _ways(others: tuple[int, ...], silent: int, votes: int, n: int) -> Floats:
    """Count the ways to pick samples of other answers so that none has more than `votes`, by the number of picks.

    A way with m other answers at exactly `votes` has weight 1 / (1 + m).

    Returns:
        Shape [n + 1].
    """
    free = silent + sum(size for size in others if size < votes)  # these answers cannot reach `votes`
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
    weighed: Floats = (ways / (1 + np.arange(len(rivals) + 1))[:, None]).sum(0)
    return weighed


J, REGRET = "regularized_reward", "regret"
FAULTS = {"error": "errors", "timeout": "timeouts", "crash": "crashes"}
"""Kinds of failures of a reward -> their names in metrics."""
_MEANS = ("reward", "kl_per_sequence", "kl_per_token", "length", "truncated")
_SHARES = re.compile(rf"{HELD_OUT}|((greedy|optimum)/)?(truncated|(pass|maj)@\d+(/eta=[^/]+)?)")
_FEW = 10
"""Number of right or wrong answers, in prompts, below which bootstrap percentiles are too narrow."""


def is_share(metric: str) -> bool:
    """Return whether a metric is a share of answers, so that it lies between 0 and 1."""
    return _SHARES.fullmatch(metric) is not None


def reach_of(metric: str, paired: statistics.Paired) -> float:
    """Return the largest possible difference of a prompt; for shares it is at least 1, whatever was observed."""
    return max(1.0, paired.reach) if is_share(metric) else paired.reach


def write_samples(path: Path, samples: Iterable[Sample]) -> None:
    """Write samples as JSON lines."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json_text(asdict(sample), ensure_ascii=False) + "\n" for sample in samples)


def read_samples(folders: Sequence[Path]) -> list[Sample]:
    """Read the samples of several folders, in their order.

    Raises:
        JobError: A file is missing or malformed; the message names the job that wrote it.
    """
    found = [sample for folder in folders for sample in read_input(folder, SAMPLES, _samples)]
    place: dict[int, int] = {}
    for sample in found:
        place.setdefault(sample.row, len(place))
    # An extended evaluation has further completions of a prompt in other folders.
    return sorted(found, key=lambda sample: (place[sample.row], sample.sample))


def _samples(path: Path) -> list[Sample]:
    return list(read_lines(path, Sample))


def beside(own: PromptMeasures, name: str, other: PromptMeasures) -> PromptMeasures:
    """Add the measures of another policy for the same prompts, as ``NAME/METRIC``."""
    _, ours, theirs = np.intersect1d(own.rows, other.rows, assume_unique=True, return_indices=True)
    sums = dict(own.sums)
    for metric, both in other.sums.items():
        sides = np.zeros((2, len(own.rows)))
        sides[:, ours] = [side[theirs] for side in both]
        sums[f"{name}/{metric}"] = (sides[0], sides[1])
    return PromptMeasures(own.rows, sums, own.texts)


def evaluation_rows(
    samples: Sequence[Sample],
    settings: schema.EvaluationConfig,
    compared_with: Mapping[str, Sequence[Sample]] | None = None,
    measured: PromptMeasures | None = None,
) -> list[dict[str, Any]]:
    """Return the rows of ``metrics.json``: metric, value, ci_low, ci_high, and n, the number of prompts.

    ``pass@k`` and ``maj@k`` are unbiased, ``reward`` is the mean reward and ``rewards/NAME`` the mean of each
    single reward, ``kl_per_sequence`` is the mean of the exact per-step divergence summed over a completion,
    ``kl_per_token`` this sum per token, ``length`` the mean number of tokens, ``truncated`` the share of
    completions cut off at the limit, ``regularized_reward`` is J, see `optimum`. ``reward_errors``,
    ``reward_timeouts`` and ``reward_crashes`` count completions for which a reward failed, and ``skipped_tokens``,
    if there are any, special tokens that are missing in texts.

    Args:
        samples: Evaluated completions.
        settings: Settings of the intervals.
        compared_with: Name -> samples of another policy for the same prompts. Gives ``METRIC/vs_NAME``, the paired
            difference.
        measured: Result of `measure` for the samples, if available.
    """
    table = measured or measure(samples, settings.common_eta)
    rows = estimates(table, settings) + _counts(samples)
    for name, others in (compared_with or {}).items():
        rows += _comparison(table, measure(others, settings.common_eta), name, settings)
    return rows


def reported_ks(samples: int) -> list[int]:
    """Return the k that are reported for n samples per prompt: 1 to 8, then doubling, and n itself."""
    doubling = [k for k in (2**power for power in range(4, 64)) if k < samples]
    return sorted({*range(1, min(samples, 8) + 1), *doubling, samples} - {0})


def metric_names(settings: schema.EvaluationConfig) -> list[str]:
    """Return the names of rows that an evaluation may have, except names with ``/``, such as comparisons."""
    answers = [f"{kind}@{k}" for kind in ("pass", "maj") for k in reported_ks(settings.num_samples)]
    return [*answers, *_MEANS, J, REGRET, *(f"reward_{plural}" for plural in FAULTS.values()), HELD_OUT]


def measure(
    samples: Sequence[Sample], eta: float = math.inf, log_right: Mapping[int, float] | None = None
) -> PromptMeasures:
    """Measure samples prompt by prompt.

    Args:
        samples: Completions.
        eta: Weight of the divergence in J; inf leaves J out.
        log_right: Log-probability of a right completion by prompt, see `regularized`; adds the regret.
    """
    ids = np.array([sample.row for sample in samples], np.int64)
    rows, first, prompts = np.unique(ids, return_index=True, return_inverse=True)
    sums = {
        **_outcomes(samples, prompts, len(rows)),
        **_means(samples, prompts, len(rows)),
        **regularized(samples, prompts, rows, eta, log_right or {}),
    }
    return PromptMeasures(rows, sums, _identities(samples[place].prompt for place in first))


def _identities(texts: Iterable[str]) -> NDArray[np.int64]:
    """Return a number of 63 bits for each text; a text that comes again has another, as its draws are others."""
    often = Counter[str]()
    found = []
    for text in texts:
        digest = blake2b(f"{often[text]} {text}".encode(errors="surrogatepass"), digest_size=8).digest()
        found.append(int.from_bytes(digest) >> 1)
        often[text] += 1
    return np.array(found, np.int64)


def _outcomes(samples: Sequence[Sample], prompts: NDArray[np.intp], count: int) -> dict[str, Sums]:
    """Compute pass@k, and maj@k if completions have answers. Prompts without judged samples are left out."""
    judged = [(int(place), sample) for place, sample in zip(prompts, samples, strict=True)]
    judged = [(place, sample) for place, sample in judged if sample.correct is not None]
    if not judged:
        return {}
    answers: list[list[str | None]] = [[] for _ in range(count)]
    correct: list[list[bool]] = [[] for _ in range(count)]
    for place, sample in judged:
        answers[place].append(sample.answer)
        correct[place].append(bool(sample.correct))
    totals = np.array([len(one) for one in correct], np.int64)
    right = np.array([sum(one) for one in correct], np.int64)
    ks = reported_ks(int(totals.max()))
    columns = {f"pass@{k}": pass_at_k(totals, right, k) for k in ks}
    if any(sample.answer is not None for _, sample in judged):
        majority = majority_at_k(answers, correct, ks)
        columns |= {f"maj@{k}": majority[:, place] for place, k in enumerate(ks)}
    return {
        name: (np.nan_to_num(values), (~np.isnan(values) & (totals > 0)).astype(np.float64))
        for name, values in columns.items()
    }


def _means(samples: Sequence[Sample], prompts: NDArray[np.intp], count: int) -> dict[str, Sums]:
    """Sum values of samples by prompt."""
    ones = [1.0] * len(samples)
    tokens = [float(sample.tokens) for sample in samples]
    kl = [math.nan if sample.kl is None else sample.kl for sample in samples]
    parts = sorted({name for sample in samples for name in sample.parts})
    sums = {
        "reward": _where_given([sample.reward for sample in samples]),
        **{f"rewards/{name}": _where_given([sample.parts.get(name) for sample in samples]) for name in parts},
        "kl_per_sequence": (kl, ones),
        "kl_per_token": (kl, tokens),
        "length": (tokens, ones),
        "truncated": ([float(sample.truncated) for sample in samples], ones),
    }

    def by_prompt(values: Sequence[float]) -> Floats:
        return np.bincount(prompts, np.array(values, np.float64), count).astype(np.float64)

    return {name: (by_prompt(above), by_prompt(below)) for name, (above, below) in sums.items()}


def _where_given(values: Sequence[float | None]) -> tuple[list[float], list[float]]:
    return [value or 0.0 for value in values], [float(value is not None) for value in values]


def estimates(measures: PromptMeasures, settings: schema.EvaluationConfig) -> list[dict[str, Any]]:
    """Return a row of ``metrics.json`` for each measure, with its interval."""
    used = [name for name, (_, below) in measures.sums.items() if below.sum() > 0]
    found: dict[str, statistics.Estimate] = {}
    if used:
        above, below = (np.array([measures.sums[name][side] for name in used]).T for side in (0, 1))
        found = dict(
            zip(
                used,
                statistics.ratio_estimates(
                    statistics.Ratios(above, below),
                    samples=settings.bootstrap_samples,
                    confidence=settings.confidence,
                ),
                strict=True,
            )
        )
    rows = []
    for name, (above, below) in measures.sums.items():
        told, low, high = below > 0, None, None
        if name in found and (exact := _exact_bounds(name, above[told], below[told], settings.confidence)):
            low, high = exact
        elif name in found and told.sum() > 1:  # all bootstrap samples of a single prompt are the same
            low, high = found[name].low, found[name].high
        rows.append(_row(name, found[name].value if name in found else None, low, high, int(told.sum())))
    return rows


def _exact_bounds(name: str, above: Floats, below: Floats, confidence: float) -> tuple[float, float] | None:
    """Return the interval of a share near 0 or 1, where bootstrap percentiles degenerate; None for other metrics.

    The interval is exact if each prompt is all right or all wrong, and else for the effective number of answers
    (Korn and Graubard 1998).
    """
    value, prompts = above.sum() / below.sum(), len(above)
    if not is_share(name) or min(value, 1 - value) * prompts >= _FEW:
        return None
    size: Floats | float = prompts  # also of a single prompt, whose answers may all be alike
    shares = statistics.per_prompt(statistics.Ratios(above, below))
    if prompts > 1 and not statistics.says_all_or_nothing(shares):
        size = statistics.effective_size(statistics.crossed_spread(shares[None, None]), confidence)
    low, high = statistics.exact_interval(np.array(value), np.asarray(size), confidence)
    return float(low), float(high)


def _counts(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """Count failures and skipped tokens; counts have no interval."""
    prompts = len({sample.row for sample in samples})
    counts = {
        f"reward_{plural}": sum(sample.fault == kind for sample in samples) for kind, plural in FAULTS.items()
    }
    if skipped := sum(sample.skipped for sample in samples):
        counts["skipped_tokens"] = skipped
    return [_row(name, float(number), None, None, prompts) for name, number in counts.items()]


def _comparison(
    one: PromptMeasures, other: PromptMeasures, name: str, settings: schema.EvaluationConfig
) -> list[dict[str, Any]]:
    """Compare the measures of two policies by paired differences on their common prompts."""
    _, ours, theirs = np.intersect1d(one.rows, other.rows, return_indices=True)

    def part(measures: PromptMeasures, places: NDArray[np.intp], metric: str) -> statistics.Ratios:
        above, below = measures.sums[metric]
        return statistics.Ratios(above[None, places], below[None, places])

    # Divergence is measured from the reference already, so it is not compared.
    shared = [metric for metric in one.sums if metric in other.sums and not metric.startswith("kl_")]
    pairs = {
        metric: statistics.paired_by_prompt(part(one, ours, metric), part(other, theirs, metric))
        for metric in shared
    }
    known = {metric: one for metric, one in pairs.items() if one.differences.size and np.isfinite(one.reach)}
    differences = [one.differences[0] for one in known.values()]
    reaches = [reach_of(metric, one) for metric, one in known.items()]
    ends = statistics.paired_intervals(differences, reaches, settings.confidence)
    return [
        _row(f"{metric}/vs_{name}", float(values.mean()), low, high, len(values))
        for metric, values, (low, high) in zip(known, differences, ends, strict=True)
    ]


def _row(name: str, value: float | None, low: float | None, high: float | None, prompts: int) -> dict[str, Any]:
    figures = {"value": value, "ci_low": low, "ci_high": high}
    return {"metric": name, **{figure: rounded(number) for figure, number in figures.items()}, "n": prompts}


def rounded(number: float | None) -> float | None:
    """Round to ten significant digits: more than any interval resolves, fewer than rounding errors reach.

    Return None for values that no file may hold: NaN, and absolute values above `LARGEST`.
    """
    return float(f"{number:.10g}") if number is not None and abs(number) <= LARGEST else None


def shown_samples(samples: Sequence[Sample], prompts: int) -> list[dict[str, Any]]:
    """Return the first prompts with all of their completions, for people to read."""
    shown: dict[int, dict[str, Any]] = {}
    for sample in samples:
        if sample.row not in shown and len(shown) >= prompts:
            continue
        entry = shown.setdefault(sample.row, {"row": sample.row, "prompt": sample.prompt, "completions": []})
        entry["completions"].append(
            {"text": sample.completion, "reward": sample.reward, "correct": sample.correct}
        )
    return list(shown.values())


# -- optimum -----------------------------------------------------------------------------------------------------
# The optimum over all policies: the exact maximum of E[reward] - eta * KL(policy || reference).
#
# It is the reference tilted by exp(reward / eta). Where the reward of a prompt is 1 for some completions and 0 for
# all others, the reference enters by one number, the probability p that it gives to the right ones together:
#
#     Z = 1 - p + p exp(1/eta)     pass@1 = p exp(1/eta) / Z     KL = pass@1 / eta - ln Z     J = eta ln Z
#
# Stages that evaluate the reference store ln p of every prompt for which it is known.


_LOG_RIGHT = "log_right"


@dataclass(frozen=True)
class Optimum:
    """The optimal policy at one eta, prompt by prompt; all of shape [P], float64.

    Attributes:
        reward: Expected reward, which equals pass@1.
        kl: KL divergence from the reference over a completion, in nats.
        regularized: J, the reward minus eta times the divergence.
    """

    reward: Floats
    kl: Floats
    regularized: Floats


def optimum(log_right: Floats, eta: float) -> Optimum:
    """Return the optimum for rewards of 0 and 1.

    Args:
        log_right: ln p, shape [P]; -inf if no right completion can be reached, NaN if unknown.
        eta: Above 0; inf gives the reference, whose J is then not a number.
    """
    log_right = np.minimum(log_right, 0.0)  # sums of rounded numbers may exceed 1
    if math.isinf(eta):
        return Optimum(np.exp(log_right), np.zeros_like(log_right), np.full_like(log_right, np.nan))
    with np.errstate(divide="ignore", invalid="ignore"):
        tilted = log_right + 1 / eta
        log_z = np.logaddexp(np.log(-np.expm1(log_right)), tilted)
        reward = np.exp(tilted - log_z)
        return Optimum(reward, np.maximum(reward / eta - log_z, 0.0), eta * log_z)


def regularized(
    samples: Sequence[Sample],
    prompts: NDArray[np.intp],
    rows: NDArray[np.int64],
    eta: float,
    log_right: Mapping[int, float],
) -> dict[str, Sums]:
    """Compute J of each prompt, and its regret relative to the optimum if that is known.

    Args:
        samples: Completions of P prompts; those without a reward are ignored.
        prompts: Index of the prompt of each sample, shape [N].
        rows: Ids of the prompts, shape [P].
        eta: Weight of the divergence; inf leaves out J.
        log_right: Id of a prompt -> ln p, see `optimum`.

    Returns:
        Metric -> numerators and denominators.
    """
    if math.isinf(eta):
        return {}
    given = np.array([sample.reward is not None for sample in samples], np.float64)
    values = [
        0.0 if sample.reward is None else sample.reward - eta * (math.nan if sample.kl is None else sample.kl)
        for sample in samples
    ]
    total = np.bincount(prompts, np.array(values, np.float64), len(rows)).astype(np.float64)
    count = np.bincount(prompts, given, len(rows)).astype(np.float64)
    best = optimum(np.array([log_right.get(int(row), math.nan) for row in rows]), eta).regularized
    known = ~np.isnan(best)
    lacking = np.where(known, np.nan_to_num(best) * count - total, 0.0)
    return {J: (total, count), **({REGRET: (lacking, count * known)} if known.any() else {})}


def optimum_columns(log_right: Mapping[int, float], eta: float, etas: Sequence[float]) -> PromptMeasures:
    """Return measures of the optimal policies: at the eta of J, and as ``METRIC/eta=...`` at others.

    Args:
        log_right: Id of a prompt -> ln p.
        eta: Eta of J.
        etas: Other values of eta.
    """
    rows = np.array(sorted(log_right), np.int64)
    known = np.array([log_right[int(row)] for row in rows], np.float64)
    columns: dict[str, Floats] = {}
    for suffix, value in [("", eta), *((f"/eta={plain.short(each)}", each) for each in etas)]:
        best = optimum(known, value)
        columns |= {f"pass@1{suffix}": best.reward, f"reward{suffix}": best.reward}
        columns |= {f"kl_per_sequence{suffix}": best.kl}
        if math.isfinite(value):
            columns |= {f"{J}{suffix}": best.regularized, f"{REGRET}{suffix}": np.zeros(len(rows))}
    ones = np.ones(len(rows))
    return PromptMeasures(rows, {name: (values, ones) for name, values in columns.items()})


def write_log_right(folder: Path, log_right: Mapping[int, float]) -> None:
    """Store ln p of prompts in the output of a stage."""
    rows = np.array(sorted(log_right), np.int64)
    values = np.array([log_right[int(row)] for row in rows], np.float64)
    reached = np.isfinite(values)  # files hold only finite numbers: unreachable prompts get weight 0
    sums = np.where(reached, values, 0.0), reached.astype(np.float64)
    write_prompts(folder, PromptMeasures(rows, {_LOG_RIGHT: sums}))


def read_log_right(folders: Sequence[Path]) -> dict[int, float]:
    """Read ln p from the shards of the reference's evaluation; empty if any shard lacks it."""
    found: dict[int, float] = {}
    for folder in folders:
        if not (folder / PROMPTS).exists():
            return {}
        measures = read_input(folder, PROMPTS, lambda path: read_prompts(path.parent))
        if _LOG_RIGHT not in measures.sums:
            return {}
        values = np.where(measures.sums[_LOG_RIGHT][1] > 0, measures.sums[_LOG_RIGHT][0], -math.inf)
        found |= dict(zip(measures.rows.tolist(), values.tolist(), strict=True))
    return found


# -- front -------------------------------------------------------------------------------------------------------
# Reward against divergence: the points of a sweep that no other point beats, and the choice of one.


@dataclass(frozen=True)
class FrontPoint:
    """One policy of a sweep.

    Attributes:
        kl: Divergence of the policy from the reference, in nats.
        reward: Mean reward, or pass@1.
        label: Name of the point, for example its eta.
    """

    kl: float
    reward: float
    label: str = ""


def chosen_point(points: Iterable[FrontPoint], kl_limit: float | None) -> FrontPoint | None:
    """Choose the point with the highest reward within a limit of divergence; ties go to the least divergence.

    Args:
        points: Points of a sweep. Points with NaN are left out.
        kl_limit: Largest divergence in nats; None for no limit. If all points exceed it, the least divergence is
            chosen.

    Returns:
        None if nothing was measured.
    """
    known = [point for point in points if point.kl == point.kl and point.reward == point.reward]
    within = [point for point in known if kl_limit is None or point.kl <= kl_limit]
    if not within:
        return min(known, key=lambda point: (point.kl, -point.reward, point.label), default=None)
    return min(within, key=lambda point: (-point.reward, point.kl, point.label))


def reward_kl_front(points: Iterable[FrontPoint]) -> list[FrontPoint]:
    """Return the points that no other point beats: none has at least their reward at no more divergence.

    Points that are equal in both are all kept. Divergences are rounded to a millionth of a nat, since rounding
    errors of sums are of this size. Points with NaN are left out.

    Returns:
        Points by increasing divergence, and so also by increasing reward.
    """
    known = (point for point in points if point.kl == point.kl and point.reward == point.reward)
    front: list[FrontPoint] = []
    for point in sorted(known, key=lambda point: (_nats(point), -point.reward, point.label)):
        equal = bool(front) and (_nats(point), point.reward) == (_nats(front[-1]), front[-1].reward)
        if not front or point.reward > front[-1].reward or equal:
            front.append(point)
    return front


def _nats(point: FrontPoint) -> float:
    return max(0.0, round(point.kl, 6))
