"""Terminals and pipes that go away, and streams that were never there: printing never decides over a run."""

import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from pipeline.engine.journal import JournalReader
from tests.doubles.runs import CHAIN, WrittenRun, chain_plan
from tests.doubles.small_runs import command, wait_for, with_reference

CLOSING = "import os, sys; [os.close(int(one)) for one in sys.argv[1]]; os.execv(sys.argv[2], sys.argv[2:])"


def closing(descriptors: str, words: list[str]) -> list[str]:
    """A command that begins with these descriptors closed, as after ``<&- >&- 2>&-``."""
    return [sys.executable, "-c", CLOSING, descriptors, *words]


def journal(output_dir: Path) -> list[dict[str, object]]:
    path = output_dir / "t" / "latest" / "journal.jsonl"
    return list(JournalReader(path).new_events()) if path.exists() else []


def runs(output_dir: Path) -> int:
    return len(list((output_dir / "t").glob("2*")))


def at_work(output_dir: Path, number: int) -> bool:
    """Whether the run of a number has begun a job."""
    begun = any(event["event"] == "JobStarted" for event in journal(output_dir))
    return runs(output_dir) == number and begun


def on_a_terminal(words: list[str], cwd: Path) -> tuple[subprocess.Popen[bytes], int]:
    """Start a command as a shell does on a terminal of its own; gives the terminal's other end."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        words,
        cwd=cwd,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        preexec_fn=_take_terminal,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(slave)
    os.set_blocking(master, False)
    return process, master


def _take_terminal() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def test_a_run_needs_nobody_who_reads(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its terminal is closed; then Ctrl-C ends it in a pipe without reader; then its terminal is stopped.

    One whose streams are all closed `test_environments` has.
    """
    output_dir, gate = tmp_path / "outputs", tmp_path / "gate"
    light = with_reference(tmp_path_factory, output_dir)
    words = command(output_dir, *light, "execution.workers=1", "execution.stop_grace_s=0.5")
    gate.mkdir()  # so that no run is over before it is disturbed
    monkeypatch.setenv("GATE", str(gate))
    drawn = bytearray()

    def drained(master: int) -> bool:
        with suppress(BlockingIOError):
            drawn.extend(os.read(master, 1 << 16))
        return at_work(output_dir, 1)

    engine, master = on_a_terminal(words, tmp_path)
    wait_for(lambda: drained(master))
    os.close(master)  # the kernel sends SIGHUP, and writing fails from now on
    assert engine.wait(600) == 143
    assert b"\x1b[?25l" in drawn  # there was a live view
    assert journal(output_dir)[-1]["interrupted"] == "SIGHUP"
    assert (output_dir / "t/latest/results.json").is_file()
    log = (output_dir / "t/latest/run.log").read_text()
    assert "standard output is written no more: Input/output error" in log
    assert "Traceback" not in log

    reading, writing = os.pipe()
    engine = subprocess.Popen(words, cwd=tmp_path, stdout=writing, stderr=subprocess.PIPE, start_new_session=True)
    os.close(writing)
    os.close(reading)
    wait_for(lambda: at_work(output_dir, 2))
    family = psutil.Process(engine.pid).children(recursive=True)
    os.killpg(engine.pid, signal.SIGINT)  # as a terminal sends it: to workers too
    assert (engine.communicate(timeout=600)[1], engine.returncode) == (b"", 130)
    assert journal(output_dir)[-1]["interrupted"] == "SIGINT"
    assert not psutil.wait_procs(family, timeout=600)[1]

    engine, master = on_a_terminal(words, tmp_path)
    wait_for(lambda: runs(output_dir) == 3)
    os.write(master, b"\x13")  # Ctrl-S
    gate.rmdir()
    third = max((output_dir / "t").glob("2*"))
    wait_for((third / "compute.json").is_file)  # what a run writes last
    assert (third / "results.json").is_file()
    os.write(master, b"\x11")  # Ctrl-Q
    drawn.clear()

    def read(master: int) -> bool:
        with suppress(OSError):
            drawn.extend(os.read(master, 1 << 16))
        return engine.poll() is not None

    wait_for(lambda: read(master))
    read(master)
    os.close(master)
    assert engine.returncode == 0
    assert b"results: outputs/t/" in drawn
    assert "Counted" in (output_dir / "t/latest/results.csv").read_text()


@pytest.fixture
def written(tmp_path: Path) -> WrittenRun:
    """A run with a lot to say."""
    run = WrittenRun(tmp_path, chain_plan())
    run.begin(f"{CHAIN}/r1/train", log="\x1b[2Jat work\n" * 10_000)
    return run


def look(run: WrittenRun, *words: str) -> list[str]:
    where = str(run.folder.path.parent.parent)
    return [sys.executable, "-m", "pipeline", *words, "--output-dir", where]


def test_a_reader_that_has_seen_enough_ends_a_command_quietly(written: WrittenRun) -> None:
    with written.folder.journal.open("ab") as engine:
        fcntl.flock(engine, fcntl.LOCK_EX)  # the run goes on, and so would following its log
        with subprocess.Popen(
            look(written, "logs", "x", "r1/train", "-f"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as following:
            assert following.stdout is not None
            assert following.stdout.readline() == b"\x1b[2Jat work\n"
            following.stdout.close()
            assert following.wait(600) == 0
            assert following.stderr is not None
            assert following.stderr.read() == b""


@pytest.mark.parametrize(
    ("descriptors", "words", "code"),
    [("012", ["status", "x"], 0), ("02", ["status", "no such name"], 2)],
    ids=["status, all closed", "a refusal, no error output"],
)
def test_commands_work_with_streams_closed(
    written: WrittenRun, descriptors: str, words: list[str], code: int
) -> None:
    done = subprocess.run(closing(descriptors, look(written, *words)), capture_output=True, timeout=600)
    assert (done.returncode, done.stderr) == (code, b"")


def test_what_cannot_be_written_was_not_shown(written: WrittenRun) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(look(written, "status"), stdout=full, stderr=subprocess.PIPE, timeout=600)
        assert done.returncode == 1
        assert done.stderr == b"error: standard output could not be written: No space left on device\n"
        assert subprocess.run(look(written, "status", "y"), stderr=full, timeout=600).returncode == 2
