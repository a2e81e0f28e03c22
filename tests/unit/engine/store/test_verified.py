"""An output is read once in a run, and again as soon as anything about it changed."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipeline.engine.store import verified as verified_module
from pipeline.engine.store.store import MANIFEST, Store
from pipeline.engine.store.verified import Verified

Put = Callable[..., Path]


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


def note_of(verified: Verified) -> Path:
    (note,) = verified.folder.iterdir()
    return note


def test_an_output_is_read_once_also_by_others_of_the_same_run(
    counting: CountingStore, verified: Verified, put: Put, key: str
) -> None:
    put()
    for _ in range(3):
        assert verified.problem(key) is None
        assert Verified(counting, verified.folder).problem(key) is None
    assert counting.reads == 1


def test_a_machine_that_has_the_disk_under_another_number_takes_the_note(
    counting: CountingStore, verified: Verified, put: Put, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put()
    verified.require(key)
    here = verified_module._fingerprint

    def there(status: os.stat_result) -> list[int]:
        names = (name for name in dir(status) if name.startswith("st_"))
        return here(SimpleNamespace(**{name: getattr(status, name) for name in names} | {"st_dev": -1}))

    monkeypatch.setattr(verified_module, "_fingerprint", there)
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


def exchange(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(path.read_bytes()[::-1] + b"?")
    other.replace(path)


def remove(path: Path) -> None:
    path.unlink()


def link(path: Path) -> None:
    path.rename(path.parents[2] / "moved")
    path.symlink_to(path.parents[2] / "moved")


def add_beside(path: Path) -> None:
    path.with_name("extra").write_text("")


@pytest.mark.parametrize("damage", [flip, flip_and_hide, truncate, exchange, remove, link, add_beside])
@pytest.mark.parametrize("name", ["b.bin", "sub/a.txt", MANIFEST])
def test_damage_after_it_was_found_good_is_noticed(
    verified: Verified, put: Put, key: str, name: str, damage: Callable[[Path], None]
) -> None:
    path = put()
    assert verified.problem(key) is None
    damage(path / name)
    assert verified.problem(key) is not None
    assert verified.problem(key) == verified.store.problem(key)


def test_an_output_is_found_good_only_when_a_later_change_must_show(
    verified: Verified, put: Put, key: str
) -> None:
    # The clock that stamps files may stand still for 10 ms; a change within them would leave the same time.
    for number in range(5):
        path = put(f"{number:02x}" * 20)
        assert verified.problem(path.name) is None
        newest = max(entry.lstat().st_ctime_ns for entry in [path, *path.rglob("*")])
        assert time.time_ns() - newest > 10_000_000


@pytest.mark.parametrize(
    "garble",
    [
        lambda note: note.unlink(),
        lambda note: note.write_bytes(b""),
        lambda note: note.write_bytes(b"\xff\0"),
        lambda note: note.write_bytes(note.read_bytes()[:-1]),
        lambda note: note.write_bytes(note.read_bytes().replace(b"b.bin", b"c.bin")),
        lambda note: note.write_text(json.dumps({})),
        lambda note: (note.unlink(), note.mkdir()),
    ],
    ids=["lost", "empty", "binary", "torn", "renamed", "other", "folder"],
)
def test_a_lost_or_garbled_note_costs_one_more_reading(
    counting: CountingStore, verified: Verified, put: Put, key: str, garble: Callable[[Path], object]
) -> None:
    put()
    verified.require(key)
    garble(note_of(verified))
    assert verified.problem(key) is None
    assert counting.reads == 2


READER = """
import sys
from pathlib import Path
from pipeline.engine.store.store import Store
from pipeline.engine.store.verified import Verified

class Loud(Store):
    def problem(self, key, *, checksums=True):
        print("read", flush=True)
        return super().problem(key)

sys.stdin.readline()
assert Verified(Loud(Path(sys.argv[1])), Path(sys.argv[2])).problem(sys.argv[3]) is None
"""


def test_of_several_processes_at_once_one_reads_and_the_others_wait_for_it(
    store: Store, put: Put, key: str
) -> None:
    put(text="x" * 30_000_000)
    command = [sys.executable, "-c", READER, str(store.root), str(store.scratch("run") / "verified"), key]
    readers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    for reader in readers:
        assert reader.stdin
        reader.stdin.write("go\n")
        reader.stdin.flush()
    said = [reader.communicate(timeout=600)[0] for reader in readers]
    assert [reader.returncode for reader in readers] == [0] * 4
    assert "".join(said) == "read\n"
