"""A run for programs and notebooks of a user's own: what it left as pandas frames, and as a table that shows."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.runs import frames
from pipeline.runs.loaded import LoadedRun
from pipeline.runs.report.fronts import front_tables
from pipeline.runs.report.tables import result_tables
from pipeline.terminal.html import html_table, html_text

if TYPE_CHECKING:
    import pandas as pd

    from pipeline.terminal.columns import FittedTable


class Run:
    """A run that is over, goes on, or was killed; see docs/python.md for the columns of its frames.

    Frames are read when they are first asked for, and stay as they are; `refresh` looks again.

    Attributes:
        loaded: What it rests on: the same as typed rows, and more, without pandas.
        exit_code: Of the run that `pipeline.run` has just carried out, 0 where every job is done; None of one
            that was loaded.
    """

    def __init__(self, loaded: LoadedRun, exit_code: int | None = None) -> None:
        self.loaded = loaded
        self.exit_code = exit_code

    @property
    def name(self) -> str:
        """Name of the experiment."""
        return self.loaded.name

    @property
    def folder(self) -> Path:
        """Its folder."""
        return self.loaded.folder.path

    @property
    def state(self) -> str:
        """The run in one word: ``done``, ``running``, ``failed``, ``interrupted``, ... as `status` has it."""
        return self.loaded.state

    @property
    def config(self) -> dict[str, Any]:
        """The resolved configuration as plain data."""
        return self.loaded.config

    @property
    def command(self) -> str:
        """What to type in a shell to repeat it, or "" where that is not known."""
        return self.loaded.origin.command_line

    def refresh(self) -> Run:
        """Look again at a run that goes on.

        Returns:
            This very object.
        """
        self.loaded.refresh()
        for name in ("results", "pooled", "comparisons", "compute", "samples", "curves", "timeline"):
            self.__dict__.pop(name, None)
        return self

    # -- frames ------------------------------------------------------------------------------------------------

    @cached_property
    def results(self) -> pd.DataFrame:
        """Every measured number: a row for each chain, round and metric."""
        return frames.results_frame(self.loaded.results.rows)

    @cached_property
    def pooled(self) -> pd.DataFrame:
        """Every number of methods, over seeds and references: a row for each method, round and metric."""
        return frames.pooled_frame(self.loaded.results.pooled)

    @cached_property
    def comparisons(self) -> pd.DataFrame:
        """Methods after the last round, in pairs: the difference, its interval and its p-value."""
        return frames.comparisons_frame(self.loaded.results.comparisons)

    @cached_property
    def compute(self) -> pd.DataFrame:
        """What stages took: tokens, FLOPs, seconds on devices."""
        return frames.compute_frame(self.loaded.compute.rows)

    @cached_property
    def samples(self) -> pd.DataFrame:
        """Every evaluated completion with its prompt, reward and divergence."""
        return frames.samples_frame(self.loaded.samples())

    @cached_property
    def curves(self) -> pd.DataFrame:
        """Steps of every training: loss, gradient norm, learning rate, and what the method tells besides."""
        return frames.curves_frame(self.loaded.curves())

    @cached_property
    def timeline(self) -> pd.DataFrame:
        """Who used which device when."""
        return frames.timeline_frame(self.loaded.timeline())

    # -- shown -------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"<run of {self.name}: {self.state}, {self.folder}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: where the run stands, and its tables. Refers to nothing outside."""
        headline = f"<p><b>{html_text(self.name)}</b>: {self.state} <code>{html_text(str(self.folder))}</code></p>"
        tables = "".join(map(html_table, self._tables()))
        return f"<div>{headline}{tables or '<p>no results yet</p>'}</div>"

    def _tables(self) -> list[FittedTable]:
        results = self.loaded.results
        return [*result_tables(results, self.loaded.compute.costs), *front_tables(results)]
