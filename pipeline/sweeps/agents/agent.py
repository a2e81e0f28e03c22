"""Runs trials on the devices of this machine, beside other agents, until there is nothing left for it to do.

    turn, under the sweep's lock      what has ended is written; lost trials are noted; the next ones are chosen
    between turns                     programs run; what they log is read; one that is not worth its end is ended

Nothing that others need is kept here: whatever happens to an agent, the journal tells the others what to do.
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from pipeline.engine.devices.inventory import Device
from pipeline.engine.scheduler.signals import StopSignals
from pipeline.engine.workers.reaper import Reaper
from pipeline.errors import StoreError
from pipeline.machine import descendants
from pipeline.machine.children import tail
from pipeline.runs.report.format import shown_path
from pipeline.sweeps.agents import turn
from pipeline.sweeps.agents.handle import heard
from pipeline.sweeps.agents.once import AgentDevices, DoneOnce
from pipeline.sweeps.agents.orders import Orders, write_parameters
from pipeline.sweeps.agents.owner import Chooser, note_lost, put_back, refuse_several
from pipeline.sweeps.agents.pool import AgentPool
from pipeline.sweeps.agents.running import Curve, Running
from pipeline.sweeps.agents.shortage import Pauses, shortage
from pipeline.sweeps.folder import TRIALS, SweepFolder
from pipeline.sweeps.record import Record, present
from pipeline.sweeps.searching.search import Search
from pipeline.sweeps.searching.study import open_study_log
from pipeline.sweeps.space import nested
from pipeline.sweeps.spec import Method, Metric, Sweep
from pipeline.sweeps.trials import SweepView, Trial, TrialState
from pipeline.sweeps.values import in_words
from pipeline.terminal.streams import on_one_line

# -- curves ------------------------------------------------------------------------------------------------------
# What trials have logged of the metric, be they another agent's: by it they are compared while they run.


class Curves:
    """Those of one sweep; what was read once is not read again."""

    def __init__(self, folder: SweepFolder, metric: Metric | None) -> None:
        self._folder, self._metric = folder, metric
        self._known: dict[tuple[int, int], Curve] = {}

    def curve(self, number: int, attempt: int) -> Curve:
        """That of one attempt at a trial, as far as it was read."""
        if (number, attempt) not in self._known:
            self._known[number, attempt] = Curve(self._folder.trial(number), attempt, self._metric)
        return self._known[number, attempt]

    def of(self, trial: Trial) -> list[float | None]:
        """What the last attempt at a trial has logged up to now, in order; None for what is no finite number."""
        curve = self.curve(trial.number, trial.attempts)
        curve.refresh()
        return curve.judged

    def of_all(self, trials: Iterable[Trial]) -> dict[int, list[float | None]]:
        """The same of all that were ever begun, by number."""
        return {trial.number: self.of(trial) for trial in trials if trial.attempts}


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """How much an agent does.

    Attributes:
        own: The most that this agent begins; None for no bound.
        grace_s: Seconds that a program has to end once it was told to.
    """

    own: int | None = None
    grace_s: int = 30


@dataclass(frozen=True, kw_only=True)
class SweepListener:
    """Who is told what happens.

    Attributes:
        say: A line for the user.
        show: The state of the sweep, each time it may have changed.
    """

    say: Callable[[str], None]
    show: Callable[[SweepView], None] = lambda _view: None


class Agent:
    """One agent; `run` is all that it does.

    Attributes:
        id: As it is known in the sweep.
        interrupted: Name of the signal that has ended it, or "".
    """

    def __init__(
        self,
        sweep: Sweep,
        folder: SweepFolder,
        pool: AgentPool,
        bounds: Bounds,
        search: Search,
        told: SweepListener,
    ) -> None:
        """Prepare.

        Args:
            sweep: What is asked for.
            folder: Where it is.
            pool: Where trials run.
            bounds: How much is done.
            search: Chooses settings.
            told: Who is told what happens.
        """
        self.id = self.interrupted = ""
        self._sweep, self._folder, self._record = sweep, folder, Record(folder, told.say)
        self._pool, self._bounds, self._told = pool, bounds, told
        self._search, self._orders = search, Orders(sweep, folder, pool, bounds.grace_s)
        self._curves = Curves(folder, sweep.metric)
        self._chooser = Chooser(self._record, sweep, search, each=pool.each, logged=self._curves.of)
        self._study = open_study_log(folder.study, sweep)
        self._running: list[Running] = []
        self._ended: list[tuple[Running, turn.Ending]] = []
        self._shelf = AgentDevices(pool.devices, folder.name)
        self._begun: set[int] = set()
        self._pauses = Pauses(told.say)
        self._leaving = self._told_offline = False
        self._tag = descendants.new_tag()
        self._once = DoneOnce(sweep, self._record, self._shelf, self._chooser, self._orders, told.say, self._tag)

    def run(self, signals: StopSignals) -> None:
        """Work until there is nothing left.

        Args:
            signals: The first one ends trials in order, a second one kills them.

        Raises:
            PipelineError: The record cannot be kept. Its trials have been ended.
        """
        descendants.adopt_orphans()
        with ExitStack() as held:
            reaper = Reaper()
            held.callback(reaper.close)
            reaper.watch_tag(self._tag)
            self._join(held)
            try:
                self.interrupted = self._once.prepare(signals)
                self._leaving = bool(self.interrupted)
                self._take_turn()
                while not self._over():
                    self._wait(signals)
                    self._collect()
                    self._take_turn()
                self.interrupted = self.interrupted or self._once.test_winner(signals)
            finally:
                self._end_all()
            self._leave()
            reaper.forget_tag(self._tag)

    # -- joining and leaving -----------------------------------------------------------------------------------

    def _join(self, held: ExitStack) -> None:
        with self._record.turn():
            note_lost(self._record)
            refuse_several(self._record)
            self.id = held.enter_context(present(self._folder, self._record.view.named))
            self._record.write(
                "AgentJoined",
                agent=self.id,
                host=socket.gethostname(),
                pid=os.getpid(),
                devices=[_words(device) for device in self._pool.devices],
            )

    def _leave(self) -> None:
        with self._record.turn():
            self._record.write("AgentLeft", agent=self.id)
            self._tell_optuna()
        self._told.show(self._record.view)

    def _over(self) -> bool:
        return self._leaving and not self._running and not self._ended

    # -- between turns -----------------------------------------------------------------------------------------

    def _wait(self, signals: StopSignals) -> None:
        """Until a trial has ended, a signal has come, or it is time to look."""
        if heard(signals, self._running):
            self._stop(signals.received or "")

    def _stop(self, signal: str) -> None:
        """End the trials of this agent, which others or a later one will begin again."""
        if self._leaving and self.interrupted:
            for one in self._running:
                one.kill()
            return
        self.interrupted, self._leaving = signal, True
        many = f"{len(self._running)} running trial{'s' if len(self._running) != 1 else ''}"
        self._told.say(
            f"stopping: {many} may take {self._bounds.grace_s} s to end, and will be tried again. "
            "Once more to kill them now."
        )
        for one in self._running:
            one.ask(TrialState.waiting, "interrupted")

    def _collect(self) -> None:
        for one in [one for one in self._running if one.is_over()]:
            self._running.remove(one)
            self._ended.append((one, self._ending(one, one.close())))
        for one in self._running:
            one.hurry()
            one.curve.follow(one.at_wandb)
            # Asking for one trial reads what all have logged, so news are known by their number.
            if self._sweep.early_terminate is not None and one.compared < len(one.curve.judged):
                one.compared = len(one.curve.judged)
                self._judge(one)

    def _judge(self, one: Running) -> None:
        values = self._curves.of_all(self._record.view.trials.values())
        finite = {
            number: [math.nan if value is None else value for value in own] for number, own in values.items()
        }
        if reason := self._search.stops(one.trial, finite):
            one.ask(TrialState.stopped, reason)

    def _end_all(self) -> None:
        for one in self._running:
            one.kill()

    # -- turns -------------------------------------------------------------------------------------------------

    def _take_turn(self) -> None:
        """One turn; what this one cannot write for want of descriptors or memory, the next one does."""
        try:
            with self._record.turn():
                if self._note_ends() and self._sweep.method is Method.bayes:
                    self._tell_optuna()
                for trial in note_lost(self._record, self.id):
                    self._told.say(f"trial {trial.number}: {trial.reason}")
                started = {one.trial.number for one in self._running}
                self._begun -= put_back(self._record, self.id, started, self._pauses.what)
                self._give_up()
                self._heed()
                chosen = self._choose()
        except (OSError, StoreError) as error:
            if not (what := shortage(error)):
                raise
            if not self._pauses.on():
                self._pauses.begin(what)
            self._give_up()
            chosen = []
        self._start_all(chosen)
        self._told.show(self._record.view)

    def _give_up(self) -> None:
        if not self._running:
            self._pauses.give_up()

    def _note_ends(self) -> bool:
        """Write how trials have ended; whether any has."""
        any_ended = bool(self._ended)
        while self._ended:
            one, ended = self._ended[0]
            self._record.write("TrialEnded", trial=one.trial.number, attempt=one.attempt, **ended.fields())
            self._ended.pop(0)
            self._tell_end(one.trial.number, ended)
        return any_ended

    def _ending(self, one: Running, code: int | None) -> turn.Ending:
        said = one.said
        self._shelf.put_back(one.devices, seen_free=said is not None)
        if said is not None and (said.busy or said.short):
            self._begun.discard(one.trial.number)
            if said.busy:
                self._shelf.pause(one.devices)
            else:
                self._pauses.begin(said.short)
            return turn.Ending(state=TrialState.waiting, values={}, reason=said.busy or said.short)
        self._pauses.over()
        if said is not None and said.refused:
            return turn.Ending(state=TrialState.failed, values={}, reason=said.refused)
        self._tell_offline(one)
        ended = turn.ending(self._sweep.metric, one.curve.judged, one.curve.last, code, one.asked)
        others = one.at_wandb.other_values(nested(self._sweep.parameters, one.trial.parameters))
        return turn.as_given(ended, others, one.at_wandb.exit_code)

    def _tell_offline(self, one: Running) -> None:
        if (kept := one.at_wandb.kept) is not None and not self._told_offline:
            self._told_offline = True
            trials = self._folder.path / TRIALS
            files = (trials / "*/wandb" if kept.is_relative_to(trials) else kept) / "offline-run-*"
            self._told.say(
                "W&B was not told of trials, as there is no login here or WANDB_MODE says so. To send what they "
                f"have logged: wandb sync {shown_path(files)}"
            )

    def _tell_optuna(self) -> None:
        """Bring the journal for Optuna's tools up to date; a grid is not searched, and has none."""
        if self._study is not None and self._sweep.method is not Method.grid:
            trials = self._record.view.trials.values()
            self._study.update(trials, self._curves.of_all(trials))

    def _heed(self) -> None:
        """Do what the state of the sweep asks for."""
        view = self._record.view
        if not view.halted and (reason := turn.why_stop(view, self._sweep.options.max_failures)):
            self._record.write("SweepStopped", reason=reason)
            last = view.trials[view.failing[-1]]
            self._told.say(f"stopped: {reason}{tail(self._folder.trial(last.number).log(last.attempts))}")
        if view.halted == "cancelled":
            for one in self._running:
                one.ask(TrialState.cancelled, "cancelled")

    def _choose(self) -> list[tuple[Trial, int, list[Device]]]:
        """Hand out trials to this agent, as long as there are devices for the next one."""
        chosen: list[tuple[Trial, int, list[Device]]] = []
        if self._leaving or self._record.view.halted == "paused" or self._pauses.on():
            return chosen
        if self._record.view.halted:  # there is nothing to wait for, whoever has the devices
            self._leaving = not self._running
            return chosen
        used = [device for one in self._running for device in one.devices]
        free, reachable = self._shelf.free(used, self._promised())
        if not free and not self._running:
            self._shelf.tell_wait(self._told.say)
        while free and len(self._running) + len(chosen) < self._pool.at_once:
            trial = self._next(reachable)
            if trial is None:
                nothing = reachable == len(self._pool.devices) or self._next(len(self._pool.devices)) is None
                self._leaving = nothing and not self._running and not chosen
                break
            if trial.num_gpus > len(free):
                break
            devices, free = free[: trial.num_gpus], free[trial.num_gpus :]
            attempt, names = trial.attempts + 1, [_words(device) for device in devices]
            self._record.write("TrialStarted", trial=trial.number, attempt=attempt, agent=self.id, devices=names)
            self._begun.add(trial.number)
            chosen.append((trial, attempt, devices))
        if self._leaving:
            self._chooser.finish()
        return chosen

    def _promised(self) -> set[str]:
        """Words that name the devices of other agents' trials, their UUIDs among them."""
        running = self._record.view.having(TrialState.running)
        names = [name for trial in running if trial.agent != self.id for name in trial.devices]
        return {word for name in names for word in name.split()}

    def _next(self, devices: int) -> Trial | None:
        new = self._bounds.own is None or len(self._begun) < self._bounds.own
        return self._chooser.next(devices, new=new)

    # -- starting ----------------------------------------------------------------------------------------------

    def _start_all(self, chosen: Sequence[tuple[Trial, int, list[Device]]]) -> None:
        for trial, attempt, devices in chosen:
            try:
                self._start(trial, attempt, devices)
            except (OSError, StoreError) as error:
                if what := shortage(error):
                    self._pauses.begin(what)
                    return
                raise

    def _start(self, trial: Trial, attempt: int, devices: list[Device]) -> None:
        write_parameters(self._sweep, self._folder, trial)
        order = self._orders.trial(trial, attempt, devices)
        curve = self._curves.curve(trial.number, attempt)
        self._running.append(Running(trial, attempt, devices, curve, order, self._tag))
        where = ", ".join(device.label for device in devices)
        self._told.say(f"trial {trial.number} on {where}: {in_words(trial.parameters)}")

    def _tell_end(self, number: int, ended: turn.Ending) -> None:
        metric = self._sweep.metric
        value = f", {on_one_line(metric.name)} {ended.value:.6g}" if metric and ended.value is not None else ""
        reason = f" ({ended.reason})" if ended.reason else ""
        self._told.say(f"trial {number}: {ended.state.value}{value}{reason}")


def _words(device: Device) -> str:
    return f"{device.label} {device.uuid}" if device.uuid else device.label
