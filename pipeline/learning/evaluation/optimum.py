"""The best that any policy can do: the exact optimum of E[reward] - eta * KL(policy || reference).

It is the reference tilted by exp(reward / eta). Where the reward of a prompt is 1 for some completions and 0 for
all others, the reference enters by one number, the probability p that it gives to the right ones together:

    Z = 1 - p + p exp(1/eta)     pass@1 = p exp(1/eta) / Z     KL = pass@1 / eta - ln Z     J = eta ln Z

Stages that evaluate the reference leave ln p of every prompt for which it is known.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.config.values import short
from pipeline.outputs.formats import PROMPTS, Sample, read_input
from pipeline.outputs.prompts import Floats, PromptMeasures, Sums, read_prompts, write_prompts

J, REGRET = "regularized_reward", "regret"
_LOG_RIGHT = "log_right"


@dataclass(frozen=True)
class Optimum:
    """The optimal policy at one eta, prompt by prompt; all of shape [P], float64.

    Attributes:
        reward: Its expected reward, which is its pass@1.
        kl: Its KL divergence from the reference over a completion, in nats.
        regularized: J, the reward less eta times the divergence.
    """

    reward: Floats
    kl: Floats
    regularized: Floats


def optimum(log_right: Floats, eta: float) -> Optimum:
    """The optimum where rewards are 0 and 1.

    Args:
        log_right: ln p, shape [P]; -inf where no right completion can be reached, NaN where it is not known.
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
    """J of each prompt, and what it lacks of the optimum's where that is known.

    Args:
        samples: Completions of P prompts; one without a reward has no say.
        prompts: Place of the prompt of each sample, shape [N].
        rows: Ids of the prompts, shape [P].
        eta: Weight of the divergence; where it is infinite there is no J.
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
    """Measures of the optimal policies: at the eta of J, and as ``METRIC/eta=...`` at others.

    Args:
        log_right: Id of a prompt -> ln p.
        eta: Of J.
        etas: The others.
    """
    rows = np.array(sorted(log_right), np.int64)
    known = np.array([log_right[int(row)] for row in rows], np.float64)
    columns: dict[str, Floats] = {}
    for suffix, value in [("", eta), *((f"/eta={short(each)}", each) for each in etas)]:
        best = optimum(known, value)
        columns |= {f"pass@1{suffix}": best.reward, f"reward{suffix}": best.reward}
        columns |= {f"kl_per_sequence{suffix}": best.kl}
        if math.isfinite(value):
            columns |= {f"{J}{suffix}": best.regularized, f"{REGRET}{suffix}": np.zeros(len(rows))}
    ones = np.ones(len(rows))
    return PromptMeasures(rows, {name: (values, ones) for name, values in columns.items()})


def write_log_right(folder: Path, log_right: Mapping[int, float]) -> None:
    """Leave ln p of prompts in the output of a stage."""
    rows = np.array(sorted(log_right), np.int64)
    values = np.array([log_right[int(row)] for row in rows], np.float64)
    reached = np.isfinite(values)  # files hold finite numbers alone: what cannot be reached has no weight
    sums = np.where(reached, values, 0.0), reached.astype(np.float64)
    write_prompts(folder, PromptMeasures(rows, {_LOG_RIGHT: sums}))


def read_log_right(folders: Sequence[Path]) -> dict[int, float]:
    """What the shards of an evaluation of the reference have left; empty where one of them has left nothing."""
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
# Reward against divergence: which points of a sweep no other point beats, and which one is taken.


@dataclass(frozen=True)
class FrontPoint:
    """One policy of a sweep.

    Attributes:
        kl: Its divergence from the reference, in nats.
        reward: Its mean reward, or pass@1.
        label: What it is, for example its eta.
    """

    kl: float
    reward: float
    label: str = ""


def chosen_point(points: Iterable[FrontPoint], kl_limit: float | None) -> FrontPoint | None:
    """The point to take: the highest reward within a limit of divergence, of equals the least divergent.

    Args:
        points: Of a sweep. NaN is no measurement and is left out.
        kl_limit: Largest divergence in nats; None for none. Where all are beyond it the least divergence is taken.

    Returns:
        None where nothing was measured.
    """
    known = [point for point in points if point.kl == point.kl and point.reward == point.reward]
    within = [point for point in known if kl_limit is None or point.kl <= kl_limit]
    if not within:
        return min(known, key=lambda point: (point.kl, -point.reward, point.label), default=None)
    return min(within, key=lambda point: (-point.reward, point.kl, point.label))


def reward_kl_front(points: Iterable[FrontPoint]) -> list[FrontPoint]:
    """The points that no other one beats: none has at least their reward at no more divergence.

    Points that are equal in both are all kept, and divergences that differ by less than a millionth of a nat are
    equal, since sums of rounded numbers do. NaN is no measurement and is left out.

    Returns:
        By growing divergence, so also by growing reward.
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
