"""The processes that tell trackers of a run, as the run sees them: started, listened to now and then, and ended.

Nothing that happens in them reaches the run but a warning.
"""

from __future__ import annotations

import os
import select
import shlex
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from importlib.util import find_spec

from pipeline.config.schema import TrackingConfig, TrackingMode
from pipeline.engine.run_folder import RunFolder
from pipeline.errors import WorkerError, install_command
from pipeline.foreign import ForeignDataError, read_json
from pipeline.machine.children import Child, end
from pipeline.runs.report.format import command, shown_path
from pipeline.runs.tracking.trackers import TRACKERS, TrackerPlace, own_runs, sweep_trial
from pipeline.terminal.streams import printable

_MODULE = "pipeline.runs.tracking.feeder"
_LONGEST = 1 << 16
"""Bytes of what a process says at most."""
_SEND_S = 1.0
_WAIT_S = 3600.0
"""Seconds of one wait at most, as the system takes no longer ones."""
Warn = Callable[[str], None]


class Feeders:
    """The processes of all trackers of a run.

    Attributes:
        told: How to look at the trackers that were told everything: name -> command.
    """

    def __init__(self, run: RunFolder, tracking: TrackingConfig, warn: Warn) -> None:
        """Start them; what is not installed is warned of.

        Args:
            run: The run; it has its plan.
            tracking: What is to be told.
            warn: Takes warnings in words.
        """
        self.told: dict[str, str] = {}
        self._run, self._warn = run, warn
        self._live: dict[str, Child] = {}
        self._places: dict[str, TrackerPlace] = {}
        for name in dict.fromkeys(tracker.value for tracker in tracking.report_to):
            try:
                if find_spec(TRACKERS[name].package) is None:
                    self._tell(name, f"it is not installed: {install_command(name)}")
                else:
                    self._start(name, tracking)
            except OSError as error:
                self._tell(name, f"it could not be started ({error.strerror or error})")

    def look(self) -> None:
        """Hear what they say, without waiting."""
        for name, child in list(self._live.items()):
            try:  # the one thing that it says, at its end: why that is early, or null if all is told
                said = [read_json(line, dict[str, str | None])["problem"] for line in child.channel.receive()]
            except (ForeignDataError, WorkerError, OSError, KeyError):
                said = ["its process says what cannot be understood"]
            if said:
                self._over(name, said[0])
            elif child.channel.closed:
                self._over(name, "its process has ended")

    def finish(self, timeout_s: float, interrupted: int = -1) -> None:
        """Have them tell the rest, and end them.

        Args:
            timeout_s: Seconds that this may take.
            interrupted: A descriptor that is readable when nobody is to wait any more; -1 for none.
        """
        for child in self._live.values():
            with suppress(OSError):  # it is gone, which is heard below
                child.channel.send(b"end")
        give_up, is_interrupted = time.monotonic() + timeout_s, False
        while self._live and not is_interrupted and (left := give_up - time.monotonic()) > 0:
            is_interrupted = self._wait(left, interrupted)
            self.look()
        for name in self._live if not is_interrupted else ():
            self._tell(name, f"it takes longer than tracking.finish_timeout_s={timeout_s:g} to take the rest")
        self.end()

    def end(self) -> None:
        """End them at once, with all that they have started."""
        live, self._live = list(self._live.values()), {}
        end(live)
        for child in live:
            child.wait()

    def _start(self, name: str, tracking: TrackingConfig) -> None:
        place = self._places[name] = _place(name, self._run, tracking)
        logs = self._run.path / "tracking"
        logs.mkdir(exist_ok=True)
        with (logs / f"{name}.log").open("wb", buffering=0) as output:
            output.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} the process of {name} is started\n".encode())
            self._live[name] = Child(
                _MODULE,
                _environment(name, place),
                {
                    "run": str(self._run.path),
                    "tracker": name,
                    "place": {**asdict(place), "folder": str(place.folder)},
                    "samples": tracking.samples,
                    "trial": asdict(trial) if name == "wandb" and (trial := sweep_trial()) else None,
                },
                max_bytes=_LONGEST,
                send_timeout_s=_SEND_S,
                output=output,
                own_group=True,
            )

    def _over(self, name: str, problem: str | None) -> None:
        child = self._live.pop(name)
        end([child])
        child.wait()
        if problem is None:
            place = self._places[name]
            folder, project = shlex.quote(shown_path(place.folder)), shlex.quote(place.project)
            self.told[name] = TRACKERS[name].look.format(folder=folder, project=project)
        else:
            self._tell(name, printable(problem).rstrip(" ."))

    def _wait(self, seconds: float, interrupted: int) -> bool:
        waiting = [child.channel.fileno() for child in self._live.values()] + [interrupted] * (interrupted >= 0)
        return interrupted in select.select(waiting, [], [], min(seconds, _WAIT_S))[0]

    def _tell(self, name: str, problem: str) -> None:
        """Say what is wrong, and what tells a tracker of this run whichever runs there are by then."""
        words = f"track {shlex.quote(self._run.experiment)} --run {self._run.stamp} --report-to {name}"
        told = command(words, self._run.path.parent.parent)
        log = self._run.path / "tracking" / f"{name}.log"
        more = f" Its log: {log}." if log.exists() else ""
        self._warn(
            f"tracking: {name}: {problem}. The run does not need it; `{told}` tells it what is missing.{more}"
        )


def _place(name: str, run: RunFolder, tracking: TrackingConfig) -> TrackerPlace:
    return TrackerPlace(
        folder=run.path.parent.parent / TRACKERS[name].folder.format(run.experiment),
        project=tracking.project or run.experiment,
        entity=tracking.entity,
        is_online=tracking.mode is TrackingMode.online,
    )


def _environment(name: str, place: TrackerPlace) -> Mapping[str, str]:
    given = {key: value.format(folder=place.folder) for key, value in TRACKERS[name].environment.items()}
    offline = {} if place.is_online else {"WANDB_MODE": "offline"}
    return {**own_runs(os.environ), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", **given, **offline}
