"""Locks on files and folders, which the kernel frees when their holder dies, however it dies.

They are ``flock`` locks: they belong to the open file, so two of them in one process exclude each other too, and a
worker, which is a fresh program, does not inherit its engine's. Neither does a fork of their holder keep a claim.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

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
    for one in list(_OPEN):
        descriptor, one._descriptor = one._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


os.register_at_fork(after_in_child=_forget_all)


def claim(path: Path | str, *, wait: bool = False, strict: bool = False) -> Claim | None:
    """Claim something by a file of that path, which is made; None if someone else has it.

    On a file system without locks, or where something that is no file has the name, everybody is given it: the
    work is then done twice, and stays right.

    Args:
        path: Of the file.
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
    """Whether someone has the claim whose file this is; no one has that of a file which does not exist.

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
