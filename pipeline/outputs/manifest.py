"""The manifest of an output: its files with sizes and SHA-256 sums, and a sum over the manifest itself.

It is written in one canonical form, so that every changed byte of it shows. An output holds plain files and
folders only; a link or a special file is neither followed nor read.

An output whose weights were removed has a second such file, its tombstone: which of the files of the manifest are
gone on purpose. It is on disk before the first of them goes, so until the last has gone some may be there.
"""

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from msgspec.json import format as laid_out

from pipeline.files import file_sha256, walk
from pipeline.foreign import parse_json, read_plain

MANIFEST, TOMBSTONE = "manifest.json", "removed.json"
FORMAT, TOMBSTONE_FORMAT = 2, 1
REMOVED = "its weights were removed"
"""Problem that `find_problem` reports if an output lacks only the files that its tombstone names."""
UNKNOWN = "(unknown job)"
_LIMIT = 1 << 30
_SUM = re.compile(r"[0-9a-f]{64}")

# `json.dumps` would make one for every call.
_SORTED = json.JSONEncoder(sort_keys=True)


class NotAnOutputError(Exception):
    """A folder is no output, or no longer one; the text says why."""


class StillChangingError(Exception):
    """An output was written to while it was read; the text names the files."""


def plain_files(folder: Path, entries: Mapping[str, os.stat_result] | None = None) -> dict[str, os.stat_result]:
    """Return the files of an output by relative name, without its manifest.

    Args:
        folder: The output.
        entries: Entries that `walk` has just found; looked up if None.

    Raises:
        NotAnOutputError: It holds something that is neither a file nor a folder.
        OSError: It cannot be read.
    """
    files = {}
    for name, status in walk(folder) if entries is None else entries.items():
        if stat.S_ISREG(status.st_mode):
            files[name] = status
        elif not stat.S_ISDIR(status.st_mode):
            raise NotAnOutputError(f"{'it' if name == '.' else shown(name)} is {_kind(status)}")
        elif name == MANIFEST:
            raise NotAnOutputError(f"{MANIFEST} is a folder")
    files.pop(MANIFEST, None)
    return files


def describe(
    key: str, folder: Path, about: Mapping[str, Any], entries: Mapping[str, os.stat_result] | None = None
) -> bytes:
    """Return the manifest of a finished folder; reads every file.

    Args:
        key: Key of the output.
        folder: The folder.
        about: Further data to record.
        entries: As for `plain_files`.

    Raises:
        NotAnOutputError: It holds something that is neither a file nor a folder.
        StillChangingError: Something writes there.
        OSError: It cannot be read.
    """
    seen = plain_files(folder, entries)
    try:
        files = {
            name: {"size": status.st_size, "sha256": file_sha256(folder / name)}
            for name, status in sorted(seen.items())
        }
        changed = {name for name, _ in _marks(seen) ^ _marks(plain_files(folder))}
    except FileNotFoundError as error:
        changed = {os.path.relpath(os.fsdecode(error.filename), folder)}
    if changed:
        # Else sizes would be those of one moment, sums those of another, and what has come since in no list.
        raise StillChangingError(
            f"{_listed(sorted(changed))} changed meanwhile. Something that the job has started still writes to "
            "its output after the job's own code has returned: let that end before"
        )
    return _canonical({"format": FORMAT, "key": key, "files": files, "about": dict(about)})


def _marks(files: Mapping[str, os.stat_result]) -> set[tuple[str, tuple[int, ...]]]:
    """Return a fingerprint of each file that changes when the file does."""
    return {(name, (status.st_ino, status.st_size, status.st_mtime_ns)) for name, status in files.items()}


def entomb(key: str, folder: Path, names: Iterable[str], why: str) -> bytes:
    """Return the tombstone of an output: its removed files, with their entries in the manifest.

    Args:
        key: Key of the output.
        folder: Folder of the output.
        names: The files, all of them in the manifest.
        why: Reason for the removal.

    Raises:
        NotAnOutputError: It has no manifest that can be read.
    """
    files = read_manifest(key, folder)["files"]
    removed = {name: files[name] for name in names}
    return _canonical({"format": TOMBSTONE_FORMAT, "key": key, "files": removed, "why": why})


def find_problem(key: str, folder: Path, *, checksums: bool) -> str | None:
    """Say how a folder differs from the output of `key`, or None; nothing is raised.

    `REMOVED` where it differs by what its tombstone names, and by nothing else.
    """
    try:
        manifest = read_manifest(key, folder)
        removed = read_tombstone(key, folder, manifest)
        _compare(folder, manifest, removed, checksums)
    except NotAnOutputError as problem:
        return str(problem)
    except OSError as error:
        return f"it cannot be read ({_reason(error, folder)})"
    return REMOVED if removed else None


def read_manifest(key: str, folder: Path) -> dict[str, Any]:
    """Read the manifest of an output and check it in itself.

    Raises:
        NotAnOutputError: It is missing, altered, or of something else.
    """
    manifest = _read_sealed(folder, MANIFEST, "its manifest", (FORMAT, key))
    _check_entries(manifest.get("files"))
    return manifest


def read_tombstone(key: str, folder: Path, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return which files of an output were removed, with their entries in the manifest; empty without a tombstone.

    Raises:
        NotAnOutputError: The tombstone is altered, or does not go with the manifest.
    """
    if TOMBSTONE in manifest["files"] or not os.path.lexists(folder / TOMBSTONE):
        return {}  # an output of an earlier version may have a file of that name
    removed = _read_sealed(folder, TOMBSTONE, "its tombstone", (TOMBSTONE_FORMAT, key)).get("files")
    if not isinstance(removed, dict) or not removed or not removed.items() <= manifest["files"].items():
        raise NotAnOutputError("its tombstone names other files than its manifest")
    return removed


def why_removed(key: str, folder: Path) -> str:
    """Return why the weights of an output were removed, from its tombstone; "" without a readable one."""
    try:
        why = _read_sealed(folder, TOMBSTONE, "its tombstone", (TOMBSTONE_FORMAT, key)).get("why")
    except NotAnOutputError:
        return ""
    return why if isinstance(why, str) else ""


def _read_sealed(folder: Path, name: str, what: str, expected: tuple[int, str]) -> dict[str, Any]:
    """Read a file in canonical form, of a given format and key."""
    try:
        status = (folder / name).lstat()
        if not stat.S_ISREG(status.st_mode):
            raise NotAnOutputError(f"{name} is {_kind(status)}")
        text = read_plain(folder / name, _LIMIT)
        sealed = parse_json(text)
        of = sealed["format"], sealed["key"]
        genuine = text == _canonical({part: value for part, value in sealed.items() if part != "sha256"})
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = _reason(error, folder) if isinstance(error, OSError) else error
        raise NotAnOutputError(f"{what} cannot be read ({reason})") from error
    if of != expected:
        raise NotAnOutputError(f"{what} is of another key or format")
    if not genuine:
        raise NotAnOutputError(f"{what} was altered")
    loaded: dict[str, Any] = sealed
    return loaded


def job_of(folder: Path) -> str:
    """Return the id of the job that made an output, even if its manifest is damaged."""
    try:
        job = parse_json(read_plain(folder / MANIFEST, _LIMIT))["about"]["job"]
    except (OSError, ValueError, KeyError, TypeError):
        return UNKNOWN
    return job if isinstance(job, str) and job.isprintable() else UNKNOWN


def shown(name: str) -> str:
    """Return a file's name in printable form, whatever bytes it has."""
    readable = name.encode("utf-8", "backslashreplace").decode()
    return readable if readable.isprintable() else repr(readable)


def _compare(folder: Path, manifest: Mapping[str, Any], removed: Mapping[str, Any], checksums: bool) -> None:
    expected = {name: entry for name, entry in manifest["files"].items() if name not in removed}
    present = {name: status for name, status in plain_files(folder).items() if name not in removed}
    if removed:
        del present[TOMBSTONE]
    if missing := sorted(expected.keys() - present.keys()):
        raise NotAnOutputError(f"missing: {_listed(missing)}")
    if extra := sorted(present.keys() - expected.keys()):
        raise NotAnOutputError(f"not in its manifest: {_listed(extra)}")
    for name, status in present.items():
        if status.st_size != expected[name]["size"]:
            raise NotAnOutputError(f"{shown(name)} has {status.st_size} bytes instead of {expected[name]['size']}")
    for name in expected if checksums else ():
        if file_sha256(folder / name) != expected[name]["sha256"]:
            raise NotAnOutputError(f"{shown(name)} does not have its checksum")


def _check_entries(files: object) -> None:
    if not isinstance(files, dict):
        raise NotAnOutputError("its manifest lists no files")
    for name, entry in files.items():
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or str(path) != name or name in (".", MANIFEST):
            raise NotAnOutputError(f"its manifest names {shown(name)!r}, which is no file of an output")
        match entry:
            case {"size": int(), "sha256": str(digest)} if _SUM.fullmatch(digest):
                continue
        raise NotAnOutputError(f"its manifest does not say what {shown(name)} should be")


def _canonical(manifest: Mapping[str, Any]) -> bytes:
    digest = hashlib.sha256(_SORTED.encode(manifest).encode()).hexdigest()
    sealed = {**manifest, "sha256": digest}
    try:
        return laid_out(_SORTED.encode(sealed).encode(), indent=1) + b"\n"
    except (ValueError, RecursionError):  # half of a surrogate pair, as names of files have that are no text
        return json.dumps(sealed, indent=1, sort_keys=True).encode() + b"\n"


def _kind(status: os.stat_result) -> str:
    if stat.S_ISLNK(status.st_mode):
        return "a link"
    return "a file, not a folder" if stat.S_ISREG(status.st_mode) else "a special file"


def _listed(names: list[str]) -> str:
    rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(map(shown, names[:3])) + rest


def _reason(error: OSError, folder: Path) -> str:
    where = os.path.relpath(os.fsdecode(error.filename), folder) if error.filename else "."
    return f"{error.strerror or error}" + (f": {shown(where)}" if where != "." else "")
