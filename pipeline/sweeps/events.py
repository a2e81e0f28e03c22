"""The lines of a sweep's journal: which fields each has, and of what type. See `trials` for what they mean.

As in the journal of a run, fields and events that are not known are passed over, and a line with a field of a
wrong type, or without one that it needs, costs itself alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, NotRequired, TypedDict

from msgspec import Meta

from pipeline.engine.events import read_event
from pipeline.foreign import converted, parse_json
from pipeline.sweeps.spec import Goal, Method
from pipeline.sweeps.trials import LAST_TRIAL, TrialState

_Number = Annotated[int, Meta(ge=0, le=LAST_TRIAL)]
_Pid = Annotated[int, Meta(ge=0, le=2**31 - 1)]
_Time = Annotated[float, Meta(ge=0, le=2.5e11)]
_Id = Annotated[str, Meta(pattern=r"\Aa[1-9][0-9]{0,8}\Z")]
"""Of an agent; a file has that name."""


class _SweepStarted(TypedDict):
    name: str
    method: Method
    time: _Time
    metric: NotRequired[str | None]
    goal: NotRequired[Goal | None]
    pid: NotRequired[_Pid | None]
    host: NotRequired[str]
    folder: NotRequired[str]
    overrides: NotRequired[list[str]]
    count: NotRequired[_Number | None]


class _AgentJoined(TypedDict):
    agent: _Id
    host: NotRequired[str]
    pid: NotRequired[_Pid | None]
    devices: NotRequired[list[str]]


class _AgentLeft(TypedDict):
    agent: _Id


class _TrialCreated(TypedDict):
    trial: _Number
    parameters: dict[str, Any]
    num_gpus: NotRequired[Annotated[int, Meta(ge=0, le=10**6)]]
    exact: NotRequired[str]


class _TrialStarted(TypedDict):
    trial: _Number
    attempt: Annotated[int, Meta(ge=1, le=10**6)]
    agent: _Id
    time: _Time
    devices: NotRequired[list[str]]
    pid: NotRequired[_Pid | None]


class _TrialEnded(TypedDict):
    trial: _Number
    state: TrialState
    time: _Time
    value: NotRequired[float | None]
    values: NotRequired[dict[str, float | None]]
    best: NotRequired[float | None]
    exit_code: NotRequired[int | None]
    reason: NotRequired[str]


class _Halt(TypedDict):
    reason: NotRequired[str]


class _WinnerTested(TypedDict):
    results: dict[str, Any]
    trial: NotRequired[_Number]


_KINDS: Mapping[str, Any] = {
    "SweepStarted": _SweepStarted,
    "AgentJoined": _AgentJoined,
    "AgentLeft": _AgentLeft,
    "TrialCreated": _TrialCreated,
    "TrialStarted": _TrialStarted,
    "TrialEnded": _TrialEnded,
    "SweepPaused": _Halt,
    "SweepResumed": _Halt,
    "SweepStopped": _Halt,
    "SweepCancelled": _Halt,
    "SweepFinished": _Halt,
    "WinnerTested": _WinnerTested,
}


def read_sweep_event(line: bytes) -> dict[str, Any]:
    """Read one line of a sweep's journal.

    Raises:
        ForeignDataError: It is no event, or lacks what one of its kind needs.
    """
    event = read_event(line)
    if (kind := _KINDS.get(event["event"])) is not None:
        converted(event, kind)
    if "exact" in event:
        # Parameters may be infinite, which JSON has no number for.
        event["parameters"] = converted(parse_json(event.pop("exact"), infinite=True), dict[str, Any])
    return event
