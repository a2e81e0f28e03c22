"""Locks on files and folders, which the kernel frees when their holder dies, however it dies.

They are ``flock`` locks: they belong to the open file, so two of them in one process exclude each other too, and a
worker, which is a fresh program, does not inherit its engine's. Neither does a fork of their holder keep a claim.
"""

from __future__ import annotations

import errno
import fcntl
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EBADF}
"""Answers of file systems without locks; EBADF is how NFS refuses an exclusive one on what is open for reading."""

_TRIES = 10
"""How often others may come in between, or what a dead process left may fail to go."""

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

    def __init__(self, key: str, path: Path | str, descriptor: int | None, *, of: Claim | None = None) -> None:
        self.key = key
        self._path = os.fspath(path)  # a run claims every key: texts are compared and joined in no time
        self._descriptor = descriptor
        self._of = of
        if of is None:
            self._further: set[str] = set()
            self._stuck: set[str] = set()
            """Further names that could not be taken away: to others they look held, until that is tried again."""
            _OPEN.add(self)

    def also(self, key: str, path: Path | str) -> Claim | None:
        """Claim a further key, by one more name of the file that is locked here; None if someone else has it.

        That is one call in place of four, and makes and removes no file: some file systems look at every file that
        was removed in the last minute before they make one. It ends with this claim at the latest.

        Raises:
            OSError: As `claim`.
        """
        path = os.fspath(path)
        for _ in range(_TRIES):
            if self._descriptor is None:
                break
            if self._stuck:
                self._stuck.discard(path)
                self._free_stuck()
            try:
                os.link(self._path, path)
            except FileExistsError:
                if path not in self._further and _same_file(path, self._descriptor):
                    # It could not be taken away; or a server was asked twice, as its first answer was lost.
                    return self._also(key, path)
                left = claim(key, path)
                if left is None or left._descriptor is None:  # held; or in the place is something that is no file
                    return left
                left.release()  # whoever left it is dead. Other names of his file are locked as long as this one
            except OSError:  # no folder yet, or a file system without such links
                break
            else:
                return self._also(key, path)
        return claim(key, path)

    def _also(self, key: str, path: str) -> Claim:
        self._further.add(path)
        return Claim(key, path, self._descriptor, of=self)

    def release(self) -> None:
        """Let others claim the key. Doing it twice does nothing."""
        if self._descriptor is None:
            return
        descriptor, self._descriptor = self._descriptor, None
        if self._of is not None and self._of._descriptor is None:
            return  # it has ended with that one, and in a fork of its holder: the number may be another file's
        if self._of is None:
            with suppress(OSError):
                # Before the lock is gone, so nobody else's file is removed: who opened this one meanwhile finds
                # that it no longer has its name, and tries again.
                if _same_file(self._path, descriptor):
                    os.unlink(self._path)  # noqa: PTH108
            os.close(descriptor)
        else:
            self._of._further.discard(self._path)
            self._of._stuck.add(self._path)
            self._of._free_stuck()

    def _free_stuck(self) -> None:
        """Take away the names of claims that have ended, one of which may have failed to go."""
        for path in list(self._stuck):
            with suppress(OSError):
                if self._descriptor is not None and _same_file(path, self._descriptor):
                    os.unlink(path)  # noqa: PTH108
                self._stuck.discard(path)

    def __enter__(self) -> Claim:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.release()


_OPEN: weakref.WeakSet[Claim] = weakref.WeakSet()


def _forget_all() -> None:
    """Close the copies that a fork has: what a job has started so may outlive the run by days."""
    for one in list(_OPEN):
        descriptor, one._descriptor = one._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


os.register_at_fork(after_in_child=_forget_all)


def claim(key: str, path: Path | str, *, wait: bool = False) -> Claim | None:
    """Claim a key by a file of that path, which is made; None if someone else has it.

    On a file system without locks, or where something that is no file has the name, everybody is given it: the
    work is then done twice, and stays right.

    Args:
        key: The key.
        path: Of the file.
        wait: Wait until no one else has it.

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
            if error.errno in _NO_FILE:
                return Claim(key, path, None)
            raise
        try:
            with suppress(LocksUnsupportedError):
                if not lock(descriptor, wait=wait):
                    os.close(descriptor)
                    return None
            if _same_file(path, descriptor):
                return Claim(key, path, descriptor)
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
