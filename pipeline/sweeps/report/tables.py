"""Trials and sweeps as tables of the terminal."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from rich.text import Text

from pipeline.runs.comparison.runs import headings_of
from pipeline.runs.report.format import duration
from pipeline.sweeps.batch import effective_batch
from pipeline.sweeps.trials import SweepView, Trial, TrialState
from pipeline.sweeps.values import in_words, measured, said, varied
from pipeline.terminal.columns import EXTRA, Column, FittedTable, shorten
from pipeline.terminal.streams import on_one_line

_LEAST_NAME = 12
_LEAST_VALUE = 6
_LEAST_DEVICE = 8
_HEADING = 14
"""Cells of a heading that somebody else has named."""
_UUID = re.compile(r" *\b(GPU|MIG)-[0-9a-fA-F/-]+$")
_FIRST = 2
"""Parameters that go before the time where there is little room."""
STYLES = {
    "done": "green",
    "running": "bold",
    "failed": "bold red",
    "lost": "red",
    "cancelled": "red",
    "finished": "green",
    "stopped": "yellow",
    "paused": "yellow",
    "stopping": "yellow",
}
"""How states look, of trials and of sweeps."""
STATES = [state.value for state in TrialState]


@dataclass(frozen=True, kw_only=True)
class SweepRow:
    """A sweep in one row.

    Attributes:
        name: Its name.
        state: In one word, see `RecordedSweep.state`.
        method: How settings are chosen.
        started: When it began, in seconds since 1970, or None.
        elapsed_s: Seconds in which agents have worked on it, up to its last event if it is over.
        trials: How many were chosen so far.
        waiting, running, done, failed, stopped, cancelled, lost: How many of them are in each state.
        metric: What they are judged by.
        best: Number of the best trial, or None.
        value: Its value.
        problem: Why the sweep cannot be read, or "".
    """

    name: str
    state: str = "unreadable"
    method: str = ""
    started: float | None = None
    elapsed_s: float = 0.0
    trials: int = 0
    waiting: int = 0
    running: int = 0
    done: int = 0
    failed: int = 0
    stopped: int = 0
    cancelled: int = 0
    lost: int = 0
    metric: str = ""
    best: int | None = None
    value: float | None = None
    problem: str = ""

    @property
    def by_state(self) -> dict[str, int]:
        """How many trials are in each state."""
        return {state.value: int(getattr(self, state.value)) for state in TrialState}


def sweeps_table(rows: Sequence[SweepRow]) -> FittedTable:
    """All sweeps, the one that began last on top; of the states of trials those that some are in."""
    counts = [row.by_state for row in rows]
    states = [state for state in STATES if state == "done" or any(each[state] for each in counts)]
    table = FittedTable(
        [
            Column(heading="sweep", least=_LEAST_NAME),
            Column(heading="state", rank=1),
            Column(heading="method", rank=7),
            Column(heading="trials", right=True, rank=2),
            *(Column(heading=state, right=True, rank=4) for state in states),
            Column(heading="best", right=True, rank=3),
            Column(heading="metric", rank=8, least=_LEAST_NAME),
            Column(heading="time", right=True, rank=6),
        ],
        lines=False,
    )
    for row in sorted(rows, key=lambda row: (row.started or 0.0, row.name), reverse=True):
        table.add_row(
            row.name,
            Text(row.state, style=STYLES.get(row.state, "")),
            row.method,
            f"{row.trials:,}",
            *(_number(row.by_state[state], state) for state in states),
            measured(row.value),
            row.metric,
            "" if row.started is None else duration(row.elapsed_s),
        )
    return table


def _number(number: int, state: str) -> Text:
    style = STYLES[state] if state in ("failed", "lost") else ""
    return Text(f"{number:,}" if number or state == "done" else "", style=style)


def trials_table(
    view: SweepView,
    shown: Sequence[Trial],
    now: float,
    values: Mapping[int, float | None] = MappingProxyType({}),
    *,
    brief: bool = True,
) -> FittedTable:
    """Trials, a row each.

    Args:
        view: The sweep: all its trials decide which parameters and agents tell them apart.
        shown: Those that are shown.
        now: Seconds since 1970.
        values: Number -> what a trial that has not ended has logged of the metric last.
        brief: Cut long headings, which would leave no room for other columns.
    """
    trials, metric = list(view.trials.values()), view.metric
    names = varied(trials)
    headings = list(headings_of(names, {name for trial in trials for name in trial.parameters}).values())
    cut = shorten([metric, *headings], _HEADING) if brief else {name: name for name in [metric, *headings]}
    batches = {trial.number: effective_batch(trial.parameters, trial.num_gpus) for trial in trials}
    agents = agents_in_words(view)
    several = len({trial.agent for trial in trials if trial.agent}) > 1
    least = [_least_of(trial.parameters.get(name) for trial in shown) for name in names]
    parameters = zip((cut[heading] for heading in headings), least, strict=True)
    columns = _columns(cut[metric], parameters, batches, agents=several)
    table = FittedTable(columns, lines=False)
    for trial in shown:
        value = trial.value if trial.value is not None else values.get(trial.number)
        who = [agents.get(trial.agent, trial.agent)] if several else []
        table.add_row(*_cells(trial, value, names, batches, now), *who, devices_in_words(trial.devices))
    return table


def agents_in_words(view: SweepView) -> dict[str, str]:
    """Agent -> what tells it from the others: ``a2``, with its machine where there are several ``node7 a2``."""
    found = {trial.agent: view.hosts.get(trial.agent, "") for trial in view.trials.values() if trial.agent}
    several = len(set(found.values())) > 1
    return {agent: f"{host} {agent}".strip() if several else agent for agent, host in found.items()}


def _columns(
    metric: str, parameters: Iterable[tuple[str, int | None]], batches: dict[int, int | None], *, agents: bool
) -> Iterator[Column]:
    yield Column(heading="trial", right=True)
    yield Column(heading="state", rank=2, width=len("cancelled"))
    yield Column(heading=metric or "value", right=True, rank=1, width=len("-1.2345e-05"))
    for at, (heading, least) in enumerate(parameters):
        yield Column(heading=heading, right=True, rank=3 if at < _FIRST else 6, least=least)
    if any(batch is not None for batch in batches.values()):
        yield Column(heading="batch", right=True, rank=5)
    yield Column(heading="time", right=True, rank=4, width=len("59 min 59 s"))
    yield Column(heading="attempt", right=True, rank=EXTRA + 1)
    if agents:
        yield Column(heading="agent", rank=EXTRA, least=_LEAST_NAME)
    yield Column(heading="devices", rank=EXTRA, least=_LEAST_DEVICE)


def _least_of(values: Iterable[Any]) -> int | None:
    """Cells to which values may be cut: numbers to none, as digits of one are another number."""
    return None if any(isinstance(value, int | float) for value in values) else _LEAST_VALUE


def _cells(
    trial: Trial, value: float | None, names: Sequence[str], batches: dict[int, int | None], now: float
) -> Iterator[str | Text]:
    yield str(trial.number)
    yield Text(trial.state.value, style=STYLES.get(trial.state.value, ""))
    yield measured(value)
    yield from (said(trial.parameters[name]) if name in trial.parameters else "" for name in names)
    if any(batch is not None for batch in batches.values()):
        yield str(batches[trial.number] or "")
    yield "" if (taken := seconds_of(trial, now)) is None else duration(taken)
    yield str(trial.attempts or "")


def devices_in_words(words: Sequence[str]) -> str:
    """Devices without the UUIDs by which they are known for certain: ``GPU 0, 1``."""
    names = [_UUID.sub("", one) or one for one in words]
    same = len(names) > 1 and all(re.fullmatch(r"GPU \d+", name) for name in names)
    return ", ".join([names[0], *(name.removeprefix("GPU ") for name in names[1:])] if same else names)


def has_uuid(device: str) -> bool:
    """Whether a device is known for certain, whoever names it."""
    return _UUID.search(device) is not None


def seconds_of(trial: Trial, now: float) -> float | None:
    """How long its last attempt took, or has taken so far; None where there was none."""
    if trial.started is None:
        return None
    ended = trial.ended if trial.state is not TrialState.running else now
    return None if ended is None else max(0.0, ended - trial.started)


def about_trial(trial: Trial, metric: str, names: Sequence[str]) -> str:
    """A trial in a line, with these of its parameters: ``trial 7: val/loss 0.4123, lr=0.0003 eta=1``."""
    value = f"{on_one_line(metric) or 'value'} {measured(trial.value)}, " if trial.value is not None else ""
    return f"trial {trial.number}: {value}{in_words(trial.parameters, names)}"
