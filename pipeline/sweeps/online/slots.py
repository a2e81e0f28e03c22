"""Slots that run ``wandb agent --count 1`` on devices of their own, until W&B has no trial left for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.engine.devices.inventory import Device
from pipeline.engine.scheduler.signals import StopSignals
from pipeline.errors import describe_exit
from pipeline.machine.children import tail
from pipeline.sweeps.agents.trial_process import Order
from pipeline.sweeps.online.at_wandb import OnlineSweep, agent_variables, agent_words, begun_runs
from pipeline.sweeps.several.side_by_side import Ended, SideBySide, Task
from pipeline.sweeps.spec import Launcher, Sweep


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long a slot waits for what is not there.

    Attributes:
        checks: How often in a row it is given no trial until it takes the sweep for done.
        empty_s: Seconds for which it rests where W&B had no trial for it.
        failed_s: Where its agent has failed.
        busy_s: Where somebody else has one of its devices.
    """

    checks: int = 3
    empty_s: float = 60.0
    failed_s: float = 30.0
    busy_s: float = 5.0


@dataclass(kw_only=True)
class Slot:
    """One slot.

    Attributes:
        devices: Its own.
        place: Where its files are.
        begun: Trials that W&B has given it, in this command and before.
        asked: Agents that were started.
        empty: How often in a row it was given no trial.
    """

    devices: Sequence[Device]
    place: Path
    begun: int = 0
    asked: int = 0
    empty: int = 0


class OnlineSlots:
    """The slots of one command."""

    def __init__(
        self,
        sweep: Sweep,
        online: OnlineSweep,
        slots: Sequence[Slot],
        places: Mapping[str, int],
        say: Callable[[str], None],
        *,
        limit: int | None = None,
        grace_s: int = 30,
        patience: Patience | None = None,
    ) -> None:
        """Prepare.

        Args:
            sweep: What was asked for.
            online: The same at W&B.
            slots: With their devices.
            places: UUID -> position in the visible set.
            say: Told a line where something fails.
            limit: The most trials that are run; None for no bound.
            grace_s: Seconds that a trial has to end once it was told to.
            patience: How long slots wait.
        """
        self.trials = self.failures = 0
        """How many trials were run; agents in a row that have failed."""
        self._sweep, self._online, self._slots, self._places, self._say = sweep, online, slots, places, say
        self._limit, self._grace_s, self._patience = limit, grace_s, patience or Patience()
        self._running = 0

    @property
    def gave_up(self) -> bool:
        """Whether too many agents in a row have failed."""
        return self.failures >= self._sweep.options.max_failures

    def run(self, signals: StopSignals) -> str:
        """Run trials; the name of the signal that has ended it, or ""."""
        for slot in self._slots:
            slot.begun = begun_runs(slot.place)
        return SideBySide(len(self._slots), self._following, self._ended, self._say).run(signals)

    def _following(self, number: int) -> Task | None:
        slot = self._slots[number]
        within = self._limit is None or self.trials + self._running < self._limit
        if self.gave_up or slot.empty >= self._patience.checks or not within:
            return None
        self._running += 1
        slot.asked += 1
        slot.place.mkdir(parents=True, exist_ok=True)
        return Task(name=f"agent {number + 1}", order=self._order(slot, number), attempt=slot.asked)

    def _order(self, slot: Slot, number: int) -> Order:
        on_gpus = slot.devices[0].kind == "cuda"
        share = len(slot.devices)
        return Order(
            words=agent_words(self._online.path),
            gpus=[self._places[device.uuid or ""] for device in slot.devices] if on_gpus else None,
            slots=share,
            launcher=Launcher.none,
            holder=f"sweep {self._sweep.name}, agent {number + 1}",
            variables={**self._sweep.options.environment, **agent_variables(share, slot.place)},
            folder=str(self._sweep.folder.absolute()),
            log=str(slot.place / "log.txt"),
            start=str(slot.place / "start.json"),
            grace_s=self._grace_s,
        )

    def _ended(self, ended: Ended) -> float:
        self._running -= 1
        slot = self._slots[ended.slot]
        if ended.busy:
            return self._patience.busy_s
        begun = begun_runs(slot.place)
        given, slot.begun = begun - slot.begun, begun
        self.trials += given
        if ended.asked:
            return 0.0
        if ended.refused or ended.exit_code != 0:
            self.failures += 1
            self._say(f"{ended.task.name} failed: {_why(ended)}")
            return self._patience.failed_s
        self.failures = 0
        slot.empty = 0 if given else slot.empty + 1
        return 0.0 if given else self._patience.empty_s


def _why(ended: Ended) -> str:
    if ended.refused:
        return ended.refused
    said = "it was killed" if ended.exit_code is None else describe_exit(ended.exit_code)
    return said + tail(Path(ended.task.order.log))
