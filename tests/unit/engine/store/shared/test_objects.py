"""What a shared store relies on, of every place that it may be in."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pipeline.engine.store.shared.objects import Objects, UnreachableError, check_address
from pipeline.engine.store.shared.outputs import connect, look
from pipeline.errors import ConfigError


def test_objects_are_made_read_listed_moved_and_removed(objects: Objects, tmp_path: Path) -> None:
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
    objects.move("a/b", "c/b")
    assert (objects.read("a/b", 10), objects.read("c/b", 10)) == (None, b"123456")
    objects.remove("a")
    assert objects.sizes("a") == {}


def test_of_many_who_make_an_object_at_once_one_does(objects: Objects) -> None:
    makers = [str(number).encode() for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda data: objects.create("one", data), makers))
    assert made.count(True) == 1
    assert objects.read("one", 10) == makers[made.index(True)]


@pytest.mark.parametrize(
    "url",
    [
        "s3://me:hunter2@bucket/x", "s3://bucket/x?token=hunter2", "az://bucket/x", "s3:///x", "s3://bucket/../x",
        "", "file://folder", "s3:/bucket/x", "s3:me:hunter2@bucket", "~/shared", "shared", "memory://x",
        "/not/there",
    ],
)  # fmt: skip
def test_an_address_that_cannot_be_is_refused_and_no_secret_repeated(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_address(url)
    assert "hunter2" not in str(caught.value)


def test_what_must_be_installed_is_said_and_a_library_that_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(ConfigError, match=r"pip install .*\[gcs\]"):
            check_address("gs://bucket/x")
    (tmp_path / "gcsfs.py").write_text("from json import nothing_of_that_name\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "gcsfs", raising=False)
    check_address("gs://bucket/prefix")  # only a use imports it
    with pytest.raises(ConfigError):
        Objects("gs://bucket/prefix")


def test_a_bucket_that_is_not_there_is_a_mistake_and_a_network_that_is_not_there_is_none(
    s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="The specified bucket does not exist"):
        connect("s3://no-such-bucket/x")
    assert connect(s3_url)[1:] == (set(), "")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    for keys, why in (look(s3_url), connect(s3_url)[1:]):
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
