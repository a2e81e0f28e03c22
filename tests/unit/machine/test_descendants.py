"""Descendants are found wherever they have gone, and nothing else is ever killed."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.machine import descendants
from pipeline.machine.descendants import Process

ADOPTER = """
import subprocess, sys
from pipeline.machine import descendants
descendants.adopt_orphans()
daemon = "env -i setsid sleep 3600 >/dev/null 2>&1 & echo $!"
pid = int(subprocess.check_output(["sh", "-c", daemon]))
assert {one.pid for one in descendants.below(descendants.os.getpid())} == {pid}
print(descendants.end_own(), descendants.below(descendants.os.getpid()))
"""


@pytest.fixture
def tag() -> Iterator[str]:
    tag = descendants.new_tag()
    yield tag
    assert descendants.end(lambda: descendants.tagged({tag})) == set()


def sleeper(environment: dict[str, str]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(["sleep", "3600"], env=environment, start_new_session=True)


def test_what_carries_a_tag_is_ended_and_what_carries_another_is_not(tag: str) -> None:
    outer = descendants.with_tag(os.environ, descendants.new_tag())
    ours, theirs = sleeper(descendants.with_tag(outer, tag)), sleeper(outer)
    try:
        assert {one.pid for one in descendants.tagged({tag})} == {ours.pid}
        assert descendants.end(lambda: descendants.tagged({tag})) == set()
        assert ours.wait() == -signal.SIGKILL
        assert theirs.poll() is None
    finally:
        theirs.kill()
        theirs.wait()


def test_whoever_adopts_orphans_finds_those_without_an_environment() -> None:
    said = subprocess.check_output([sys.executable, "-c", ADOPTER], cwd=Path(__file__).parents[3], text=True)
    assert said.split() == ["set()"] * 2


def test_a_number_that_has_gone_to_another_process_is_left_alone(tag: str) -> None:
    other = sleeper(descendants.with_tag(os.environ, tag))
    (process,) = descendants.tagged({tag})
    earlier = Process(other.pid, process.began - 1, process.parent, is_over=False)
    assert descendants.alive([earlier]) == set()
    assert descendants.end(lambda: {earlier}, patience_s=0.05) == {earlier}
    assert other.poll() is None
    other.kill()
    other.wait()


def test_a_tag_is_seen_on_a_process_that_is_only_starting(tag: str) -> None:
    """Between two programs a process has no environment for a moment, which every third look or so meets."""
    for _ in range(30):
        with sleeper(descendants.with_tag(os.environ, tag)) as child:
            seen = descendants.tags_of(child.pid)
            child.kill()
        assert tag in seen
