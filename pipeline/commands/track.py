"""Trackers: those of a run that is under way, and those that are told of a run afterwards."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from pipeline.config.schema import Tracker, TrackingConfig, TrackingMode
from pipeline.engine.run_folder import RunFolder
from pipeline.engine.scheduler.signals import StopSignals
from pipeline.errors import ConfigError, PipelineError
from pipeline.foreign import ForeignDataError, converted
from pipeline.runs.index import choose_run
from pipeline.runs.loaded import LoadedRun, load_planned
from pipeline.runs.tracking.feeders import Feeders
from pipeline.runs.tracking.trackers import sweep_trial
from pipeline.terminal.console import say

log = logging.getLogger("pipeline")


@contextmanager
def tracked(
    run: RunFolder, tracking: TrackingConfig, console: Console, signals: StopSignals
) -> Iterator[Callable[[], None]]:
    """Have trackers told of a run while something is done. Whatever happens to them costs a warning.

    Args:
        run: The run; it has its plan.
        tracking: What is asked for.
        console: Where warnings go, and to the log.
        signals: One that comes ends the wait for trackers at the end; one that has come leaves it out.

    Yields:
        To be called now and then: hears what goes wrong.
    """

    def warn(text: str) -> None:
        log.warning("%s", text)
        say(console, f"warning: {text}", "bold")

    online = Tracker.wandb in tracking.report_to and tracking.mode is TrackingMode.online
    if sweep_trial() is not None and not online:
        warn(
            "this run is a trial of a sweep at W&B, which hears nothing of it now: that needs "
            "'tracking.report_to=[wandb]' tracking.mode=online in the sweep's command"
        )
    if not tracking.report_to:
        yield lambda: None
        return

    feeders = Feeders(run, tracking, warn)
    try:
        yield feeders.look
        if signals.received is None:
            feeders.finish(tracking.finish_timeout_s, signals.fileno())
    finally:
        feeders.end()
    for name, command in feeders.told.items():
        say(console, f"{name}:", copy=command)


def track(
    output_dir: Path,
    name: str,
    stamp: str | None,
    console: Console,
    *,
    report_to: Sequence[str] = (),
    project: str | None = None,
    online: bool = False,
) -> int:
    """Tell trackers what they lack of a run.

    Args:
        output_dir: Folder of all runs.
        name: The experiment.
        stamp: The run; the newest if None.
        console: Where it is said what came of it.
        report_to: Which trackers; those that the run asked for if there are none.
        project: What they call the project; None for what the run said.
        online: Let wandb send what it is told, whatever the run said.

    Returns:
        The exit code: 1 if a tracker was not told everything.

    Raises:
        PipelineError: There is no such run, it cannot be read, or it asked for no tracker.
    """
    run = load_planned(choose_run(output_dir.absolute(), name, stamp))
    tracking = _asked(run, report_to)
    if project is not None:
        tracking = replace(tracking, project=project)
    if online:
        tracking = replace(tracking, mode=TrackingMode.online)
    warned: list[str] = []
    feeders = Feeders(run.folder, tracking, warned.append)
    try:
        feeders.finish(math.inf)
    finally:
        feeders.end()
    for tracker, command in feeders.told.items():
        say(console, f"{tracker} was told everything:", copy=command)
    for text in warned:
        say(console, f"error: {text}", "red")
    return 1 if warned else 0


def _asked(run: LoadedRun, report_to: Sequence[str]) -> TrackingConfig:
    try:
        tracking = converted(run.config.get("tracking") or {}, TrackingConfig)
    except ForeignDataError as error:
        raise PipelineError(f"{run.folder.config} cannot be used: tracking: {error}") from error
    if report_to:
        tracking = replace(tracking, report_to=[Tracker(given) for given in report_to])
    if not tracking.report_to:
        known = ", ".join(tracker.value for tracker in Tracker)
        raise ConfigError(
            f"run {run.stamp} of {run.name} asked for no tracker. Say which by --report-to, each by one: {known}; "
            "or name a run that asked for one by --run."
        )
    return tracking
