"""The store never shows half a result."""

import json
from pathlib import Path

import pytest

from pipeline.errors import StoreError
from pipeline.results.store import MANIFEST, Store

KEY = "ab" + "0" * 38


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def put(store: Store, text: str = "hello", key: str = KEY, attempt: int = 1) -> Path:
    folder = store.begin(store.scratch("run"), key, attempt)
    (folder / "sub").mkdir()
    (folder / "sub" / "a.txt").write_text(text)
    (folder / "b.bin").write_bytes(b"\0" * 100)
    return store.commit(key, folder, {"job": "j"})


def test_a_committed_output_is_found_with_its_files(store: Store) -> None:
    path = put(store)
    assert store.has(KEY)
    assert path == store.path(KEY)
    assert (path / "sub" / "a.txt").read_text() == "hello"
    assert store.manifest(KEY)["about"] == {"job": "j"}
    assert not any(store.scratch("run").iterdir())


def test_what_was_begun_but_not_committed_is_not_there(store: Store) -> None:
    folder = store.begin(store.scratch("run"), KEY, 1)
    (folder / "a").write_text("x")
    assert store.problem(KEY) == "not stored"


def damage_truncate(path: Path) -> None:
    (path / "b.bin").write_bytes(b"\0" * 50)


def damage_flip(path: Path) -> None:
    (path / "b.bin").write_bytes(b"\0" * 99 + b"\1")


def damage_remove(path: Path) -> None:
    (path / "b.bin").unlink()


def damage_add(path: Path) -> None:
    (path / "extra").write_text("?")


def damage_manifest(path: Path) -> None:
    (path / MANIFEST).write_text("{")


def damage_no_manifest(path: Path) -> None:
    (path / MANIFEST).unlink()


def damage_foreign(path: Path) -> None:
    manifest = json.loads((path / MANIFEST).read_text())
    manifest["key"] = "cd" + "0" * 38
    (path / MANIFEST).write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    "damage",
    [
        damage_truncate,
        damage_flip,
        damage_remove,
        damage_add,
        damage_manifest,
        damage_no_manifest,
        damage_foreign,
    ],
)
def test_a_damaged_output_is_not_taken_for_a_result(store: Store, damage) -> None:  # type: ignore[no-untyped-def]
    damage(put(store))
    assert not store.has(KEY)


def test_a_damaged_output_is_replaced_by_a_new_commit_and_kept_aside(store: Store) -> None:
    damage_flip(put(store))
    put(store)
    assert store.has(KEY)
    assert len(list((store.root / ".aside").iterdir())) == 1


def test_the_first_commit_of_a_key_wins(store: Store) -> None:
    first = store.begin(store.scratch("one"), KEY, 1)
    second = store.begin(store.scratch("two"), KEY, 1)
    for folder in (first, second):
        (folder / "a").write_text("same")
    inode = store.commit(KEY, first, {}).stat().st_ino
    assert store.commit(KEY, second, {}).stat().st_ino == inode
    assert not second.exists()


def test_a_commit_that_cannot_be_written_says_so(store: Store, tmp_path: Path) -> None:
    folder = store.begin(tmp_path / "elsewhere", KEY, 1)
    store.root.mkdir(exist_ok=True)
    (store.root / KEY[:2]).write_text("a file where a folder should be")
    with pytest.raises(StoreError, match="could not commit"):
        store.commit(KEY, folder, {})
