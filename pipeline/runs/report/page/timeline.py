"""Who used which device when, folded until it can be drawn. Pure.

Neighbours that are too short to be told apart become one bar, which says how many they are and how long one ran.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pipeline.runs.report.page.model import Bars, Timeline

MOST_BARS = 1500
"""As many as a browser draws in half a second."""
SEVERAL = "several"
_FINEST = 1 / 4000
_ONE_STAGE = 1 / 100
"""Parts of the run: where the folding begins, and up to where only neighbours of one stage are folded."""


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """One attempt at a job, or several neighbours. Seconds count from the begin of the run.

    Attributes:
        lane: The device.
        start: Begin.
        end: End.
        stage: What ran.
        outcome: ``done``, ``failed``, ``stopped``, ``running`` or ``lost``.
        first: Id of the job, or of the first.
        last: Of the last.
        jobs: How many.
        busy: Seconds in which one ran.
    """

    lane: str
    start: float
    end: float
    stage: str
    outcome: str
    first: str
    last: str = ""
    jobs: int = 1
    busy: float = 0.0


def timeline_of(
    attempts: Iterable[Stretch], lanes: Sequence[str], seconds: float, most: int = MOST_BARS
) -> Timeline:
    """The timeline of a run.

    Args:
        attempts: Every attempt that began.
        lanes: The devices in order, those that ran nothing too.
        seconds: Length of the run.
        most: Bars that it may have; every device has one for each outcome at least.
    """
    every = sorted(attempts, key=lambda one: (one.start, one.end))
    names = list(dict.fromkeys([*lanes, *sorted(one.lane for one in every)]))
    by_lane: dict[str, list[Stretch]] = {name: [] for name in names}
    for one in every:
        by_lane[one.lane].append(one)
    busy = [_covered(own) for own in by_lane.values()]
    folded = _folded(by_lane, max([seconds, *(one.end for one in every)]), most)
    return Timeline(
        lanes=names,
        jobs=[len(own) for own in by_lane.values()],
        busy=[round(one, 3) for one in busy],
        seconds=round(seconds, 3),
        attempts=len(every),
        bars=_bars(folded, names),
    )


def _folded(by_lane: dict[str, list[Stretch]], seconds: float, most: int) -> list[Stretch]:
    part = _FINEST
    while True:
        found = [bar for own in by_lane.values() for bar in own]
        if len(found) <= most or part > 2:
            return found
        by_lane = {lane: _fold(own, part * seconds, part > _ONE_STAGE) for lane, own in by_lane.items()}
        part *= 2


def _fold(stretches: list[Stretch], width: float, across: bool) -> list[Stretch]:
    """Join neighbours that are shorter than a width, and nearer than that, where both came out alike.

    Args:
        stretches: Of one device, by their begin.
        width: Seconds.
        across: Whether those of different stages are joined too.
    """
    found: list[Stretch] = []
    latest: dict[str, int] = {}
    for one in stretches:
        at = latest.get(one.outcome)
        if at is not None and _joinable(found[at], one, width, across):
            found[at] = _joined(found[at], one)
        else:
            latest[one.outcome] = len(found)
            found.append(one)
    return found


def _joinable(before: Stretch, after: Stretch, width: float, across: bool) -> bool:
    alike = across or before.stage == after.stage
    return alike and after.start - before.end <= width and min(_length(before), _length(after)) <= width


def _length(one: Stretch) -> float:
    return one.end - one.start


def _joined(before: Stretch, after: Stretch) -> Stretch:
    return Stretch(
        lane=before.lane,
        start=before.start,
        end=max(before.end, after.end),
        stage=before.stage if before.stage == after.stage else SEVERAL,
        outcome=before.outcome,
        first=before.first,
        last=after.last or after.first,
        jobs=before.jobs + after.jobs,
        busy=_busy(before) + _busy(after),
    )


def _busy(one: Stretch) -> float:
    return one.busy if one.jobs > 1 else _length(one)


def _covered(stretches: list[Stretch]) -> float:
    """Seconds in which at least one of them ran; they are in the order of their begins."""
    until, found = 0.0, 0.0
    for one in stretches:
        found += max(0.0, one.end - max(one.start, until))
        until = max(until, one.end)
    return found


def _bars(stretches: Iterable[Stretch], names: list[str]) -> Bars:
    bars, places = Bars(), {name: at for at, name in enumerate(names)}
    for one in stretches:
        bars.lane.append(places[one.lane])
        bars.start.append(round(one.start, 3))
        bars.end.append(round(one.end, 3))
        bars.stage.append(one.stage)
        bars.outcome.append(one.outcome)
        bars.jobs.append(one.jobs)
        bars.busy.append(round(min(_busy(one), _length(one)), 3))
        bars.name.append(one.first if one.jobs == 1 else f"{one.first} … {one.last}")
    return bars
