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

SCRIPT = str(ROOT / "test_parallel_setup.py")
WITHOUT_THE_DEAR = """
import runpy, sys
from pipeline.commands import check
check.check_generation = check.check_config = lambda: iter(())
check.ask_torch = lambda: {"failure": "nobody asked"}
script, sys.argv[1:] = sys.argv[1], []
runpy.run_path(script, run_name="__main__")
"""


def run(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )


def test_it_passes_here_and_says_which_process_used_which_device(tmp_path: Path) -> None:
    # Whatever the processor offers and whatever is set outside, the arithmetic of workers is the portable one.
    done = run(tmp_path, SCRIPT, ATEN_CPU_CAPABILITY="avx512", MKL_CBWR="AUTO")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASS  parallel generation: pid " in done.stdout
    assert "on cpu, 1 thread" in done.stdout
    assert "the same text from every worker" in done.stdout
    assert "group options survive the way to a worker" in done.stdout
    assert "0 failed. This machine is ready." in done.stdout
    if AVX2 and SAME:  # which the documented fingerprint is of
        assert f"PASS  arithmetic: fingerprint {DOCUMENTED}, the same as documented" in done.stdout


def test_it_exits_with_1_and_a_remedy_when_a_check_fails(tmp_path: Path) -> None:
    (tmp_path / "outputs").write_text("a file where a folder should be")
    done = run(tmp_path, "-c", WITHOUT_THE_DEAR, SCRIPT)
    assert done.returncode == 1
    assert "FAIL  imports: nobody asked" in done.stdout
    assert "FAIL  store: " in done.stdout
    assert "try: set output_dir" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_it_takes_no_arguments(tmp_path: Path) -> None:
    done = run(tmp_path, SCRIPT, "--nonsense", "3")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: test_parallel_setup.py --nonsense 3: it takes no arguments")
