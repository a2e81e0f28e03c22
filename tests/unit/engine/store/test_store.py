"""The store never shows half a result, and never follows what is not its own."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.engine.store.store import MANIFEST, NOT_STORED, Costs, Store, Verified
from pipeline.errors import StoreError
from pipeline.files import remove_tree
from pipeline.outputs.check import check_output

Put = Callable[..., Path]


def test_a_committed_output_is_found_with_its_files(store: Store, put: Put, key: str) -> None:
    path = put()
    assert store.problem(key) is None
    assert path == store.path(key)
    assert (path / "sub" / "a.txt").read_text() == "hello"
    assert store.manifest(key)["about"] == {"job": "d/m/s0/A/r1/generate/003"}
    assert sorted(store.manifest(key)["files"]) == ["b.bin", "sub/a.txt"]
    assert not any(store.scratch("run").iterdir())


@pytest.mark.parametrize("change", ["grown", "replaced", "added", "gone", "link"])
def test_an_output_that_changes_while_it_is_committed_is_refused(store: Store, key: str, change: str) -> None:
    """A thread of the job may go on: sizes would be of one moment, and checksums of another."""
    folder = store.begin(store.scratch("run"), key, 1)
    file = folder / "a.txt"
    file.write_text("x")
    seen = check_output(folder)
    match change:
        case "grown":
            file.write_text("xx")
        case "replaced":
            file.rename(folder.parent / "before")
            file.write_text("y")
        case "added":
            (folder / "b.txt").touch()
        case "gone":
            file.unlink()
        case "link":
            (folder / "b.txt").symlink_to("/etc/hostname")
    with pytest.raises(
        StoreError, match=r"b\.txt is a link" if change == "link" else r"[ab]\.txt changed meanwhile"
    ):
        store.commit(key, folder, {"job": "j"}, 0.0, seen)
    assert store.problem(key) == NOT_STORED


def test_what_took_work_is_forced_to_disk_with_the_folders_that_name_it(
    store: Store, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    forced: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "fsync", lambda at: forced.append((os.fstat(at).st_dev, os.fstat(at).st_ino)))
    for took_s in (0.0, 1e9):
        folder = store.begin(store.scratch("run"), key, 1)
        (folder / "sub").mkdir()
        (folder / "sub" / "a").write_text("x")
        path = store.commit(key, folder, {"job": "j"}, took_s)
        names = [path, path / MANIFEST, path / "sub", path / "sub" / "a", path.parent, store.root]
        expected = {(one.stat().st_dev, one.stat().st_ino) for one in names}
        assert set(forced) == (expected if took_s else set())
        remove_tree(path)


# -- damage ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["b.bin", "sub/a.txt", MANIFEST])
def test_any_changed_byte_of_any_file_is_noticed(store: Store, put: Put, key: str, name: str) -> None:
    path = put() / name
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ (1, 3, 0x80)[at % 3]]) + whole[at + 1 :])
        assert store.problem(key) is not None, at
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        assert store.problem(key) is not None, length
    path.write_bytes(whole + b"\n")
    assert store.problem(key) is not None
    path.write_bytes(whole)
    assert store.problem(key) is None


def remove(path: Path) -> None:
    (path / "b.bin").unlink()


def add(path: Path) -> None:
    (path / "sub" / "extra").write_text("?")


def remove_manifest(path: Path) -> None:
    (path / MANIFEST).unlink()


def link_to_the_same_bytes(path: Path) -> None:
    shutil.copy(path / "b.bin", path.parents[2] / "outside.bin")
    (path / "b.bin").unlink()
    (path / "b.bin").symlink_to(path.parents[2] / "outside.bin")


def link_for_folder(path: Path) -> None:
    shutil.move(path / "sub", path.parents[2] / "outside")
    (path / "sub").symlink_to(path.parents[2] / "outside")


def link_that_dangles(path: Path) -> None:
    (path / "dangling").symlink_to("nowhere")


def link_for_output(path: Path) -> None:
    shutil.move(path, path.parents[2] / "outside")
    path.symlink_to(path.parents[2] / "outside")


def pipe_for_file(path: Path) -> None:
    (path / "b.bin").unlink()
    os.mkfifo(path / "b.bin")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (remove, "missing: b.bin"),
        (add, "not in its manifest: sub/extra"),
        (remove_manifest, "manifest cannot be read (No such file"),
        (link_to_the_same_bytes, "b.bin is a link"),
        (link_for_folder, "sub is a link"),
        (link_that_dangles, "dangling is a link"),
        (link_for_output, "it is no folder"),
        (pipe_for_file, "b.bin is a special file"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_is_no_output_is_said_to_be_none_and_is_replaced(
    store: Store, put: Put, key: str, damage: Callable[[Path], None], said: str
) -> None:
    damage(put())
    assert said in (store.problem(key) or "")
    assert store.problem(key, checksums=False) is not None
    put()
    assert store.problem(key) is None
    assert [path.name for path in (store.root / ".aside").iterdir()] == [f"{key}.0"]


def signed(manifest: dict[str, object]) -> str:
    """Put the right sum over a manifest, as nobody but the store should."""
    manifest.pop("sha256", None)
    manifest["sha256"] = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    return json.dumps(manifest, indent=1, sort_keys=True) + "\n"


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "sub/../b.bin", "./b.bin", "", MANIFEST])
def test_odd_names_in_a_manifest_are_refused_without_a_look_at_them(
    store: Store, put: Put, key: str, name: str
) -> None:
    path = put()
    (path.parent / "x").write_text("?")
    manifest = json.loads((path / MANIFEST).read_text())
    assert signed(manifest) == (path / MANIFEST).read_text()
    manifest["files"][name] = manifest["files"]["b.bin"]
    (path / MANIFEST).write_text(signed(manifest))
    assert store.problem(key) == f"its manifest names {name!r}, which is no file of an output"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"key": "cd" + "0" * 38}, "another key or format"),
        ({"files": None}, "lists no files"),
        ({"files": {"b.bin": {"size": 100, "sha256": "x"}}}, "does not say what b.bin should be"),
    ],
)
def test_a_manifest_of_something_else_is_refused(
    store: Store, put: Put, key: str, change: dict[str, object], said: str
) -> None:
    path = put()
    manifest = json.loads((path / MANIFEST).read_text())
    (path / MANIFEST).write_text(signed({**manifest, **change}))
    assert said in (store.problem(key) or "")
    with pytest.raises(StoreError):
        store.manifest(key)


# -- setting aside and committing ------------------------------------------------------------------------------


def test_outputs_set_aside_keep_what_they_held(store: Store, put: Put, key: str) -> None:
    for number in range(3):
        (put() / "b.bin").write_text(str(number))
        moved = store.set_aside(key)
        assert moved == store.root / ".aside" / f"{key}.{number}"
        assert (moved / "b.bin").read_text() == str(number)
    assert store.problem(key) == NOT_STORED


def test_the_first_commit_of_a_key_wins(store: Store, key: str) -> None:
    first = store.begin(store.scratch("one"), key, 1)
    second = store.begin(store.scratch("two"), key, 1)
    for folder in (first, second):
        (folder / "a").write_text("same")
    inode = store.commit(key, first, {}).stat().st_ino
    assert store.commit(key, second, {}).stat().st_ino == inode
    assert not second.exists()


@pytest.mark.parametrize("odd", [link_that_dangles, None])
def test_a_job_that_leaves_more_than_plain_files_is_refused(
    store: Store, key: str, odd: Callable[[Path], None] | None
) -> None:
    folder = store.begin(store.scratch("run"), key, 1)
    odd(folder) if odd else (folder / MANIFEST).write_text("{}")
    with pytest.raises(StoreError, match=r"only plain files and folders|which is the store's"):
        store.commit(key, folder, {})
    assert store.problem(key) == NOT_STORED


# -- measured ------------------------------------------------------------


KEY = "ab" + "0" * 38
OTHER = "ab" + "1" * 38


def test_what_was_noted_last_counts(tmp_path: Path) -> None:
    costs = Costs(tmp_path)
    assert costs.of(KEY) == {}
    costs.note(KEY, {"tokens": 1})
    costs.note(OTHER, {"tokens": 2})
    costs.note(KEY, {"tokens": 3, "flops/training": 4.5})
    assert (costs.of(KEY), costs.of(OTHER)) == ({"tokens": 3, "flops/training": 4.5}, {"tokens": 2})
    assert costs.of("") == {}


# -- verified ------------------------------------------------------------


class CountingStore(Store):
    """Counts how often an output is read."""

    reads = 0

    def problem(self, key: str, *, checksums: bool = True) -> str | None:
        assert checksums
        self.reads += 1
        return super().problem(key)


@pytest.fixture
def counting(store: Store) -> CountingStore:
    return CountingStore(store.root)


@pytest.fixture
def verified(counting: CountingStore) -> Verified:
    return Verified(counting, counting.scratch("run") / "verified")


def test_an_output_is_read_once_also_by_others_of_the_same_run(
    counting: CountingStore, verified: Verified, put: Put, key: str
) -> None:
    put()
    for _ in range(3):
        assert verified.problem(key) is None
        assert Verified(counting, verified.folder).problem(key) is None
    assert counting.reads == 1


def flip(path: Path) -> None:
    with path.open("r+b") as file:
        first = file.read(1)
        file.seek(0)
        file.write(bytes([first[0] ^ 1]))


def flip_and_hide(path: Path) -> None:
    """As a failing disk would: no time of change gives it away, but for the one that nobody can set."""
    before = path.stat()
    flip(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def link(path: Path) -> None:
    path.rename(path.parents[2] / "moved")
    path.symlink_to(path.parents[2] / "moved")


@pytest.mark.parametrize("damage", [flip, flip_and_hide, truncate, link])
@pytest.mark.parametrize("name", ["b.bin", MANIFEST])
def test_damage_after_it_was_found_good_is_noticed(
    verified: Verified, put: Put, key: str, name: str, damage: Callable[[Path], None]
) -> None:
    path = put()
    assert verified.problem(key) is None
    damage(path / name)
    assert verified.problem(key) is not None
    assert verified.problem(key) == verified.store.problem(key)
