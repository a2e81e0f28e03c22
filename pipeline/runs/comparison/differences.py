"""Differences of two methods, or of a method and the reference: their intervals, tests and what could be found.

From three seeds on they hold for other seeds, by `crossed`. With fewer, or where nothing varies, they are about
these policies alone, by `paired`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pipeline.learning.evaluation.crossed import Floats, Spread, known_spread
from pipeline.learning.evaluation.metrics import is_share, reach_of
from pipeline.learning.evaluation.paired import (
    Bounds,
    least_detectable_share,
    paired_by_prompt,
    paired_intervals,
    paired_tests,
    smallest_detectable,
)
from pipeline.runs.comparison.cells import Grid, Stack
from pipeline.runs.record import Scope

Test = Literal["crossed", "mcnemar", "swaps"]


@dataclass(frozen=True)
class Difference:
    """A difference of a metric over the chains and prompts that two have in common.

    Attributes:
        grid: The chains.
        metric: What they differ by.
        values: By chain and prompt, shape [R, S, P].
        reach: The largest that a prompt could show.
        spread: Of their mean.
    """

    grid: Grid
    metric: str
    values: Floats
    reach: float
    spread: Spread

    @property
    def value(self) -> float:
        """Of the first minus of the second."""
        return float(self.spread.value)

    @property
    def prompts(self) -> int:
        """Of which both have something to say."""
        return int(self.values.shape[-1])

    @property
    def over(self) -> Scope:
        """What its interval and its test hold for."""
        return self.grid.scope_of(self.spread)

    @property
    def is_of_policies(self) -> bool:
        """Whether seeds tell nothing of it: they are few, or neither they nor prompts differ in it."""
        return self.over == "policies"

    def by_prompt(self) -> Floats:
        """The mean over chains, shape [P]."""
        return np.asarray(self.values.mean((0, 1)))


def difference_of(first: Stack, second: Stack, metric: str) -> Difference | None:
    """The difference of two, of the same chains and prompts; None where nothing can be said of it."""
    paired = paired_by_prompt(first.sums[metric], second.sums[metric])
    values = first.grid.shaped(paired.differences)
    spread = known_spread(values)
    return None if spread is None else Difference(first.grid, metric, values, reach_of(metric, paired), spread)


def intervals(differences: Sequence[Difference], confidence: float) -> list[Bounds]:
    """The ends of the interval of each; that of shares stays between -1 and 1."""
    alone = [one for one in differences if one.is_of_policies]
    ends = paired_intervals([one.by_prompt() for one in alone], [one.reach for one in alone], confidence)
    paired = iter(ends)
    return [next(paired) if one.is_of_policies else _crossed_interval(one, confidence) for one in differences]


def _crossed_interval(one: Difference, confidence: float) -> Bounds:
    half, most = float(one.spread.half_width(confidence)), 1.0 if is_share(one.metric) else math.inf
    low, high = (min(max(end, -most), most) for end in (one.value - half, one.value + half))
    return low, high


def tests(differences: Sequence[Difference]) -> list[tuple[float, Test]]:
    """The p-value of each, and how it was found."""
    alone = [one for one in differences if one.is_of_policies]
    paired = iter(paired_tests([one.by_prompt() for one in alone], [one.reach for one in alone]))
    return [
        next(paired) if one.is_of_policies else (float(one.spread.p_value()), "crossed") for one in differences
    ]


def detectable(one: Difference, comparisons: int, confidence: float) -> float | None:
    """About the smallest difference that a run of these sizes finds; see `smallest_detectable`.

    None where nothing varies, so that nothing tells what could be found, unless the test itself does.
    """
    by_spread = float(smallest_detectable(one.spread, comparisons, confidence))
    if is_share(one.metric) and one.is_of_policies:
        return max(by_spread, least_detectable_share(one.prompts, comparisons, confidence))
    return by_spread if one.spread.variance > 0 else None
