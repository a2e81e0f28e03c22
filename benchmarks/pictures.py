"""Makes the pictures of the pages: a real run's live view and its table, as a terminal of 100 columns shows them.

    python benchmarks/pictures.py                  # runs experiment first_run in a new folder; needs tmux
    python benchmarks/pictures.py --folder DIR     # in this one, whose outputs/ may hold some of it already

Writes docs/images/live.svg and docs/images/table.svg. Nothing in them is fetched from anywhere.
"""

from __future__ import annotations

import argparse
import io
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
SOCKET = "pipeline-pictures"
COLUMNS, LINES = 100, 30
SHOWN_RUN = "python run_parallel.py experiment.name=first_run"
SHOWN_TABLE = "python -m pipeline show first_run"
LOOK_EVERY_S = 0.5
TRAINS = "r2/train"
"""What stands on the screen that is kept: the last one on which this job runs, in the middle of the run."""


def screens(command: str) -> Iterator[str]:
    """What a terminal shows while a command runs, with its colours; ends with the command."""
    tmux = ["tmux", "-L", SOCKET, "-f", "/dev/null"]
    held = f"{command}; printf '\\033]2;over\\007'; sleep 2"
    subprocess.run([*tmux, "new-session", "-d", "-x", str(COLUMNS), "-y", str(LINES), held], check=True)
    try:
        while True:
            shown = subprocess.run(
                [*tmux, "capture-pane", "-p", "-e"], capture_output=True, text=True, check=False
            )
            if shown.returncode:
                return
            yield shown.stdout.rstrip("\n")
            time.sleep(LOOK_EVERY_S)
    finally:
        subprocess.run([*tmux, "kill-server"], capture_output=True, check=False)


def last_that_shows(words: str, command: str) -> str:
    """The last screen of a command with these words."""
    found = [screen for screen in screens(command) if words in plain(screen)]
    if not found:
        raise SystemExit(f"no screen of `{command}` showed '{words}'")
    return found[len(found) // 2]


def plain(screen: str) -> str:
    """A screen without its colours."""
    return Text.from_ansi(screen).plain


def as_svg(screen: str, title: str) -> str:
    """A screen as a picture of its own, in whatever monospaced font the reader has."""
    console = Console(
        record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    console.print(Text.from_ansi(screen, no_wrap=True), soft_wrap=True)
    form = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    form = form.replace("Fira Code", "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono'")
    picture = console.export_svg(title=title, theme=MONOKAI, code_format=form, unique_id="t")
    if re.search(r"url\(\W*https?:|href=\W*https?:", picture):
        raise SystemExit("the picture would fetch something from another server")
    return "\n".join(line.rstrip() for line in picture.splitlines()) + "\n"


def main() -> None:
    """Run, and write the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where the run has its outputs/; a new one if left out")
    parser.add_argument("--only", choices=("live", "table"), help="one of the two")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = (asked.folder or Path(made)).resolve()
        folder.mkdir(exist_ok=True)
        words = ["env", "-C", str(folder), f"PYTHONPATH={ROOT}", sys.executable]
        run = shlex.join([*words, str(ROOT / "run_parallel.py"), "experiment.name=first_run"])
        show = shlex.join([*words, "-m", "pipeline", "show", "first_run"])
        IMAGES.mkdir(exist_ok=True)
        if asked.only != "table":
            (IMAGES / "live.svg").write_text(as_svg(last_that_shows(TRAINS, run), SHOWN_RUN))
        if asked.only != "live":
            (IMAGES / "table.svg").write_text(as_svg(last_that_shows("optimum", show), SHOWN_TABLE))


if __name__ == "__main__":
    main()
