"""What a job writes goes to its log, and nothing else does."""

import os
from pathlib import Path

import pytest

from pipeline.engine.workers.work import OutputTo
from pipeline.terminal.streams import LastingFile, LastingStream


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
