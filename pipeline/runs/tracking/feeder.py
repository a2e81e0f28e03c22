"""The process of one tracker: follows a run until it is told that the run has ended. Started by `feeders`."""

from __future__ import annotations

import logging
import os
import select
import signal
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.engine.run_folder import RunFolder
from pipeline.errors import PipelineError
from pipeline.files import json_text
from pipeline.locks import claim
from pipeline.machine.begin import begin
from pipeline.machine.channel import Channel
from pipeline.runs.loaded import LoadedRun
from pipeline.runs.tracking.feed import Feed
from pipeline.runs.tracking.told import ToldFiles
from pipeline.runs.tracking.trackers import TrackerPlace, make_tracker
from pipeline.runs.tracking.wandb_sweep import SweepTrial, left_values

if TYPE_CHECKING:
    from pipeline.runs.tracking.to_wandb import TrialRun

_LOOK_S = 2.0
"""Seconds between two looks at the journal."""
_NOISE = 1 << 20
"""Bytes that are kept of what a tracker prints."""
_NICENESS = 10
_SAID = 500

log = logging.getLogger("pipeline")


def main() -> None:
    """Tell a tracker of a run; leaves at once when that is done, whatever threads the tracker has."""
    settings = begin()
    channel = Channel.inherited(settings.pop("fd"))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started this process says when it ends
    os.nice(_NICENESS)
    _log_to(_take_output())
    try:
        _follow(channel, **settings)
    except BaseException as error:
        log.exception("nothing more is told")
        _say(channel, problem=f"{type(error).__name__}: {error}"[:_SAID])
        os._exit(1)
    _say(channel, problem=None)
    os._exit(0)


def _follow(
    channel: Channel,
    run: str,
    tracker: str,
    place: Mapping[str, Any],
    samples: int,
    trial: Mapping[str, Any] | None,
) -> None:
    log.info("tells %s of run %s", tracker, run)
    recorded = LoadedRun(RunFolder(Path(run)))
    there = TrackerPlace(**{**place, "folder": Path(place["folder"])})
    feed = Feed(recorded, lambda: make_tracker(tracker, there), ToldFiles(there.told), samples)
    # Two processes that told the same chains would tell them twice.
    lock = there.told / f".{recorded.name}.lock"
    while (held := claim(tracker, lock)) is None:
        log.info("waits: another run of the experiment tells it right now")
        if _is_over(channel):
            raise PipelineError("another run of the experiment tells it right now")
        _wait(channel)
    with held:
        judged = _Judged(recorded, there, SweepTrial(**trial)) if trial else None
        is_over = False
        while not is_over:
            is_over = _is_over(channel)  # asked first, so that nothing is missed that was written before
            if is_over:
                log.info("the run has ended: tells what is left")
            feed.look()
            if judged is not None:
                judged.look()
            if not is_over:
                _wait(channel)
        if judged is not None:
            judged.close()
        feed.close()


class _Judged:
    """What W&B's sweep is told of this run, which is a trial of it."""

    def __init__(self, run: LoadedRun, place: TrackerPlace, trial: SweepTrial) -> None:
        self._folder, self._name, self._place, self._trial = run.folder.path, run.name, place, trial
        self._told = 0
        self._run: TrialRun | None = None

    def look(self) -> None:
        for judged in left_values(self._folder)[self._told :]:
            if self._run is None:
                from pipeline.runs.tracking.to_wandb import Wandb

                self._run = Wandb(self._place).begin_trial(self._trial, self._name)
            self._run.add(judged)
            self._told += 1

    def close(self) -> None:
        if self._run is not None:
            self._run.close()


def _is_over(channel: Channel) -> bool:
    return any(channel.receive()) or channel.closed


def _wait(channel: Channel) -> None:
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    poll.poll(_LOOK_S * 1000)


def _say(channel: Channel, **said: Any) -> None:
    with suppress(OSError):  # nobody listens any more
        channel.send(json_text(said).encode())


def _take_output() -> int:
    """Have what is printed here go through a pipe that takes it all and writes its beginning to the log.

    Returns:
        The log, which this process was given as its output.
    """
    file = os.dup(1)
    reading, writing = os.pipe()
    os.dup2(writing, 1)
    os.dup2(writing, 2)
    os.close(writing)
    threading.Thread(target=_drain, args=(reading, file), daemon=True).start()
    return file


def _drain(reading: int, file: int) -> None:
    left = _NOISE
    while noise := os.read(reading, 1 << 16):
        if left > 0:
            with suppress(OSError):
                os.write(file, noise[:left])
        left -= len(noise)


def _log_to(file: int) -> None:
    handler = logging.StreamHandler(
        os.fdopen(file, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
    )
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False


if __name__ == "__main__":
    main()
