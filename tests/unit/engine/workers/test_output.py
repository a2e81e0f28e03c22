"""What a job writes goes to its log, and nothing else does."""

import os
import subprocess
from pathlib import Path

import pytest

from pipeline.engine.workers.work import OutputTo
from pipeline.terminal.streams import LastingFile, LastingStream


def test_output_goes_to_the_file_and_comes_back(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "made" / "log.txt"
    print("before")
    with OutputTo(str(path)):
        print("inside")
        os.write(2, b"native\n")
        subprocess.run(["sh", "-c", "echo child"], check=True)
    print("after")
    assert path.read_text() == "inside\nnative\nchild\n"
    assert capfd.readouterr().out == "before\nafter\n"


def test_a_job_in_the_engines_process_writes_its_log_though_nobody_reads_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = os.dup(1)
    reading, writing = os.pipe()
    os.dup2(writing, 1)
    os.close(reading)
    os.close(writing)
    monkeypatch.setattr("sys.stdout", LastingStream(LastingFile(1), "ascii"))
    try:
        print("in vain")
        with OutputTo(f"{tmp_path}/log.txt"):
            print("\x1b[1mbold 数")
        print("in vain")
    finally:
        os.dup2(saved, 1)
        os.close(saved)
    assert (tmp_path / "log.txt").read_text() == "\x1b[1mbold 数\n"
