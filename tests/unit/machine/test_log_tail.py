"""The end of a log can be put into a message, whatever was written there."""

from pathlib import Path

from pipeline.machine.children import tail


def test_the_last_lines_of_a_log_of_any_size_fit_into_a_message(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_bytes(b"first\n" + b"x" * 100_000 + b"\n" + b"".join(b"line %d\n" % number for number in range(40)))
    assert tail(log) == "".join(f"\n    line {number}" for number in range(25, 40))
    log.write_bytes(b"\xc3\xa4" * 100_000)
    assert len(tail(log)) < 5_000


def test_what_a_terminal_would_obey_is_shown(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_bytes(b"10%\r20%\rdone\n\x1b[2J\xff\n\n")
    assert tail(log) == "\n    10%\n    20%\n    done\n    \\x1b[2J\ufffd"
