"""A run for programs and notebooks: results as pandas frames, and as a table to display."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.errors import StoreError
from pipeline.outputs.formats import FIELDS, Sample
from pipeline.plan.graph import Job
from pipeline.runs.cost import ComputeRow
from pipeline.runs.loaded import LoadedRun
from pipeline.runs.record import Comparison, PooledRow, ResultRow
from pipeline.runs.report.tables import front_tables, result_tables
from pipeline.runs.run_view import Span
from pipeline.terminal.console import NO_TERMINAL_WIDTH, Terminal

if TYPE_CHECKING:
    import pandas as pd


# -- frames ------------------------------------------------------------------------------------------------------
# A run as pandas frames, with a row for each number, completion, step or span; columns in docs/python.md. Integers
# that may be missing have pandas' type ``Int64``, so that a seed stays ``0`` and does not become ``0.0``.


PLACE = ("dataset", "model", "reference", "algo", "seed", "round")
"""Columns that identify a job."""
_GIVEN = "given_answer"
"""Column with the answer that a reward has read from a completion."""
_WHOLE = {"reference", "seed", "difference_references", "difference_seeds", "difference_n", "tokens", "answers"}
"""Integer columns that may be missing."""
_TRUTHS = {"correct"}
"""Columns that are true, false or missing."""
_TEXTS = {_GIVEN, "fault", "difference_over"}
"""Text columns that may be missing."""


def _rows(kind: type[Any], rows: Iterable[Any]) -> pd.DataFrame:
    """Return rows of a dataclass as a frame."""
    return _frame([field.name for field in fields(kind)], map(vars, rows))


def _frame(names: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    import pandas as pd

    every = list(rows)
    columns = {name: [row.get(name) for row in every] for name in names}
    try:
        return pd.DataFrame({name: _typed(name, cells) for name, cells in columns.items()}, columns=list(names))
    except (UnicodeEncodeError, OverflowError) as error:
        raise StoreError(f"what the run left was altered, or is damaged: {error}") from error


def _typed(name: str, cells: list[Any]) -> Any:
    """Return cells such that missing ones change no type, neither of the others nor of an empty column."""
    import pandas as pd

    if name in _WHOLE or name in _TRUTHS:
        return pd.array(cells, "Int64" if name in _WHOLE else "boolean")
    if name in _TEXTS or any(isinstance(cell, str | bool) for cell in cells):
        return cells
    return cells if cells and all(isinstance(cell, int) for cell in cells) else pd.Series(cells, dtype="float64")


def _place(job: Job) -> dict[str, Any]:
    return {name: getattr(job, name) for name in PLACE}


def _prefixed(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{prefix}/{name}": value for name, value in values.items()}


class Run:
    """A run that is over, goes on, or was killed; see docs/python.md for the columns of its frames.

    Frames are read on first access and then kept; `refresh` reads again.

    Attributes:
        loaded: Same data as typed rows, and more, without pandas.
        exit_code: Exit code of a run that `pipeline.run` has just carried out, 0 if every job is done; None for a
            loaded run.
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
        """Folder of the run."""
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
        """The shell command that repeats it, or "" if unknown."""
        return self.loaded.origin.command_line

    def refresh(self) -> Run:
        """Read a run in progress again.

        Returns:
            This object.
        """
        self.loaded.refresh()
        for name in ("results", "pooled", "comparisons", "compute", "samples", "curves", "timeline"):
            self.__dict__.pop(name, None)
        return self

    # -- frames ------------------------------------------------------------------------------------------------

    @cached_property
    def results(self) -> pd.DataFrame:
        """Every measured number: a row for each chain, round and metric."""
        return _rows(ResultRow, self.loaded.results.rows)

    @cached_property
    def pooled(self) -> pd.DataFrame:
        """Every number of methods, over seeds and references: a row for each method, round and metric."""
        return _rows(PooledRow, self.loaded.results.pooled)

    @cached_property
    def comparisons(self) -> pd.DataFrame:
        """Methods after the last round, in pairs: the difference, its interval and its p-value."""
        return _rows(Comparison, self.loaded.results.comparisons)

    @cached_property
    def compute(self) -> pd.DataFrame:
        """Cost of stages: tokens, seconds on devices, FLOPs by purpose as ``flops/PURPOSE``."""
        rows = self.loaded.compute.rows
        purposes = sorted({name for row in rows for name in row.flops_by_purpose})
        names = [field.name for field in fields(ComputeRow) if field.name != "flops_by_purpose"]
        cells = ({**vars(row), **_prefixed("flops", row.flops_by_purpose)} for row in rows)
        return _frame([*names, *(f"flops/{name}" for name in purposes)], cells)

    @cached_property
    def samples(self) -> pd.DataFrame:
        """Every evaluated completion with its prompt and KL divergence; several rewards as ``rewards/NAME``."""
        every = list(self.loaded.samples())
        rewards = sorted({name for _, sample in every for name in sample.parts})
        # `answer` would be mistaken for that of the data, which is not here.
        own = {field.name: _GIVEN if field.name == "answer" else field.name for field in fields(Sample)}
        del own["parts"]
        if every and all(sample.answer is None for _, sample in every):
            del own["answer"]  # no reward of the run reads one
        right = {(job.dataset, each.row): each.solution for job, each in every if each.solution is not None}
        cells = (
            {**_place(job), **{named: getattr(sample, name) for name, named in own.items()}}
            | {"solution": right.get((job.dataset, sample.row))}  # stored with the first sample alone
            | _prefixed("rewards", sample.parts)
            for job, sample in every
        )
        return _frame([*PLACE, *own.values(), *(f"rewards/{name}" for name in rewards)], cells)

    @cached_property
    def curves(self) -> pd.DataFrame:
        """Steps of every training; metrics of only some methods are missing elsewhere."""
        every = [(job, step) for job, steps in self.loaded.curves() for step in steps]
        own = [*PLACE, "stage", "job", *FIELDS]
        extra = sorted({name for _, step in every for name in step.extra})
        named = {name: f"extra/{name}" if name in own else name for name in extra}
        cells = (
            {**_place(job), "stage": job.stage, "job": job.id, **{name: getattr(step, name) for name in FIELDS}}
            | {named[name]: value for name, value in step.extra.items()}
            for job, step in every
        )
        return _frame([*own, *named.values()], cells)

    @cached_property
    def timeline(self) -> pd.DataFrame:
        """Use of devices over time; times in UTC, and ``seconds`` where a span is over."""
        import pandas as pd

        frame = _rows(Span, self.loaded.timeline())
        frame["seconds"] = frame["end"].astype("float64") - frame["start"].astype("float64")
        for name in ("start", "end"):
            frame[name] = pd.to_datetime(frame[name].astype("float64"), unit="s", utc=True)
        return frame

    # -- shown -------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"<run of {self.name}: {self.state}, {self.folder}>"

    def _repr_html_(self) -> str:
        """Return the state of the run and its tables as HTML for a notebook, without external resources."""
        results = self.loaded.results
        tables = [*result_tables(results, self.loaded.compute.costs), *front_tables(results)]
        console = Terminal(
            file=StringIO(), record=True, width=NO_TERMINAL_WIDTH, force_jupyter=False, markup=False
        )
        console.print(f"{self.name}: {self.state} {self.folder}\n", highlight=False)
        console.print(*tables, "" if tables else "no results yet", highlight=False)
        return console.export_html(inline_styles=True, code_format='<pre style="overflow-x: auto">{code}</pre>')
