"""Run trials on the devices of this machine, beside other agents, until none is left.

    turn, under the sweep's lock      what has ended is written; lost trials are noted; the next ones are chosen
    between turns                     programs run; what they log is read; one that is not worth its end is ended

Nothing that others need is kept here: whatever happens to an agent, the record tells the others what to do.
Preparing and the test of the best trial, each done once, go the same way.
"""

import json
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.engine.devices.inventory import Device, usable_cores
from pipeline.engine.devices.select import holders
from pipeline.engine.scheduler.signals import StopSignals
from pipeline.errors import ConfigError, StoreError, WorkerError, explaining
from pipeline.files import write_whole
from pipeline.machine.children import tail
from pipeline.runs.report.format import command, count, shown_path, typed_command
from pipeline.sweeps import search, storage
from pipeline.sweeps.command import as_typed, own_command, prepare_command, trial_command
from pipeline.sweeps.file import NUM_GPUS, SPLIT, Sweep, nested
from pipeline.sweeps.metrics import WANDB_DIR, Curve, wandb_variables, write_parameters_for_wandb
from pipeline.sweeps.plan import AgentPool
from pipeline.sweeps.report import in_words
from pipeline.sweeps.reporting import VARIABLE
from pipeline.sweeps.storage import End, Once, Record, SweepFolder, Trial, TrialFolder
from pipeline.sweeps.trial_process import Handle, Order, Result, work
from pipeline.terminal.streams import on_one_line

Say = Callable[[str], None]
_FIXED = ("method", "metric", "parameters", "program", "command")
"""Keys that all trials share; a sweep with other values is another sweep."""
_MANY = 100
"""Trials in a row that need more devices than there are, after which nothing else is expected."""
_PAUSE_S = 2.0
"""Seconds of rest for a device that a trial could not have, or on which one was killed."""
_CURVE = 20
"""Values of a curve that Optuna's tools are given."""
_ONCE = {"prepared": "preparing, once for all trials", "winner": "evaluating the best on the test split"}


def begin_sweep(
    sweep: Sweep, file: Path, output_dir: Path, *, overrides: Sequence[str] = (), most: int | None = None
) -> SweepFolder:
    """Make the folder of a sweep, or see that the one which is there is the same sweep.

    Args:
        sweep: The sweep that is asked for.
        file: File of the sweep.
        output_dir: Folder of all runs.
        overrides: Settings of the command line, which `sweep` has.
        most: The most trials; None for no bound.

    Raises:
        ConfigError: There is another sweep of that name.
        StoreError: The folder cannot be written.
    """
    folder = storage.sweep_folder(output_dir.absolute(), sweep.name)
    record = Record(folder)
    with record.turn():
        check_same(record, sweep)
        about = record.about
        with explaining(StoreError, f"cannot write {folder.file}"):
            write_whole(folder.file, file.read_text("utf-8-sig"))
        if not about.started or not record.agents():
            metric, goal = (sweep.metric.name, sweep.metric.goal) if sweep.metric else ("", "minimize")
            request: dict[str, Any] = {"method": sweep.method, "metric": metric, "goal": goal, "count": most}
            request |= {"folder": str(sweep.folder.absolute()), "overrides": list(overrides)}
            started = about.started or time.time()
            record.tell(**request, round=about.round + 1, halted="", reason="", started=started)
        elif most is not None:
            record.tell(count=most)
    return folder


def check_same(record: Record, sweep: Sweep) -> None:
    """See that a sweep of this name, if there is one, is this one.

    Raises:
        ConfigError: There is another one.
    """
    # What it was may not be told any more, and is replaced.
    there = (record.asked if record.about.started else None) or sweep
    if other := [key for key in _FIXED if there.given.get(key) != sweep.given.get(key)]:
        begun = f"sweep {record.name} was begun with other {', '.join(other)}"
        raise ConfigError(f"{begun}: give this one another name by --name, or remove {record.folder.path}")


def tell(folder: SweepFolder, word: str) -> str:
    """Tell a sweep to ``stop``, ``cancel``, ``pause`` or ``resume``; return what follows, for the user.

    Raises:
        ConfigError: It makes no sense now.
        StoreError: The record cannot be written.
    """
    name, state = folder.name, {"stop": "stopped", "cancel": "cancelled", "pause": "paused", "resume": ""}[word]
    record, resumed = Record(folder), word == "resume"
    with record.turn():
        record.note_lost()
        about, running = record.about, record.having("running")
        is_left = about.halted != "finished" or record.having("failed", "cancelled", "lost", "waiting")
        in_vain = {"resume": not (about.halted and is_left), "pause": bool(about.halted)}
        if in_vain.get(word, about.halted in ("finished", state)):
            is_so = f"{about.halted or 'going on'} already{f' ({about.reason})' if about.reason else ''}"
            raise ConfigError(f"sweep {name} is {is_so}: there is nothing to {word}")
        record.tell(halted=state, reason="" if resumed else "asked for", round=about.round + resumed)
    if resumed:
        joins = f", once an agent works on it: `{command(f'sweep agent {name}', folder.output_dir)}`"
        return f"sweep {name} goes on{'' if record.agents() else joins}"
    ends = "ended" if word == "cancel" else "left to come to their end"
    under_way = f"; {count(len(running), 'trial')} under way {ends}" if running else ""
    return f"sweep {name} is {state}{under_way}"


def untested(sweep: Sweep, record: Record) -> Trial | None:
    """Return the best trial of a finished sweep if it is not evaluated on the test split yet."""
    if sweep.metric is None or not sweep.is_own or record.about.halted != "finished":
        return None
    best, test = storage.best_trial(record.trials, sweep.metric.goal), record.once.get("winner", Once())
    return None if best is None or (test.done and test.trial == best.number) else best


def may_create(record: Record, sweep: Sweep) -> bool:
    """Return whether another trial may be created within the requested number."""
    caps = [cap for cap in (search.most_trials(sweep), record.about.count) if cap is not None]
    return len(record.trials) < min(caps, default=len(record.trials) + 1)


class AgentDevices:
    """The devices of one agent, and which of them a trial can have now."""

    def __init__(self, devices: Sequence[Device], name: str) -> None:
        """Prepare.

        Args:
            devices: All devices, the best first.
            name: Name of the sweep. Devices of its other trials come back; those of others may never.
        """
        self._devices, self._paused = list(devices), dict[Device, float]()
        # A run of this package has its devices under its own name, which is that of the sweep.
        self._ours = re.compile(rf"(sweep )?{re.escape(name)}(,|$)")

    def free(self, used: Collection[Device], promised: Collection[str] = ()) -> tuple[list[Device], int, str]:
        """Return the devices that are free now, how many can be counted on, and who has the others.

        Args:
            used: Devices on which trials of this agent run.
            promised: UUIDs of devices that other agents have chosen for trials, which may be just starting.
        """
        gpus = [device for device in self._devices if device.kind == "cuda" and device not in used]
        leased, now = holders(gpus) if gpus else {}, time.monotonic()
        others = [device for device in leased.values() if not self._ours.match(device.experiment)]
        there = [device for device in self._devices if device.uuid not in {*leased, *promised}]
        free = [device for device in there if device not in used and self._paused.get(device, now) <= now]
        who = ", ".join(f"{device.label} has {leased[device.uuid]}" for device in gpus if device.uuid in leased)
        return free, len(self._devices) - len(others), who

    def put_back(self, devices: Sequence[Device], result: Result) -> None:
        """Take devices back; pause those that were busy, or on which a trial was killed without a message."""
        if result.busy or result == Result():
            self._paused |= dict.fromkeys(devices, time.monotonic() + _PAUSE_S)


class _Running(Handle):
    """A running trial, or a command that runs once; `end_request` has the state and reason of a requested end."""

    def __init__(
        self, what: str, trial: Trial, devices: Sequence[Device], order: Order, curve: Curve, tag: str
    ) -> None:
        self.what, self.trial, self.devices, self.curve, self.compared = what, trial, devices, curve, 0
        self.end_request: tuple[str, str] | None = None
        curve.begin(Path(order.folder))
        super().__init__(order, tag)

    def ask(self, state: str, reason: str) -> None:
        """Ask the program to end. The state and reason of the first request are kept."""
        self.end_request = self.end_request or (state, reason)
        self.ask_to_end()


class Agent:
    """An agent of a sweep; `run` does all its work.

    Attributes:
        interrupted: Name of the signal that ended the agent, or "".
    """

    def __init__(
        self,
        sweep: Sweep,
        folder: SweepFolder,
        pool: AgentPool,
        say: Say,
        show: Callable[[Record], None],
        *,
        own: int | None = None,
        grace_s: int = 30,
    ) -> None:
        """Prepare.

        Args:
            sweep: The sweep.
            folder: Folder of the sweep.
            pool: Pool of devices for the trials.
            say: Shows the user a line.
            show: Shows the state of the sweep, each time it may have changed.
            own: Largest number of trials that this agent starts; None for no limit.
            grace_s: Seconds that a program has to end after a request.
        """
        self.id, self.interrupted = "", ""
        self._sweep, self._folder, self._record = sweep, folder, Record(folder)
        self._pool, self._say, self._show, self._own, self._grace_s = pool, say, show, own, grace_s
        self._devices = AgentDevices(pool.devices, folder.name)
        self._curves: dict[tuple[int, int], Curve] = {}
        self._running: list[_Running] = []
        self._ended: list[tuple[_Running, End]] = []
        self._begun: set[int] = set()
        self._leaving = False
        self._shown: set[str] = set()

    def run(self, signals: StopSignals) -> None:
        """Work until there is nothing left.

        Args:
            signals: The first one ends trials in order, a second one kills them.

        Raises:
            PipelineError: The record cannot be kept. Its trials have been ended.
        """
        with self._record.present() as self.id:
            self.interrupted = work(
                self._running,
                signals,
                self._take_turn,
                self._collect,
                lambda process: process.ask("waiting", "interrupted"),
                self._say,
            )
        self._show(self._record)

    def _say_once(self, key: str, text: str) -> None:
        if key not in self._shown:
            self._shown.add(key)
            self._say(text)

    # -- between turns -----------------------------------------------------------------------------------------

    def _collect(self, process: _Running) -> None:
        self._ended.append((process, self._take_end(process)))

    def _compare(self) -> None:
        """End trials early that are not worth their end."""
        rule, metric = self._sweep.early_terminate, self._sweep.metric
        for process in self._running:
            process.curve.follow()
            # Asking for one trial reads what all have logged, so news are known by their number.
            if rule and metric and process.what == "trial" and process.compared < len(process.curve.judged):
                process.compared = len(process.curve.judged)
                begun = [trial for trial in self._record.trials.values() if trial.attempts]
                values = {trial.number: self._curve(trial).finite() for trial in begun}
                if reason := search.why_stop(rule, metric.goal, process.trial.number, values):
                    process.ask("stopped", reason)

    def _curve(self, trial: Trial) -> Curve:
        key = (trial.number, trial.attempts)
        if key not in self._curves:
            self._curves[key] = Curve(self._folder.trial(trial.number), trial.attempts, self._sweep.metric)
        return self._curves[key]

    def _take_end(self, process: _Running) -> End:
        process.curve.follow(to_its_end=True)
        result = process.result
        self._devices.put_back(process.devices, result)
        if result.busy:
            self._begun.discard(process.trial.number)
            return End(state="waiting", reason=result.busy)
        if result.refused:
            return End(state="failed", reason=result.refused)
        if (kept := process.curve.untold) is not None:
            trials = self._folder.path / "trials"
            several = "*/wandb/offline-run-*" if kept.is_relative_to(trials) else "offline-run-*"
            files = f"{shlex.quote(shown_path(trials if kept.is_relative_to(trials) else kept))}/{several}"
            self._say_once("offline", f"without a login W&B was not told of trials: wandb sync {files}")
        ended = process.curve.end(result.exit_code, process.end_request)
        others = process.curve.other_values(nested(self._sweep.parameters, process.trial.parameters))
        if not others or ended.state not in ("done", "stopped"):
            return ended
        reason = f"it ran with other settings: W&B's file of it has {'; '.join(others)}"
        return replace(ended, state="failed", value=None, best=None, reason=reason)

    # -- turns -------------------------------------------------------------------------------------------------

    def _take_turn(self, tag: str, stopping: bool) -> bool:
        """Write what has ended, choose what comes next, and start it; whether there may be more."""
        self._leaving = self._leaving or stopping
        self._compare()
        with self._record.turn():
            while self._ended:
                self._note(*self._ended[0])
                self._ended.pop(0)
            for trial in self._record.note_lost():
                self._say(f"trial {trial.number}: {trial.reason}")
            self._heed()
            chosen = self._choose()
        for what, trial, devices in chosen:
            self._start(what, trial, devices, tag)
        self._show(self._record)
        return not self._leaving

    def _note(self, process: _Running, ended: End) -> None:
        number, metric = process.trial.number, self._sweep.metric
        if process.what == "trial":
            judged = list(enumerate(process.curve.judged, 1))
            chosen = judged[:: max(1, len(judged) // _CURVE)]
            self._record.end(process.trial.key, ended, {at: value for at, value in chosen if value is not None})
            value = f", {on_one_line(metric.name)} {ended.value:.6g}" if metric and ended.value is not None else ""
            self._say(f"trial {number}: {ended.state}{value}{f' ({ended.reason})' if ended.reason else ''}")
            return
        done = ended.exit_code == 0 and ended.state != "waiting"
        self._record.note(process.what, Once(agent=self.id, done=done, trial=number, results=dict(ended.values)))
        if done or ended.state == "waiting":
            return
        problem = f"{ended.reason}{tail(Path(process.order.log))}"
        if process.what == "prepared":
            self._record.tell(halted="stopped", reason=f"preparing failed: {problem}")
        else:
            self._say_once("no test", f"trial {number} was not evaluated on the test split: {problem}")

    def _heed(self) -> None:
        """Do what the state of the sweep asks for."""
        failing, about = self._record.failing, self._record.about
        if not about.halted and len(failing) >= self._sweep.options.max_failures:
            last = self._record.trials[failing[-1]]
            reason = f"{len(failing)} trials in a row failed, the last of them trial {last.number}: {last.reason}"
            self._record.tell(halted="stopped", reason=reason)
            self._say(f"stopped: {reason}{tail(self._folder.trial(last.number).log(last.attempts))}")
        if about.halted == "cancelled":
            for process in self._running:
                process.ask("cancelled", "cancelled")

    # -- choosing ----------------------------------------------------------------------------------------------

    def _choose(self) -> list[tuple[str, Trial, list[Device]]]:
        """Hand out trials, or work done once, to this agent, while there are devices for the next one."""
        chosen: list[tuple[str, Trial, list[Device]]] = []
        if self._leaving or self._record.about.halted == "paused":
            return chosen
        used = [device for process in self._running for device in process.devices]
        others = [trial for trial in self._record.having("running") if trial.agent != self.id]
        promised = {word for trial in others for name in trial.devices for word in name.split()}
        free, reachable, who = self._devices.free(used, promised)
        if not free and not self._running and who:
            self._say_once(f"wait {who}", f"waiting for devices: {who}")
        # Without free devices nothing is chosen, as more may be known when there are.
        while (free or self._record.about.halted) and len(self._running) + len(chosen) < self._pool.at_once:
            choice = self._next(reachable)
            if choice is None:
                if not self._running and not chosen:
                    every = len(self._pool.devices)
                    nothing = reachable == every or self._next(every) is None
                    self._leaving = nothing and not self._finish()
                break
            what, trial = choice
            needed = min(trial.num_gpus, len(self._pool.devices))
            if what == "wait" or needed > len(free) or (what == "prepared" and chosen):
                break
            devices, free = free[:needed], free[needed:]
            if what == "trial":
                names = [f"{device.label} {device.uuid or ''}".strip() for device in devices]
                trial = self._record.start(trial, self.id, names)
                self._begun.add(trial.number)
            else:
                self._record.note(what, Once(agent=self.id, trial=trial.number))
            chosen.append((what, trial, devices))
            if what != "trial":
                break
        return chosen

    def _next(self, devices: int) -> tuple[str, Trial] | None:
        """Return what to do next on some devices, ``wait`` if another agent does it; None for nothing."""
        record, sweep = self._record, self._sweep
        if record.about.halted:
            best, once = untested(sweep, record), record.once.get("winner", Once())
            taken = not once.done and record.lives(once.agent)  # whoever finds another at it leaves it to that one
            return ("winner", best) if best and not taken and "no test" not in self._shown else None
        if record.reached(sweep.metric) or (self._own is not None and len(self._begun) >= self._own):
            return None
        if (trial := self._waiting(devices)) is None:
            return None
        once = record.once.get("prepared", Once())
        if once.done or not (sweep.options.prepare or sweep.is_own):
            return "trial", trial
        if record.lives(once.agent) and once.agent != self.id:
            log = shown_path(self._folder.once("prepared").log(1))
            self._say_once(
                "prepares", f"waiting for agent {once.agent}, which prepares once for all trials: {log}"
            )
            return "wait", trial
        return ("wait" if any(process.what == "prepared" for process in self._running) else "prepared"), trial

    def _waiting(self, devices: int) -> Trial | None:
        """Return the next trial, possibly a new one; None if none is left that fits on the devices.

        It keeps its turn until it has its devices: smaller ones that could start now would keep a large one
        waiting for as long as there are such.
        """
        for _ in range(_MANY):
            for trial in self._record.ready(self._sweep.options.max_attempts):
                if trial.num_gpus <= devices:
                    return trial
            if not may_create(self._record, self._sweep) or (choice := self._ask()) is None:
                return None
            origin = {"sampled": choice.sampled, "distributions": choice.distributions}
            self._record.create(choice.parameters, num_gpus=self._needed(choice), **origin)
        return None

    def _ask(self) -> Trial | None:
        trials = list[Trial]()
        for trial in self._record.trials.values():
            if self._sweep.metric and trial.state == "running":
                curve = self._curve(trial)
                trial = replace(trial, value=next(reversed(curve.finite()), None), best=curve.best())
            trials.append(trial)
        return search.ask(self._sweep, trials)

    def _needed(self, choice: Trial) -> int:
        return int(choice.parameters.get(NUM_GPUS, self._pool.per_trial))

    def _finish(self) -> bool:
        """Note the end of the sweep if nobody has work left; return whether the test of the best trial follows."""
        record = self._record
        if record.about.halted or record.having("running"):
            return False
        reason = record.reached(self._sweep.metric)
        is_left = record.ready(self._sweep.options.max_attempts) or may_create(record, self._sweep)
        if is_left and not reason:
            return False
        record.tell(halted="finished", reason=reason)
        return self._next(len(self._pool.devices)) is not None

    def next_in_words(self, most: int | None) -> Iterator[tuple[str, str]]:
        """Yield what would be tried next, without starting it: a line, and text to copy.

        Raises:
            ConfigError: There is another sweep of that name.
        """
        check_same(self._record, self._sweep)
        pool, sweep, before = self._pool, self._sweep, len(self._record.trials)
        bounds = [bound for bound in (most, search.most_trials(sweep)) if bound is not None]
        trials = f"{count(min(bounds), 'trial')} at most" if bounds else "trials until it is stopped"
        on = f"{pool.at_once} at a time on {count(len(pool.devices), pool.kind)}"
        yield f"sweep {sweep.name}: {sweep.method}, {trials}, {before:,} begun; {on}", ""
        choice = self._ask() if before < min(bounds, default=before + 1) else None
        if choice is not None:
            needed = self._needed(choice)
            order = self._order(
                "trial", replace(choice, num_gpus=needed), 1, self._folder.trial(before), pool.devices[:needed]
            )
            yield f"trial {before} with {count(needed, pool.kind)}: {in_words(choice.parameters)}", ""
            yield f"it would run, in {sweep.folder}:", ""
            yield " ", typed_command(as_typed(order.words))
        yield "nothing was begun, as --dry-run asks", ""

    # -- starting ----------------------------------------------------------------------------------------------

    def _start(self, what: str, trial: Trial, devices: Sequence[Device], tag: str) -> None:
        """Start a trial, or what is done once.

        Raises:
            WorkerError: No process can be started, or its folder cannot be written.
        """
        folder, attempt = self._folder.trial(trial.number), trial.attempts
        if what != "trial":
            folder, attempt = self._folder.once(what), 1
        where = ", ".join(device.label for device in devices)
        self._say(_ONCE.get(what, f"trial {trial.number} on {where}: {in_words(trial.parameters)}"))
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
            # Of what is done once, or of a sweep whose study was removed or has lost its end.
            for old in (folder.metrics(attempt), folder.log(attempt)):
                old.unlink(missing_ok=True)
            if what == "trial":
                values = nested(self._sweep.parameters, trial.parameters)
                write_whole(folder.parameters, json.dumps(values, indent=1) + "\n")
                write_parameters_for_wandb(folder, values)
        except OSError as error:
            raise WorkerError(f"trial {trial.number} cannot be started: {error}") from error
        curve = self._curve(trial) if what == "trial" else Curve(folder, 1, None)
        order = self._order(what, trial, attempt, folder, devices)
        self._running.append(_Running(what, trial, devices, order, curve, tag))

    def _order(
        self, what: str, trial: Trial, attempt: int, folder: TrialFolder, devices: Sequence[Device]
    ) -> Order:
        """Return what to tell a process to run."""
        sweep, options = self._sweep, self._sweep.options
        ids = [self._pool.places[device.uuid or ""] for device in devices if device.kind == "cuda"]
        cores = max(1, usable_cores() * len(devices) // len(self._pool.devices))
        # Commands of this environment are found where its `python` was typed and nothing activated.
        path = sweep.environment.get("PATH") or os.environ.get("PATH", os.defpath)
        variables = {
            **sweep.environment,
            "PATH": os.pathsep.join([path, str(Path(sys.executable).parent)]),
            WANDB_DIR: str(folder.path.absolute()),
        }
        if what != "prepared":
            variables[VARIABLE] = str(folder.metrics(attempt).absolute())
        words = prepare_command(sweep) if what == "prepared" else []
        own = sweep.is_own and not words
        if own:
            # Of a run of ours the first trial's data are prepared. One with another dataset makes its own in the
            # same job of its plan; which datasets a search will choose is not known.
            output_dir = self._folder.output_dir.absolute()
            words = own_command(sweep, output_dir, trial.parameters, devices, ids, cores)
            words += [f"{SPLIT}={'test' if what == 'winner' else 'validation'}"]
            words += ["stage=prepare"] if what == "prepared" else []
        elif what == "trial":
            words = trial_command(sweep, trial.parameters, folder.parameters.absolute(), num_gpus=trial.num_gpus)
            variables |= wandb_variables(folder, self._folder.name, {**os.environ, **sweep.environment})
        return Order(
            words=words,
            gpus=ids or None,
            slots=len(devices),
            cores=cores,
            leases=own,
            launcher=options.launcher,
            holder=f"sweep {self._folder.name}, {'trial ' + str(trial.number) if what == 'trial' else what}",
            variables=variables,
            folder=str(sweep.folder),
            log=str(folder.log(attempt).absolute()),
            start=str(folder.start(attempt).absolute()),
            grace_s=self._grace_s,
        )
