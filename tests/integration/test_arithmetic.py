"""Portable arithmetic is the same whatever the processor offers and whatever is set outside."""

import platform
from importlib.metadata import version
from pathlib import Path

import pytest

from pipeline import arithmetic
from pipeline.commands.doctor.arithmetic import MADE_WITH, check_arithmetic
from pipeline.commands.doctor.check import Verdict

AVX2 = "avx2" in Path("/proc/cpuinfo").read_text().split() if Path("/proc/cpuinfo").exists() else False
SAME = {name: version(name).partition("+")[0] for name in MADE_WITH} == MADE_WITH


@pytest.mark.skipif(not (AVX2 and SAME), reason="the documented fingerprint is of AVX2 and of certain versions")
def test_the_fingerprint_is_the_documented_one_whatever_is_set_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    assert arithmetic.covers(platform.machine())
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx512")
    monkeypatch.setenv("MKL_CBWR", "AUTO")
    (check,) = check_arithmetic()
    assert check.verdict is Verdict.PASS, check.detail
