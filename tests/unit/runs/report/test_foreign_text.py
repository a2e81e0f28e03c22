"""Whatever names, reasons and logs hold, each command prints it, to every kind of stream, and obeys none of it."""

import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from pipeline.commands import check, looking, start
from pipeline.engine.store.gc import Garbage, GarbageKind, Space
from pipeline.engine.workers.messages import GpuLoad
from pipeline.errors import ConfigError
from pipeline.plan.graph import PlanRow
from pipeline.runs.progress import LiveRun
from pipeline.runs.record import Results
from pipeline.runs.report.screen import PlainLines, shown_on
from pipeline.runs.report.tables import garbage_table, plan_table, result_tables, usage_table
from pipeline.runs.run_view import AttemptView, JobCounts, WorkerView
from pipeline.terminal.console import Terminal, failed, make_console, passed, print_json, say
from pipeline.terminal.streams import LastingFile, LastingStream
from tests.doubles.live import live_run
from tests.doubles.pooled import pooled_row
from tests.doubles.runs import CHAIN, WrittenRun, chain_plan

COMMANDS = "\x1b[]\\/0;1mKJ\r\n\x07\x9b\u202e\udcff{}b\u200b👩"
NASTY = st.text() | st.text(alphabet=COMMANDS, max_size=30) | st.just("long " * 400)
JOB = f"{CHAIN}/r1/train"


@contextmanager
def standard_streams(kind: str) -> Iterator[Callable[[], str]]:
    """Have standard output and error be of a kind; gives what was printed."""
    encoding = "ascii" if kind == "ascii" else "utf-8"
    with TemporaryDirectory() as folder:
        path = Path(folder) / "out"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
        if kind == "broken":
            os.close(descriptor)
            reading, descriptor = os.pipe()
            os.close(reading)
        before = sys.stdout, sys.stderr
        stream = LastingStream(LastingFile(descriptor), encoding)
        sys.stdout = sys.stderr = stream
        try:
            yield lambda: path.read_bytes().decode(encoding) if kind != "broken" else ""
        finally:
            sys.stdout, sys.stderr = before
            os.close(descriptor)


def print_everything(text: str, folder: Path) -> None:
    """Print the text as every kind of foreign text there is, with every function that prints."""
    run = WrittenRun(folder, chain_plan(rounds=1))
    run.worker(0, text)
    run.begin(f"{CHAIN}/r1/generate/000", log=None)
    run.fail_attempt(f"{CHAIN}/r1/generate/000", "bug", text, retry=True)
    run.begin(JOB, log=None)
    run.fail_attempt(JOB, text, text, retry=False)
    run.write("JobFailed", job=JOB, kind=text, reason=text, attempts=1)
    run.write("JobWaits", job=f"{CHAIN}/r1/generate/001", reason=text)
    run.write("DeviceQuarantined", worker=0, device=text, reason=text, failed_jobs=[text])
    console = make_console()
    looking.status(None, output_dir=folder)
    looking.status("x", output_dir=folder)
    looking.status("x", as_json=True, output_dir=folder)
    looking.why("x", JOB, output_dir=folder)
    assert start.refuse(ConfigError(text)) == 2
    assert check.print_checks([passed(text, text), failed(text, text, text)], text) == 1
    print_tables(text, console)


def print_tables(text: str, console: Console) -> None:
    console.print(
        plan_table([PlanRow(round=1, chain=text, stage=text, jobs=3, missing=3, samples=3, seconds=1.0)])
    )
    console.print(usage_table({(text, text, text, text): Space(1, 1)}))
    console.print(garbage_table([Garbage(kind=GarbageKind.output, path=Path("x"), what=text, size=1)]))
    for table in result_tables(Results(rows=[], pooled=[pooled_row(text, dataset=text, model=text)])):
        console.print(table)
    PlainLines(console, every_s=0.0).update(running(text))


def running(text: str) -> LiveRun:
    gpu = GpuLoad(label=text, used_bytes=1, total_bytes=2, utilization=3)
    worker = WorkerView(index=0, device=text, job_id=text, rss_bytes=2**30, gpu=gpu)
    attempts = [AttemptView(number=1, done=1, total=3)] if text else []
    return live_run({(text, 1): JobCounts(total=3, running=1, failed=1)}, [worker], attempts, remaining_s=1.0)


def harmless(text: str) -> bool:
    return all(char in "\n\t" or ord(char) > 0x9F or 0x20 <= ord(char) < 0x7F for char in text)


@pytest.mark.properties
@pytest.mark.parametrize("kind", ["utf-8", "ascii", "broken"])
@given(text=NASTY)
def test_foreign_text_is_printed_and_never_obeyed(kind: str, text: str) -> None:
    with TemporaryDirectory() as folder, standard_streams(kind) as shown:
        print_everything(text, Path(folder))
        assert harmless(shown())


@pytest.mark.properties
@given(st.text())
def test_data_is_data_on_any_stream(text: str) -> None:
    for kind in ("utf-8", "ascii"):
        with standard_streams(kind) as shown:
            print_json({text: [text]})
            assert json.loads(shown()) == {text: [text]}
            assert shown().isascii()
            assert harmless(shown())


OURS = re.compile(r"\x1b\[(\?25[lh]|[0-9]*A|2K|2J|H)|\r")
"""What the live view moves the cursor with."""


@pytest.mark.properties
@given(NASTY, st.integers(1, 200), st.integers(1, 50))
def test_the_live_view_fits_any_terminal(text: str, width: int, height: int) -> None:
    text = text.replace("\x1b[", "\x1b]")  # so that what is not ours can be told
    out = io.StringIO()
    console = Terminal(
        file=out, force_terminal=True, force_interactive=True, color_system=None, markup=False, emoji=False
    )
    console.size = (width, height)  # type: ignore[assignment]
    with shown_on(console) as redraw:
        redraw(running(text))
        say(console, text)
        console.size = (1, 1)  # type: ignore[assignment]
        redraw(running(text))
    assert harmless(OURS.sub("", out.getvalue()))
