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
FAILS = r"""
import sys

def fails():
    raise RuntimeError("\x1b[2Jboom \udcff")

def leaves():
    sys.exit("too bad")

def returns(code):
    return code

def imports():
    import nowhere_to_be_found

def interrupted():
    raise KeyboardInterrupt

def late(name):
    import signal, time
    from pipeline.engine.scheduler.signals import StopSignals
    from pipeline.commands.start import settle

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


def started(folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    (folder / "odd.py").write_text(FAILS)
    code = f"from pipeline.commands.start import start; start({command})"
    where = {"PYTHONPATH": f"{folder}:{ROOT}"}
    return subprocess.run([sys.executable, "-c", code], env=where, capture_output=True, text=True, timeout=600)


def test_a_fault_of_the_program_is_told_with_its_traceback(tmp_path: Path) -> None:
    done = started(tmp_path, "'odd:fails'")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "RuntimeError: \\x1b[2Jboom \\udcff" in done.stderr
    assert "report" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("'odd:leaves'", 1, "too bad\n"),
        ("'odd:returns', None", 0, ""),
        ("'odd:returns', 7", 7, ""),
        ("'odd:interrupted'", 130, ""),
    ],
    ids=["a message", "nothing", "a code", "Ctrl-C"],
)
def test_exit_codes_are_those_of_the_command(tmp_path: Path, command: str, code: int, said: str) -> None:
    done = started(tmp_path, command)
    assert (done.returncode, done.stderr) == (code, said)


def test_a_current_folder_that_is_gone_is_told(tmp_path: Path) -> None:
    (here := tmp_path / "here").mkdir()
    done = started(
        tmp_path, f"'odd:returns', __import__('os').chdir('{here}') or __import__('os').rmdir('{here}')"
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


@pytest.mark.parametrize("name", ["SIGINT", "SIGUSR2"])
def test_a_signal_that_comes_after_the_results_changes_nothing(tmp_path: Path, name: str) -> None:
    done = started(tmp_path, f"'odd:late', '{name}'")
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "")
