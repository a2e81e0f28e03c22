"""``python test_parallel_setup.py`` proves parallel generation on this machine."""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from pipeline.commands.check import DOCUMENTED, MADE_WITH

ROOT = Path(__file__).parents[2]
AVX2 = "avx2" in Path("/proc/cpuinfo").read_text().split() if Path("/proc/cpuinfo").exists() else False
SAME = {name: version(name).partition("+")[0] for name in MADE_WITH} == MADE_WITH


def test_it_passes_here_and_says_which_process_used_which_device(tmp_path: Path) -> None:
    # Whatever the processor offers and whatever is set outside, the arithmetic of workers is the portable one.
    core = min(os.sched_getaffinity(0))  # one: several workers at once other tests have
    outside = {
        "ATEN_CPU_CAPABILITY": "avx512",
        "MKL_CBWR": "AUTO",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        ["taskset", "--cpu-list", str(core), sys.executable, str(ROOT / "test_parallel_setup.py")],
        cwd=tmp_path,
        env={**os.environ, **outside},
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASS  parallel generation: pid " in done.stdout
    assert "on cpu, 1 thread" in done.stdout
    assert "the same text from every worker" in done.stdout
    assert "0 failed. This machine is ready." in done.stdout
    if AVX2 and SAME:  # which the documented fingerprint is of
        assert f"PASS  arithmetic: fingerprint {DOCUMENTED}, the same as documented" in done.stdout
