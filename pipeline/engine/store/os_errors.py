"""Failures of the file system in words: what could not be done, why, and what to do about it."""

from __future__ import annotations

import errno

from pipeline.errors import StoreError

AGAIN = "run the same command again."
"""How all that is said of a disk here ends."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
_IN_THE_WAY = (errno.EEXIST, errno.ENOTDIR, errno.ELOOP)


def explained(what: str, error: OSError) -> StoreError:
    """Word a failure; to be raised from the error itself.

    Args:
        what: What could not be done, with the folder it was about.
        error: Why not.
    """
    reason = error.strerror or str(error)
    return StoreError(f"{what}: {reason}. {_remedy(error.errno)}, then run the same command again.")


def remedy(number: int | None) -> str:
    """What to do about an error of the system (`errno`) that keeps outputs from being written, in a sentence."""
    return f"{_remedy(number)}, then run the same command again."


def _remedy(number: int | None) -> str:
    if number in _FULL:
        return "Free space there (python -m pipeline store gc), or raise the quota"
    if number == errno.EFBIG:
        return "Raise the limit on the size of a file (ulimit -f unlimited), or use a disk that takes larger ones"
    if number in _FORBIDDEN:
        return "Make the folder writable for you, or set execution.store to one that is"
    if number in _IN_THE_WAY:
        return "Move away what is in the place of a folder, or set execution.store to another"
    return "Check the disk"
