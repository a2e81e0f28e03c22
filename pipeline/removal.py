"""Removes folders, however deep, and however long the paths in them have become.

What is nested is moved up into the folder itself, and emptied there: no recursion, three open descriptors, and
never a path longer than two names. Nothing but the standard library is needed, since the reaper loads this too.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def remove(path: Path) -> OSError | None:
    """Remove a folder with everything in it, or a file; of a link the link alone. Never raises an `OSError`.

    Args:
        path: What may be gone already.

    Returns:
        Why something stays; all else is removed nevertheless. None where nothing stays.
    """
    problems: list[OSError] = []
    try:
        if stat.S_ISDIR(path.lstat().st_mode):
            with _opened(path) as folder:
                _empty(folder, problems)
            path.rmdir()
        else:
            path.unlink()
    except FileNotFoundError:
        return None
    except OSError as error:
        problems.append(error)
    # The first one is the cause: that a folder is not empty follows from it.
    return OSError(problems[0].errno, os.strerror(problems[0].errno or 0), str(path)) if problems else None


def _empty(folder: int, problems: list[OSError]) -> None:
    mark, moved, stays = f".removed-{secrets.token_hex(8)}", 0, set[str]()
    # Folders that are moved up while one round is under way are emptied in the next.
    while names := [name for name in _remove_files(folder, problems) if name not in stays]:
        for name in names:
            try:
                with _opened(name, folder) as inner:
                    for nested in _remove_files(inner, problems):
                        os.rename(nested, f"{mark}-{moved}", src_dir_fd=inner, dst_dir_fd=folder)
                        moved += 1
                os.rmdir(name, dir_fd=folder)
            except FileNotFoundError:
                continue
            except OSError as error:
                problems.append(error)
                stays.add(name)


def _remove_files(folder: int, problems: list[OSError]) -> list[str]:
    """Remove what can be removed at once; the names of the folders that hold something."""
    nested = []
    with os.scandir(folder) as entries:
        found = list(entries)
    for entry in found:
        is_folder = entry.is_dir(follow_symlinks=False)
        try:
            (os.rmdir if is_folder else os.unlink)(entry.name, dir_fd=folder)
        except FileNotFoundError:
            continue
        except OSError as error:
            if is_folder:
                nested.append(entry.name)
            else:
                problems.append(error)
    return nested


@contextmanager
def _opened(path: Path | str, inside: int | None = None) -> Iterator[int]:
    # A link that was put in the place of a folder meanwhile is not followed.
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=inside)
    try:
        yield folder
    finally:
        os.close(folder)
