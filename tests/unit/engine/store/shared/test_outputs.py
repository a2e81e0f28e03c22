"""Outputs on their way to other machines and back: the same bytes, or nothing."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.engine.store.shared.address import open_objects
from pipeline.engine.store.shared.objects import Objects, UnreachableError
from pipeline.engine.store.shared.outputs import BadOutputError, NotWholeError, SharedOutputs, Upload
from pipeline.errors import StoreError
from pipeline.outputs.manifest import _canonical
from tests.unit.engine.store.shared.conftest import FILES, KEY, Machine

NewMachine = Callable[[], Machine]


@pytest.fixture
def memory() -> Objects:
    return open_objects(f"memory://{secrets.token_hex(8)}")


def published(objects: Objects, machine: Machine) -> Upload:
    upload = Upload(SharedOutputs(objects), machine.store, KEY)
    upload.go()
    return upload


def test_another_machine_has_the_same_bytes_and_the_same_manifest(objects: Objects, machine: NewMachine) -> None:
    one, other = machine(), machine()
    one.make()
    one.store.costs.note(KEY, {"flops": 5.0})
    assert not other.fetch(objects)
    published(objects, one)
    assert SharedOutputs(objects).keys() == {KEY}
    assert other.fetch(objects)
    assert other.holds() == FILES
    manifests = [(each.store.path(KEY) / "manifest.json").read_bytes() for each in (one, other)]
    assert manifests[0] == manifests[1]
    assert other.store.costs.of(KEY) == {"flops": 5.0}
    assert list(other.verified.folder.iterdir()) == []  # nothing is left of the way


def test_of_two_uploads_one_counts_and_the_other_leaves_nothing(objects: Objects, machine: NewMachine) -> None:
    one, other = machine(), machine()
    one.make()
    other.make(files={**FILES, "metrics.json": b"[]"})
    assert published(objects, one).lost_to == ""
    before = objects.names(f"files/{KEY}/")
    second = published(objects, other)
    assert (second.lost_to, second.is_first) == ("other bytes", False)
    assert objects.names(f"files/{KEY}/") == before
    third = machine()
    assert third.fetch(objects)
    assert third.holds() == FILES


def test_an_output_that_is_not_whole_here_is_not_uploaded(memory: Objects, machine: NewMachine) -> None:
    one = machine()
    with pytest.raises(NotWholeError):
        published(memory, one)
    one.make()
    path = one.store.path(KEY) / "metrics.json"
    path.write_bytes(b"[]")  # as long as before
    with pytest.raises(NotWholeError, match="checksum"):
        published(memory, one)
    assert SharedOutputs(memory).keys() == set()


def test_what_was_removed_here_to_save_room_comes_back_whole(memory: Objects, machine: NewMachine) -> None:
    from pipeline.engine.store.removal import remove_weights

    one = machine()
    one.make()
    published(memory, one)
    assert remove_weights(one.store, KEY, ["*.bin"], "test", one.store.scratch("run-1"))
    assert one.store.is_removed(KEY)
    with pytest.raises(NotWholeError, match="weights were removed"):
        published(memory, one)
    assert one.fetch(memory)
    assert one.holds() == FILES


# -- what cannot be trusted --------------------------------------------------------------------------------------


def entry(objects: Objects) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(objects.read(f"outputs/{KEY}.json", 1 << 20) or b"")
    return read


def refused(objects: Objects, machine: Machine, root: Path) -> str:
    """What is said of an output there; nothing is written outside of the store, and nothing stored."""
    before = sorted(root.iterdir())
    with pytest.raises(BadOutputError) as caught:
        machine.fetch(objects)
    assert machine.holds() is None
    assert sorted(root.iterdir()) == before
    return str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        *("../../escaped", "/escaped", "a/../../escaped", "..", ".", "", "a//b", "./a", "manifest.json"),
        *(
            "removed.json",
            "metrics.json/inside",
            "nul\0",
            "x" * 256,
            "/".join(["d"] * 65),
            "/".join(["d" * 200] * 20),
            "\ud800",
        ),
    ],
)
def test_names_that_no_output_has_are_refused(
    name: str, memory: Objects, machine: NewMachine, tmp_path: Path
) -> None:
    one, other = machine(), machine()
    one.make()
    published(memory, one)
    told = entry(memory)
    manifest = json.loads(told["manifest"])
    manifest.pop("sha256")
    manifest["files"][name] = {"size": 0, "sha256": "0" * 64}
    told["manifest"] = _canonical(manifest).decode()
    memory.write(f"outputs/{KEY}.json", json.dumps(told).encode())
    assert refused(memory, other, tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b"\xff",
        b"[" * 9999,
        b'{"upload": "../../x", "manifest": ""}',
        b'{"upload": "' + b"0" * 32 + b'", "manifest": "{}"}',
        b'{"upload": "' + b"0" * 32 + b'", "manifest": "\\ud800"}',
    ],
)
def test_an_entry_that_is_none_is_told_and_can_be_set_aside(
    text: bytes, memory: Objects, machine: NewMachine, tmp_path: Path
) -> None:
    one = machine()
    memory.write(f"outputs/{KEY}.json", text)
    with pytest.raises(BadOutputError) as caught:
        one.fetch(memory)
    SharedOutputs(memory).set_aside(KEY, caught.value.upload)
    assert not one.fetch(memory)
    (aside,) = memory.names("aside/")
    assert memory.read(aside, 1 << 20) == text


def test_sizes_are_bounded_before_anything_is_read(
    memory: Objects, machine: NewMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = machine(), machine()
    one.make()
    published(memory, one)
    monkeypatch.setattr("pipeline.engine.store.shared.outputs._ENTRY_LIMIT", 100)
    assert "larger than 100 bytes" in refused(memory, other, tmp_path)
    manifest_bytes = (one.store.path(KEY) / "manifest.json").stat().st_size
    for limit in (100, manifest_bytes):  # its manifest, and its entry, in which that is
        monkeypatch.setattr("pipeline.engine.store.shared.outputs._ENTRY_LIMIT", limit)
        with pytest.raises(NotWholeError, match="larger than 100 bytes" if limit == 100 else "too many files"):
            Upload(SharedOutputs(memory), one.store, KEY).go()
    monkeypatch.undo()
    told = entry(memory)
    manifest = json.loads(told["manifest"])
    manifest.pop("sha256")
    for size, kind, said in (
        (1 << 49, StoreError, "are free in"),
        (1 << 60, BadOutputError, "a size that no file has"),
    ):
        manifest["files"]["huge"] = {"size": size, "sha256": "0" * 64}
        told["manifest"] = _canonical(manifest).decode()
        memory.write(f"outputs/{KEY}.json", json.dumps(told).encode())
        with pytest.raises(kind, match=said):
            other.fetch(memory)


@pytest.mark.parametrize("damage", ["changed", "cut off", "missing", "longer"])
def test_files_that_are_not_what_was_uploaded_are_never_stored(
    damage: str, memory: Objects, machine: NewMachine, tmp_path: Path
) -> None:
    one, other = machine(), machine()
    one.make()
    published(memory, one)
    name = f"files/{KEY}/{entry(memory)['upload']}/0000002"
    data = FILES["weights/model.bin"]
    match damage:
        case "changed":
            memory.write(name, b"x" + data[1:])
        case "cut off":
            memory.write(name, data[:-1])
        case "missing":
            memory.delete(name)
        case "longer":  # of which no more is read than belongs to it
            memory.write(name, data + b"more")
            assert other.fetch(memory)
            assert other.holds() == FILES
            return
    assert "weights/model.bin" in refused(memory, other, tmp_path)


def test_an_entry_that_took_the_place_of_a_bad_one_stays(memory: Objects, machine: NewMachine) -> None:
    one = machine()
    one.make()
    published(memory, one)
    SharedOutputs(memory).set_aside(KEY, "0" * 32)
    assert SharedOutputs(memory).keys() == {KEY}


# -- faults ------------------------------------------------------------------------------------------------------


class Faulty:
    """Objects of which one request goes wrong: before it is carried out, or its answer is lost."""

    def __init__(self, inner: Objects) -> None:
        self._inner = inner
        self.count = self.at = 0
        self.after = False

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def ask(*args: Any) -> Any:
            self.count += 1
            if self.count == self.at and not self.after:
                raise UnreachableError("before")
            answer = getattr(self._inner, name)(*args)
            if self.count == self.at:
                raise UnreachableError("after")
            return answer

        return ask


@pytest.mark.parametrize("after", [False, True])
def test_wherever_an_upload_is_cut_off_there_is_all_or_nothing_and_it_can_go_on(
    after: bool, machine: NewMachine
) -> None:
    for at in range(1, 99):
        memory = open_objects(f"memory://{secrets.token_hex(8)}")
        one, other = machine(), machine()
        one.make()
        faulty = Faulty(memory)
        faulty.at, faulty.after = at, after
        upload = Upload(SharedOutputs(faulty), one.store, KEY)  # type: ignore[arg-type]
        try:
            upload.go()
        except UnreachableError:
            assert other.fetch(memory) is (other.holds() is not None)
            killed = machine()  # what a machine left that was killed there is in nobody's way
            killed.make()
            if at % 2:
                published(memory, killed)
            upload.go()
        else:
            assert faulty.count < at
            return
        last = machine()
        assert last.fetch(memory)
        assert last.holds() == FILES
    raise AssertionError("it never ended")
