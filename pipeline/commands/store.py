"""``python -m pipeline store``: check a store, tell what takes its space, remove what nothing needs."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.progress import track

from pipeline.commands.typed import examples, refuse_both
from pipeline.engine.store import gc as garbage
from pipeline.engine.store.store import Store, living, users
from pipeline.errors import ConfigError, StoreError
from pipeline.runs.report.format import count
from pipeline.runs.report.tables import garbage_table, usage_table
from pipeline.terminal.console import make_console, say

SOMETHING_WRONG = 1


app = typer.Typer(no_args_is_help=True)
StoreOption = Annotated[Path | None, typer.Option("--store", help="The store; default OUTPUT_DIR/.store.")]
OutputDir = Annotated[Path | None, typer.Option(help="Folder of all runs; default outputs.")]


@app.command(epilog=examples("pipeline store verify", "pipeline store verify --repair"))
def verify(
    keys: Annotated[
        list[str] | None, typer.Argument(help="Beginnings of keys; all outputs if none is given.")
    ] = None,
    store: StoreOption = None,
    output_dir: OutputDir = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Set aside what is damaged; the next run that needs it makes it anew.")
    ] = False,
) -> int:
    """Read every stored output; exit code 1 if one of them is damaged."""
    opened, console = garbage.open_store(_root(store, output_dir)), make_console()
    chosen = garbage.choose_keys(opened, keys or [])
    checked = garbage.check_outputs(opened, chosen)
    shown = track(
        checked, "reading", len(chosen), console=console, transient=True, disable=not console.is_terminal
    )
    damaged = [finding for finding in shown if finding is not None]
    for finding in damaged:
        say(console, f"{finding.key}  {finding.job}: {finding.problem}", style="red")
        if repair:
            say(console, _repaired(opened, finding))
    removed = sum(map(opened.is_removed, chosen))
    without = f", {removed:,} without the weights that execution.keep had removed" if removed else ""
    advice = "; --repair sets them aside, to be made anew" if damaged and not repair else ""
    say(console, f"{count(len(chosen), 'output')} checked, {len(damaged):,} damaged{without}{advice}")
    return SOMETHING_WRONG if damaged else 0


def _repaired(store: Store, finding: garbage.Finding) -> str:
    try:
        moved = store.set_aside(finding.key)
    except StoreError as error:
        return f"  not repaired: {error}"
    return f"  set aside to {moved}" if moved else "  a run has dealt with it meanwhile"


@app.command(epilog=examples("pipeline store du", "pipeline store du --output-dir /data/outputs"))
def du(store: StoreOption = None, output_dir: OutputDir = None) -> None:
    """Show what takes the space of the store."""
    opened = garbage.open_store(_root(store, output_dir))
    runs = garbage.find_runs(_output_dirs(opened, output_dir), opened.root)
    make_console().print(usage_table(garbage.measure(opened, runs)))


@app.command(epilog=examples("pipeline store gc --dry-run", "pipeline store gc --keep-runs 2 --yes"))
def gc(
    store: StoreOption = None,
    output_dir: OutputDir = None,
    keep_runs: Annotated[
        int | None, typer.Option(min=1, help="Keep what the last N runs of each experiment refer to.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be removed.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Remove without asking.")] = False,
) -> int:
    """Remove outputs that no run refers to, damaged ones set aside, useless checkpoints, and leftovers."""
    refuse_both({"--dry-run": dry_run, "--yes": yes})
    opened, console = garbage.open_store(_root(store, output_dir)), make_console()
    folders = _output_dirs(opened, output_dir)

    def find() -> list[garbage.Garbage]:
        return garbage.find_garbage(opened, _kept(opened, folders, keep_runs))

    if dry_run:
        if _report(find(), folders, console):
            say(console, "Nothing was removed.")
        return 0
    with _alone(opened):
        things = find()
    if not _report(things, folders, console):
        return 0
    # The store is free while the question waits, so what is removed is looked for once more afterwards.
    if not (yes or typer.confirm("Remove all this?")):
        say(console, "Nothing was removed.")
        return SOMETHING_WRONG
    number = freed = failed = 0
    with _alone(opened):
        shown = {thing.path for thing in things}
        for thing, failure in garbage.remove(opened, [thing for thing in find() if thing.path in shown]):
            if failure is None:
                number, freed = number + 1, freed + thing.size
            else:
                failed += 1
                where, reason = failure.filename or thing.path, failure.strerror or failure
                say(console, f"could not remove {where}: {reason}", style="red")
    say(console, f"removed {number}, freed {decimal(freed)}")
    return SOMETHING_WRONG if failed else 0


def _kept(store: Store, folders: Sequence[Path], keep_runs: int | None) -> list[garbage.RunReference]:
    """Return the runs whose outputs are kept."""
    runs = garbage.find_runs(folders, store.root)
    if not runs:
        there = ", ".join(map(str, folders)) or "any folder"
        raise ConfigError(f"no run was found in {there}, so every output would go. Say where with --output-dir")
    return runs if keep_runs is None else garbage.newest_runs(runs, keep_runs)


def _report(things: Sequence[garbage.Garbage], folders: Sequence[Path], console: Console) -> bool:
    for folder in folders:
        if not folder.is_dir():
            say(console, f"note: {folder}, whose runs used this store, is gone: they count no more")
    if things:
        console.print(garbage_table(things))
    else:
        say(console, "Everything in the store is needed.")
    return bool(things)


@contextmanager
def _alone(store: Store) -> Iterator[None]:
    with store.alone():
        if runs := [path.name for path in living(store.root)]:
            raise StoreError(f"the run {runs[0]} is using {store.root}: nothing was removed. Try again later.")
        yield


def _root(store: Path | None, output_dir: Path | None) -> Path:
    return (store or (output_dir or Path("outputs")) / ".store").absolute()


def _output_dirs(store: Store, output_dir: Path | None) -> list[Path]:
    """Return where runs that use a store may be: the given folder, and those that the store knows of."""
    named = [output_dir.absolute()] if output_dir else []
    return list(dict.fromkeys([*named, *users(store.root)]))
