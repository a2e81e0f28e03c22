"""The one way into every command: Ctrl-C while modules are imported, faults of the program, exit codes."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
INTERRUPTS = """
import os, signal, time
os.kill(os.getpid(), signal.SIGINT)
time.sleep(60)
"""
ODD = r"""
import os, signal, sys, time
from pipeline.commands.start import _carry_out, settle, start
from pipeline.engine.scheduler.signals import StopSignals

def fails():
    raise RuntimeError("\x1b[2Jboom \udcff")

def leaves():
    sys.exit("too bad")

def returns(code):
    return code

def interrupted():
    raise KeyboardInterrupt

def late(name):
    with StopSignals():
        settle(3)
    signal.raise_signal(signal.Signals[name])
    time.sleep(60)
"""


@pytest.mark.parametrize(
    "words",
    [["run_parallel.py", "experiment.name=x"], ["-m", "pipeline", "status"]],
    ids=["run_parallel.py", "python -m pipeline"],
)
def test_ctrl_c_while_modules_are_imported_ends_it_without_a_word(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "rich").mkdir()  # which every command imports
    (tmp_path / "rich" / "__init__.py").write_text(INTERRUPTS)
    done = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env={"PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize(
    "words",
    [[str(ROOT / "run_parallel.py"), "experiment.name=x"], ["-m", "pipeline", "status"]],
    ids=["run_parallel.py", "python -m pipeline"],
)
def test_a_python_without_our_packages_is_told_which_one_is_missing_and_what_to_do(
    words: list[str], tmp_path: Path
) -> None:
    """Whatever files of the current folder are called."""
    for name in ("dataclasses", "random", "string"):
        (tmp_path / f"{name}.py").write_text("1 / 0")
    # With -S there is the standard library alone.
    bare, env = [sys.executable, "-S", *words], {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(bare, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout) == (2, "")
    (said,) = done.stderr.splitlines()
    assert re.match(rf"error: the package '\w+' is missing from {re.escape(sys.executable)}\. Use ", said)
    assert "`.venv/bin/python`" in said
    assert f"`{shlex.quote(sys.executable)} -m pip install -e " in said


def said_by(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    (folder / "odd.py").write_text(ODD)
    where = {"PYTHONPATH": f"{folder}:{ROOT}"}
    words = [sys.executable, "-c", f"from odd import _carry_out, os, start\n{code}"]
    return subprocess.run(words, env=where, capture_output=True, text=True, timeout=600)


def test_a_fault_of_the_program_is_told_with_its_traceback(tmp_path: Path) -> None:
    done = said_by(tmp_path, "start('odd:fails')")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "RuntimeError: \\x1b[2Jboom \\udcff" in done.stderr
    assert "report" in done.stderr.splitlines()[-1]


def test_exit_codes_are_those_of_the_command(tmp_path: Path) -> None:
    """A message, nothing, a code, Ctrl-C; and where the current folder is gone."""
    asked = ("leaves",), ("returns", None), ("returns", 7), ("interrupted",)
    codes = f"[_carry_out('odd:' + name, given) for name, *given in {asked}]"
    gone = f"os.mkdir('{tmp_path}/here'); os.chdir('{tmp_path}/here'); os.rmdir('{tmp_path}/here')"
    done = said_by(tmp_path, f"print({codes})\n{gone}\nstart('odd:returns', None)")
    assert (done.returncode, done.stdout) == (2, "[1, 0, 7, 130]\n")
    assert re.fullmatch("too bad\nerror: the current folder is not there any more.*\n", done.stderr)


@pytest.mark.parametrize("name", ["SIGINT", "SIGUSR2"])
def test_a_signal_that_comes_after_the_results_changes_nothing(tmp_path: Path, name: str) -> None:
    done = said_by(tmp_path, f"start('odd:late', '{name}')")
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "")
