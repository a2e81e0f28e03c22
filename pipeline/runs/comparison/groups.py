"""The chains of a method after a round: their rows, and what they say prompt by prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pipeline.outputs.prompts import PromptMeasures
from pipeline.runs.comparison.cells import GridCell, stack, whole_grid
from pipeline.runs.record import Place, ResultRow, place_of

Read = Callable[[Place], PromptMeasures | None]


class Group:
    """The chains of a method after a round, on one dataset and model."""

    def __init__(self, rows: Iterable[ResultRow], read: Read) -> None:
        """Read what the chains say prompt by prompt.

        Args:
            rows: Rows of the chains.
            read: Gives the measures of a chain.
        """
        self.rows: dict[GridCell, dict[str, ResultRow]] = {}
        for row in rows:
            self.rows.setdefault((place_of(row)[2], row.seed), {})[row.metric] = row
        self.first = next(iter(next(iter(self.rows.values())).values()))
        self.grid = whole_grid(self.rows)
        measures = {cell: read(self._place(cell)) for cell in self.grid.cells}
        known = {cell: found for cell, found in measures.items() if found is not None}
        self.stack = stack(self.grid, known) if len(known) == len(self.grid) else None

    def _place(self, cell: GridCell) -> Place:
        row = self.first
        return row.dataset, row.model, cell[0], row.algo, cell[1], row.round
