"""Objects by name, on whatever keeps them: the few things that a shared store asks of its place.

Everything rests on `create`, which makes an object only where none has its name, whoever else tries at the same
time: a hard link on a file system, ``If-None-Match: *`` on S3, ``ifGenerationMatch=0`` on GCS.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any, Protocol, TypeVar

from pipeline.files import fsync, in_folder, open_plain, remove_tree

CHUNK = 16 << 20
"""Bytes that are sent or read at once."""
_MIB, _MOST_PARTS = 1 << 20, 9_000
_SENT_S, _SLOWEST = 15.0, 100_000
"""Seconds and bytes a second: of what takes longer the place cannot be reached."""
_SECRETS = (
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
    *("FSSPEC_S3_KEY", "FSSPEC_S3_SECRET", "FSSPEC_S3_TOKEN", "FSSPEC_GCS_TOKEN", "FSSPEC_GS_TOKEN"),
)
_ENDS_BEFORE = re.compile(r"range (is )?not satisfiable", re.IGNORECASE)
_SHORTEST_SECRET = 6
"""What is shorter is no credential of anything, and would be found in every text."""
_T = TypeVar("_T")


class UnreachableError(Exception):
    """The place did not do what was asked, and may do it when it is asked again; the text says why."""


class RefusedError(UnreachableError):
    """The place answers, and does not let this user do what was asked."""


class Objects(Protocol):
    """What a shared store asks of its place. Safe for several threads; all may raise `UnreachableError`."""

    def read(self, name: str, limit: int) -> bytes | None:
        """The first ``limit + 1`` bytes of an object; None where there is none."""

    def part(self, name: str, start: int, end: int) -> bytes | None:
        """Bytes of an object, which are fewer where it ends before; None where there is none."""

    def create(self, name: str, data: bytes) -> bool:
        """Make an object that becomes visible whole; False, and nothing done, where one has that name."""

    def write(self, name: str, data: bytes) -> None:
        """Make an object, or replace one."""

    def upload(self, name: str, chunks: Iterator[bytes], size: int) -> None:
        """Make an object from pieces of about `CHUNK` bytes that have that size together."""

    def names(self, prefix: str) -> list[str]:
        """The names of the objects right below a prefix, which ends with ``/``; sorted."""

    def delete(self, name: str) -> None:
        """Remove an object, if it is there."""


class RemoteObjects:
    """Objects of a file system that fsspec knows, below one of its folders."""

    def __init__(self, system: Any, root: str) -> None:
        """Use an open file system, which must not remember listings."""
        self._system = system
        self._root = root.rstrip("/")

    def read(self, name: str, limit: int) -> bytes | None:
        """The first ``limit + 1`` bytes of an object; None where there is none."""
        return self.part(name, 0, limit + 1)

    def part(self, name: str, start: int, end: int) -> bytes | None:
        """Bytes of an object; None where there is none."""

        def ask() -> bytes:
            try:
                return bytes(self._system.cat_file(self._path(name), start=start, end=end))
            except FileNotFoundError:
                raise
            except Exception as error:
                # An object that ends before `start`: to take anything else for that would be to call it damaged.
                if _code(error) in ("InvalidRange", "416") or _ENDS_BEFORE.search(str(error)):
                    return b""
                raise

        return _absent(ask)

    def create(self, name: str, data: bytes) -> bool:
        """Make an object where none has its name."""

        def ask() -> bool:
            try:
                self._create(self._path(name), data)
            except FileExistsError:
                return False
            except Exception as error:
                if _code(error) in ("PreconditionFailed", "412"):
                    return False
                raise
            return True

        return _told(ask)

    def _create(self, path: str, data: bytes) -> None:
        self._system.pipe_file(path, data, mode="create", **self._within(len(data)))

    def write(self, name: str, data: bytes) -> None:
        """Make an object, or replace one."""
        _told(lambda: self._system.pipe_file(self._path(name), data, **self._within(len(data))))

    def upload(self, name: str, chunks: Iterator[bytes], size: int) -> None:
        """Make an object from pieces."""
        if size <= CHUNK:
            self.write(name, b"".join(chunks))
            return

        def ask() -> None:
            block = max(CHUNK, (size // _MOST_PARTS // _MIB + 1) * _MIB)
            file = self._system.open(self._path(name), "wb", block_size=block)
            try:
                for chunk in chunks:
                    file.write(chunk)
            except BaseException:
                with suppress(Exception):  # what was sent of it is given up, and costs nothing further
                    file.discard()
                raise
            file.close()

        _told(ask)

    def names(self, prefix: str) -> list[str]:
        """The names of objects right below a prefix."""

        def ask() -> list[str]:
            self._system.invalidate_cache()
            try:
                return sorted(str(path) for path in self._system.find(self._path(prefix)))
            except FileNotFoundError:
                bucket = self._root.strip("/").partition("/")[0]
                if self._system.exists(bucket):
                    return []
                raise RefusedError(f"there is no bucket {bucket!r}") from None

        start = len(self._path(""))
        return [path[start:] for path in _told(ask) if path.startswith(self._path(prefix))]

    def delete(self, name: str) -> None:
        """Remove an object."""
        _absent(lambda: self._system.rm_file(self._path(name)))

    def _within(self, size: int) -> dict[str, float]:
        """How long so many bytes may take to be sent, for places that can be told.

        What is read has a limit of its own. A server that is asked whether it takes something, and says nothing,
        would be waited for without end.
        """
        return {"timeout": _SENT_S + size / _SLOWEST} if getattr(self._system, "async_impl", False) else {}

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"


class MemoryObjects(RemoteObjects):
    """Objects in the memory of this process, for tests."""

    _making = Lock()

    def _create(self, path: str, data: bytes) -> None:
        with self._making:
            if self._system.exists(path):
                raise FileExistsError(path)
            self._system.pipe_file(path, data)


class FileObjects:
    """Objects that are files of a folder which several machines see."""

    def __init__(self, root: Path) -> None:
        """Use a folder, which is made when needed; the one that it is in is there."""
        self._root = root
        self._was_there = False

    def read(self, name: str, limit: int) -> bytes | None:
        """The first ``limit + 1`` bytes of an object; None where there is none."""
        return self.part(name, 0, limit + 1)

    def part(self, name: str, start: int, end: int) -> bytes | None:
        """Bytes of an object; None where there is none."""

        def ask() -> bytes:
            try:
                with open_plain(self._path(name)) as file:
                    file.seek(start)
                    return file.read(end - start)
            except OSError as error:
                if error.errno in (errno.EINVAL, errno.ELOOP, errno.EISDIR):
                    return b""  # no object of ours, which says nothing of the place: who reads it finds it bad
                raise

        return _absent(ask)

    def create(self, name: str, data: bytes) -> bool:
        """Make an object where none has its name."""

        def ask() -> bool:
            path = self._path(name)
            with self._written(iter([data])) as temporary:
                try:
                    in_folder(path.parent, lambda: os.link(temporary, path))
                except FileExistsError:
                    return False
                fsync(path.parent, folder=True)
                return True

        return _told(ask)

    def write(self, name: str, data: bytes) -> None:
        """Make an object, or replace one."""
        self.upload(name, iter([data]), len(data))

    def upload(self, name: str, chunks: Iterator[bytes], size: int) -> None:  # noqa: ARG002
        """Make an object from pieces."""

        def ask() -> None:
            path = self._path(name)
            with self._written(chunks) as temporary:
                in_folder(path.parent, lambda: os.replace(temporary, path))  # noqa: PTH105
                fsync(path.parent, folder=True)

        _told(ask)

    def names(self, prefix: str) -> list[str]:
        """The names of objects right below a prefix."""
        found = _absent(lambda: [path.name for path in self._path(prefix).iterdir()]) or ()
        return sorted(prefix + name for name in found)

    def delete(self, name: str) -> None:
        """Remove an object."""
        path = self._path(name)
        if problem := remove_tree(path):
            raise UnreachableError(said_of(problem))
        with suppress(OSError):  # others are still in it
            path.parent.rmdir()

    def _path(self, name: str) -> Path:
        """Of an object, on a disk that is there: where it was mounted nothing may be written meanwhile.

        Raises:
            UnreachableError: The folder is not there any more.
        """
        if self._root.is_dir():
            self._was_there = True
        elif self._was_there or not self._root.parent.is_dir():
            raise UnreachableError(f"{self._root.parent} is not there, or empty")
        return self._root / name

    def _written(self, chunks: Iterator[bytes]) -> _Temporary:
        path = self._root / "unfinished" / secrets.token_hex(16)
        try:
            with in_folder(path.parent, lambda: path.open("xb")) as file:
                self._was_there = True
                for chunk in chunks:
                    file.write(chunk)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:  # on a disk that is full it would keep others from freeing some of it
            path.unlink(missing_ok=True)
            raise
        return _Temporary(path)


class _Temporary:
    """A file that is removed at the end of a block, if it still has its name."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> Path:
        return self._path

    def __exit__(self, *_: object) -> None:
        self._path.unlink(missing_ok=True)


def keeps_first(objects: Objects) -> bool:
    """Whether a place makes an object only where there is none, as it is asked to, found out by trying.

    Raises:
        UnreachableError: It could not be asked.
    """
    name, first, second = f"probes/{secrets.token_hex(16)}", secrets.token_bytes(8), secrets.token_bytes(8)
    # The answer to a request that was carried out may be lost, and it be asked again: so it is read.
    objects.create(name, first)
    keeps = not objects.create(name, second) and objects.read(name, len(first)) == first
    objects.delete(name)
    return keeps


def _absent(ask: Callable[[], _T]) -> _T | None:
    """What is answered; None where nothing is there."""

    def call() -> _T | None:
        try:
            return ask()
        except (FileNotFoundError, NotADirectoryError):
            return None

    return _told(call)


def _told(ask: Callable[[], _T]) -> _T:
    """What is answered, with every failure of a place or of the way there as one of ours."""
    try:
        return ask()
    except UnreachableError:
        raise
    # Libraries of places raise whatever they like: errors of theirs, of HTTP, of the system, of time.
    except Exception as error:
        kind = RefusedError if _is_refusal(error) else UnreachableError
        raise kind(said_of(error)) from None  # its traceback may hold what is secret


def said_of(error: Exception) -> str:
    """A failure in a line, in which no credential of the environment stands."""
    silent = "no answer in time" if isinstance(error, TimeoutError) else type(error).__name__
    text = " ".join(str(error).split()) or silent
    for name in _SECRETS:
        if len(secret := os.environ.get(name, "")) >= _SHORTEST_SECRET:
            text = text.replace(secret, "***")
    return "".join(char if char.isprintable() else "?" for char in text)[:200]


def _is_refusal(error: Exception) -> bool:
    known = isinstance(error, PermissionError | FileNotFoundError | NotADirectoryError)
    known = known or (isinstance(error, OSError) and error.errno == errno.EROFS)
    named = type(error).__name__ in ("NoCredentialsError", "PartialCredentialsError", "DefaultCredentialsError")
    denied = ("AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidBucketName", "NoSuchBucket")
    return known or named or _code(error) in denied or "Forbidden" in str(error)


def _code(error: Exception) -> str:
    response = getattr(error.__cause__ or error, "response", None)
    told = response.get("Error") if isinstance(response, dict) else None
    return str(told.get("Code", "")) if isinstance(told, dict) else ""
