"""Files as the whole package treats them: read without trust, written whole, forced to disk, removed, and locked.

Nothing but the standard library is needed, since the process that cleans up after a killed engine loads this too.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import math
import os
import stat
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from io import BufferedReader
from pathlib import Path
from typing import Any, TypeVar

_T = TypeVar("_T")


class Inside:
    """Attribute of an object with a folder `path`: the path of this name in that folder."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, folder: Any, _: type) -> Path:
        return Path(folder.path, self._name)


# -- reading ---------------------------------------------------------------------------------------------------


def open_plain(path: Path, *, follow: bool = False) -> BufferedReader:
    """Open a file for reading that anyone may have put there; never waits.

    Args:
        path: The file. A folder, a named pipe, a socket or a device in its place is not read.
        follow: Whether it may be a link to a file.

    Raises:
        OSError: It is missing, no plain file, or cannot be read.
    """
    # Without O_NONBLOCK a named pipe in the place of a file would hold its reader for ever.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno == errno.ELOOP and not follow:
            raise OSError(errno.ELOOP, "it is a link, and links are not read here", os.fspath(path)) from error
        raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "no plain file", os.fspath(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def file_sha256(path: Path, *, follow: bool = False) -> str:
    """SHA-256 of a file's content, in hexadecimal.

    Args:
        path: The file, see `open_plain`.
        follow: Whether it may be a link to a file.

    Raises:
        OSError: It is missing, no plain file, or cannot be read.
    """
    with open_plain(path, follow=follow) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def walk(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Everything in a folder, itself first as ``.``: relative names with what `lstat` says; no link is followed.

    Raises:
        OSError: Something cannot be read.
    """
    root = os.fspath(folder)
    own = os.lstat(root)
    yield ".", own
    pending = [""] if stat.S_ISDIR(own.st_mode) else []
    while pending:
        inside = pending.pop()
        with os.scandir(f"{root}/{inside}" if inside else root) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                name = f"{inside}/{entry.name}" if inside else entry.name
                status = entry.stat(follow_symlinks=False)
                yield name, status
                if stat.S_ISDIR(status.st_mode):
                    pending.append(name)


def at_home(path: Path | str) -> Path:
    """Return a path with the home folder in place of ``~``; that of a user who is not here stays as it is."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - `Path.expanduser` raises where there is no such user


# -- writing ---------------------------------------------------------------------------------------------------


@contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """Write a file so that a reader sees the old content or the new, never a part.

    Args:
        path: The file; what it held stays if the block raises.
        durable: Whether its content is forced to disk before it takes its name, so that a crash of the machine
            leaves one or the other too.

    Yields:
        The path to write to.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield temporary
        if durable:
            fsync(temporary)
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def plain_target(path: Path) -> Path:
    """Return where to write a file that a user has named: the target of a link.

    Raises:
        OSError: There is something that is no plain file, as a device or a pipe, which a new file would replace.
    """
    target = path.resolve()
    if target.exists() and not target.is_file():
        raise OSError(errno.EINVAL, "there is something that is no plain file", str(path))
    return target


def write_whole(path: Path, text: str, *, durable: bool = True) -> None:
    """Write a text file, see `replacing`."""
    with replacing(path, durable=durable) as temporary:
        temporary.write_bytes(text.encode())


def write(path: str, content: bytes, how: int) -> None:
    """Write a file at once, in its place: for one that nobody reads meanwhile.

    Args:
        path: The file.
        content: All of it.
        how: Flags for opening it, further to those for making and writing it.

    Raises:
        OSError: It could not be written.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | how, 0o666)
    try:
        while content:
            content = content[os.write(descriptor, content) :]
    finally:
        os.close(descriptor)


def in_folder(folder: Path | str, do: Callable[[], _T]) -> _T:
    """Do something in a folder that is mostly there; where it is not, it is made first.

    Raises:
        OSError: It cannot be made, or what is done raises it.
    """
    try:
        return do()
    except FileNotFoundError:
        try:
            os.mkdir(folder)  # noqa: PTH102 - mostly no more is missing, and paths are slow
        except OSError:
            Path(folder).mkdir(parents=True, exist_ok=True)
        return do()


def fsync(path: Path, *, folder: bool = False) -> None:
    """Force a file, or the names in a folder, to disk.

    Raises:
        OSError: It cannot be opened, or the disk took it not.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | (os.O_DIRECTORY if folder else os.O_NONBLOCK))
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def json_text(value: object, **layout: Any) -> str:
    """Plain data as JSON that every reader takes, and that can be written as UTF-8.

    A number that is not finite, which JSON does not have, becomes null; half of a surrogate pair, which UTF-8 does
    not have, is written as an escape.

    Args:
        value: The data.
        layout: As `json.dumps` takes it.
    """
    encoder = _encoder(**layout)
    try:
        text = encoder.encode(value)
    except ValueError:
        text = encoder.encode(_finite(value))
    try:
        text.encode()
    except UnicodeEncodeError:
        return json_text(value, **{**layout, "ensure_ascii": True})
    return text


@cache  # `json.dumps` would make one for every call
def _encoder(**layout: Any) -> json.JSONEncoder:
    return json.JSONEncoder(allow_nan=False, **layout)


def _finite(value: Any) -> Any:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {name: _finite(part) for name, part in value.items()}
        case list() | tuple():
            return [_finite(part) for part in value]
    return value


# -- removing --------------------------------------------------------------------------------------------------


def remove_tree(path: Path) -> OSError | None:
    """Remove a folder with everything in it, or a file; of a link the link alone. Never raises an `OSError`.

    Args:
        path: The path, which may be gone already.

    Returns:
        Why something stays; all else is removed nevertheless. None where nothing stays.
    """
    import shutil  # and its compressors, which most processes never need

    try:
        if not stat.S_ISDIR(path.lstat().st_mode):
            path.unlink()
            return None
        shutil.rmtree(path, ignore_errors=True)  # whatever can go
        if os.path.lexists(path):
            shutil.rmtree(path)
    except FileNotFoundError:
        return None
    except RecursionError:
        return OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), str(path))
    except OSError as error:
        return OSError(error.errno, error.strerror, str(path))
    return None


# -- locks -------------------------------------------------------------------------------------------------------
# Locks on files and folders, which the kernel frees when their holder dies, however it dies. They are
# ``flock`` locks: they belong to the open file, so two of them in one process exclude each other too, and a
# worker, which is a fresh program, does not inherit its engine's. Neither does a fork of their holder keep a
# claim.


_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EBADF}
"""Answers of file systems without locks; EBADF is how NFS refuses an exclusive one on what is open for reading."""

_NO_FILE = {errno.EISDIR, errno.ELOOP, errno.ENXIO}
"""Answers to opening what is a folder, a link, or a socket."""


class LocksUnsupportedError(OSError):
    """The file system has no locks."""


def lock(descriptor: int, *, shared: bool = False, wait: bool = True) -> bool:
    """Lock an open file or folder until it is closed.

    Args:
        descriptor: The open file.
        shared: Whether others may hold it too, all of them shared.
        wait: Wait until it is free.

    Returns:
        False if someone else holds it and `wait` is False.

    Raises:
        LocksUnsupportedError: The file system has no locks.
    """
    how = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
    try:
        fcntl.flock(descriptor, how)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _NO_LOCKS:
            raise LocksUnsupportedError(error.errno, error.strerror) from error
        raise
    return True


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Let one process after the other work on a folder that exists. Without locks they all work at once.

    Raises:
        OSError: The folder cannot be opened.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        with suppress(LocksUnsupportedError):
            lock(descriptor)
        yield
    finally:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # a process that was forked meanwhile has it open, too
        os.close(descriptor)


class Claim:
    """The right to be the only one who computes a key, held until `release` or the end of this process."""

    def __init__(self, path: Path | str, descriptor: int | None) -> None:
        self._path = path
        self._descriptor = descriptor
        _OPEN.add(self)

    def write(self, text: str) -> None:
        """Say something in its file, in place: one renamed over it would be another, whose lock nobody holds."""
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, text.encode(), 0)

    def release(self) -> None:
        """Let others claim the key. Doing it twice does nothing, and neither does it in a fork of the holder."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        with suppress(OSError):
            # Before the lock is gone, so nobody else's file is removed: who opened this one meanwhile finds that
            # it no longer has its name, and tries again.
            if _same_file(self._path, descriptor):
                os.unlink(self._path)  # noqa: PTH108 - a run claims every key
        os.close(descriptor)

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


_OPEN: weakref.WeakSet[Claim] = weakref.WeakSet()


def _forget_all() -> None:
    """Close the copies that a fork has: what a job has started so may outlive the run by days."""
    for claimed in list(_OPEN):
        descriptor, claimed._descriptor = claimed._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


os.register_at_fork(after_in_child=_forget_all)


def claim(path: Path | str, *, wait: bool = False, strict: bool = False) -> Claim | None:
    """Claim something by a file, which is made; None if someone else has it.

    On a file system without locks, or where something that is no file has the name, everybody is given it: the
    work is then done twice, and stays right.

    Args:
        path: Path of the file.
        wait: Wait until no one else has it.
        strict: Raise there instead.

    Raises:
        OSError: The file cannot be made.
    """
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        except FileNotFoundError:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            continue
        except OSError as error:
            if error.errno in _NO_FILE and not strict:
                return Claim(path, None)
            raise
        try:
            if strict and not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(errno.EINVAL, "no plain file", os.fspath(path))
            with nullcontext() if strict else suppress(LocksUnsupportedError):
                if not lock(descriptor, wait=wait):
                    os.close(descriptor)
                    return None
            if _same_file(path, descriptor):
                return Claim(path, descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # its last holder removed it between the opening and the lock


def is_held(path: Path) -> bool:
    """Return whether someone holds the claim of this file; False if the file does not exist.

    Raises:
        LocksUnsupportedError: The file system has no locks.
        OSError: The file cannot be opened.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        return not lock(descriptor, wait=False)
    finally:
        os.close(descriptor)


def _same_file(path: Path | str, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.lstat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False
