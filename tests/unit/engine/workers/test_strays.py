"""What a job has left running ends with it; what an object of the worker stands for goes on."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is found")

SCRIPT = """
import gc, multiprocessing, os, subprocess, sys
from pipeline.machine import descendants
from pipeline.engine.workers import strays

descendants.adopt_orphans()
looks = []
find = strays.gc.get_objects
strays.gc.get_objects = lambda: looks.append(1) or find()
scans = []
scan = descendants._all
descendants._all = lambda: scans.append(1) or scan()


def end_strays():
    looks.clear(), scans.clear()
    strays.end_strays()
    living = {one.pid for one in descendants.children() if not one.is_over}
    return len(looks), len(scans), living


assert end_strays() == (0, 0, set()), "no children, and something was looked through"
held = subprocess.Popen(["sleep", "3600"])
assert end_strays() == (1, 0, {held.pid}), "a child that is new"
assert end_strays() == (0, 0, {held.pid}), "a child that is known"
other = multiprocessing.get_context("fork").Process(target=os.read, args=(os.pipe()[0], 1))
other.start()
assert end_strays() == (1, 0, {held.pid, other.pid}), "one more, of another kind"
subprocess.run(["sh", "-c", "sleep 3600 & "])
assert end_strays()[2] == {held.pid, other.pid}, "one that has lost its parent"
assert end_strays() == (0, 0, {held.pid, other.pid})
del held
assert end_strays()[2] == {other.pid}, "one that was known, and whose object is gone"
other.kill()
other.join()
assert end_strays() == (0, 0, set())
"""


def test_only_what_nothing_holds_is_ended_and_only_what_is_new_is_looked_for() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT],
        cwd=Path(__file__).parents[4],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
