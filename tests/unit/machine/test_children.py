"""A process that another has started finds its modules, and ends with all that it has started in turn."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipeline.machine import children
from pipeline.machine.children import Child
from tests.doubles import child as double
from tests.doubles.machine import is_living


@contextmanager
def started(environment: dict[str, str] | None = None, **options: Any) -> Iterator[tuple[Child, dict[str, Any]]]:
    """A child, and what it has seen."""
    settings = options.pop("settings", {})
    one = Child(
        double.__name__,
        environment or dict(os.environ),
        settings,
        max_bytes=1 << 20,
        send_timeout_s=60.0,
        **options,
    )
    try:
        yield one, json.loads(next(one.channel.lines()))
    finally:
        children.end([one])
        one.wait()


def living(pids: list[int]) -> list[int]:
    return [pid for pid in pids if is_living(pid)]


@pytest.mark.parametrize("python_path", [None, "/of/the/user"])
def test_a_child_is_as_its_parent_but_for_what_it_was_told(
    python_path: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever file lies in the current folder, and however the child was found."""
    (tmp_path / "json.py").write_text("raise SystemExit('not the one of the standard library')")
    monkeypatch.syspath_prepend("/somewhere")
    monkeypatch.setenv("PYTHONPATH", "/of/the/parent")
    environment = {**os.environ, "GIVEN": "1"}
    environment.pop("PYTHONPATH")
    if python_path:
        environment["PYTHONPATH"] = python_path
    path = list(sys.path)
    monkeypatch.chdir(tmp_path)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR2})  # as Ray's are under Slurm
    with started(environment, settings={"number": 7}) as (one, seen):
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        assert seen["held"] == []
        assert seen["path"] == [entry or str(tmp_path) for entry in path]
        assert seen["settings"]["number"] == 7
        there = seen["environment"]
        assert (there["GIVEN"], there.get("PYTHONPATH")) == ("1", python_path)
        assert seen["group"] == os.getpgrp()
        one.channel.send(b"[1]")
        assert next(one.channel.lines()) == b"[1]"


@pytest.mark.parametrize("own_group", [True, False])
@pytest.mark.parametrize("adopts", [True, False])
def test_nothing_that_a_child_has_started_outlives_it(own_group: bool, adopts: bool) -> None:
    with started(own_group=own_group, settings={"adopts": adopts}) as (one, seen):
        assert (seen["group"] == seen["pid"]) is own_group
        assert len(living(seen["started"])) == 1 + adopts
        assert children.end([one]) == set()
        assert one.wait() == -signal.SIGKILL
        assert not living(seen["started"])


def test_children_are_asked_before_they_are_killed() -> None:
    with started() as (willing, _), started(settings={"deaf": True}) as (deaf, _):
        children.end([willing, deaf], grace_s=0.5)
        assert (willing.wait(), deaf.wait()) == (-signal.SIGTERM, -signal.SIGKILL)
        willing.send_signal(signal.SIGTERM)  # its number may be that of another by now


OWNER = f"""
import os, time
from pipeline.machine.children import Child
child = Child({double.__name__!r}, os.environ, {{}}, max_bytes=1 << 20, send_timeout_s=60.0)
print(next(child.channel.lines()).decode(), flush=True)
time.sleep(3600)
"""


def test_a_child_dies_with_its_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        seen = json.loads(owner.stdout.readline())
        grown = psutil.Process(seen["pid"])
        owner.kill()
    psutil.wait_procs([grown], timeout=200)
    assert not living([seen["pid"]])
    for pid in living(seen["started"]):  # for the reaper, see test_engine_orphans.py
        os.kill(pid, signal.SIGKILL)
