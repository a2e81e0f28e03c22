"""Check this machine: ``python test_parallel_setup.py``. Also collected by pytest, one test per check."""

import sys
from pathlib import Path

from pipeline import preflight
from pipeline.preflight import Verdict


def test_every_check_passes(tmp_path: Path) -> None:
    failed = [check for check in preflight.run_checks(tmp_path) if check.verdict is Verdict.FAIL]
    assert not failed


if __name__ == "__main__":
    sys.exit(preflight.main())
