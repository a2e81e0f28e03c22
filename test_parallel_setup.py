"""Check this machine: ``python test_parallel_setup.py``. Also collected by pytest, one test per check."""

import sys
from pathlib import Path

from pipeline.commands.start import start


def test_every_check_passes(tmp_path: Path) -> None:
    from pipeline.commands import check as preflight

    failed = [check for check in preflight.run_checks(tmp_path) if check.verdict is preflight.Verdict.FAIL]
    assert not failed


if __name__ == "__main__":
    start("pipeline.commands.check:script", sys.argv[1:])
