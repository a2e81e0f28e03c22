"""`status --watch` and `gpus --watch`: what they show, on what there is room for, and how they end."""

import fcntl
import io
from pathlib import Path

import pytest
from rich.console import Console, Group
from typer.testing import CliRunner

from pipeline.__main__ import app
from pipeline.commands.looking import watch_run
from pipeline.runs.loaded import LoadedRun
from pipeline.runs.progress import Progress, ProgressFile
from pipeline.runs.report.status import run_headline, watched_run
from pipeline.terminal import console as watching
from pipeline.terminal.console import Terminal
from tests.doubles.runs import CHAIN, START, WrittenRun, chain_plan

SIZES = [(80, 24), (160, 50), (40, 10), (20, 4)]


def shown(run: WrittenRun, width: int, height: int) -> str:
    out = io.StringIO()
    with run.folder.journal.open("ab") as engine:
        fcntl.flock(engine, fcntl.LOCK_EX)  # as an engine does that lives
        recorded = LoadedRun(run.folder)
        console = Console(file=out, width=width, height=height, color_system=None)
        console.print(Group(*watched_run(recorded, START + 60, width, height)), highlight=False)
    return out.getvalue()


def tell(run: WrittenRun, progress: Progress) -> None:
    ProgressFile(run.folder).update(progress, START)


def test_a_run_says_how_far_it_is_and_what_runs(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path, chain_plan(2))
    run.worker(0, "cpu slot 0, 1 thread")
    run.begin(f"{CHAIN}/r1/generate/000")
    text = shown(run, 80, 24)
    assert " cpu 0 " in text
    assert " left" not in text.replace("5 left", "")  # the engine has told nothing
    tell(run, Progress(part=0.379, remaining_s=67.0))
    text = shown(run, 80, 24)
    assert "37 %, about 1 min 05 s left, 0/6 jobs done" in text
    assert f"{CHAIN}/r1/generate/000" in text
    assert "0/6 jobs done" in text


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_it_fits_any_terminal(tmp_path: Path, width: int, height: int) -> None:
    run = WrittenRun(tmp_path, chain_plan(40))
    for index in range(30):
        run.worker(index, f"gpu {index}: a device with quite a long name")
        run.begin(f"{CHAIN}/r{index + 1}/train", worker=index)
    for number in range(31, 41):
        run.write("JobFailed", job=f"{CHAIN}/r{number}/train", attempts=1, kind="bug", reason="x\x1b[2J" * 30)
    lines = shown(run, width, height).splitlines()
    assert len(lines) < height or height < 8  # so low a terminal shows the headline, and the rest is cut off
    assert max(map(len, lines)) <= width
    assert not any("\x1b" in line for line in lines)


def test_uploads_of_a_run_that_is_over_are_watched_until_they_are_done_or_its_process_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = WrittenRun(tmp_path, chain_plan(1))
    traffic = {"fetched": 0, "fetched_bytes": 0, "uploaded": 1, "uploaded_bytes": 7}
    run.write("RunFinished", interrupted=None, halted=None, done=3, failed=0, blocked=0, stored=0)
    run.write("SharedStore", **traffic, left=2)
    lives = [True]
    monkeypatch.setattr("pipeline.runs.loaded._process_runs", lambda _: lives[0])
    recorded = LoadedRun(run.folder)
    assert recorded.is_uploading
    assert ": done, 2 uploads left" in run_headline(recorded, START, False).plain
    lives[0] = False
    assert not recorded.is_uploading
    lives[0] = True
    run.write("SharedStore", **traffic, left=2, over=True)  # it has given them up
    recorded.refresh()
    assert not recorded.is_uploading
    assert ", 2 uploads left" in run_headline(recorded, START, False).plain
    run.write("SharedStore", **traffic, left=0, over=True)
    recorded.refresh()
    assert "left" not in run_headline(recorded, START, False).plain


def test_watching_a_run_ends_with_it_and_follows_it_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = WrittenRun(tmp_path, chain_plan(1))
    run.worker(0, "cpu slot 0")
    tell(run, Progress(part=0.12, remaining_s=3600.0, samples_per_s=7.0))
    out = io.StringIO()

    def go_on(_seconds: float) -> None:
        if not run.folder.journal.read_text().endswith("}\n") or "RunFinished" in run.folder.journal.read_text():
            return
        run.write("RunFinished", interrupted=None, halted=None, done=0, failed=0, blocked=0, stored=0)

    monkeypatch.setattr(LoadedRun, "engine_runs", lambda self: self.view.finished is None)
    monkeypatch.setattr(watching.time, "sleep", go_on)
    monkeypatch.setattr("pipeline.commands.looking.watch", lambda *args: watching.watch(*args, go_on))
    watch_run(LoadedRun(run.folder), Terminal(file=out, width=120), 0.1)
    assert "12 %, about 1 h 00 min left, 0/3 jobs done, 0 running, 3 to come, 7 samples/s" in out.getvalue()
    assert "done" in out.getvalue()


def test_a_sweep_that_has_not_begun_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(watching.time, "sleep", wait)
    (tmp_path / "other").mkdir()
    done = CliRunner().invoke(
        app, ["sweep", "status", "x", "--watch", "--every", "3", "--output-dir", str(tmp_path)]
    )
    assert waits == [3.0] * 3
    assert done.output.count("Waiting for it; Ctrl-C ends that.") == 1
    assert done.exit_code == 130


@pytest.mark.parametrize("words", [["status"], ["gpus"]], ids=" ".join)
def test_ctrl_c_ends_a_look_quietly(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(watching, "_again", interrupt)
    where = ["--output-dir", str(tmp_path)] if words == ["status"] else []
    done = CliRunner().invoke(app, [*words, "--watch", *where])
    assert (done.exit_code, done.output) == (130, "")
    both = CliRunner().invoke(app, [*words, "--watch", "--json", *where])
    assert both.exit_code == 2
