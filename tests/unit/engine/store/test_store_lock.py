"""Several processes with one store: locks, claims, and the same work done at the same moment."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipeline.engine.store.store import Scratch, Store, leftovers, living, lock_of, remove_leftovers, users
from pipeline.errors import StoreError

Put = Callable[..., Path]

PREFIX = """
import sys
from pathlib import Path
from pipeline.engine.store.store import Store
store, key = Store(Path(sys.argv[1])), sys.argv[2]
def ready():
    print("ready", flush=True)
    sys.stdin.readline()
"""


def start(store: Store, key: str, code: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", PREFIX + code, str(store.root), key]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    return process


def go(processes: "list[subprocess.Popen[str]]", times: int = 1) -> list[str]:
    """Let all of them go on at the same moment, so many times; what each prints last."""
    for turn in range(times):
        for process in processes if turn else ():
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin
            process.stdin.write("\n")
            process.stdin.flush()
    said = [process.communicate(timeout=600)[0].strip() for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes)
    return said


@contextmanager
def another(store: Store, key: str, code: str) -> Iterator["subprocess.Popen[str]"]:
    process = start(store, key, code)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


COMMIT = """
import os
inodes = []
for attempt in range(3):
    at = f"{attempt:02d}" + key[2:]
    folder = store.begin(store.scratch(str(os.getpid())), at, 1)
    for number in range(20):
        (folder / str(number)).write_text("x" * number)
    ready()
    path = store.commit(at, folder, {})
    assert not folder.exists()
    inodes.append(path.stat().st_ino)
print(inodes)
"""


@pytest.mark.parametrize("damaged", [False, True], ids=["nothing stored", "something damaged stored"])
def test_of_processes_that_commit_the_same_key_at_once_one_wins_and_all_succeed(
    store: Store, put: Put, key: str, damaged: bool
) -> None:
    keys = [f"{attempt:02d}" + key[2:] for attempt in range(3)]
    for at in keys if damaged else ():
        (put(at) / "b.bin").write_text("?")
    said = go([start(store, key, COMMIT) for _ in range(4)], times=3)
    assert len(set(said)) == 1
    for at in keys:
        assert store.problem(at) is None
        assert len(list((store.root / ".aside").glob(f"{at}.*"))) == damaged


# -- claims ----------------------------------------------------------------------------------------------------

CLAIM = "claim = store.claim(key); assert claim; ready(); claim.release()"


def test_a_key_is_claimed_by_one_at_a_time(store: Store, key: str) -> None:
    first = store.claim(key)
    assert first is not None
    assert store.claim(key) is None
    other = store.claim("cd" + key[2:])
    assert other is not None
    other.release()
    first.release()
    first.release()
    with store.claim(key) or pytest.fail("not free"):
        assert store.claim(key) is None
    assert list((store.root / ".claims").iterdir()) == []


def test_a_claim_of_another_process_ends_with_it_however_it_ends(store: Store, key: str) -> None:
    with another(store, key, CLAIM) as process:
        assert store.claim(key) is None
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        claim = store.claim(key)
        assert claim is not None
        claim.release()
    assert list((store.root / ".claims").iterdir()) == []


CONTEND = """
ready()
for number in range(300):
    claim = store.claim(key)
    if claim:
        # Only one at a time may see this folder missing.
        (store.root / "inside").mkdir()
        (store.root / "inside").rmdir()
        claim.release()
print("done")
"""


def test_claims_exclude_each_other_while_their_files_come_and_go(store: Store, key: str) -> None:
    store.root.mkdir()
    assert go([start(store, key, code) for code in [CONTEND] * 4]) == ["done"] * 4
    assert list((store.root / ".claims").iterdir()) == []


FORKS = """
import os, time
claim = store.claim(key)
if not os.fork():
    claim.release()
    print("ready", os.getpid(), sep="\\n", flush=True)
time.sleep(3600)
"""


def test_a_fork_neither_keeps_nor_ends_the_claims_of_a_run(store: Store, key: str) -> None:
    """A job that is carried out in the engine's own process may start a daemon so."""
    store.root.mkdir()
    with another(store, key, FORKS) as process:
        assert process.stdout is not None
        forked = int(process.stdout.readline())
        try:
            assert store.claim(key) is None
            process.kill()
            process.wait()
            with store.claim(key) or pytest.fail("not free"):
                pass
        finally:
            os.kill(forked, signal.SIGKILL)


# -- in use ----------------------------------------------------------------------------------------------------

USE = "\nwith store.in_use():\n    ready()\n"


def test_runs_use_a_store_together_and_nobody_has_it_alone_meanwhile(store: Store, key: str) -> None:
    with (
        store.in_use(),
        store.in_use(),
        another(store, key, USE),
        pytest.raises(StoreError, match="a run is using"),
    ):
        store.alone().__enter__()
    with store.alone():
        pass


def test_a_run_waits_for_the_end_of_a_clean_up(store: Store, key: str, caplog: pytest.LogCaptureFixture) -> None:
    use = "\nready()\nwith store.in_use():\n    print('in')\n"
    with store.alone():
        process = start(store, key, use)
        assert process.stdin
        process.stdin.write("\n")
        process.stdin.flush()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.5)
    assert process.communicate(timeout=600)[0] == "in\n"


def test_a_store_remembers_whose_runs_use_it(store: Store, tmp_path: Path) -> None:
    for output_dir in (tmp_path / "öne", tmp_path / "two", tmp_path / "two"):
        with store.in_use(output_dir):
            pass
    assert sorted(users(store.root)) == [tmp_path / "two", tmp_path / "öne"]
    usual = Store(tmp_path / "outputs" / ".store")
    with usual.in_use(tmp_path / "outputs"):
        assert not (usual.root / ".users").exists()
    assert users(usual.root) == [tmp_path / "outputs"]


# -- scratch ------------------------------------------------------------


OWNER = """
from pipeline.engine.store.store import Scratch
scratch = Scratch(store.scratch(key))
scratch.open()
(scratch.path / "part").write_text("x")
ready()
scratch.close()
"""
NO_PROCESS = 999_999_999


@pytest.fixture
def mine(store: Store) -> Iterator[Path]:
    """The scratch folder of a run that has just begun."""
    own = Scratch(store.scratch("mine-1"))
    own.open()
    yield own.path
    own.close()
    assert not list((store.root / ".tmp").glob("mine*"))


def test_what_a_run_that_was_killed_has_left_goes(store: Store, mine: Path) -> None:
    path = store.scratch("t-verified-1")
    with another(store, path.name, OWNER) as process:
        process.kill()
        process.wait()
    assert (path / "part").exists()
    assert leftovers(store.root) == [path]
    remove_leftovers(store.root, mine)
    assert {one.name for one in (store.root / ".tmp").iterdir()} == {"mine-1", "mine-1.lock"}
    assert list(mine.iterdir()) == []


def test_what_a_living_run_uses_stays_whatever_number_it_has(store: Store, mine: Path) -> None:
    """Its process may be on another machine, where numbers mean something else: the lock alone counts."""
    path = store.scratch(f"t-{NO_PROCESS}")
    with another(store, path.name, OWNER) as process:
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
