"""Logs as they are, from their end, and while they grow."""

import fcntl
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipeline.errors import StoreError
from pipeline.runs.loaded import LoadedRun
from pipeline.runs.report.logs import Tail, follow_job, follow_run, print_log
from tests.doubles.runs import CHAIN, WrittenRun, chain_plan

JOB = f"{CHAIN}/r1/train"


def tail_of(path: Path, lines: int | None) -> str:
    out = io.StringIO()
    print_log(path, out, lines)
    return out.getvalue()


@pytest.mark.parametrize(
    ("content", "lines", "expected"),
    [
        ("a\nb\nc\n", 2, "b\nc\n"),
        ("a\nb\nc", 2, "b\nc"),
        ("a\nb\n", 9, "a\nb\n"),
        ("a\n\n\n", 2, "\n\n"),
        ("a\nb\n", 0, ""),
        ("a\nb\n", None, "a\nb\n"),
        ("", 3, ""),
        ("\n", 1, "\n"),
    ],
)
def test_the_last_lines(tmp_path: Path, content: str, lines: int | None, expected: str) -> None:
    (tmp_path / "log").write_text(content)
    assert tail_of(tmp_path / "log", lines) == expected


def test_what_lies_in_the_place_of_a_log_is_told_in_one_line_and_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("folder", "pipe"):
        with pytest.raises(StoreError, match=f"cannot read .*{name}: no plain file"):
            tail_of(tmp_path / name, None)


def test_a_tail_follows_what_a_file_gets(tmp_path: Path) -> None:
    path, out = tmp_path / "log", io.StringIO()
    tail = Tail(path)

    def new() -> str:
        tail.print_new(out)
        text = out.getvalue()
        out.seek(0)
        out.truncate()
        return text

    assert new() == ""
    path.write_bytes("one ä".encode()[:-1])
    assert new() == "one "
    with path.open("ab") as file:
        file.write("ä".encode()[-1:])
    assert new() == "ä"
    assert new() == ""


class Following:
    """Follows a log; with each pause the next step of a script happens."""

    def __init__(self, run: WrittenRun, *steps: Callable[[], object], lines: int | None = None) -> None:
        self.run, self.out, self.notes = run, io.StringIO(), list[str]()
        self.steps: Iterator[Callable[[], object]] = iter(steps)
        self.lines = lines
        self.pauses = 0

    def pause(self, _seconds: float) -> None:
        self.pauses += 1
        assert self.pauses < 50, "it does not end"
        next(self.steps, lambda: None)()

    def job(self, attempt: int | None = None) -> tuple[str, list[str]]:
        with self.run.folder.journal.open("ab") as engine:
            fcntl.flock(engine, fcntl.LOCK_EX)
            self.engine = engine
            run = LoadedRun(self.run.folder)
            follow_job(run, JOB, self.out, self.notes.append, attempt=attempt, lines=self.lines, sleep=self.pause)
        return self.out.getvalue(), self.notes

    def killed(self) -> None:
        fcntl.flock(self.engine, fcntl.LOCK_UN)


def log(run: WrittenRun, attempt: int = 1) -> Path:
    return run.folder.job(JOB) / ("log.txt" if attempt == 1 else f"log.{attempt}.txt")


def test_a_job_is_followed_from_before_it_begins_through_its_attempts(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path, chain_plan())

    def last() -> None:
        with log(run, 2).open("a") as file:
            file.write("last words\n")
        run.finish(JOB, attempt=2)

    text, notes = Following(
        run,
        lambda: run.begin(JOB, log="first\n"),
        lambda: run.fail_attempt(JOB, "lost", "gone", retry=True),
        lambda: run.begin(JOB, attempt=2, log="second\n"),
        last,
    ).job()
    assert text == "first\nsecond\nlast words\n"
    assert notes == [f"{JOB} has not begun yet; waiting for it", f"attempt 2 of {JOB}", f"{JOB}: done"]


def test_the_engines_log_is_followed_to_its_last_words(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path, chain_plan())

    def more() -> None:
        with run.folder.log.open("a") as file:
            file.write("makespan\n")

    run.end(done=6)
    following = Following(run, more)
    follow_run(LoadedRun(run.folder), following.out, following.notes.append, 2, following.pause)
    assert following.out.getvalue() == "engine's last line\nmakespan\n"
    assert following.notes == ["the run is over: done"]
