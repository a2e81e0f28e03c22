"""What an agent does while it owns the sweep: notes what was lost, chooses what comes next, says when it is over.

Everything here is called inside of a turn of the record, by one process at a time.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Collection, Sequence

from pipeline.engine.devices.inventory import lives
from pipeline.errors import ConfigError
from pipeline.foreign import ForeignDataError, read_json_file
from pipeline.sweeps.agents import turn
from pipeline.sweeps.agents.orders import as_written
from pipeline.sweeps.record import Present, Record, next_trial_number
from pipeline.sweeps.searching.search import Search
from pipeline.sweeps.spec import Sweep
from pipeline.sweeps.trials import Trial, TrialState, why_lost

_MANY = 100
"""Trials in a row that need more devices than there are, after which nothing else is expected."""


def note_lost(record: Record, own: str = "") -> list[Trial]:
    """Note the agents that are gone, and the trials that were lost with them.

    Args:
        record: Of the sweep.
        own: The agent that asks, or "".

    Returns:
        The trials.
    """
    gone = [agent for agent in record.agents() if agent != own and is_gone(record, agent)]
    lost = [trial for trial in record.view.having(TrialState.running) if trial.agent in gone]
    for trial in lost:
        state = TrialState.failed if trial.losses + 1 >= turn.MAX_LOSSES else TrialState.lost
        fields = {"state": state.value, "reason": why_lost(trial.agent)}
        record.write("TrialEnded", trial=trial.number, attempt=trial.attempts, **fields)
    for agent in gone:
        record.write("AgentLeft", agent=agent)
        (record.folder.agents / agent).unlink(missing_ok=True)
    return lost


def put_back(record: Record, agent: str, started: Collection[int], why: str) -> set[int]:
    """Let trials wait again that an agent was given in an earlier turn, and could not start.

    Args:
        record: Of the sweep.
        agent: The agent, which asks.
        started: Numbers of those that it has started, and whose end is not written.
        why: What for they could not be started.

    Returns:
        Their numbers.
    """
    own = [trial for trial in record.view.having(TrialState.running) if trial.agent == agent]
    unstarted = [trial for trial in own if trial.number not in started]
    for trial in unstarted:
        ended = turn.Ending(state=TrialState.waiting, values={}, reason=why)
        record.write("TrialEnded", trial=trial.number, attempt=trial.attempts, **ended.fields())
    return {trial.number for trial in unstarted}


def is_gone(record: Record, agent: str) -> bool:
    """Whether an agent is surely no more, which its locked file alone tells.

    Where the file system has no locks this is known of those of this machine alone, by their process.
    """
    alive = record.agent_lives(agent)
    if alive is not None:
        return not alive
    try:
        found = read_json_file(record.folder.agents / agent, Present)
    except (OSError, ForeignDataError):
        return False
    return found.host == socket.gethostname() and found.pid != os.getpid() and not lives(found.pid)


def refuse_several(record: Record) -> None:
    """See that an agent is alone where agents cannot exclude each other.

    Raises:
        ConfigError: Others may be there.
    """
    others = record.agents()
    if others and not record.has_locks:
        files = " and ".join(str(record.folder.agents / agent) for agent in others)
        raise ConfigError(
            f"{record.folder.path} is on a file system without locks, where one agent alone can work on a sweep, "
            f"and {', '.join(others)} may be there. Wait for it; or if it is gone remove {files}"
        )


class Chooser:
    """Chooses the next trial for one agent."""

    def __init__(
        self,
        record: Record,
        sweep: Sweep,
        search: Search,
        *,
        each: int,
        logged: Callable[[Trial], Sequence[float | None]],
    ) -> None:
        """Prepare.

        Args:
            record: Of the sweep.
            sweep: What is asked for.
            search: Chooses settings.
            each: Devices of a trial, where that is no parameter.
            logged: What a running trial has logged of the metric so far, in order.
        """
        self._record, self._sweep, self._search, self._logged = record, sweep, search, logged
        self._each = each
        self._exhausted = False

    def next(self, devices: int, *, new: bool) -> Trial | None:
        """The trial whose turn it is, be it a new one; None where nothing is left that the devices would do for.

        Args:
            devices: How many there are, free or not.
            new: Whether a trial may be begun that this agent has not begun before.
        """
        view = self._record.view
        if view.halted or turn.reached(view, self._sweep.metric) or not new:
            return None
        for _ in range(_MANY):
            if (trial := turn.next_of(self.ready(), devices)) is not None:
                return trial
            if not self._create():
                return None
        return None

    def ready(self) -> list[Trial]:
        """The trials that wait."""
        return turn.ready(self._record.view, self._sweep.options.max_attempts)

    def finish(self) -> None:
        """Say that the sweep is over, if nothing is left for anybody."""
        view = self._record.view
        if view.halted or view.having(TrialState.running):
            return
        reason = turn.reached(view, self._sweep.metric)
        if reason or not (self.ready() or self._may_create()):
            self._record.write("SweepFinished", reason=reason)

    def _may_create(self) -> bool:
        return not self._exhausted and turn.may_create(self._record.view, self._sweep)

    def _create(self) -> bool:
        if not self._may_create():
            return False
        view = self._record.view
        parameters = self._search.ask([self._as_asked(view.trials[number]) for number in sorted(view.trials)])
        if parameters is None:
            self._exhausted = True
            return False
        self._record.write(
            "TrialCreated",
            trial=next_trial_number(self._record.folder, view.trials),
            num_gpus=turn.devices_needed(parameters, self._each),
            **as_written(parameters),
        )
        return True

    def _as_asked(self, trial: Trial) -> Trial:
        if trial.state is not TrialState.running:
            return trial
        return turn.so_far(trial, self._sweep.metric, self._logged(trial))
