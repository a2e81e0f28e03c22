"""What a shared store relies on, of every place that it may be in."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pipeline.engine.store.shared import objects as module
from pipeline.engine.store.shared.address import check_address, open_objects
from pipeline.engine.store.shared.answers import Timeouts
from pipeline.engine.store.shared.connect import connect, look, name_of
from pipeline.engine.store.shared.objects import MemoryObjects, Objects, UnreachableError, keeps_first
from pipeline.engine.store.store import Store
from pipeline.errors import ConfigError


def test_objects_are_made_read_listed_and_removed(objects: Objects) -> None:
    assert objects.read("a/b", 10) is None
    assert objects.part("a/b", 0, 3) is None
    assert objects.names("a/") == []
    objects.delete("a/b")
    objects.write("a/b", b"12345")
    objects.write("a/b", b"123456")
    assert objects.read("a/b", 10) == b"123456"
    assert objects.read("a/b", 3) == b"1234"  # one more than asked, by which it is known to be larger
    assert objects.part("a/b", 2, 4) == b"34"
    assert objects.part("a/b", 4, 99) == b"56"
    assert objects.part("a/b", 6, 99) == b""
    objects.write("a/c", b"")
    assert objects.read("a/c", 10) == b""
    objects.write("ab/d", b"x")
    assert objects.names("a/") == ["a/b", "a/c"]
    objects.delete("a/b")
    assert objects.names("a/") == ["a/c"]


def test_of_many_who_make_an_object_at_once_one_does(objects: Objects) -> None:
    assert keeps_first(objects)
    assert objects.names("probes/") == []
    makers = [str(number).encode() for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda data: objects.create("one", data), makers))
    assert made.count(True) == 1
    assert objects.read("one", 10) == makers[made.index(True)]


def test_what_is_large_is_sent_in_pieces(objects: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 5 << 20)  # the least that S3 takes
    pieces = [bytes([number]) * (5 << 20) for number in range(2)] + [b"end"]

    def chunks() -> Iterator[bytes]:
        yield from pieces

    objects.upload("large", chunks(), (10 << 20) + 3)
    assert objects.part("large", (5 << 20) - 1, 5 << 20) == b"\0"
    assert objects.part("large", (10 << 20) - 1, 1 << 30) == b"\1end"


def test_a_place_that_replaces_what_is_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryObjects, "_create", lambda self, path, data: self._system.pipe_file(path, data))
    with pytest.raises(ConfigError, match="two machines could write over each other"):
        connect("memory://careless")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("s3://me:hunter2@bucket/x", "a user, a password"),
        ("s3://bucket/x?token=hunter2", "a user, a password"),
        ("az://bucket/x", "az:// is not known to make an object only where there is none"),
        ("s3:///x", "names no place"),
        ("s3://bucket/../x", "names no place"),
        ("", "names no place"),
        ("file://folder", "needs the whole path"),
        ("s3:/bucket/x", "neither a URL nor"),
        ("s3:me:hunter2@bucket", "neither a URL nor"),
        ("s3//bucket/x", "neither a URL nor"),
        ("GS/bucket/x", "neither a URL nor"),
        ("~/shared", "the whole path of a folder, which begins with /"),
        ("shared", "the whole path of a folder, which begins with /"),
        ("memory://x", "shared with nobody"),
    ],
)
def test_an_address_that_cannot_be_is_refused_and_no_secret_repeated(url: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_address(url)
    assert said in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_what_must_be_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs gcsfs, which is not installed: pip install .*\[gcs\]"):
        check_address("gs://bucket/x")


def test_a_library_that_is_there_and_broken_is_said_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gcsfs.py").write_text("from json import nothing_of_that_name\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "gcsfs", raising=False)
    check_address("gs://bucket/prefix")  # only a use imports it
    with pytest.raises(
        ConfigError, match=r"cannot be imported \(ImportError: .*\): pip install -U gcsfs"
    ) as refused:
        open_objects("gs://bucket/prefix")
    assert "\n" not in str(refused.value)


def test_a_bucket_that_is_not_there_is_a_mistake_and_a_network_that_is_not_there_is_none(
    s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="The specified bucket does not exist"):
        connect("s3://no-such-bucket/x")
    with pytest.raises(ConfigError, match="there is no bucket 'no-such-bucket'"):
        look("s3://no-such-bucket/x")
    assert connect(s3_url)[1:] == (set(), "")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setattr("pipeline.engine.store.shared.address._CONNECT_S", 1)
    keys, why = look(s3_url, Timeouts(asked_s=0.1))
    assert keys == set()
    assert "Could not connect" in why


@pytest.mark.parametrize("which", range(5))
def test_one_bad_answer_at_the_start_is_no_store_that_is_away(which: int, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = open_objects(f"memory://busy-{which}")
    asked: list[str] = []

    class Busy:
        def __getattr__(self, name: str) -> Any:
            def ask(*given: Any, **options: Any) -> Any:
                asked.append(name)
                if len(asked) == which + 1:
                    raise UnreachableError("503")
                return getattr(objects, name)(*given, **options)

            return ask

    monkeypatch.setattr("pipeline.engine.store.shared.connect.open_objects", lambda _: Busy())
    assert connect("s3://store/two", Timeouts(backoff_s=0.0))[2] == ""
    assert len(asked) > which + 1


@pytest.mark.parametrize("said", ["no route to orange-bucket", "the range of ports", "InvalidRangeLike"])
def test_no_failure_is_taken_for_an_object_that_is_empty(said: str) -> None:
    class Failing:
        def cat_file(self, path: str, start: int, end: int) -> bytes:
            raise OSError(said)

    with pytest.raises(UnreachableError):
        module.RemoteObjects(Failing(), "x").read("y", 1)


def test_no_credential_is_in_what_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")

    class Talkative:
        def cat_file(self, path: str, start: int, end: int) -> bytes:
            raise OSError("signed with hunter2\n\x1b[31m")

    with pytest.raises(UnreachableError) as caught:
        module.RemoteObjects(Talkative(), "x").read("y", 1)
    assert str(caught.value) == "signed with *** ?[31m"


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_in_a_shared_folder_what_is_no_file_holds_nothing_and_can_be_removed(tmp_path: Path, kind: str) -> None:
    (tmp_path / "shared").mkdir()
    objects = open_objects(str(tmp_path / "shared"))
    objects.write("a/b", b"x")
    (tmp_path / "secret").write_bytes(b"secret")
    odd = tmp_path / "shared/v1/a/odd"
    {"link": lambda: odd.symlink_to(tmp_path / "secret"), "pipe": lambda: os.mkfifo(odd), "folder": odd.mkdir}[
        kind
    ]()
    assert objects.read("a/odd", 10) == b""
    assert not objects.create("a/odd", b"y")
    objects.delete("a/odd")
    assert objects.names("a/") == ["a/b"]
    assert (tmp_path / "secret").read_bytes() == b"secret"


def test_what_no_longer_fits_into_a_shared_folder_leaves_nothing_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "shared").mkdir()
    objects = open_objects(str(tmp_path / "shared"))
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(UnreachableError, match="No space left"):
        objects.upload("a/b", iter([b"x" * 1000]), 1000)
    assert list((tmp_path / "shared/v1/unfinished").iterdir()) == []


def test_a_folder_that_goes_away_is_out_of_reach_and_not_made_again(tmp_path: Path) -> None:
    """A disk that is unmounted leaves an empty folder; what is written there is on another disk."""
    there = tmp_path / "shared"
    there.mkdir()
    objects = open_objects(f"file://{there}")
    assert objects.create("claims/a/1", b"mine")
    there.rename(tmp_path / "away")
    asked: list[Callable[[], object]] = [
        lambda: objects.create("claims/a/1", b"theirs"),
        lambda: objects.write("outputs/a", b""),
        lambda: objects.read("claims/a/1", 10),
        lambda: objects.names("claims/a/"),
        lambda: objects.delete("claims/a/1"),
    ]
    for make in (lambda: None, there.mkdir):
        make()
        for ask in asked:
            with pytest.raises(UnreachableError, match="shared is not there, or empty"):
                ask()
    assert list(there.iterdir()) == []
    there.rmdir()
    (tmp_path / "away").rename(there)
    assert objects.read("claims/a/1", 10) == b"mine"


def test_a_store_has_a_name_that_no_copy_of_it_has(tmp_path: Path) -> None:
    store = Store(tmp_path / "one")
    store.hints.mkdir(parents=True)
    assert name_of(store) == name_of(store)
    shutil.copytree(tmp_path / "one", tmp_path / "other")
    assert name_of(Store(tmp_path / "other")) != name_of(store)


def test_of_a_folder_that_refuses_its_owner_and_mode_are_spoken_of(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="owner, group and mode"):
        connect("/proc")
    for ask in (look, connect):
        with pytest.raises(ConfigError, match=r"there is no folder .*mkdir -p '.*not mounted'"):
            ask(f"file://{tmp_path}/not mounted")
