"""Strengths of guidance that a policy is tried at on the validation split, one of which it is then tested at.

What is chosen by must not be what is reported, or the report would be of the luck of the choice. Worker side only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.config.schema import EvaluationConfig
from pipeline.config.values import short
from pipeline.learning.algos.base import JobContext
from pipeline.learning.evaluation.front import FrontPoint, chosen_point, reward_kl_front
from pipeline.learning.evaluation.metrics import Measured, Sample, evaluation_rows, measure, read_samples
from pipeline.learning.evaluation.optimum import J
from pipeline.outputs.formats import ETA
from pipeline.outputs.prompts import PromptMeasures, Sums

STAGE = "sweep"
METRICS = ("pass@1", "reward", "kl_per_sequence", "kl_per_token", J)


@dataclass(frozen=True)
class Tried:
    """What was seen at one strength.

    Attributes:
        samples: Evaluated completions of the validation split.
        measured: Their measures by prompt.
    """

    samples: Sequence[Sample]
    measured: Measured


def eta_folder(eta: float) -> str:
    """Folder of the samples at a strength, in the output of a sweep; it names the strength in results too."""
    return f"{ETA}{short(eta)}"


def strengths(own: float, further: Iterable[float]) -> dict[str, float]:
    """Those to try: the method's own and the further ones, by the names of their folders."""
    return {eta_folder(eta): eta for eta in (own, *further)}


def measured(ctx: JobContext) -> dict[str, Tried]:
    """What the sweep of this round has seen, by the names of folders; nothing where there was none."""
    outputs = ctx.inputs.get(STAGE, ())
    names = sorted(path.name for path in outputs[0].glob(f"{ETA}*")) if outputs else []
    eta = ctx.config.evaluation.common_eta
    tried = {name: _tried([output / name for output in outputs], eta) for name in names}
    return {name: seen for name, seen in tried.items() if seen.samples}  # a dataset may have no such split


def _tried(folders: Sequence[Path], common_eta: float) -> Tried:
    samples = read_samples(folders)
    return Tried(samples, measure(samples, common_eta))


def chosen(tried: Mapping[str, Tried], settings: EvaluationConfig) -> str | None:
    """The name of the best strength: the highest mean reward within the limit of divergence; None without any."""
    best = chosen_point(_points(tried), settings.kl_limit)
    return None if best is None else best.label


def rows(tried: Mapping[str, Tried], settings: EvaluationConfig) -> list[dict[str, Any]]:
    """Reward and KL at every strength, which of them no other beats in both, and which one is taken."""
    found: list[dict[str, Any]] = []
    for name, seen in tried.items():
        own = evaluation_rows(seen.samples, settings, measured=seen.measured)
        found += [{**row, "metric": f"{row['metric']}/{name}"} for row in own if row["metric"] in METRICS]
    points, best = _points(tried), chosen(tried, settings)
    front = {point.label for point in reward_kl_front(points)}
    bare = {"ci_low": None, "ci_high": None, "n": 0}
    for point in points:
        found.append({"metric": f"front/{point.label}", "value": float(point.label in front), **bare})
        found.append({"metric": f"chosen/{point.label}", "value": float(point.label == best), **bare})
    return found


def by_prompt(own: PromptMeasures, tried: Mapping[str, Tried]) -> PromptMeasures:
    """Measures of a policy and those of its sweep; a prompt of one split says nothing of the other."""
    parts = {name: seen.measured.by_metric() for name, seen in tried.items()}
    every = np.unique(np.concatenate([own.rows, *(part.rows for part in parts.values())]))

    def spread(part: PromptMeasures, sums: Sums) -> Sums:
        above, below = np.zeros(len(every)), np.zeros(len(every))
        places = np.searchsorted(every, part.rows)
        above[places], below[places] = sums
        return above, below

    found = {name: spread(own, sums) for name, sums in own.sums.items()}
    for label, part in parts.items():
        found |= {f"{name}/{label}": spread(part, part.sums[name]) for name in METRICS if name in part.sums}
    return PromptMeasures(every, found)


def _points(tried: Mapping[str, Tried]) -> list[FrontPoint]:
    means = {name: _means(seen.measured.by_metric()) for name, seen in tried.items()}
    return [FrontPoint(mean["kl_per_sequence"], mean["reward"], name) for name, mean in means.items()]


def _means(measures: PromptMeasures) -> dict[str, float]:
    """Means over prompts and samples; NaN where nothing is known."""
    nan = {name: float("nan") for name in METRICS}
    known = {name: sums for name, sums in measures.sums.items() if sums[1].sum() > 0}
    return nan | {name: float(above.sum() / below.sum()) for name, (above, below) in known.items()}
