"""``sweep multi``: several runs of the main command on disjoint sets of GPUs.

multi NAME 2 4   ->   NAME.run1 on GPUs 0, 1;  NAME.run2 on 2, 3;  NAME.run3 on 4, 5;  NAME.run4 on 6, 7
"""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.engine.devices.inventory import Device
from pipeline.engine.scheduler.signals import StopSignals
from pipeline.errors import ConfigError, describe_exit
from pipeline.machine.children import tail
from pipeline.runs.report.format import count, duration, shown_path
from pipeline.sweeps.command import overrides_of
from pipeline.sweeps.trial_process import Handle, Order, side_by_side

MOST_RUNS = 1000
_OURS = (
    *("experiment.name", "output_dir", "execution.workers", "execution.wait_for_devices"),
    *("distributed.gpu_ids", "distributed.gpu_list", "distributed.num_gpus"),
)
"""Settings that this command decides for each run."""
_SEEDS = "experiment.seeds"
OUTPUT, START = "output.txt", "start.json"
"""Files in the folder of a run's experiment: its output, and its start."""


@dataclass(frozen=True, kw_only=True)
class MemberRun:
    """One of the runs.

    Attributes:
        name: Name of its experiment: ``NAME.run1``.
        places: The devices, as positions among those that are visible; contiguous.
        settings: All settings except those of the devices.
    """

    name: str
    places: tuple[int, ...]
    settings: tuple[str, ...]

    def typed(self, output_dir: Path, *, on_cpu: bool) -> list[str]:
        """Return the settings of the run as a command of its own."""
        where = {"execution.workers": len(self.places)} if on_cpu else {"distributed.gpu_list": list(self.places)}
        named = overrides_of({"experiment.name": self.name, "output_dir": str(output_dir)})
        return [*named, *self.settings, *overrides_of(where)]


def plan_runs(
    name: str, width: int, runs: int, total: int, settings: Sequence[str], *, kind: str = "GPU"
) -> list[MemberRun]:
    """Divide devices among runs.

    If no setting chooses the seeds, run i has seed i - 1, as otherwise all runs would be the same.

    Args:
        name: Prefix of the names of the runs.
        width: Devices of each run.
        runs: Number of runs.
        total: Number of devices.
        settings: Settings of all runs.
        kind: Word for a device.

    Raises:
        ConfigError: There are too few devices, or a setting is wrong.
    """
    for what, number in (("GPUS_PER_RUN", width), ("NUM_RUNS", runs)):
        if not 1 <= number <= MOST_RUNS:
            raise ConfigError(f"{what} {number}: a whole number from 1 to {MOST_RUNS:,}")
    if runs * width > total:
        needed = f"{count(runs, 'run')} with {count(width, kind)} each need {runs * width}, and there are {total}"
        raise ConfigError(f"{needed}: ask for fewer; device=cpu has CPU slots")
    keys = [setting.lstrip("+~").partition("=")[0] for setting in settings]
    if wrong := next((setting for key, setting in zip(keys, settings, strict=True) if key in _OURS), None):
        raise ConfigError(f"{wrong}: each run has its own, by GPUS_PER_RUN and --output-dir")
    return [
        MemberRun(
            name=f"{name}.run{number + 1}",
            places=tuple(range(number * width, (number + 1) * width)),
            settings=(*settings, *([] if _SEEDS in keys else [f"{_SEEDS}=[{number}]"])),
        )
        for number in range(runs)
    ]


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


def carry_out(
    runs: Sequence[MemberRun],
    devices: Sequence[Device],
    output_dir: Path,
    signals: StopSignals,
    say: Callable[[str], None],
    *,
    grace_s: int,
) -> tuple[str, list[str]]:
    """Run all runs at once.

    Args:
        runs: The runs.
        devices: Devices of the runs.
        output_dir: Folder of all runs.
        signals: The first signal ends runs in order, a second one kills them.
        say: Shows the user a line.
        grace_s: Seconds that a run has to end after a request.

    Returns:
        The name of the signal that ended the runs early, or "", and the names of unfinished runs.
    """
    on_cpu = devices[0].kind != "cuda"
    waiting, remaining = dict(enumerate(runs)), [run.name for run in runs]
    for run in runs:
        say(f"{run.name}  on {', '.join(devices[at].label for at in run.places)}")
    say(f"Their output is in {shown_path(output_dir)}/NAME/{OUTPUT}.")

    def following(slot: int) -> Order | None:
        run = waiting.pop(slot, None)
        if run is None:
            return None
        folder = output_dir / run.name
        folder.mkdir(parents=True, exist_ok=True)
        return Order(
            words=[sys.executable, "-m", "pipeline", "run", *run.typed(output_dir, on_cpu=on_cpu)],
            gpus=None if on_cpu else list(run.places),
            slots=len(run.places),
            leases=True,
            holder=run.name,
            folder=str(Path.cwd()),
            log=str(folder / OUTPUT),
            start=str(folder / START),
            grace_s=grace_s,
        )

    def ended(_slot: int, handle: Handle) -> float:
        name, result = handle.order.holder, handle.result
        if result.exit_code == 0:
            remaining.remove(name)
            say(f"{name} done after {duration(time.monotonic() - handle.began)}")
        else:
            why = result.busy or result.refused or describe_exit(result.exit_code) + tail(Path(handle.order.log))
            say(f"{name} {'was stopped' if handle.told_to_end else 'failed'}: {why}")
        return 0.0

    interrupted = side_by_side(len(runs), signals, following, ended, say)
    not_done = f"; not done: {', '.join(remaining)}" if remaining else ""
    say(f"{len(runs) - len(remaining)} of {count(len(runs), 'run')} done{not_done}")
    return interrupted, remaining
