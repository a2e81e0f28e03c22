"""``sweep multi``: several runs of the main command on disjoint sets of GPUs.

multi NAME 2 4   ->   NAME.run1 on GPUs 0, 1;  NAME.run2 on 2, 3;  NAME.run3 on 4, 5;  NAME.run4 on 6, 7
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from pipeline.config.explain import explain
from pipeline.engine.devices.inventory import Device
from pipeline.engine.scheduler.signals import StopSignals
from pipeline.errors import ConfigError, describe_exit
from pipeline.machine.children import tail
from pipeline.runs.report.format import count, duration, shown_path
from pipeline.sweeps.command import overrides_of
from pipeline.sweeps.trial_process import Ended, Order, SideBySide, Task

MOST_RUNS = 1000
_OURS = (
    *("experiment.name", "output_dir", "execution.workers", "execution.wait_for_devices"),
    *("distributed.gpu_ids", "distributed.gpu_list", "distributed.num_gpus"),
)
"""Settings that this command decides for each run."""
_SEEDS = "experiment.seeds"
_REST_S = 3.0
"""Between two attempts to start a run whose devices somebody else has."""
OUTPUT, START = "output.txt", "start.json"
"""In the folder of a run's experiment: what it printed, and how it was started."""


@dataclass(frozen=True, kw_only=True)
class MemberRun:
    """One of the runs.

    Attributes:
        name: Of its experiment: ``NAME.run1``.
        slot: Which set of devices it has.
        settings: All that it has besides those that say which devices.
        own: Those of them in which it differs from the others.
    """

    name: str
    slot: int
    settings: tuple[str, ...]
    own: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class MultiPlan:
    """What is run.

    Attributes:
        each: Devices of each run.
        slots: Sets of devices, as positions among those that are visible; contiguous, and disjoint.
        runs: The runs, in order.
    """

    each: int
    slots: tuple[tuple[int, ...], ...]
    runs: tuple[MemberRun, ...]


def plan_runs(
    name: str, each: int, runs: int, total: int, settings: Sequence[str], *, queue: bool = False, kind: str = "GPU"
) -> MultiPlan:
    """Share devices out.

    A setting with as many values as there are runs, as ``training.grad_clip=0.5,1,2,4``, gives each run its own.
    Where nothing says which seeds the runs have, run i has seed i - 1, as otherwise all would be the same.

    Args:
        name: What the names of the runs begin with.
        each: Devices of each run.
        runs: How many runs.
        total: How many devices there are.
        settings: Of all runs.
        queue: Let runs that do not fit wait for the others.
        kind: What a device is called.

    Raises:
        ConfigError: They do not fit, or a setting is wrong.
    """
    for what, number in (("GPUS_PER_RUN", each), ("NUM_RUNS", runs)):
        if not 1 <= number <= MOST_RUNS:
            raise ConfigError(f"{what} {number}: a whole number from 1 to {MOST_RUNS:,}")
    slots = min(runs, total // each)
    if slots < runs and not (queue and slots):
        raise ConfigError(
            f"{count(runs, 'run')} with {count(each, kind)} each need {runs * each}, and there "
            f"{'is' if total == 1 else 'are'} {total}: ask for {count(total // each, 'run')}, for fewer {kind}s "
            "each, "
            "or let the others wait with --queue; device=cpu runs on CPU slots"
        )
    shares = [(each.get_key_element(), _values(each, runs)) for each in map(_parsed, settings)]
    if _SEEDS not in [key.lstrip("+") for key, _ in shares]:
        shares.append((_SEEDS, [f"{_SEEDS}=[{number}]" for number in range(runs)]))
    return MultiPlan(
        each=each,
        slots=tuple(tuple(range(slot * each, (slot + 1) * each)) for slot in range(slots)),
        runs=tuple(
            MemberRun(
                name=f"{name}.run{number + 1}",
                slot=number % slots,
                settings=tuple(values[number % len(values)] for _, values in shares),
                own=tuple(values[number] for _, values in shares if len(values) > 1),
            )
            for number in range(runs)
        ),
    )


def split_total(words: Sequence[str]) -> tuple[int | None, list[str]]:
    """Tell the number of devices in all, where it is given, from the settings behind it.

    Raises:
        ConfigError: A word is neither.
    """
    total, rest = None, list(words)
    if rest and rest[0].isascii() and rest[0].isdigit() and len(rest[0]) < 6:
        total = int(rest.pop(0))
    if wrong := next((word for word in rest if "=" not in word and not word.startswith("~")), None):
        raise ConfigError(f"'{wrong}': TOTAL_GPUS is a number, and settings behind it are written KEY=VALUE")
    return total, rest


def _parsed(word: str) -> Override:
    try:
        return OverridesParser.create().parse_override(word)
    except HydraException as error:
        raise ConfigError(f"{word}: {explain(error)}") from error


def _values(setting: Override, runs: int) -> list[str]:
    """What each run is given of a setting: one word for all of them, or one for each."""
    key, written = setting.get_key_element(), str(setting.input_line)
    if key.lstrip("+~") in _OURS:
        raise ConfigError(f"{written}: each run has its own, by GPUS_PER_RUN, --output-dir and --queue")
    if not setting.is_sweep_override():
        return [written]
    values = [f"{key}={value}" for value in setting.sweep_string_iterator()]
    if len(values) != runs:
        raise ConfigError(
            f"{written}: {count(len(values), 'value')} for {count(runs, 'run')}; one for all, or one for each"
        )
    return values


def settings_of(run: MemberRun, plan: MultiPlan, output_dir: Path, *, on_cpu: bool, queue: bool) -> list[str]:
    """The settings by which a run is one of its own command."""
    named = overrides_of({"experiment.name": run.name, "output_dir": str(output_dir)})
    where = overrides_of(
        {"execution.workers": plan.each} if on_cpu else {"distributed.gpu_list": list(plan.slots[run.slot])}
    )
    return [*named, *run.settings, *where, *(["execution.wait_for_devices=true"] if queue and not on_cpu else [])]


class Members:
    """The runs under way.

    Attributes:
        left: Names of the runs that are not done.
    """

    def __init__(
        self,
        plan: MultiPlan,
        devices: Sequence[Device],
        typed: dict[str, list[str]],
        output_dir: Path,
        say: Callable[[str], None],
        *,
        queue: bool,
        grace_s: int,
    ) -> None:
        """Prepare.

        Args:
            plan: What is run.
            devices: Where.
            typed: Name of a run -> its settings.
            output_dir: Folder of all runs.
            say: Told a line for the user.
            queue: Let runs wait for devices that others have.
            grace_s: Seconds that a run has to end once it was told to.
        """
        self.left = [run.name for run in plan.runs]
        self._plan, self._devices, self._typed, self._say = plan, devices, typed, say
        self._output_dir, self._queue, self._grace_s = output_dir, queue, grace_s
        self._waiting, self._told = list(plan.runs), set[str]()

    def work(self, signals: StopSignals) -> str:
        """Run all of them; the name of the signal that has ended it before, or ""."""
        for run in self._plan.runs:
            places = ", ".join(self._devices[place].label for place in self._plan.slots[run.slot])
            self._say(f"{run.name}  on {places}  {' '.join(run.own)}".rstrip())
        self._say(f"Their output is in {shown_path(self._output_dir)}/NAME/{OUTPUT}.")
        interrupted = SideBySide(len(self._plan.slots), self._following, self._ended, self._say).run(signals)
        many = count(len(self._plan.runs), "run")
        not_done = f"; not done: {', '.join(self.left)}" if self.left else ""
        self._say(f"{len(self._plan.runs) - len(self.left)} of {many} done{not_done}")
        return interrupted

    def _following(self, slot: int) -> Task | None:
        run = next((run for run in self._waiting if run.slot == slot), None)
        if run is None:
            return None
        self._waiting.remove(run)
        folder, places = self._output_dir / run.name, list(self._plan.slots[slot])
        folder.mkdir(parents=True, exist_ok=True)
        order = Order(
            words=[sys.executable, "-m", "pipeline", "run", *self._typed[run.name]],
            gpus=places if self._devices[0].kind == "cuda" else None,
            slots=len(places),
            leases=True,
            holder=run.name,
            folder=str(Path.cwd()),
            log=str(folder / OUTPUT),
            start=str(folder / START),
            grace_s=self._grace_s,
        )
        return Task(name=run.name, order=order)

    def _ended(self, ended: Ended) -> float:
        name, code = ended.task.name, ended.exit_code
        if ended.busy and self._queue:
            self._waiting.insert(0, next(run for run in self._plan.runs if run.name == name))
            if name not in self._told:
                self._told.add(name)
                self._say(f"{name} waits: {ended.busy}")
            return _REST_S
        if code == 0:
            self.left.remove(name)
            self._say(f"{name} done after {duration(ended.seconds)}")
        else:
            why = ended.busy or ended.refused or describe_exit(code) + tail(Path(ended.task.order.log))
            self._say(f"{name} {'was stopped' if ended.asked else 'failed'}: {why}")
        return 0.0
