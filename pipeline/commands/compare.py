"""``compare``: runs side by side, by the settings in which they differ."""

from __future__ import annotations

import time
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from rich.console import Console

from pipeline.commands.report import is_standard_output, refuse_records, write_report, write_table, written
from pipeline.errors import ConfigError
from pipeline.files import plain_target
from pipeline.runs.comparison.runs import compare_runs, comparison_csv, comparison_tables, same_settings
from pipeline.runs.index import choose_run, experiments, runs_of
from pipeline.runs.loaded import LoadedRun, load
from pipeline.runs.report.format import command
from pipeline.sweeps.file import SPLIT
from pipeline.sweeps.report import about_table, as_csv, export_rows, foremost, so_far, trials_table
from pipeline.sweeps.storage import Record, sweep_folder
from pipeline.terminal.console import make_console, say, say_styled

# -- compare trials ----------------------------------------------------------------------------------------------
# ``compare`` of a sweep whose trials are no runs of this program: by the parameters in which they differ.


def trials_named(output_dir: Path, name: str) -> Record | None:
    """The sweep of that name, where there are no runs that are called so.

    Raises:
        StoreError: Its journal cannot be read.
    """
    folder = sweep_folder(output_dir, name)
    if not folder.journal.is_file() or (output_dir / name / "latest").is_dir():
        return None
    return Record(folder)


def compare_trials(sweep: Record, csv: Path | None, html: Path | None, console: Console) -> None:
    """Print the trials of a sweep side by side, the best first, or write them as CSV or as its page.

    Raises:
        PipelineError: The file cannot be written.
    """
    now = time.time()
    for option, path in (("--csv", csv), ("--html", html)):
        if path is not None and not (path is csv and is_standard_output(csv)):
            refuse_records(option, path, (), is_page=path is html)
    if html is not None:
        # Not with the other imports: what draws a page takes time to load.
        from pipeline.sweeps.report import write_sweep_page

        written(html, lambda: write_sweep_page(plain_target(html), sweep), console)
    if csv is not None:
        write_table(csv, as_csv(export_rows(sweep, now)), console)
    if csv is None and html is None:
        _print(sweep, now, console)


def _print(sweep: Record, now: float, console: Console) -> None:
    if not sweep.trials:
        say(console, f"no trials yet: {sweep.name}")
        return
    table = trials_table(sweep, foremost(sweep), now, so_far(sweep))
    say_styled(console, about_table(sweep, table, console.width))
    console.print(table)


_ON_TEST = f"{SPLIT}=test"
"""What the run that tests the best trial of a sweep has been given."""


def compare(output_dir: Path, names: Sequence[str], csv: Path | None, html: Path | None, console: Console) -> None:
    """Print runs side by side, or write them as CSV or as the page of a report where that is asked for.

    Raises:
        PipelineError: There is no such run, its results cannot be read, or the file cannot be written.
    """
    if is_standard_output(csv):
        console = make_console(stderr=True)  # for a word on the page, which is no part of the table
    if len(names) == 1 and (trials := trials_named(output_dir, names[0])) is not None:
        compare_trials(trials, csv, html, console)
        return
    runs = runs_named(output_dir, names)
    if csv is not None and not is_standard_output(csv):
        refuse_records("--csv", csv, runs)
    if html is not None:
        refuse_records("--html", html, runs, is_page=True)
    if html is not None:
        written(html, lambda: write_report(plain_target(html), [run.folder for run in runs]), console)
    comparison = compare_runs(runs)
    if csv is not None:
        write_table(csv, comparison_csv(comparison), console)
    if csv is not None or html is not None:
        return
    for table in comparison_tables(comparison):
        console.print()
        console.print(table)
    if not comparison.rows:
        say(console, f"no results yet: {', '.join(comparison.labels)}")
    if len(names) == 1 and sweep_folder(output_dir, names[0]).once("winner").path.is_dir():
        say(console, f"the best trial on the test split: `{command(f'sweep best {names[0]}', output_dir)}`")


def runs_named(output_dir: Path, names: Sequence[str]) -> list[LoadedRun]:
    """The runs that a user means.

    Args:
        output_dir: Folder of all runs.
        names: Each an experiment, a pattern such as ``eta_*``, or ``NAME/TIMESTAMP`` for one run. An experiment
            whose newest run was one of a multirun stands for all runs of that. One experiment alone stands for the
            newest run of each of its settings. Of a sweep these are its trials, without the best one's further run
            on the test split.

    Raises:
        ConfigError: There is no such run.
    """
    found = [run for name in names for run in _named(output_dir, name)]
    if len(found) == 1 and "/" not in names[0]:
        found = _newest_by_settings(_trials(output_dir, found[0].name))
    return list({run.folder.path: run for run in found}.values())


def _named(output_dir: Path, name: str) -> list[LoadedRun]:
    experiment, _, stamp = name.rstrip("/").partition("/")
    if stamp:
        return [load(choose_run(output_dir, experiment, stamp))]
    if any(sign in experiment for sign in "*?["):
        known = experiments(output_dir)
        fitting = [one for one in known if fnmatchcase(one, experiment)]
        if not fitting:
            raise ConfigError(f"no experiment in {output_dir} fits '{name}'. There are: {', '.join(known)}.")
        return [run for one in fitting for run in _named(output_dir, one)]
    newest = load(choose_run(output_dir, experiment))
    if _ON_TEST in newest.origin.settings:
        newest = _trials(output_dir, experiment)[-1]
    if not (group := newest.origin.group):
        return [newest]
    return _newest_by_settings([run for run in runs_loaded(output_dir, experiment) if run.origin.group == group])


def _trials(output_dir: Path, name: str) -> list[LoadedRun]:
    """All runs of an experiment, oldest first; of a sweep those that are judged on the same prompts."""
    runs = runs_loaded(output_dir, name)
    if not sweep_folder(output_dir, name).begun:
        return runs
    return [run for run in runs if _ON_TEST not in run.origin.settings] or runs


def runs_loaded(output_dir: Path, name: str) -> list[LoadedRun]:
    """All runs of an experiment, oldest first."""
    return [load(folder) for folder in runs_of(output_dir, name) if folder.config.is_file()]


def _newest_by_settings(runs: Sequence[LoadedRun]) -> list[LoadedRun]:
    """The newest run of each combination of settings, in the order in which these were tried first."""
    newest: dict[str, LoadedRun] = {}
    for run in runs:
        newest[same_settings(run.config)] = run
    return list(newest.values())
