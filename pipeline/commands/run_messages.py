"""What a run says: when it begins, when it ends and how, on the terminal and in its log; and its exit code."""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from rich.console import Console

from pipeline import arithmetic
from pipeline.commands.exits import INTERRUPTED_BY
from pipeline.commands.request import Request, Stored
from pipeline.engine.run_folder import RunFolder
from pipeline.engine.scheduler.outcome import Outcome
from pipeline.engine.scheduler.state import JobStatus
from pipeline.engine.store.store import AGAIN
from pipeline.learning.algos.value_guided import candidates_note
from pipeline.learning.datasets.base import load_dataset
from pipeline.plan.graph import Plan
from pipeline.runs.notes import collect_notes, failed_rewards, prepared_rows, short_of_rows
from pipeline.runs.origin import Maker, several_makers
from pipeline.runs.report.format import jobs, logs_command, shown_path
from pipeline.terminal.console import say
from pipeline.terminal.streams import printable

SOME_FAILED = 1

log = logging.getLogger("pipeline")


def tell_lost_files(run: RunFolder, console: Console) -> int:
    """Warn of files of the run that somebody has removed meanwhile; the exit code if results are among them."""
    files = (run.config, run.plan, run.journal, run.log, run.results_json)
    lost = [path.name for path in files if not os.path.lexists(path)]
    if lost:
        text = f"warning: somebody has removed {', '.join(lost)} of this run while it was going on, from"
        say(console, text, "bold", copy=shown_path(run.path))
    return SOME_FAILED if run.results_json.name in lost else 0


def tell_prepared(request: Request, outcome: Outcome | None, console: Console) -> None:
    """Say how the run of a request ended that only prepares datasets."""
    if not request.plan.jobs:
        made = ", ".join(request.config.datasets)
        say(console, f"nothing to prepare: {made} makes its rows on the spot")
    elif outcome is None or not (outcome.failures() or outcome.interrupted or outcome.halted):
        for dataset, prepared in prepared_rows(request.store, request.plan.jobs.values()).items():
            if not prepared.warnings:  # those that are short of rows are told below, as in every run
                say(console, f"{dataset}: {prepared}")
        say(console, "prepared; the same command without stage=prepare goes on from here")


def tell_arithmetic(request: Request, missing: Sequence[str]) -> None:
    """Log what of the environment workers do not get, and where a portable run cannot be portable."""
    if not missing:
        return
    portable = request.config.system.portable
    if passed_over := arithmetic.overridden(*(arithmetic.PINS if portable else ("numpy",))):
        log.warning("workers do not get %s, which would change results", ", ".join(passed_over))
    if not portable:
        return
    if any(device.kind != "cpu" for device in request.devices):
        log.info("system.portable=true has no effect on GPUs: results are those of their kind")
    elif not arithmetic.covers(platform.machine()):
        log.warning("system.portable=true has no effect on %s: it is for x86-64 processors", platform.machine())


def announce(request: Request, stored: Stored, run: RunFolder, console: Console) -> None:
    """Say what of the plan is stored, what runs, and on which devices."""
    total, missing = len(request.plan.jobs), stored.missing
    name = request.config.experiment.name
    if not missing:
        if total:
            log.info("%s: all %d jobs are stored by earlier runs: nothing ran", name, total)
            log.info("outputs, weights and samples among them: %s/jobs/*/output", run.path)
            say(console, f"{name}: all {jobs(total)} are stored; nothing to run.")
        return
    devices = request.used_devices
    names = ", ".join(device.label for device in devices)
    if (slots := request.layout.slots) > 1:
        names += f", up to {slots} jobs on each"
    there = f"{total - len(missing):,} stored{stored.in_shared}"
    log.info("%s: %d jobs, %s, on %s", name, total, there, names)
    say(
        console,
        f"{name}: {jobs(total)}, {there}, {len(missing)} to run on {names}. Log:",
        copy=shown_path(run.log),
    )


def conclude(request: Request, outcome: Outcome | None, run: RunFolder, console: Console) -> int:
    """Say how the run ended, and what to do where not all is well; the exit code."""
    config = request.config
    if outcome is None:
        return 0
    if outcome.makespan is not None:
        log.info("%s", outcome.makespan)
        say(console, outcome.makespan.in_words())
    for job_id, reason in outcome.failures():
        say(console, f"failed: {job_id}: {reason}", "red")
    for line in incomplete_chains(request.plan, outcome):
        log.warning("%s", line)
        say(console, line, "bold")
    if outcome.halted:
        advice = "" if outcome.halted.endswith(AGAIN) else ". Mend that, then run the same command."
        complain(console, f"the run was ended early: {outcome.halted}{advice}")
        return SOME_FAILED
    if outcome.interrupted:
        log.warning("interrupted by %s; the same command goes on from here", outcome.interrupted)
        say(console, f"interrupted by {outcome.interrupted}; the same command goes on from here", "bold")
        return INTERRUPTED_BY[outcome.interrupted]
    if failures := outcome.failures():
        say(console, "logs:", copy=f"{shown_path(run.path)}/jobs/")
        say(
            console,
            "read the first:",
            copy=logs_command(Path(config.output_dir), config.experiment.name, failures[0][0]),
        )
        return SOME_FAILED
    return 0


def incomplete_chains(plan: Plan, outcome: Outcome) -> list[str]:
    """One line for every chain that lacks results because jobs failed: what is missing, and the root cause."""
    missing: dict[str, tuple[set[int], set[str]]] = {}
    for job_id, status in outcome.jobs.items():
        if status in (JobStatus.failed, JobStatus.blocked):
            job = plan.jobs[job_id]
            rounds, causes = missing.setdefault(job.chain, (set(), set()))
            rounds.add(job.round)
            causes.add(outcome.root_causes.get(job_id, job_id))
    lines = []
    for chain, (rounds, causes) in sorted(missing.items()):
        what = f"round {min(rounds)}" + (f" to {max(rounds)}" if len(rounds) > 1 else "")
        lines.append(f"incomplete: {chain}: {what}, because of {', '.join(sorted(causes))}")
    return lines


def complain(console: Console, text: str) -> None:
    """Say what went wrong, on the terminal and in the log."""
    log.error("%s", text)
    say(console, f"error: {text}", "red")


def tell_notes(
    request: Request, makers: Sequence[Maker], run: RunFolder, console: Console, *, has_rows: bool
) -> None:
    """Say what a reader must know of the trainings, of the datasets and of how policies are sampled."""
    config = request.config
    store, jobs = request.store, request.plan.jobs.values()
    short = short_of_rows(store, jobs, config.evaluation, request.warnings)
    for note in [*several_makers(makers), *short, *failed_rewards(store, jobs, run), *collect_notes(store, jobs)]:
        log.warning("%s", note)
        say(console, f"note: {note}", "bold")
    if not has_rows:
        return
    for note in (*(load_dataset(section).note for section in config.datasets.values()), candidates_note(config)):
        if note:
            log.info("%s", note)
            say(console, note, "dim")


class _RunLog(logging.FileHandler):
    """A log that cannot be written must not flood the terminal: what went wrong is told by the run itself."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802, ARG002 - the name that logging calls
        return

    def close(self) -> None:
        with suppress(OSError):  # what could not be written before cannot be now
            super().close()


class _PrintableFormatter(logging.Formatter):
    """Reasons of failures and names are foreign text, and the log may be read by ``cat``."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


@contextmanager
def logged_to(path: Path) -> Iterator[None]:
    """Have what the engine and its commands log go to the file of a run, and nowhere else until that ends."""
    handler = _RunLog(path, encoding="utf-8")
    handler.setFormatter(_PrintableFormatter("%(asctime)s %(levelname)s %(message)s"))
    before = log.level, log.propagate
    log.setLevel(logging.INFO)
    log.propagate = False
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        handler.close()
        log.setLevel(before[0])
        log.propagate = before[1]
