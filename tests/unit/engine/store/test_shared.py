"""A store that machines share: the same bytes or nothing, nothing waits for it, and faults cost time alone."""

import json
import secrets
import shutil
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.engine.store.shared import (
    BadOutputError,
    Objects,
    SharedStore,
    Traffic,
    UnreachableError,
    check_address,
    connect,
)
from pipeline.engine.store.store import Store, Verified
from pipeline.errors import ConfigError, StoreError
from pipeline.outputs.manifest import _canonical
from tests.doubles.s3 import BUCKET, FAULTS, S3, serving

KEY = "ab" * 20
FILES = {"weights/model.bin": b"w" * 100_000, "metrics.json": b"{}", "empty": b""}


@pytest.fixture(autouse=True)
def pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests follow each other soon."""
    monkeypatch.setattr("pipeline.engine.store.shared._BACKOFF_S", 0.01)


@pytest.fixture
def gives_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FETCH", "TELL", "SILENT"):
        monkeypatch.setattr(f"pipeline.engine.store.shared._{name}_S", 0.2)


@pytest.fixture(scope="session")
def s3() -> Iterator[S3]:
    """One server for all tests of a process; the environment that names it stays with it."""
    pytest.importorskip("s3fs", reason="the extra dev has it")
    pytest.importorskip("moto.server", reason="the extra dev has it")
    with pytest.MonkeyPatch.context() as patch, serving(patch) as server:
        yield server


@pytest.fixture
def s3_url(s3: S3) -> str:
    s3.fail()
    return f"s3://{BUCKET}/{secrets.token_hex(4)}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty shared store's folder."""
    (tmp_path / "shared").mkdir()
    return tmp_path / "shared"


@pytest.fixture
def shared(folder: Path) -> Objects:
    return Objects(f"file://{folder}")


@pytest.fixture(params=["file", "s3"])
def objects(request: pytest.FixtureRequest) -> Objects:
    """An empty shared store of each kind."""
    if request.param == "file":
        return Objects(str(request.getfixturevalue("folder")))
    return Objects(request.getfixturevalue("s3_url"))


def replaced(objects: Objects, name: str, data: bytes) -> None:
    """Have other bytes in an object, as nothing here ever does."""
    objects._ask("pipe_file", name, data)


def entry(objects: Objects) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(objects.read(f"outputs/{KEY}.json", 1 << 20) or b"")
    return read


@dataclass
class Machine:
    """One with a local store of its own."""

    store: Store
    verified: Verified

    def make(self, key: str = KEY, files: dict[str, bytes] = FILES) -> None:
        """Have an output in its local store."""
        folder = self.store.begin(self.store.scratch("made-1"), key, 1)
        for name, data in files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(data)
        self.store.commit(key, folder, {"job": "a/job"}, 0.0)

    def holds(self, key: str = KEY) -> dict[str, bytes] | None:
        """The files of an output that is whole, and nothing where there is none; no other state is right."""
        problem = self.store.problem(key)
        assert problem in (None, "not stored"), problem
        root = self.store.path(key)
        return None if problem else {name: (root / name).read_bytes() for name in FILES}

    def fetch(self, objects: Objects, key: str = KEY) -> bool:
        return self.opened(objects).fetch(key) is not None

    def upload(self, objects: Objects, key: str = KEY) -> tuple[int, object]:
        return self.opened(objects).upload(key, 0.0)

    def opened(self, objects: Objects, keys: Collection[str] = (), away: str = "") -> SharedStore:
        return SharedStore(objects, self.verified, keys, away=away)


@pytest.fixture
def machine(tmp_path: Path) -> Callable[[], Machine]:
    def make() -> Machine:
        store = Store(tmp_path / secrets.token_hex(4))
        scratch = store.scratch("run-1")
        scratch.mkdir(parents=True)
        return Machine(store, Verified(store, scratch / "verified"))

    return make


def test_objects_are_made_read_listed_and_removed(objects: Objects, tmp_path: Path) -> None:
    assert objects.read("a/b", 10) is None
    assert objects.sizes("a") == {}
    objects.remove("a/b")
    assert objects.create("a/b", b"123456")
    assert not objects.create("a/b", b"other")
    assert objects.read("a/b", 10) == b"123456"
    assert objects.read("a/b", 3) == b"1234"  # one more than asked, by which it is known to be larger
    for name, data in (("large", b"x" * (3 << 20)), ("empty", b"")):
        (tmp_path / name).write_bytes(data)
        objects.send(tmp_path / name, f"a/{name}")
        objects.bring(f"a/{name}", tmp_path / "back", len(data))
        assert (tmp_path / "back").read_bytes() == data
    objects.create("ab/d", b"x")
    assert objects.sizes("a") == {"b": 6, "empty": 0, "large": 3 << 20}
    objects.remove("a")
    assert objects.sizes("a") == {}


def test_an_object_that_is_being_made_is_not_listed(objects: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    listings: list[dict[str, int]] = []
    monkeypatch.setattr("os.link", lambda *_: listings.append(objects.sizes("a")))
    objects.create("a/b", b"x")
    assert not any(listings)


def test_of_many_who_make_an_object_at_once_one_does(objects: Objects) -> None:
    makers = [str(number).encode() for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda data: objects.create("one", data), makers))
    assert made.count(True) == 1
    assert objects.read("one", 10) == makers[made.index(True)]


@pytest.mark.parametrize(
    "url",
    [
        "s3://me:hunter2@bucket/x", "s3://bucket/x?token=hunter2", "az://bucket/x", "s3://bucket/../x", "shared",
        "/not/there",
    ],
)  # fmt: skip
def test_an_address_that_cannot_be_is_refused_and_no_secret_repeated(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_address(url)
    assert "hunter2" not in str(caught.value)


def test_a_bucket_that_is_not_there_is_a_mistake_and_a_network_that_is_not_there_is_none(
    s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="The specified bucket does not exist"):
        connect("s3://no-such-bucket/x")
    assert connect(s3_url)[1:] == (set(), "")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    for writes in (False, True):
        _, keys, why = connect(s3_url, writes=writes)
        assert keys == set()
        assert "Could not connect" in why


def test_no_credential_is_in_what_is_said(shared: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")

    def talkative(*_: object, **__: object) -> bytes:
        raise OSError("signed with hunter2\n\x1b[31m")

    monkeypatch.setattr(shared._system, "cat_file", talkative)
    with pytest.raises(UnreachableError) as caught:
        shared.read("y", 1)
    assert str(caught.value) == "signed with *** ?[31m"


def test_a_folder_that_goes_away_is_out_of_reach_and_not_made_again(
    shared: Objects, folder: Path, tmp_path: Path
) -> None:
    """A disk that is unmounted leaves an empty folder; what is written there is on another disk."""
    assert shared.create("a/1", b"mine")
    folder.rename(tmp_path / "away")
    for make in (lambda: None, folder.mkdir):
        make()
        for ask in (
            lambda: shared.create("a/1", b"theirs"),
            lambda: shared.read("a/1", 10),
            lambda: shared.sizes("a"),
            lambda: shared.remove("a/1"),
        ):
            with pytest.raises(UnreachableError):
                ask()
    assert list(folder.iterdir()) == []
    folder.rmdir()
    (tmp_path / "away").rename(folder)
    assert shared.read("a/1", 10) == b"mine"


def test_a_folder_that_may_not_be_written_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot be used"):
        connect("/proc")


NewMachine = Callable[[], Machine]


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
    assert other.upload(objects)[1] == one.store.manifest(KEY)["files"]
    assert third.fetch(objects)
    assert third.holds() == FILES
    found = [path for path in objects._system.find(objects._root) if "/files/" in path]
    assert {path.split("/")[-2] for path in found} == {entry(objects)["upload"]}


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
        "../../escaped", "/escaped", "", "removed.json", "metrics.json/inside", "nul\0", "x" * 256, "\ud800",
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
        b"{}",
        b"[" * 9999,
        b'{"upload": "../../x", "manifest": ""}',
        b'{"upload": "' + b"0" * 32 + b'", "manifest": "{}"}',
        b'{"upload": "' + b"0" * 32 + b'", "manifest": "\\ud800"}',
    ],
)
def test_an_entry_that_is_none_is_told_and_an_upload_takes_its_place(
    text: bytes, shared: Objects, machine: NewMachine
) -> None:
    one = machine()
    replaced(shared, f"outputs/{KEY}.json", text)
    with pytest.raises(BadOutputError):
        one.fetch(shared)
    session = one.opened(shared, {KEY})
    session.fetch_all({KEY})
    session.conclude()
    one.make()
    one.upload(shared)
    assert machine().fetch(shared)


def test_sizes_are_bounded_before_anything_is_read(
    shared: Objects, machine: NewMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = machine(), machine()
    one.make()
    one.upload(shared)
    with monkeypatch.context() as patched:
        patched.setattr("pipeline.engine.store.shared._ENTRY_LIMIT", 100)
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
            one.upload(faulty)  # type: ignore[arg-type]
        except UnreachableError:
            assert other.fetch(shared) is (other.holds() is not None)
            one.upload(shared)
        else:
            assert at == faulty.count + 1 == 6
            return
        assert last.fetch(shared)
        assert last.holds() == FILES
    raise AssertionError("it never ended")


def uploaded(machine: Machine, objects: Objects, key: str = KEY) -> SharedStore:
    """The use of the shared store, which is over, in which a machine has brought an output there."""
    machine.make(key)
    session = machine.opened(objects)
    session.finished(key, "the job")
    assert session.conclude() == ""
    return session


def test_what_one_machine_makes_another_has(objects: Objects, machine: NewMachine) -> None:
    here = uploaded(machine(), objects)
    other = machine()
    there = other.opened(objects, {KEY})
    there.fetch_all({KEY})
    assert other.holds() == FILES
    assert there.keys == {KEY}
    assert other.verified._unchanged(KEY)  # no job need read it again
    assert there.conclude() == ""
    size = sum(map(len, FILES.values()))
    assert here.traffic == Traffic(uploaded=1, uploaded_bytes=size)
    assert there.traffic == Traffic(fetched=1, fetched_bytes=size)


def cut_off(shared: Objects, patch: pytest.MonkeyPatch) -> list[str]:
    """Have no request answered, until the patch is undone; what was asked."""
    asked: list[str] = []

    def ask(method: str, *_: object, **__: object) -> None:
        asked.append(method)
        raise UnreachableError("no route")

    patch.setattr(shared, "_ask", ask)
    return asked


@pytest.mark.usefixtures("gives_up_soon")
def test_without_a_network_the_run_goes_on_and_the_next_one_uploads(
    shared: Objects, machine: NewMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = machine()
    one.make()
    with monkeypatch.context() as patched:
        cut_off(shared, patched)
        session = one.opened(shared, away="no route")
        assert session.notice
        session.finished(KEY, "the job")
        said = session.conclude()
        assert "the job" in said
        assert "no route" in said
        session = one.opened(shared)
        session.finished(KEY)
        assert session.conclude(lambda: True)  # one that is asked to end does not wait for uploads
        assert session.conclude() == ""  # told once
    uploaded(one, shared)
    assert shared.sizes("outputs").keys() == {f"{KEY}.json"}


@pytest.mark.usefixtures("gives_up_soon")
def test_a_network_that_goes_and_comes_back_is_told_once(
    shared: Objects, machine: NewMachine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where one output was waited for in vain no other is."""
    one = machine()
    keys = {f"{number:040x}" for number in range(20)}
    with monkeypatch.context() as patched:
        patched.setattr("pipeline.engine.store.shared._BACKOFF_S", 0.1)
        asked = cut_off(shared, patched)
        session = one.opened(shared, keys)
        session.fetch_all(keys)
        assert session.keys == set()
        assert len(asked) <= 40
        assert caplog.text.count("cannot be reached") == 1
        assert session.notice
    one.make()
    session.finished(KEY)
    assert session.conclude() == ""
    assert session.notice == ""


@pytest.mark.parametrize(
    ("kind", "requests"),
    [("503", (3, 12)), *(pytest.param(kind, range(1, 40), marks=pytest.mark.exhaustive) for kind in FAULTS)],
)
def test_any_request_to_a_real_server_may_go_wrong(
    kind: str, requests: Collection[int], s3: S3, s3_url: str, machine: NewMachine
) -> None:
    """Upload and fetch, with each request of the first two machines failing once."""
    objects = Objects(s3_url)
    for at in requests:
        key = f"{at:040x}"
        one, other, last = machine(), machine(), machine()
        s3.fail(at, kind)
        uploaded(one, objects, key)
        there = other.opened(objects, {key})
        there.fetch_all({key})
        assert there.conclude() == ""
        assert other.holds(key) == FILES
        made = s3.requests
        s3.fail()
        assert last.fetch(objects, key)
        assert last.holds(key) == FILES
        if made < at:  # there are no more
            break
