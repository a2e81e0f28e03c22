"""Weights that were removed on purpose are told from damage, however far that got, and come back the same."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.engine import keeper
from pipeline.engine.keeper import remove_weights, tell_needs
from pipeline.engine.run_folder import RunFolder
from pipeline.engine.store.gc import GarbageKind, RunReference, find_garbage, remove
from pipeline.engine.store.store import NOT_STORED, REMOVED, Scratch, Store
from pipeline.errors import StoreError
from pipeline.outputs.manifest import MANIFEST, TOMBSTONE

ROOT = Path(__file__).parents[4]
PATTERNS = ("model.safetensors", "model-*-of-*.safetensors")
WEIGHTS = ("fold_0/model.safetensors", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


@pytest.fixture
def scratch(store: Store) -> Path:
    folder = store.scratch("run-1")
    folder.mkdir(parents=True)
    return folder


def put(store: Store, key: str) -> Path:
    folder = store.begin(store.scratch("maker"), key, 1)
    (folder / "fold_0").mkdir()
    for name in WEIGHTS:
        (folder / name).write_bytes(name.encode() * 10)
    (folder / "samples.safetensors").write_text("what later rounds train on")
    (folder / "training.json").write_text("{}")
    return store.commit(key, folder, {"job": "d/m/s0/A/r1/train"})


def removed(store: Store, key: str, scratch: Path) -> int:
    return remove_weights(store, key, PATTERNS, "execution.keep=last", scratch)


def test_weights_go_and_all_else_stays(store: Store, key: str, scratch: Path) -> None:
    path = put(store, key)
    before = store.manifest(key)
    assert removed(store, key, scratch) == sum(10 * len(name) for name in WEIGHTS)
    assert sorted(file.name for file in path.rglob("*.*")) == sorted(
        [MANIFEST, TOMBSTONE, "samples.safetensors", "training.json"]
    )
    assert store.problem(key) == store.problem(key, checksums=False) == REMOVED
    assert (store.manifest(key), store.is_removed(key)) == (before, True)
    assert not store.has(key)
    assert store.set_aside(key) is None
    assert removed(store, key, scratch) == 0
    assert store.stored_keys() == [key]


def test_what_is_made_again_takes_its_place(store: Store, key: str, scratch: Path) -> None:
    path = put(store, key)
    before = {file.relative_to(path): file.read_bytes() for file in path.rglob("*.*")}
    removed(store, key, scratch)
    assert put(store, key) == path
    assert {file.relative_to(path): file.read_bytes() for file in path.rglob("*.*")} == before
    assert (store.problem(key), store.is_removed(key)) == (None, False)
    assert not list((store.root / ".aside").glob("*"))
    assert not list(store.scratch("maker").iterdir())


def test_what_else_is_missing_or_altered_is_damage(store: Store, key: str, scratch: Path) -> None:
    path = put(store, key)
    removed(store, key, scratch)
    whole = (path / TOMBSTONE).read_bytes()
    for at in range(0, len(whole), 7):
        (path / TOMBSTONE).write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert store.problem(key) not in (None, REMOVED), at
    (path / TOMBSTONE).unlink()
    assert "missing: fold_0/model.safetensors" in str(store.problem(key))
    (path / TOMBSTONE).write_bytes(whole)
    assert store.problem(key) == REMOVED
    (path / "extra").touch()
    assert store.problem(key) == "not in its manifest: extra"
    (path / "extra").unlink()
    (path / "samples.safetensors").write_text("what later rounds train oN")
    assert store.problem(key) == "samples.safetensors does not have its checksum"
    assert removed(store, key, scratch) == 0
    assert store.set_aside(key) is not None
    assert store.problem(key) == NOT_STORED


def test_nothing_is_removed_through_a_link(store: Store, key: str, scratch: Path, tmp_path: Path) -> None:
    path, elsewhere = put(store, key), tmp_path / "elsewhere"
    removed(store, key, scratch)
    (path / "fold_0").rename(elsewhere)
    (elsewhere / "model.safetensors").write_text("of somebody else")
    (path / "fold_0").symlink_to(elsewhere)
    assert store.problem(key) == "fold_0 is a link"
    assert store.leftover_weights(key) == []
    assert GarbageKind.weights not in {thing.kind for thing in find_garbage(store, [run_of(key)])}
    assert removed(store, key, scratch) == 0
    assert (elsewhere / "model.safetensors").exists()


def test_a_job_does_not_write_a_tombstone_itself(store: Store, key: str) -> None:
    folder = store.begin(store.scratch("maker"), key, 1)
    (folder / TOMBSTONE).write_text("{}")
    with pytest.raises(StoreError, match=r"wrote a removed\.json, which is the store's"):
        store.commit(key, folder, {})


# -- others ----------------------------------------------------------------------------------------------------


def test_what_a_run_that_lives_needs_stays(store: Store, key: str, scratch: Path) -> None:
    put(store, key)
    other = Scratch(store.scratch("other-2"))
    other.open()
    tell_needs(store, other.path, [key])
    assert removed(store, key, scratch) == 0
    tell_needs(store, other.path, [])
    assert remove_weights(store, key, PATTERNS, "", scratch, is_free=lambda: False) == 0
    claim = store.claim(key)
    assert claim is not None
    with claim:
        assert removed(store, key, scratch) == 0
    assert store.problem(key) is None
    tell_needs(store, other.path, [key])
    other.close()
    assert removed(store, key, scratch) > 0


@pytest.mark.parametrize("told", [b"\xff", b"no key\n", None], ids=["bytes", "text", "folder"])
def test_nothing_goes_where_it_is_not_known_what_a_run_needs(
    store: Store, key: str, scratch: Path, told: bytes | None
) -> None:
    put(store, key)
    other = Scratch(store.scratch("other-2"))
    other.open()
    path = other.path / keeper.NEEDS
    path.mkdir() if told is None else path.write_bytes(told)
    with pytest.raises(StoreError, match="what its run needs is unknown"):
        removed(store, key, scratch)
    assert store.problem(key) is None
    other.close()


# -- interruptions ---------------------------------------------------------------------------------------------

STEPS = """
import os, signal, sys
from pathlib import Path
from pipeline.engine import keeper as removal
from pipeline.engine.store.store import Store
root, key, scratch, last = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])
taken = 0
def counted(step):
    def take(*given, **more):
        global taken
        taken += 1
        if taken == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return step(*given, **more)
    return take
Path.write_bytes, Path.rename = counted(Path.write_bytes), counted(Path.rename)
removal.fsync, os.unlink = counted(removal.fsync), counted(os.unlink)
removal.remove_weights(Store(root), key, ("model*",), "execution.keep=last", scratch)
"""
ALL_STEPS = 8
"""Write the tombstone, force it, give it its name, force that; free the lock; remove three files."""


def run_of(key: str) -> RunReference:
    return RunReference(folder=RunFolder(Path("x")), started=("2026-01-01_00-00-00", 1), keys=frozenset({key}))


def test_a_removal_may_be_killed_at_any_step_and_is_finished_by_whoever_comes_next(
    store: Store, key: str, scratch: Path
) -> None:
    seen = set()
    for step in range(1, ALL_STEPS + 1):
        finish = ("removal", "gc", "commit")[step % 3]
        put(store, key)
        done = subprocess.run(
            [sys.executable, "-c", STEPS, str(store.root), key, str(scratch), str(step)], cwd=ROOT, check=False
        )
        assert done.returncode == -signal.SIGKILL, step
        problem = store.problem(key)
        seen.add((problem, len(store.leftover_weights(key))))
        if problem is None:
            continue  # nothing has happened
        assert problem == REMOVED
        if finish == "removal":
            assert removed(store, key, scratch) > 0
        elif finish == "gc":
            garbage = find_garbage(store, [run_of(key)])
            weights = [thing for thing in garbage if thing.kind is GarbageKind.weights]
            assert len(weights) == len(store.leftover_weights(key))
            assert [failure for _, failure in remove(store, weights)] == [None] * len(weights)
        else:
            assert put(store, key)
            assert store.problem(key) is None
            continue
        assert (store.problem(key), store.leftover_weights(key)) == (REMOVED, [])
    assert seen == {(None, 0), (REMOVED, 3), (REMOVED, 2), (REMOVED, 1)}
