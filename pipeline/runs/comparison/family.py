"""Which methods differ: the one family of tests that is declared before the run.

What methods are judged by, after the last round; each against the reference, then each against each. All are made
of the chains and prompts that all methods have in common.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

from pipeline.learning.evaluation.metrics import rounded
from pipeline.learning.evaluation.paired import Bounds, holm
from pipeline.runs.comparison.cells import Stack, aligned
from pipeline.runs.comparison.differences import Difference, Test, detectable, difference_of, intervals, tests
from pipeline.runs.comparison.groups import Group
from pipeline.runs.record import Comparison, primary_metric

Pair = tuple[Group, Group]


def compared(methods: list[Group], reference: Group, confidence: float) -> list[Comparison]:
    """The family: each method with the reference, then each with each; both corrected by themselves.

    Args:
        methods: After the last round.
        reference: What they start from.
        confidence: Level of intervals, and 1 less that of the two corrections.
    """
    groups = [group for group in (*methods, reference) if group.stack is not None]
    metric = primary_metric(group.stack.sums for group in groups if group.stack)
    if reference.stack is None or len(groups) < 2 or metric is None:
        return []
    stacks = dict(zip(groups, aligned([group.stack for group in groups if group.stack]), strict=True))
    if not len(stacks[reference].grid):
        return []
    tested = groups[:-1]
    first = [(group, reference) for group in tested]
    return [
        comparison
        for pairs in (first, list(combinations(tested, 2)))
        for comparison in _corrected(pairs, stacks, metric, confidence)
    ]


def _corrected(
    pairs: list[Pair], stacks: Mapping[Group, Stack], metric: str, confidence: float
) -> list[Comparison]:
    found = [(pair, difference_of(stacks[pair[0]], stacks[pair[1]], metric)) for pair in pairs]
    known = [(pair, difference) for pair, difference in found if difference is not None]
    differences = [difference for _, difference in known]
    tested, ends = tests(differences), intervals(differences, confidence)
    corrected = holm([p for p, _ in tested])
    return [
        _comparison(pair, difference, bounds, (p, test), detectable(difference, len(known), confidence))
        for (pair, difference), bounds, p, (_, test) in zip(known, ends, corrected, tested, strict=True)
    ]


def _comparison(
    pair: Pair, difference: Difference, bounds: Bounds, tested: tuple[float, Test], least: float | None
) -> Comparison:
    one, other = pair
    return Comparison(
        dataset=one.first.dataset,
        model=one.first.model,
        round=one.first.round,
        metric=difference.metric,
        first=one.first.algo,
        second=other.first.algo,
        difference=_kept(difference.value),
        ci_low=_kept(bounds[0]),
        ci_high=_kept(bounds[1]),
        p=_kept(tested[0]),
        test=tested[1],
        detectable=None if least is None else _kept(least),
        over=difference.over,
        references=len(difference.grid.references),
        seeds=len(difference.grid.seeds),
        n=difference.prompts,
    )


def _kept(number: float) -> float:
    found = rounded(number)
    assert found is not None  # no difference is known of numbers so large that this were none
    return found
