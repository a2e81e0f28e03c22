"""Reports: the page of a run, which it leaves when it ends, and pages that are asked for."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from rich.console import Console

from pipeline.engine.run_folder import RunFolder
from pipeline.engine.store.store import is_store
from pipeline.errors import ConfigError, StoreError
from pipeline.files import plain_target, write_whole
from pipeline.runs.figures.write import FORMATS, without_rounds, write_figures
from pipeline.runs.index import choose_run, newest_of_several
from pipeline.runs.loaded import LoadedRun, load
from pipeline.runs.report.format import count, shown_path
from pipeline.sweeps.storage import SweepFolder
from pipeline.terminal.console import say

# -- targets -----------------------------------------------------------------------------------------------------
# Where commands may write: anywhere but over what runs and stores hold, their records and the outputs of
# jobs.


_STANDARD_OUTPUT = ("-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")


def is_standard_output(path: Path | None) -> bool:
    """Whether a user means what the command prints, by one of the names that it has."""
    return str(path) in _STANDARD_OUTPUT


def write_table(path: Path, text: str, console: Console) -> None:
    """Write a table for other programs: to a file, or to standard output without another word.

    Raises:
        ConfigError: It cannot be written.
    """
    if is_standard_output(path):
        sys.stdout.write(text)
    else:
        written(path, lambda: write_whole(plain_target(path), text), console)


def refuse_records(option: str, path: Path, runs: Iterable[LoadedRun], *, is_page: bool = False) -> None:
    """Refuse a place inside a store or the folder of any run or sweep, also by a link to there.

    Stores are those of the runs, and what looks like one.

    Args:
        option: As it is typed.
        path: What was given with it.
        runs: Those that the command is about.
        is_page: Whether a report is written, which may take the place of the report of a run or sweep.

    Raises:
        ConfigError: It is, or it is standard output, which is no place.
    """
    if is_standard_output(path):
        raise ConfigError(f"{option} {path}: nothing is written to the output of a command; name a file or folder")
    target, roots = path.resolve(), {run.store.root.resolve() for run in runs}
    for place in dict.fromkeys((target, *target.parents, *path.absolute().parents)):
        run, sweep = RunFolder(place), SweepFolder(place)
        # By its name first: folders of other programs have files of the same names.
        of_run = run.begun and run.holds_run and not (is_page and target == run.report)
        of_sweep = sweep.begun and not (is_page and target == sweep.report)
        if place in roots or is_store(place) or of_run or of_sweep:
            raise ConfigError(
                f"{option} {path}: that is inside {place}, which holds what runs left alone; name a place outside "
                "of it"
            )


def written(path: Path, write: Callable[[], None], console: Console) -> None:
    """Write a file that a user has named, and say where it is.

    Raises:
        ConfigError: It cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write()
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}. Give another file") from error
    say(console, "written:", copy=str(path))


FILE = "report.html"

log = logging.getLogger("pipeline")


def report(output_dir: Path, names: Sequence[str], stamp: str | None, out: Path | None, console: Console) -> None:
    """Write a page of one run or several anew, and say where it is.

    Args:
        output_dir: Folder of all runs.
        names: Experiments; of each the newest run.
        stamp: Timestamp of the run, where there is one name.
        out: The file; that of the run if left out, and of several ``report.html`` beside the experiments.
        console: Where to.

    Raises:
        PipelineError: There is no such run, what it left cannot be read, or the page cannot be written.
    """
    if stamp is not None and len(names) > 1:
        raise ConfigError("--run chooses a run of one experiment: give one NAME with it.")
    folders = [choose_run(output_dir, name, stamp) for name in dict.fromkeys(names)]
    for note in filter(None, map(newest_of_several, folders if stamp is None else ())):
        say(console, note)
    if out is not None:
        refuse_records("--out", out, map(LoadedRun, folders), is_page=True)
    path = out or (folders[0].report if len(folders) == 1 else output_dir / FILE)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_report(path if out is None else plain_target(out), folders)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}. Give another file as --out.") from error
    say(console, "report:", copy=shown_path(path))


def write_report(path: Path, folders: Sequence[RunFolder]) -> None:
    """Write a page of runs; several stand side by side at its top.

    Raises:
        PipelineError: What one left cannot be read.
        OSError: The page cannot be written.
    """
    # Not with the other imports: what reads results takes time to load, which a run that begins need not wait for.
    from pipeline.runs.comparison.runs import compare_runs, comparison_tables, run_names
    from pipeline.runs.report.page.html import write_page
    from pipeline.runs.report.page.run import comparison_table, page_of

    runs = [load(folder) for folder in folders]
    names = run_names(runs)
    tables = comparison_tables(compare_runs(runs, names)) if len(runs) > 1 else []
    write_page(path, page_of(runs, names, [comparison_table(table) for table in tables]))


def renew_report(run: RunFolder) -> None:
    """Write the page of a run again, of which something has changed since it was left; says nothing."""
    try:
        write_report(run.report, [run])
    except Exception as error:  # as below
        log.warning("the report is not up to date: %s", error, exc_info=True)


def leave_report(run: RunFolder, console: Console) -> None:
    """Write the page of a run that has ended. That it cannot be written changes nothing of the run."""
    try:
        write_report(run.report, [run])
    except Exception as error:  # whatever is wrong with a page, the results are there
        log.warning("no report was written: %s", error, exc_info=True)
        say(
            console,
            f"warning: no report was written ({error}). `python -m pipeline report {run.experiment}` tries again.",
            "bold",
        )
        return
    say(console, "report:", copy=shown_path(run.report))


# -- figures -----------------------------------------------------------------------------------------------------
# ``figures``: what a run found, as figures for a paper.


def figures(
    output_dir: Path, name: str, stamp: str | None, out: Path, formats: Sequence[str], console: Console
) -> None:
    """Write the figures of a run.

    Raises:
        PipelineError: There is no such run, it has nothing to show yet, or nothing can be drawn.
    """
    folder = choose_run(output_dir, name, stamp)
    if stamp is None and (note := newest_of_several(folder)):
        say(console, note)
    run = load(folder)
    refuse_records("--out", out, [run])
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out}: that is a file, and each figure is one of its own; name a folder")
    written = write_figures(run, out, formats or FORMATS)
    if not written:
        raise ConfigError(f"{run.folder.path} has nothing to show in a figure yet: no job of it is done.")
    say(console, f"{count(len(written), 'file')} written:", copy=str(out))
    if places := without_rounds(run):
        say(console, f"no rounds_* of {', '.join(places)}: there is one round, and nothing to join over rounds")
