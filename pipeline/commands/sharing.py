"""A store that other machines share, around a run: what is there, what of it is fetched, what is uploaded."""

from __future__ import annotations

import logging
import select
import time
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from pipeline.commands.request import Request, Stored, look_up
from pipeline.commands.results import renew_report
from pipeline.config.schema import Config
from pipeline.engine.journal import SHARED_STORE, Journal
from pipeline.engine.run_folder import RunFolder
from pipeline.engine.scheduler.signals import StopSignals
from pipeline.engine.store.shared import (
    BadOutputError,
    Objects,
    Session,
    SharedOutputs,
    Traffic,
    UnreachableError,
    connect,
    look,
)
from pipeline.engine.store.store import NOT_STORED, REMOVED
from pipeline.engine.store.verified import Verified
from pipeline.errors import StoreError
from pipeline.runs.report.format import count, jobs
from pipeline.runs.report.status import shared_in_words
from pipeline.runs.trained import Trained
from pipeline.terminal.console import say

log = logging.getLogger("pipeline")

_TRAFFIC_S = 5.0
"""How often the journal of a run that is over is told at most how far its uploads are."""


def looked_at(config: Config, console: Console) -> Collection[str] | None:
    """The keys of what is in the shared store of a request; nothing is written.

    Returns:
        None where it has none, or it cannot be reached, which is said.

    Raises:
        ConfigError: It may not be used.
    """
    if config.execution.shared_store is None:
        return None
    keys, why = look(config.execution.shared_store)
    if why:
        _tell_away(why, console)
    return None if why else keys


def tell_looked_at(stored: Stored, console: Console) -> None:
    """Say what a run would make of its shared store, which was looked at."""
    fetched, ran = len(stored.elsewhere), len(stored.missing)
    say(
        console,
        f"Shared store: {count(fetched, 'output') if fetched else 'nothing'} would be fetched, and "
        f"{jobs(ran) if ran else 'no job'} would run.",
    )


@contextmanager
def sharing(request: Request, verified: Verified, console: Console) -> Iterator[Request]:
    """The same request with its shared store in use, if it has one.

    Raises:
        ConfigError: It may not be used.
    """
    url = request.config.execution.shared_store
    if url is None:
        yield request
        return
    objects, keys, why = connect(url)
    if why:
        _tell_away(why, console)
    session = Session(objects, verified, keys, limit=request.layout.workers, away=why)
    try:
        yield replace(request, shared=session)
    finally:
        if left := session.conclude(lambda: True):
            say(console, f"warning: {left}", "bold")


def look_up_shared(request: Request, verified: Verified, console: Console) -> Stored:
    """See what of a plan must run; where nothing must, what is stored elsewhere alone is fetched at once.

    What is stored here and not there is uploaded meanwhile: an earlier run may have been cut off before.
    """
    shared = request.shared
    if shared is None:
        return look_up(request, verified.problem)
    stored = look_up(request, verified.problem, shared.keys)
    while stored.elsewhere and not stored.missing:
        say(console, f"fetching {count(len(stored.elsewhere), 'output')} from the shared store")
        keys = {job_id: request.plan.jobs[job_id].key for job_id in stored.elsewhere}
        shared.expect(keys)
        waits = set(keys)
        while waits:
            select.select([shared.fileno()], [], [])
            waits -= set(shared.answered())
        # What did not come, as it is bad or cannot be reached, is made here.
        shared.keys -= {key for job_id, key in keys.items() if verified.problem(key) is not None}
        stored = look_up(request, verified.problem, shared.keys)
    for job in request.plan.jobs.values():
        store = request.store
        if job.key not in stored.damaged and store.is_committed(job.key) and not store.is_removed(job.key):
            shared.finished(job.key, job.id)
    return stored


def note_traffic(request: Request, run: RunFolder, *, over: bool = False) -> Traffic:
    """Have the journal of a run that is over tell what came from the shared store and went there until now.

    Args:
        request: The request.
        run: Its folder.
        over: Whether nothing more is going to be uploaded.
    """
    traffic = request.shared.traffic if request.shared is not None else Traffic()
    try:
        if traffic != Traffic():
            with closing(Journal(run.journal)) as journal:
                journal.write(SHARED_STORE, **vars(traffic), **({"over": True} if over else {}))
    except StoreError as error:
        log.warning("what was fetched and uploaded is not in the journal: %s", error)
    return traffic


def uploaded_before_end(
    request: Request, run: RunFolder, noted: Traffic, signals: StopSignals, console: Console
) -> bool:
    """Wait until what was made is in the shared store, and say it where it is not; False where there is none.

    Args:
        request: The request.
        run: Its folder.
        noted: What its page says of that.
        signals: Ask to wait no longer.
        console: Where to say it.
    """
    shared = request.shared
    if shared is None:
        return False
    if number := shared.traffic.left:
        what = count(number, "output")
        say(console, f"uploading {what} to the shared store; Ctrl-C leaves the rest to the next run", "dim")
    before, told, due_s = signals.times, noted, time.monotonic() + _TRAFFIC_S

    def stops() -> bool:
        nonlocal told, due_s
        if time.monotonic() >= due_s:  # for whoever watches
            due_s = time.monotonic() + _TRAFFIC_S
            told = note_traffic(request, run) if shared.traffic != told else told
        return signals.received is not None

    left = shared.conclude(stops, request.execution.stop_grace_s, hurries=lambda: signals.times > max(1, before))
    if moved := shared_in_words(vars(shared.traffic)):
        log.info("shared store: %s", moved)
        say(console, f"shared store: {moved}", "dim")
    if shared.traffic != noted or left:
        note_traffic(request, run, over=True)
        renew_report(run)
    if left:
        log.warning("%s", left)
        say(console, f"warning: {left}", "bold")
    return True


def bring_model(found: Trained, scratch: Path, console: Console) -> None:
    """Have a trained model here, and its reference, that its run has left to the shared store.

    Raises:
        PipelineError: It could not be fetched.
    """
    url, store = found.config.execution.shared_store, found.run.store
    keys = dict.fromkeys([found.job.key, *found.job.inputs.get("reference.train", ())])
    absent = [key for key in keys if store.problem(key, checksums=False) in (NOT_STORED, REMOVED)]
    if url is None or not absent:
        return
    say(console, f"{found.job.id}: looking in the shared store for what is not here")
    outputs = SharedOutputs(Objects(url))
    try:
        for key in absent:
            outputs.fetch(key, store, scratch)
    except (UnreachableError, BadOutputError) as error:
        say(console, f"warning: it was not fetched: {error}", "bold")


def _tell_away(why: str, console: Console) -> None:
    say(
        console,
        f"warning: the shared store cannot be reached ({why}): this run goes on with what is here",
        "bold",
    )
