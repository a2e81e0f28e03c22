"""``sweep multi``: several runs of the main command, each on GPUs of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from pipeline.commands.exits import INTERRUPTED_BY
from pipeline.commands.request import prepare
from pipeline.commands.start import settle
from pipeline.config.checks import check_config
from pipeline.config.load import load_config
from pipeline.config.schema import DeviceChoice
from pipeline.engine.devices.inventory import Device, find_gpus
from pipeline.engine.devices.lease import holders
from pipeline.engine.devices.select import choose_devices
from pipeline.engine.scheduler.signals import StopSignals
from pipeline.errors import ConfigError, DeviceError, describe_exit
from pipeline.machine.children import tail
from pipeline.runs.report.format import count, duration, shown_path
from pipeline.sweeps.agents.trial_process import Order
from pipeline.sweeps.several.multi import MemberRun, MultiPlan, plan_runs, split_total
from pipeline.sweeps.several.side_by_side import Ended, SideBySide, Task
from pipeline.terminal.console import say

FAILED = 1
OUTPUT, START = "output.txt", "start.json"
"""In the folder of a run's experiment: what it printed, and how it was started."""
_CPU = "device=cpu"
_REST_S = 3.0
"""Between two attempts to start a run whose devices somebody else has."""


def multi(
    name: str,
    each: int,
    runs: int,
    words: Sequence[str],
    output_dir: Path,
    console: Console,
    *,
    queue: bool = False,
    grace_s: int = 30,
) -> int:
    """Run experiments ``NAME.run1``, ``NAME.run2``, ... side by side; the exit code.

    Args:
        name: What their names begin with.
        each: GPUs of each run; CPU slots with ``device=cpu`` among the settings.
        runs: How many.
        words: The number of GPUs to be shared out, if given, and settings of all runs.
        output_dir: Folder of all runs.
        console: Where it is told.
        queue: Let runs wait for GPUs that others have, and for each other where they do not fit.
        grace_s: Seconds that a run has to end once it was told to.

    Returns:
        0 if all ended well, 1 if one did not, 130 or 143 after a signal.

    Raises:
        PipelineError: The request is wrong, or GPUs are leased by others. Nothing was started.
    """
    total, settings = split_total(words)
    devices = _devices(total, on_cpu=_CPU in settings)
    kind = "CPU slot" if _CPU in settings else "GPU"
    plan = plan_runs(name, each, runs, len(devices), settings, queue=queue, kind=kind)
    typed = {run.name: _settings(run, plan, output_dir, on_cpu=_CPU in settings, queue=queue) for run in plan.runs}
    for words_of_run in typed.values():
        check_config(load_config(words_of_run))
    prepare(load_config(typed[plan.runs[0].name]))
    if not queue:
        _refuse_leased([devices[place] for places in plan.slots for place in places])
    return _Members(plan, devices, typed, output_dir.absolute(), console, queue, grace_s).work()


def _devices(total: int | None, *, on_cpu: bool) -> list[Device]:
    """Those that are shared out.

    Raises:
        ConfigError: There are not so many.
    """
    if on_cpu:
        return choose_devices(DeviceChoice.cpu, total)
    there = find_gpus(os.environ)
    if total is not None and total > len(there):
        ids = f", {there[0].label} to {there[-1].label}" if there else ""
        raise ConfigError(
            f"TOTAL_GPUS {total}, but {count(len(there), 'GPU')} can be used{ids}. "
            + ("Ask for so many at most" if there else "For CPU slots add device=cpu")
        )
    return there[:total]


def _settings(run: MemberRun, plan: MultiPlan, output_dir: Path, *, on_cpu: bool, queue: bool) -> list[str]:
    """The settings by which a run is one of its own command."""
    ids = ",".join(map(str, plan.slots[run.slot]))
    folder = str(output_dir).replace("\\", "\\\\").replace("'", "\\'")
    return [
        f"experiment.name={run.name}",
        f"output_dir='{folder}'",
        *run.settings,
        f"execution.workers={plan.each}" if on_cpu else f"distributed.gpu_list=[{ids}]",
        *(["execution.wait_for_devices=true"] if queue and not on_cpu else []),
    ]


def _refuse_leased(devices: Sequence[Device]) -> None:
    held = holders(devices)
    if told := [f"{device.label} by {held[device.uuid]}" for device in devices if device.uuid in held]:
        raise DeviceError(
            f"leased by others: {'; '.join(told)}. Nothing was started; wait for them with --queue, or hide "
            "them by CUDA_VISIBLE_DEVICES"
        )


class _Members:
    """The runs under way."""

    def __init__(
        self,
        plan: MultiPlan,
        devices: Sequence[Device],
        typed: dict[str, list[str]],
        output_dir: Path,
        console: Console,
        queue: bool,
        grace_s: int,
    ) -> None:
        self._plan, self._devices, self._typed = plan, devices, typed
        self._output_dir, self._queue, self._grace_s = output_dir, queue, grace_s
        self._say: Callable[[str], None] = lambda text: say(console, text)
        self._waiting = list(plan.runs)
        self._codes: dict[str, int] = {}
        self._told: set[str] = set()

    def work(self) -> int:
        """Run all of them; the exit code."""
        self._announce()
        with StopSignals() as signals:
            slots = SideBySide(len(self._plan.slots), self._following, self._ended, self._say)
            interrupted = slots.run(signals)
            left = [run.name for run in self._plan.runs if self._codes.get(run.name) != 0]
            self._say(
                f"{len(self._plan.runs) - len(left)} of {count(len(self._plan.runs), 'run')} done"
                + (f"; not done: {', '.join(left)}" if left else "")
            )
            code = INTERRUPTED_BY[interrupted] if interrupted else FAILED if left else 0
            settle(code)
            return code

    def _announce(self) -> None:
        for run in self._plan.runs:
            places = ", ".join(self._devices[place].label for place in self._plan.slots[run.slot])
            self._say(f"{run.name}  on {places}  {' '.join(run.own)}".rstrip())
        self._say(f"Their output is in {shown_path(self._output_dir)}/NAME/{OUTPUT}.")
        if self._plan.alike:
            self._say(
                "warning: nothing tells these runs apart, so each takes what another has computed. Give a setting "
                "a value for each (as training.grad_clip=1,2), or leave out experiment.seeds"
            )

    def _following(self, slot: int) -> Task | None:
        run = next((run for run in self._waiting if run.slot == slot), None)
        if run is None:
            return None
        self._waiting.remove(run)
        folder = self._output_dir / run.name
        folder.mkdir(parents=True, exist_ok=True)
        places = list(self._plan.slots[slot])
        on_gpus = self._devices[0].kind == "cuda"
        return Task(
            name=run.name,
            order=Order(
                words=[sys.executable, "-m", "pipeline", "run", *self._typed[run.name]],
                gpus=places if on_gpus else None,
                slots=len(places),
                leases=True,
                holder=run.name,
                folder=str(Path.cwd()),
                log=str(folder / OUTPUT),
                start=str(folder / START),
                grace_s=self._grace_s,
            ),
        )

    def _ended(self, ended: Ended) -> float:
        name = ended.task.name
        if ended.busy and self._queue:
            self._waiting.insert(0, next(run for run in self._plan.runs if run.name == name))
            if name not in self._told:
                self._told.add(name)
                self._say(f"{name} waits: {ended.busy}")
            return _REST_S
        self._codes[name] = FAILED if ended.exit_code is None else ended.exit_code
        self._say(f"{name} {_in_words(ended)}")
        return 0.0


def _in_words(ended: Ended) -> str:
    if said := ended.busy or ended.refused:
        return f"failed: {said}"
    if ended.exit_code is None:
        return "was killed"
    if ended.exit_code in INTERRUPTED_BY.values():
        return f"was stopped (exit code {ended.exit_code})"
    if ended.exit_code:
        return f"failed: {describe_exit(ended.exit_code)}{tail(Path(ended.task.order.log))}"
    return f"done after {duration(ended.seconds)}"
