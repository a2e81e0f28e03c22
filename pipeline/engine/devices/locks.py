"""Files that are held by flock: the folder they are in, and how they are opened, locked and let go.

The kernel lets go of a flock when the last descriptor of its opening is closed, however the process ended.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from pipeline.errors import DeviceError

FOLDER = "PIPELINE_LEASE_DIR"
"""Variable that names another folder for leases, such as one that containers on a machine share."""
PRIVATE = 0o700
_GUARD_TIMEOUT_S = 30.0


def lease_dir() -> Path:
    """The folder of leases, made if it is missing.

    One fixed place: a session folder such as XDG_RUNTIME_DIR differs between a login, a cron job and a batch job
    of one user, and is removed at logout while runs go on, so two of them would miss each other.

    Raises:
        DeviceError: It belongs to someone else, or others may write there.
    """
    named = os.environ.get(FOLDER)
    folder = Path(named) if named else Path(f"/tmp/pipeline-leases-{os.getuid()}")  # noqa: S108 - checked below
    try:
        folder.mkdir(mode=PRIVATE, parents=bool(named), exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise DeviceError(f"cannot keep leases in {folder}: {error}. Name another folder by {FOLDER}.") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise DeviceError(
            f"{folder} is not a folder of yours that you alone can write to, so leases there mean nothing. "
            f"Remove it, or name another by {FOLDER}."
        )
    return folder


class LockFile:
    """An open file that this process may lock. Neither programs that it starts nor its forks inherit it."""

    def __init__(self, path: Path, make: bool = True) -> None:
        """Open it.

        Args:
            path: The file.
            make: Whether to make it if it is missing.

        Raises:
            FileNotFoundError: It is missing, and is not to be made.
            DeviceError: It cannot be opened.
        """
        self._fd = -1
        try:
            # No link is followed: the folder is in a public place.
            flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | (os.O_CREAT if make else 0)
            self._fd = os.open(path, flags, 0o600)
            if not stat.S_ISREG(os.fstat(self._fd).st_mode):
                raise OSError(errno.EINVAL, "no plain file", os.fspath(path))
        except FileNotFoundError:
            raise
        except OSError as error:
            self._forget()
            raise DeviceError(
                f"cannot open the lease {path}: {error.strerror}. Remove it, or set {FOLDER}."
            ) from error
        _OPEN.add(self)

    def try_lock(self) -> bool:
        """Lock it; False if another opening of it is locked, be it of this process.

        Raises:
            DeviceError: The file system has no locks.
        """
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            raise DeviceError(f"leases need a file system with locks ({error.strerror}): set {FOLDER}") from error
        return True

    def write(self, text: str) -> None:
        """Say something in it, in place: a file renamed over it would be another, whose lock nobody holds."""
        if self._fd >= 0:
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, text.encode(), 0)

    def read(self) -> str:
        """What it says."""
        return os.pread(self._fd, 1 << 16, 0).decode(errors="replace")

    def close(self) -> None:
        """Let it go; a second time does nothing, and neither does it in a fork of its owner."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            # Said aloud rather than by closing alone: a process that another thread forks just now has a copy.
            with suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)

    def _forget(self) -> None:
        # Closes the copy; the lock belongs to the opening, which the owner still has.
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Self:
        """The file."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let it go."""
        self.close()


_OPEN: weakref.WeakSet[LockFile] = weakref.WeakSet()


def _forget_all() -> None:
    for file in list(_OPEN):
        file._forget()


os.register_at_fork(after_in_child=_forget_all)


@contextmanager
def guard(folder: Path) -> Iterator[None]:
    """Be the only process that looks at leases and takes them.

    Raises:
        DeviceError: Another has been at it for very long.
    """
    with LockFile(folder / "guard") as file:
        end = time.monotonic() + _GUARD_TIMEOUT_S
        while not file.try_lock():
            if time.monotonic() > end:
                raise DeviceError(
                    f"{folder / 'guard'} is locked for {_GUARD_TIMEOUT_S:g} s, though that takes an instant: "
                    "`fuser` names the process, which is perhaps stopped."
                )
            time.sleep(0.005)
        yield
