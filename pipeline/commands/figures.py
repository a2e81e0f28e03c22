"""``figures``: what a run found, as figures for a paper."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from pipeline.commands.targets import refuse_records
from pipeline.errors import ConfigError
from pipeline.runs.figures.write import FORMATS, without_rounds, write_figures
from pipeline.runs.index import choose_run, newest_of_several
from pipeline.runs.loaded import load
from pipeline.runs.report.format import count
from pipeline.terminal.console import say


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
