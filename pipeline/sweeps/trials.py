"""Trials of a sweep, as its journal tells them: a pure fold of events, the same for whoever runs or looks.

    SweepStarted(name, method, metric, goal, pid, host, folder, overrides, count)
    Prepared()
    AgentJoined(agent, host, pid, devices)   AgentLeft(agent)
    TrialCreated(trial, parameters, num_gpus, exact)
    TrialStarted(trial, attempt, agent, devices)
    TrialEnded(trial, attempt, state, value, best, values, exit_code, reason)
    SweepPaused()  SweepResumed()  SweepStopped(reason)  SweepCancelled()  SweepFinished(reason)
    WinnerTested(trial, results)

Each has ``event`` and ``time`` besides, as in the journal of a run. `SweepStarted` stands at the beginning, and
again each time that somebody begins a sweep on which no agent works; it and `SweepResumed` give what has failed or
was cancelled another chance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from pipeline.sweeps.spec import Goal

LAST_TRIAL = 10**9
"""The largest number that a trial can have."""


class TrialState(Enum):
    """What became of a trial, or of its last attempt."""

    waiting = "waiting"  # created, or to be tried again
    running = "running"
    done = "done"
    failed = "failed"  # it ended with an error; tried again as long as it has attempts left
    stopped = "stopped"  # early, by the rule of the sweep file
    cancelled = "cancelled"  # by a user
    lost = "lost"  # its agent is gone; tried again


@dataclass(kw_only=True)
class Trial:
    """One choice of settings.

    Attributes:
        number: From 0, in the order in which they were chosen.
        parameters: Dotted name -> value.
        num_gpus: Devices it needs.
        state: What became of it.
        attempts: How often it was begun.
        value: Of the metric, at the end of its last attempt.
        best: The best number of the metric that its last attempt has logged, at its end.
        agent: Who runs it, or ran it last.
        devices: In words, with UUIDs for GPUs.
        started: Seconds since 1970, of the last attempt.
        ended: Likewise.
        exit_code: Of the last attempt.
        reason: Why it failed or was stopped.
        values: What its last attempt logged last of every metric, at its end.
        failures: Attempts that have failed since the sweep was last begun or resumed.
        losses: Agents that have died with it since then.
    """

    number: int
    parameters: Mapping[str, Any]
    num_gpus: int = 1
    state: TrialState = TrialState.waiting
    attempts: int = 0
    value: float | None = None
    best: float | None = None
    agent: str = ""
    devices: tuple[str, ...] = ()
    started: float | None = None
    ended: float | None = None
    exit_code: int | None = None
    reason: str = ""
    values: Mapping[str, float | None] = field(default_factory=dict)
    failures: int = 0
    losses: int = 0


@dataclass(kw_only=True)
class SweepView:
    """A sweep up to the last event that was taken.

    Attributes:
        method: How settings are chosen: ``grid``, ``random``, ``bayes``.
        metric: What trials are judged by, or "".
        goal: Which values of it are better.
        started: When it began, in seconds since 1970; None before.
        last: When it was last heard of.
        rested_s: Seconds up to then in which nobody worked on it: before somebody came, or let it go on.
        trials: By number.
        agents: Id -> devices, of those that have joined and not left.
        hosts: Id -> machine, of all that have said so.
        halted: ``paused``, ``stopped``, ``cancelled``, ``finished``, or "" while trials are begun.
        reason: Why.
        tested: Results of the best trial on held-out data, metric -> value.
        winner: Which trial that was.
        failing: Trials that have failed since one ended well, each once.
        named: Ids of all agents that were ever heard of.
        prepared: Whether what comes before the first trial has been done.
        folder: In which the sweep was begun, and programs start.
        overrides: Settings of the command line that are fixed for every trial.
        count: The most trials, as the command line says; None for no bound.
    """

    method: str = ""
    metric: str = ""
    goal: Goal = Goal.minimize
    started: float | None = None
    last: float | None = None
    rested_s: float = 0.0
    trials: dict[int, Trial] = field(default_factory=dict)
    agents: dict[str, tuple[str, ...]] = field(default_factory=dict)
    hosts: dict[str, str] = field(default_factory=dict)
    halted: str = ""
    reason: str = ""
    tested: Mapping[str, Any] = field(default_factory=dict)
    winner: int | None = None
    failing: list[int] = field(default_factory=list)
    named: set[str] = field(default_factory=set)
    prepared: bool = False
    folder: str = ""
    overrides: tuple[str, ...] = ()
    count: int | None = None

    def feed(self, events: Iterable[Mapping[str, Any]]) -> None:
        """Take events in their order; those of a later version or of unknown trials are passed over."""
        for event in events:
            take = _TAKES.get(event["event"])
            if event["event"] in _OF_AGENTS:
                self.named.add(event["agent"])
            if take is None or (event["event"] in _OF_TRIALS and event["trial"] not in self.trials):
                continue
            if self._rested(event):
                self.rested_s += max(0.0, event["time"] - (self.last or event["time"]))
            self.last = event.get("time") or self.last
            take(self, event)

    def _rested(self, event: Mapping[str, Any]) -> bool:
        """Whether nobody has worked on it from the last event to this one."""
        if not event.get("time"):
            return False
        if self.halted == "finished":  # a look at it is no work
            return bool(event["event"] != "WinnerTested")
        if self.agents and event["event"] == "TrialEnded" and event["state"] == TrialState.lost.value:
            return self.agents.keys() <= {self.trials[event["trial"]].agent}  # it died some time ago
        if self.agents and event["event"] not in _BEGIN_AGAIN:
            return False
        return not any(trial.state is TrialState.running for trial in self.trials.values())

    def lose(self, gone: Collection[str]) -> None:
        """Show the trials of agents that are gone as lost, up to the event that says what became of them."""
        for trial in self.having(TrialState.running):
            if trial.agent in gone:
                trial.state, trial.ended, trial.reason = TrialState.lost, self.last, why_lost(trial.agent)

    def having(self, *states: TrialState) -> list[Trial]:
        """The trials that stand so, by number."""
        return [trial for _, trial in sorted(self.trials.items()) if trial.state in states]

    def _begun(self, event: Mapping[str, Any]) -> None:
        self.method, self.metric = event["method"], event.get("metric") or ""
        self.goal = Goal(event.get("goal") or Goal.minimize)
        self.started = event["time"] if self.started is None else self.started
        self.folder, self.overrides = event.get("folder", ""), tuple(event.get("overrides", ()))
        self.count = event.get("count")
        self._go_on(event)

    def _go_on(self, event: Mapping[str, Any]) -> None:
        self._halt(event)
        self.failing.clear()
        for trial in self.trials.values():
            trial.failures = trial.losses = 0
            if trial.state in (TrialState.failed, TrialState.cancelled):
                trial.state = TrialState.waiting

    def _prepared(self, _event: Mapping[str, Any]) -> None:
        self.prepared = True

    def _created(self, event: Mapping[str, Any]) -> None:
        number = event["trial"]
        self.trials[number] = Trial(
            number=number, parameters=event["parameters"], num_gpus=event.get("num_gpus", 1)
        )

    def _started(self, event: Mapping[str, Any]) -> None:
        trial = self.trials[event["trial"]]
        trial.state, trial.attempts, trial.agent = TrialState.running, event["attempt"], event["agent"]
        trial.devices, trial.started = tuple(event.get("devices", ())), event["time"]
        trial.ended, trial.exit_code, trial.reason = None, None, ""
        trial.value = trial.best = None
        trial.values = {}

    def _ended(self, event: Mapping[str, Any]) -> None:
        trial = self.trials[event["trial"]]
        trial.state, trial.ended = TrialState(event["state"]), event["time"]
        trial.value, trial.exit_code = event.get("value"), event.get("exit_code")
        trial.best, trial.reason = event.get("best"), event.get("reason", "")
        trial.values = event.get("values", {})
        self._count(trial)

    def _count(self, trial: Trial) -> None:
        trial.failures += trial.state is TrialState.failed
        trial.losses += trial.state is TrialState.lost
        if trial.state is TrialState.failed and trial.number not in self.failing:
            self.failing.append(trial.number)
        if trial.state in (TrialState.done, TrialState.stopped):
            self.failing.clear()

    def _joined(self, event: Mapping[str, Any]) -> None:
        self.agents[event["agent"]] = tuple(event.get("devices", ()))
        self.hosts[event["agent"]] = event.get("host", "")

    def _left(self, event: Mapping[str, Any]) -> None:
        self.agents.pop(event["agent"], None)

    def _halt(self, event: Mapping[str, Any]) -> None:
        self.halted, self.reason = _HALTS[event["event"]], event.get("reason", "")

    def _tested(self, event: Mapping[str, Any]) -> None:
        self.tested, self.winner = event["results"], event.get("trial")


_HALTS = {
    "SweepStarted": "",
    "SweepResumed": "",
    "SweepPaused": "paused",
    "SweepStopped": "stopped",
    "SweepCancelled": "cancelled",
    "SweepFinished": "finished",
}
_TAKES: Mapping[str, Callable[[SweepView, Mapping[str, Any]], None]] = {
    "TrialCreated": SweepView._created,
    "TrialStarted": SweepView._started,
    "TrialEnded": SweepView._ended,
    "AgentJoined": SweepView._joined,
    "AgentLeft": SweepView._left,
    "WinnerTested": SweepView._tested,
    **dict.fromkeys(_HALTS, SweepView._halt),
    "SweepStarted": SweepView._begun,
    "SweepResumed": SweepView._go_on,
    "Prepared": SweepView._prepared,
}
_BEGIN_AGAIN = {"SweepStarted", "SweepResumed"}
_OF_TRIALS = {"TrialStarted", "TrialEnded"}
_OF_AGENTS = {"AgentJoined", "AgentLeft", "TrialStarted"}


def why_lost(agent: str) -> str:
    """Why the trials of an agent that is gone have ended."""
    return f"agent {agent} is gone"


def best_trial(trials: Iterable[Trial], goal: Goal) -> Trial | None:
    """The one with the best value of those that came to their end; the first of equal ones."""
    ended = [trial for trial in trials if trial.state is TrialState.done and is_number(trial.value)]
    sign = 1 if goal is Goal.minimize else -1
    return min(ended, key=lambda trial: (sign * (trial.value or 0.0), trial.number), default=None)


def is_number(value: float | None) -> bool:
    """Whether it can be compared: there is one, and it is finite."""
    return value is not None and math.isfinite(value)
