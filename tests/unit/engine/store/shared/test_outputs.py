"""Outputs on their way to other machines and back: the same bytes, or nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.engine.store.removal import remove_weights
from pipeline.engine.store.shared.objects import Objects, UnreachableError
from pipeline.engine.store.shared.outputs import BadOutputError, SharedOutputs
from pipeline.errors import StoreError
from pipeline.outputs.manifest import _canonical
from tests.unit.engine.store.shared.conftest import FILES, KEY, Machine, entry, replaced

NewMachine = Callable[[], Machine]


def test_another_machine_has_the_same_bytes_and_the_same_manifest(objects: Objects, machine: NewMachine) -> None:
    one, other = machine(), machine()
    one.make()
    one.store.costs.note(KEY, {"flops": 5.0})
    assert not other.fetch(objects)
    assert one.upload(objects) == (sum(map(len, FILES.values())), True, False)
    assert SharedOutputs(objects).keys() == {KEY}
    assert other.fetch(objects)
    assert other.holds() == FILES
    manifests = [(each.store.path(KEY) / "manifest.json").read_bytes() for each in (one, other)]
    assert manifests[0] == manifests[1]
    assert other.store.costs.of(KEY) == {"flops": 5.0}
    assert list(other.verified.folder.iterdir()) == []  # nothing is left of the way


@pytest.mark.parametrize("at_once", [False, True])
def test_of_two_uploads_the_first_counts_and_the_other_leaves_nothing(
    at_once: bool, objects: Objects, machine: NewMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other, third = machine(), machine(), machine()
    one.make()
    other.make(files={**FILES, "metrics.json": b"[]"})
    if at_once:  # the first one's entry is made while the second one sends its files
        send = objects.send

        def meanwhile(*given: Any) -> None:
            monkeypatch.undo()
            one.upload(objects)
            send(*given)

        monkeypatch.setattr(objects, "send", meanwhile)
    else:
        one.upload(objects)
    assert other.upload(objects) == (0, False, True)
    assert third.fetch(objects)
    assert third.holds() == FILES
    found = [path for path in objects._system.find(objects._root) if "/files/" in path]
    assert {path.split("/")[-2] for path in found} == {entry(objects)["upload"]}


def test_what_was_removed_here_to_save_room_comes_back_whole(shared: Objects, machine: NewMachine) -> None:
    one = machine()
    one.make()
    one.upload(shared)
    assert remove_weights(one.store, KEY, ["*.bin"], "test", one.store.scratch("run-1"))
    assert one.fetch(shared)
    assert one.holds() == FILES


# -- what cannot be trusted --------------------------------------------------------------------------------------


def altered(objects: Objects, files: dict[str, Any]) -> None:
    """Have the manifest in the entry name further files, as somebody could who may write there."""
    told = entry(objects)
    manifest = json.loads(told["manifest"])
    manifest.pop("sha256")
    manifest["files"] |= files
    told["manifest"] = _canonical(manifest).decode()
    replaced(objects, f"outputs/{KEY}.json", json.dumps(told).encode())


def refused(objects: Objects, machine: Machine, root: Path) -> None:
    """See that nothing is written outside of the store, and nothing stored."""
    before = sorted(root.iterdir())
    with pytest.raises(BadOutputError):
        machine.fetch(objects)
    assert machine.holds() is None
    assert sorted(root.iterdir()) == before


@pytest.mark.parametrize(
    "name",
    [
        "../../escaped", "/escaped", "a/../../escaped", "..", ".", "", "a//b", "./a", "manifest.json",
        "removed.json",
        "metrics.json/inside", "nul\0", "x" * 256, "/".join(["d" * 200] * 25), "\ud800", "not-there",
    ],
)  # fmt: skip
def test_names_that_no_output_has_are_refused(
    name: str, shared: Objects, machine: NewMachine, tmp_path: Path
) -> None:
    one, other = machine(), machine()
    one.make()
    one.upload(shared)
    altered(shared, {name: {"size": 0, "sha256": "0" * 64}})
    refused(shared, other, tmp_path)


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
    text: bytes, shared: Objects, machine: NewMachine
) -> None:
    one = machine()
    replaced(shared, f"outputs/{KEY}.json", text)
    with pytest.raises(BadOutputError) as caught:
        one.fetch(shared)
    SharedOutputs(shared).set_aside(KEY, caught.value.upload)
    assert not one.fetch(shared)
    (aside,) = shared.sizes("aside")
    assert shared.read(f"aside/{aside}", 1 << 20) == text


def test_sizes_are_bounded_before_anything_is_read(
    shared: Objects, machine: NewMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = machine(), machine()
    one.make()
    one.upload(shared)
    with monkeypatch.context() as patched:
        patched.setattr("pipeline.engine.store.shared.outputs._ENTRY_LIMIT", 100)
        refused(shared, other, tmp_path)
        one.make(key="cd" * 20)
        with pytest.raises(StoreError):
            one.upload(shared, "cd" * 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1))
    with pytest.raises(StoreError):
        other.fetch(shared)
    altered(shared, {"huge": {"size": 1 << 60, "sha256": "0" * 64}})
    refused(shared, other, tmp_path)


@pytest.mark.parametrize("damage", ["changed", "cut off", "missing", "longer"])
def test_files_that_are_not_what_was_uploaded_are_never_stored(
    damage: str, objects: Objects, machine: NewMachine, tmp_path: Path
) -> None:
    one, other = machine(), machine()
    one.make()
    one.upload(objects)
    name = f"files/{KEY}/{entry(objects)['upload']}/0000002"
    data = FILES["weights/model.bin"]
    if damage == "missing":
        objects.remove(name)
    else:
        replaced(
            objects, name, {"changed": b"x" + data[1:], "cut off": data[:-1], "longer": data + b"more"}[damage]
        )
    refused(objects, other, tmp_path)


def test_an_entry_that_took_the_place_of_a_bad_one_stays(shared: Objects, machine: NewMachine) -> None:
    one = machine()
    one.make()
    one.upload(shared)
    SharedOutputs(shared).set_aside(KEY, "0" * 32)
    assert SharedOutputs(shared).keys() == {KEY}


# -- faults ------------------------------------------------------------------------------------------------------


class Faulty:
    """Objects of which one request goes wrong: before it is carried out, or its answer is lost."""

    def __init__(self, inner: Objects, at: int, after: bool) -> None:
        self._inner, self.count, self._at, self._after = inner, 0, at, after

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def ask(*args: Any) -> Any:
            self.count += 1
            if self.count == self._at and not self._after:
                raise UnreachableError("before")
            answer = getattr(self._inner, name)(*args)
            if self.count == self._at:
                raise UnreachableError("after")
            return answer

        return ask


@pytest.mark.parametrize("after", [False, True])
def test_wherever_an_upload_is_cut_off_there_is_all_or_nothing_and_another_goes_on(
    after: bool, tmp_path: Path, machine: NewMachine
) -> None:
    for at in range(1, 99):
        (root := tmp_path / f"shared{at}").mkdir()
        shared = Objects(str(root))
        one, other, last = machine(), machine(), machine()
        one.make()
        faulty = Faulty(shared, at, after)
        try:
            SharedOutputs(faulty).upload(KEY, one.store, lambda ask: ask())  # type: ignore[arg-type]
        except UnreachableError:
            assert other.fetch(shared) is (other.holds() is not None)
            one.upload(shared)
        else:
            assert at == faulty.count + 1 == 6
            return
        assert last.fetch(shared)
        assert last.holds() == FILES
    raise AssertionError("it never ended")
