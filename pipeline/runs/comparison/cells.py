"""Chains of one method side by side: measures by reference, seed and prompt, of prompts that all of them have."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.config.schema import ENOUGH
from pipeline.learning.evaluation.statistics import Floats, Ratios, Spread, per_prompt
from pipeline.outputs.prompts import PromptMeasures
from pipeline.runs.record import Scope

GridCell = tuple[int, int]
"""Reference, -1 where a model is not made from one, and seed."""


@dataclass(frozen=True)
class Grid:
    """References that all have the same seeds; C cells, the seeds of a reference side by side."""

    references: tuple[int, ...]
    seeds: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.references) * len(self.seeds)

    @property
    def cells(self) -> list[GridCell]:
        """All of them, in the order in which measures are stacked."""
        return [(reference, seed) for reference in self.references for seed in self.seeds]

    @property
    def scope(self) -> Scope:
        """What an interval over these chains can hold for."""
        if len(self.seeds) < ENOUGH:
            return "policies"
        return "references" if len(self.references) >= ENOUGH else "seeds"

    def scope_of(self, spread: Spread) -> Scope:
        """What the interval of a mean over these chains holds for, be it of a level or of a difference.

        Where neither seeds nor prompts differ in it, nothing tells what others would give.
        """
        return self.scope if spread.variance > 0 else "policies"

    def shaped(self, values: Floats) -> Floats:
        """Values of shape [C, P] as [R, S, P]."""
        return values.reshape(len(self.references), len(self.seeds), -1)


def whole_grid(cells: Collection[GridCell]) -> Grid:
    """The seeds that all references have; where they have none in common, the reference that has most."""
    by_reference: dict[int, set[int]] = {}
    for reference, seed in cells:
        by_reference.setdefault(reference, set()).add(seed)
    common = set.intersection(*by_reference.values()) if by_reference else set()
    if by_reference and not common:
        most = max(sorted(by_reference), key=lambda reference: len(by_reference[reference]))
        by_reference, common = {most: by_reference[most]}, by_reference[most]
    return Grid(tuple(sorted(by_reference)), tuple(sorted(common)))


@dataclass(frozen=True)
class Stack:
    """Measures of the cells of a grid.

    Attributes:
        grid: The cells.
        rows: Ids of the prompts that all cells have, shape [P].
        sums: Metric that all cells have -> numerators and denominators, shape [C, P].
    """

    grid: Grid
    rows: NDArray[np.int64]
    sums: Mapping[str, Ratios]

    def part(self, grid: Grid, rows: NDArray[np.int64]) -> Stack:
        """Some of the cells and prompts."""
        cells = np.array([self.grid.cells.index(cell) for cell in grid.cells], np.intp)
        chosen = np.ix_(cells, np.searchsorted(self.rows, rows))
        return Stack(grid, rows, {name: _chosen(ratios, chosen) for name, ratios in self.sums.items()})

    def values(self, metric: str) -> Floats:
        """What each prompt says of a metric, shape [R, S, P], without those that say nothing of it."""
        ratios = self.sums[metric]
        told = (ratios.denominators > 0).any(0)
        return self.grid.shaped(per_prompt(_chosen(ratios, np.s_[:, told])))


def stack(grid: Grid, measures: Mapping[GridCell, PromptMeasures]) -> Stack:
    """Put the measures of all cells of a grid side by side."""
    every = [measures[cell] for cell in grid.cells]
    rows = common_rows(one.rows for one in every)
    names = sorted(set.intersection(*(set(one.sums) for one in every)))
    places = [np.searchsorted(one.rows, rows) for one in every]

    def side(name: str, which: int) -> Floats:
        return np.stack([one.sums[name][which][place] for one, place in zip(every, places, strict=True)])

    return Stack(grid, rows, {name: Ratios(side(name, 0), side(name, 1)) for name in names})


def common_rows(rows: Iterable[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Ids that all have, ascending."""
    return reduce(lambda one, other: np.intersect1d(one, other, assume_unique=True), rows)


def aligned(stacks: Sequence[Stack]) -> list[Stack]:
    """The same of the cells and prompts that all stacks have."""
    grid = whole_grid(set.intersection(*(set(one.grid.cells) for one in stacks)))
    rows = common_rows(one.rows for one in stacks)
    return [one.part(grid, rows) for one in stacks]


def _chosen(ratios: Ratios, at: Any) -> Ratios:
    return Ratios(ratios.numerators[at], ratios.denominators[at])
