"""What is done once, beside the trials: what comes before the first of them, and the test of the best one.

Agents take turns by a lock of its own for each, so that it is done once however many there are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path

from pipeline.engine.devices.inventory import FREE_TIMEOUT_S, Device, leftover, read_levels
from pipeline.engine.devices.lease import holders
from pipeline.engine.scheduler.signals import StopSignals
from pipeline.errors import WorkerError, describe_exit
from pipeline.foreign import ForeignDataError, read_json_file
from pipeline.locks import claim
from pipeline.machine.children import tail
from pipeline.runs.report.format import shown_path
from pipeline.sweeps.agents.handle import heard
from pipeline.sweeps.agents.orders import Orders
from pipeline.sweeps.agents.own_runs import is_own
from pipeline.sweeps.agents.owner import Chooser
from pipeline.sweeps.agents.running import Curve, Program
from pipeline.sweeps.agents.shortage import shortage
from pipeline.sweeps.agents.trial_process import Order
from pipeline.sweeps.folder import TrialFolder
from pipeline.sweeps.record import Present, Record, sign
from pipeline.sweeps.spec import Sweep
from pipeline.sweeps.trials import SweepView, Trial, TrialState, best_trial

# -- shelf -------------------------------------------------------------------------------------------------------
# Which of an agent's devices a trial can have now: not those that somebody else has, or whose memory is not
# back. A trial's process sees its devices free before it gives them back. Where that process was killed
# nobody did, so its devices are looked at here.


_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 2.0, 60.0


class AgentDevices:
    """The devices of one agent.

    Attributes:
        devices: All of them, the best first.
    """

    def __init__(self, devices: Sequence[Device], name: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Look at the devices.

        Args:
            devices: All, the best first.
            name: Of the sweep. What other trials of it have comes back; what others have may never.
            clock: Monotonic seconds.
        """
        self.devices = list(devices)
        self._name, self._clock = name, clock
        self._levels = read_levels(devices)
        self._pauses: dict[Device, tuple[float, float]] = {}
        self._suspects: dict[Device, float] = {}
        self._told_wait = False

    def free(self, used: Collection[Device], promised: Collection[str] = ()) -> tuple[list[Device], int]:
        """Those that can be had now, and how many can be counted on, besides those that outsiders have.

        Args:
            used: Those on which trials of this agent run.
            promised: UUIDs of those that other agents have chosen for theirs, which are perhaps just starting.
        """
        gpus = [device for device in self.devices if device.kind == "cuda" and device not in used]
        held = holders(gpus) if gpus else {}
        outside = [uuid for uuid, holder in held.items() if not self._is_ours(holder.experiment)]
        taken = {*held, *promised}
        unused = [device for device in self.devices if device not in used and device.uuid not in taken]
        free = [device for device in unused if not self._paused(device) and self._is_back(device)]
        return free, len(self.devices) - len(outside)

    def tell_wait(self, say: Callable[[str], None]) -> None:
        """Say for whom an agent waits that can have no device; once until it has had some."""
        held = {} if self._told_wait else holders(self.devices)
        if who := [f"{each.label} has {held[each.uuid]}" for each in self.devices if each.uuid in held]:
            self._told_wait = True
            say(f"waiting for devices: {', '.join(who)}")

    def pause(self, devices: Sequence[Device]) -> None:
        """Leave devices alone for a while, longer each time: they could not be had."""
        for device in devices:
            _, pause = self._pauses.get(device, (0.0, _FIRST_PAUSE_S / 2))
            pause = min(2 * pause, _LONGEST_PAUSE_S)
            self._pauses[device] = (self._clock() + pause, pause)

    def put_back(self, devices: Sequence[Device], *, seen_free: bool) -> None:
        """Take devices back from a trial that has had them.

        Args:
            devices: The devices.
            seen_free: Whether its process has seen their memory free.
        """
        self._told_wait = False
        for device in devices:
            self._pauses.pop(device, None)
            if not seen_free and device.uuid in self._levels:
                self._suspects[device] = self._clock() + FREE_TIMEOUT_S

    def _is_ours(self, holder: str) -> bool:
        # A run of this package has its devices under its own name, which is that of the sweep.
        return holder == self._name or holder.startswith(f"sweep {self._name}, ")

    def _paused(self, device: Device) -> bool:
        return self._pauses.get(device, (0.0, 0.0))[0] > self._clock()

    def _is_back(self, device: Device) -> bool:
        """Whether its memory is free again, or has not become so for so long that it is given up."""
        if device not in self._suspects:
            return True
        if self._clock() < self._suspects[device] and leftover(device, self._levels[device.uuid or ""]):
            return False
        del self._suspects[device]
        return True


class DoneOnce:
    """The agent's part in what is done once."""

    def __init__(
        self,
        sweep: Sweep,
        record: Record,
        shelf: AgentDevices,
        chooser: Chooser,
        orders: Orders,
        say: Callable[[str], None],
        tag: str,
    ) -> None:
        """Prepare.

        Args:
            sweep: What is asked for.
            record: Of the sweep.
            shelf: Devices of the agent.
            chooser: Chooses the first trial.
            orders: What is run.
            say: Told a line for the user.
            tag: Of the agent.
        """
        self._sweep, self._record, self._shelf = sweep, record, shelf
        self._chooser, self._orders, self._say, self._tag = chooser, orders, say, tag
        self._told_who = False

    def prepare(self, signals: StopSignals) -> str:
        """See that what comes before the first trial has been done, by this agent or another.

        Args:
            signals: The first one ends it in order, a second one kills it.

        Returns:
            Name of a signal that came before it was done, or "".
        """
        while (first := self._unprepared()) is not None:
            devices = self._free(first.num_gpus)
            claimed = claim("prepare", self._claim) if devices else None
            if claimed is None:
                if devices:
                    self._tell_who_prepares()
                if heard(signals, []):
                    return signals.received or ""
                continue
            with claimed:
                sign(self._claim)
                # Whoever had it before may have done it.
                ended = self._prepare(first, devices, signals) if self._unprepared() is not None else ""
            if ended is not None:
                return ended
        return ""

    @property
    def _claim(self) -> Path:
        return self._record.folder.preparing.path / "lock"

    def _tell_who_prepares(self) -> None:
        if self._told_who:
            return
        with suppress(OSError, ForeignDataError):  # it has ended, or is about to write who it is
            who = read_json_file(self._claim, Present)
            log = shown_path(self._record.folder.preparing.log(1))
            self._say(
                f"waiting for process {who.pid} on {who.host}, which prepares once for all trials; see {log}"
            )
            self._told_who = True

    def test_winner(self, signals: StopSignals) -> str:
        """Evaluate the best run of a finished sweep on what no setting was chosen by; otherwise as `prepare`.

        Whoever finds another at it leaves it to that one.
        """
        while (best := self._untested()) is not None:
            devices = self._free(min(best.num_gpus, len(self._shelf.devices)))
            if not devices:
                if heard(signals, []):
                    return signals.received or ""
                continue
            claimed = claim("winner", self._record.folder.winner.path / "lock")
            if claimed is None:
                return ""
            with claimed:
                ended = self._test(best, devices, signals) if self._untested() is not None else ""
            if ended is not None:
                return ended
        return ""

    def _test(self, best: Trial, devices: list[Device], signals: StopSignals) -> str | None:
        """Evaluate it; None where the devices could not be had, else as `prepare`."""
        self._say(f"evaluating trial {best.number}, the best, on the test split")
        place = self._record.folder.winner
        done = self._run(self._orders.winner(best, devices), place, devices, signals)
        if done.asked is not None:
            return signals.received or ""
        if _is_busy(done):
            return None
        if problem := _problem_of(done, place):
            self._say(f"trial {best.number} was not evaluated on the test split: {problem}")
            return ""
        with self._record.turn():
            self._record.write("WinnerTested", trial=best.number, results=done.curve.last)
        return ""

    def _free(self, many: int) -> list[Device]:
        """So many devices that can be had now, as trials have theirs; none where they are to be waited for."""
        free, _ = self._shelf.free(())
        if len(free) >= many:
            return free[:many]
        self._shelf.tell_wait(self._say)
        return []

    def _unprepared(self) -> Trial | None:
        """The first trial, if it needs something that has not been done."""
        if not self._sweep.options.prepare and not is_own(self._sweep):
            return None
        with self._record.turn():
            view = self._record.view
            return None if view.prepared or view.halted else self._chooser.next(len(self._shelf.devices), new=True)

    def _prepare(self, first: Trial, devices: list[Device], signals: StopSignals) -> str | None:
        """Carry it out; None where the devices could not be had, else as `prepare`."""
        self._say("preparing, once for all trials")
        place = self._record.folder.preparing
        done = self._run(self._orders.prepare(first, devices), place, devices, signals)
        if done.asked is not None:
            return signals.received or ""
        if _is_busy(done):
            return None
        problem = _problem_of(done, place)
        with self._record.turn():
            if problem:
                self._record.write("SweepStopped", reason=f"preparing failed: {problem}")
            else:
                self._record.write("Prepared")
        return ""

    def _untested(self) -> Trial | None:
        with self._record.turn():
            return untested(self._sweep, self._record.view)

    def _run(self, order: Order, place: TrialFolder, devices: Sequence[Device], signals: StopSignals) -> Program:
        """Run a program to its end, or to that of the agent; `asked` says which.

        Raises:
            WorkerError: No process can be started.
        """
        place.path.mkdir(parents=True, exist_ok=True)
        for old in (place.metrics(1), place.log(1)):
            with suppress(FileNotFoundError):
                old.unlink()
        try:
            program = Program(devices, Curve(place, 1, None), order, self._tag)
        except OSError as error:
            raise WorkerError(f"cannot start a process: {shortage(error) or error.strerror}") from error
        try:
            while not program.is_over():
                if heard(signals, [program]):
                    if program.asked is not None:
                        program.kill()
                    self._say("stopping")
                    program.ask(TrialState.waiting, "interrupted")
                program.hurry()
        except BaseException:
            program.kill()
            raise
        program.close()
        self._shelf.put_back(devices, seen_free=program.said is not None)
        if _is_busy(program):
            self._shelf.pause(devices)
        return program


def untested(sweep: Sweep, view: SweepView) -> Trial | None:
    """The best run of a finished sweep, where it is still to be evaluated on the test split."""
    if sweep.metric is None or not is_own(sweep) or view.halted != "finished":
        return None
    best = best_trial(view.trials.values(), sweep.metric.goal)
    return None if best is None or view.winner == best.number else best


def _is_busy(program: Program) -> bool:
    """Whether somebody else had taken its devices meanwhile."""
    return program.said is not None and bool(program.said.busy)


def _problem_of(program: Program, place: TrialFolder) -> str:
    """Why a program that has ended did not do what it was there for, with the end of its log; "" if it did."""
    said = program.said
    if said is not None and said.exit_code == 0:
        return ""
    if said is not None and (told := said.refused or said.short):
        return told
    return describe_exit(said.exit_code if said is not None else None) + tail(place.log(1))
