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
from typing import Any

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


def _follow(channel: Channel, run: str, tracker: str, place: Mapping[str, Any], samples: int) -> None:
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
        is_over = False
        while not is_over:
            is_over = _is_over(channel)  # asked first, so that nothing is missed that was written before
            if is_over:
                log.info("the run has ended: tells what is left")
            feed.look()
            if not is_over:
                _wait(channel)
        feed.close()


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
