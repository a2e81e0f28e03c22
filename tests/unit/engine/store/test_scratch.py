"""What runs that are gone have left unfinished is removed by the next one; what a living run uses never is."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipeline import locks
from pipeline.engine.store.store import Scratch, Store, leftovers, living, lock_of, remove_leftovers
from pipeline.locks import LocksUnsupportedError

OWNER = """
import sys
from pathlib import Path
from pipeline.engine.store.store import Scratch
scratch = Scratch(Path(sys.argv[1]))
scratch.open()
(scratch.path / "part").write_text("x")
print("ready", flush=True)
sys.stdin.readline()
scratch.close()
"""
NO_PROCESS = 999_999_999


@contextmanager
def owner(path: Path) -> Iterator["subprocess.Popen[str]"]:
    """A run that has a scratch folder."""
    command = [sys.executable, "-c", OWNER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        yield process


@pytest.fixture
def mine(store: Store) -> Iterator[Path]:
    """The scratch folder of a run that has just begun."""
    own = Scratch(store.scratch("mine-1"))
    own.open()
    yield own.path
    own.close()
    assert not list((store.root / ".tmp").glob("mine*"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_what_a_run_that_was_ended_has_left_goes(store: Store, mine: Path, number: signal.Signals) -> None:
    path = store.scratch("t-verified-1")
    with owner(path) as process:
        process.send_signal(number)
    assert (path / "part").exists()
    assert leftovers(store.root) == [path]
    remove_leftovers(store.root, mine)
    assert {one.name for one in (store.root / ".tmp").iterdir()} == {"mine-1", "mine-1.lock"}
    assert list(mine.iterdir()) == []


def test_what_a_living_run_uses_stays_whatever_number_it_has(store: Store, mine: Path) -> None:
    """Its process may be on another machine, where numbers mean something else: the lock alone counts."""
    path = store.scratch(f"t-{NO_PROCESS}")
    with owner(path) as process:
        remove_leftovers(store.root, mine)
        assert living(store.root) == [mine, path]
        assert (path / "part").exists()
        process.communicate("\n")
    assert not path.exists()
    assert not lock_of(path).exists()


def test_a_lock_without_a_folder_goes_and_a_folder_of_a_person_stays(store: Store, mine: Path) -> None:
    lock_of(store.scratch("t-1")).touch()
    for name in ("named_by_a_person", "t-2"):
        store.scratch(name).mkdir()
    store.scratch("t-3").symlink_to(store.root.parent)
    remove_leftovers(store.root, mine)
    assert {one.name for one in (store.root / ".tmp").iterdir()} == {"mine-1", "mine-1.lock", "named_by_a_person"}
    assert store.root.parent.exists()


def test_where_locks_are_not_supported_nothing_is_taken_for_a_leftover(
    store: Store, mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> bool:
        raise LocksUnsupportedError

    monkeypatch.setattr(locks, "lock", refuse)
    other = Scratch(store.scratch("other-2"))
    other.open()
    remove_leftovers(store.root, mine)
    assert other.path.exists()
    other.close()


# Not `Path.mkdir(exist_ok=True)`: it fails where another racer takes a folder away between its two looks.
RACER = """
import os
import sys
from contextlib import suppress
from pathlib import Path
from pipeline.engine.store.store import Scratch, remove_leftovers
root, number = Path(sys.argv[1]), sys.argv[2]
print("ready", flush=True)
sys.stdin.readline()
for turn in range(40):
    scratch = Scratch(root / ".tmp" / f"run-{turn}-{number}")
    scratch.open()
    (scratch.path / "part").write_text(number)
    with suppress(FileExistsError):
        os.mkdir(root / ".tmp" / f"left-{turn}")
    remove_leftovers(root, scratch.path)
    assert (scratch.path / "part").read_text() == number
    scratch.close()
"""


def test_runs_that_start_at_the_same_moment_leave_each_other_alone(store: Store) -> None:
    command = [sys.executable, "-c", RACER, str(store.root)]
    racers = [
        subprocess.Popen([*command, str(one)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for one in range(3)
    ]
    for racer in racers:
        assert racer.stdout
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin
        racer.stdin.write("\n")
        racer.stdin.flush()
    for racer in racers:
        racer.communicate()
    assert [racer.returncode for racer in racers] == [0, 0, 0]
    own = Scratch(store.scratch("last-1"))
    own.open()
    remove_leftovers(store.root, own.path)
    own.close()
    assert list((store.root / ".tmp").iterdir()) == []
