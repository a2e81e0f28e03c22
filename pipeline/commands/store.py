"""What ``python -m pipeline store`` does: check a store, tell what takes its space, remove what nothing needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.progress import track

from pipeline.engine.store.gc import (
    Finding,
    Garbage,
    active_run,
    check_outputs,
    choose_keys,
    find_garbage,
    measure,
    open_store,
    remove,
)
from pipeline.engine.store.run_refs import RunReference, find_runs, newest_runs, runs_since
from pipeline.engine.store.store import Store
from pipeline.engine.store.store_lock import users
from pipeline.errors import ConfigError, StoreError
from pipeline.runs.report.store import garbage_table, usage_table
from pipeline.terminal.console import say

SOMETHING_WRONG = 1


def verify(
    store: Path | None, output_dir: Path | None, keys: Sequence[str], console: Console, *, repair: bool
) -> int:
    """Read every stored output.

    Args:
        store: Its folder; None for that of `output_dir`.
        output_dir: Folder of all runs; None for the default.
        keys: Beginnings of keys; none for all outputs.
        console: Told what is damaged.
        repair: Set that aside.

    Returns:
        Exit code: 1 if an output is damaged.

    Raises:
        PipelineError: There is no such store, or no such key in it.
    """
    opened = open_store(_root(store, output_dir))
    return _verify(opened, choose_keys(opened, keys), repair, console)


def du(store: Path | None, output_dir: Path | None, console: Console) -> None:
    """Show what takes the space of a store, which is found as in `verify`.

    Raises:
        PipelineError: There is no such store.
    """
    opened = open_store(_root(store, output_dir))
    console.print(usage_table(measure(opened, find_runs(_output_dirs(opened, output_dir), opened.root))))


def gc(
    store: Path | None,
    output_dir: Path | None,
    console: Console,
    *,
    keep_runs: int | None,
    older_than: float | None,
    dry_run: bool,
    yes: bool,
) -> int:
    """Remove what no run refers to from a store, which is found as in `verify`.

    Args:
        store: As there.
        output_dir: As there.
        console: Told what is removed.
        keep_runs: Of how many runs of each experiment everything is kept; None for all.
        older_than: Of how many last days the runs count; None for all.
        dry_run: Only show it.
        yes: Do not ask.

    Returns:
        Exit code: 1 if something could not be removed, or the user does not want it.

    Raises:
        PipelineError: There is no such store, a run is using it, or what is asked for contradicts itself.
    """
    _check_request(keep_runs, older_than, dry_run=dry_run, yes=yes)
    opened = open_store(_root(store, output_dir))
    cleaner = _Cleaner(opened, _output_dirs(opened, output_dir), keep_runs, older_than, console)
    return cleaner.show() if dry_run else cleaner.clean(ask=not yes)


class _Cleaner:
    """One clean-up: what it looks at, and what it says."""

    def __init__(
        self,
        store: Store,
        output_dirs: Sequence[Path],
        keep_runs: int | None,
        older_than: float | None,
        console: Console,
    ) -> None:
        self.store, self.output_dirs, self.console = store, output_dirs, console
        self.keep_runs, self.older_than = keep_runs, older_than
        self.now = datetime.now()

    def show(self) -> int:
        """Only say what would be removed."""
        if self._report(self._find()):
            say(self.console, "Nothing was removed.")
        return 0

    def clean(self, *, ask: bool) -> int:
        """Remove it, after a question."""
        with self._alone():
            found = self._find()
        if not self._report(found):
            return 0
        # The store is free while the question waits, so what is removed is looked for once more afterwards.
        if ask and not _confirmed("Remove all this?", self.console):
            say(self.console, "Nothing was removed.")
            return SOMETHING_WRONG
        with self._alone():
            shown = {thing.path for thing in found}
            return self._remove([thing for thing in self._find() if thing.path in shown])

    def _find(self) -> list[Garbage]:
        return find_garbage(self.store, self._kept())

    def _kept(self) -> list[RunReference]:
        runs = find_runs(self.output_dirs, self.store.root)
        if not runs:
            where = f" in {', '.join(map(str, self.output_dirs))}" if self.output_dirs else ""
            raise ConfigError(
                f"no run was found{where}, so every output would go. Give the folder of the runs with "
                f"--output-dir; to remove everything, delete {self.store.root} itself"
            )
        if self.keep_runs is not None:
            return newest_runs(runs, self.keep_runs)
        if self.older_than is not None:
            return runs_since(runs, self.now - timedelta(days=self.older_than))
        return runs

    def _report(self, found: Sequence[Garbage]) -> bool:
        for folder in self.output_dirs:
            if not folder.is_dir():
                say(self.console, f"note: {folder}, whose runs used this store, is gone: they count no more")
        if found:
            self.console.print(garbage_table(found))
        else:
            say(self.console, "Everything in the store is needed.")
        return bool(found)

    def _remove(self, garbage: Sequence[Garbage]) -> int:
        number = freed = failed = 0
        for thing, failure in remove(self.store, garbage):
            if failure is None:
                number, freed = number + 1, freed + thing.size
            else:
                failed += 1
                say(self.console, f"could not remove {failure.path}: {failure.reason}", style="red")
        say(self.console, f"removed {number}, freed {decimal(freed)}")
        return SOMETHING_WRONG if failed else 0

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with self.store.alone():
            if (name := active_run(self.store)) is not None:
                raise StoreError(
                    f"the run {name} is using {self.store.root}: nothing was removed. Try again later."
                )
            yield


def _verify(store: Store, keys: Sequence[str], repair: bool, console: Console) -> int:
    checked = check_outputs(store, keys)
    shown = track(checked, "reading", len(keys), console=console, transient=True, disable=not console.is_terminal)
    damaged = [finding for finding in shown if finding is not None]
    for finding in damaged:
        say(console, f"{finding.key}  {finding.job}: {finding.problem}", style="red")
        if repair:
            say(console, _repaired(store, finding))
    for path in store.strangers():
        say(console, f"note: {path} is no output; it is left alone")
    counted = "1 output" if len(keys) == 1 else f"{len(keys):,} outputs"
    removed = sum(map(store.is_removed, keys))
    without = f", {removed:,} without the weights that execution.keep had removed" if removed else ""
    say(console, f"{counted} checked, {len(damaged):,} damaged{without}" + _advice(damaged, repair))
    return SOMETHING_WRONG if damaged else 0


def _repaired(store: Store, finding: Finding) -> str:
    try:
        moved = store.set_aside(finding.key)
    except StoreError as error:
        return f"  not repaired: {error}"
    return f"  set aside to {moved}" if moved else "  a run has dealt with it meanwhile"


def _advice(damaged: Sequence[Finding], repair: bool) -> str:
    if not damaged:
        return ""
    return (
        "; the next runs that need them make them anew"
        if repair
        else "; --repair sets them aside, to be made anew"
    )


def _check_request(keep_runs: int | None, older_than: float | None, *, dry_run: bool, yes: bool) -> None:
    if keep_runs is not None and older_than is not None:
        raise ConfigError("--keep-runs and --older-than exclude each other: give one of them")
    if dry_run and yes:
        raise ConfigError("--dry-run and --yes exclude each other: give one of them")
    if keep_runs is not None and keep_runs < 1:
        raise ConfigError(f"--keep-runs={keep_runs}: must be at least 1")
    if older_than is not None and not 0 <= older_than <= 100_000:
        raise ConfigError(f"--older-than={older_than:g}: must be a number of days from 0 to 100000")


def _root(store: Path | None, output_dir: Path | None) -> Path:
    return (store or (output_dir or Path("outputs")) / ".store").absolute()


def _output_dirs(store: Store, output_dir: Path | None) -> list[Path]:
    """Where runs that use a store may lie: the given folder, and those that the store knows of."""
    given = [output_dir.absolute()] if output_dir else []
    return list(dict.fromkeys([*given, *users(store.root)]))


def _confirmed(question: str, console: Console) -> bool:
    try:
        return typer.confirm(question)
    except typer.Abort:  # Ctrl-C, or nobody there to answer
        say(console, "")
        return False
