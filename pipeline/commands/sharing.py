"""The shared store around a run: what is there, what of it is fetched, and what is uploaded."""

import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.filesize import decimal

from pipeline.commands.request import Request, Stored, look_up
from pipeline.commands.results import note
from pipeline.config.schema import Config
from pipeline.engine.scheduler.signals import StopSignals
from pipeline.engine.store import shared
from pipeline.engine.store.store import NOT_STORED, Verified
from pipeline.outputs.manifest import REMOVED
from pipeline.runs import trained
from pipeline.runs.report.format import count
from pipeline.terminal.console import say


def shared_keys(config: Config, console: Console) -> Collection[str]:
    """Return the keys of outputs in the shared store of a request, if it can be reached; writes nothing.

    Raises:
        ConfigError: It may not be used.
    """
    if config.execution.shared_store is None:
        return ()
    _, keys, why = shared.connect(config.execution.shared_store, writes=False)
    if why:
        _warn_away(why, console)
    return keys


@contextmanager
def in_use(request: Request, verified: Verified, console: Console) -> Iterator[Request]:
    """Yield the same request with its shared store in use, if it has one.

    Raises:
        ConfigError: It may not be used.
    """
    url = request.config.execution.shared_store
    if url is None:
        yield request
        return
    objects, keys, why = shared.connect(url)
    if why:
        _warn_away(why, console)
    session = shared.SharedStore(objects, verified, keys, away=why)
    try:
        yield replace(request, shared=session)
    finally:
        if warning := session.conclude(lambda: True):
            say(console, f"warning: {warning}", "bold")


def look_up_shared(request: Request, verified: Verified, console: Console) -> Stored:
    """See what of a plan must run; fetch at once the needed outputs that only the shared store has.

    Outputs that only the local store has are uploaded meanwhile: an earlier run may have been cut off before.
    """
    session = request.shared
    if session is None:
        return look_up(request, verified.problem)
    while (stored := look_up(request, verified.problem, session.keys)).elsewhere:
        say(console, f"fetching {count(len(stored.elsewhere), 'output')} from the shared store")
        keys = {request.plan.jobs[job_id].key for job_id in stored.elsewhere}
        session.fetch_all(keys)
        # What did not come, as it is bad or cannot be reached, is made here.
        session.keys -= {key for key in keys if verified.problem(key) is not None}
    for job in request.plan.jobs.values():
        store = request.store
        if job.key not in stored.damaged and store.is_committed(job.key) and not store.is_removed(job.key):
            session.finished(job.key, job.id)
    return stored


def uploaded_before_end(request: Request, signals: StopSignals, console: Console) -> bool:
    """Wait until outputs are in the shared store, and warn if some are not; False without a shared store.

    Args:
        request: The request.
        signals: Ask to wait no longer.
        console: Console to print to.
    """
    session = request.shared
    if session is None:
        return False
    if number := session.traffic.left:
        outputs = count(number, "output")
        say(console, f"uploading {outputs} to the shared store; Ctrl-C leaves the rest to the next run", "dim")
    before = signals.times
    warning = session.conclude(
        lambda: signals.received is not None,
        request.execution.stop_grace_s,
        hurries=lambda: signals.times > max(1, before),
    )
    traffic = session.traffic
    amounts = {
        "fetched": (traffic.fetched, traffic.fetched_bytes),
        "uploaded": (traffic.uploaded, traffic.uploaded_bytes),
    }
    moved = [
        f"{count(number, 'output')} {what} ({decimal(size)})" for what, (number, size) in amounts.items() if number
    ]
    if moved:
        note(console, f"shared store: {', '.join(moved)}", "dim", logging.INFO)
    if warning:
        note(console, warning, mark="warning: ")
    return True


def bring_model(model: trained.Trained, scratch: Path, console: Console) -> None:
    """Have a trained model here, and its reference, that its run has left to the shared store.

    Raises:
        PipelineError: It could not be fetched.
    """
    url, store = model.config.execution.shared_store, model.run.store
    keys = dict.fromkeys([model.job.key, *model.job.inputs.get("reference.train", ())])
    absent = [key for key in keys if store.problem(key, checksums=False) in (NOT_STORED, REMOVED)]
    if url is None or not absent:
        return
    say(console, f"{model.job.id}: looking in the shared store for what is not here")
    session = shared.SharedStore(shared.Objects(url), Verified(store, scratch))
    try:
        for key in absent:
            session.fetch(key)
    except (shared.UnreachableError, shared.BadOutputError) as error:
        say(console, f"warning: it was not fetched: {error}", "bold")
    finally:
        session.conclude()


def _warn_away(why: str, console: Console) -> None:
    text = f"warning: the shared store cannot be reached ({why}): this run goes on with what is here"
    say(console, text, "bold")
