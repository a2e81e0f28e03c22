"""The manifest of an output: its files with sizes and SHA-256 sums, and a sum over the manifest itself.

It is written in one canonical form, so that every changed byte of it shows. An output holds plain files and
folders only; a link or a special file is neither followed nor read.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from pipeline.files import file_sha256, walk
from pipeline.foreign import parse_json, read_plain

MANIFEST = "manifest.json"
FORMAT = 2
UNKNOWN = "(unknown job)"
_LIMIT = 1 << 30
_SUM = re.compile(r"[0-9a-f]{64}")


class NotAnOutputError(Exception):
    """What is there is no output, or is one no longer; the text says why."""


def plain_files(folder: Path) -> dict[str, os.stat_result]:
    """The files of an output by relative name, without its manifest.

    Raises:
        NotAnOutputError: It holds something that is neither a file nor a folder.
        OSError: It cannot be read.
    """
    files = {}
    for name, status in walk(folder):
        if stat.S_ISREG(status.st_mode):
            files[name] = status
        elif not stat.S_ISDIR(status.st_mode):
            raise NotAnOutputError(f"{'it' if name == '.' else shown(name)} is {_kind(status)}")
        elif name == MANIFEST:
            raise NotAnOutputError(f"{MANIFEST} is a folder")
    files.pop(MANIFEST, None)
    return files


def describe(key: str, folder: Path, about: Mapping[str, Any]) -> bytes:
    """The manifest of a finished folder; every file is read.

    Raises:
        NotAnOutputError: It holds something that is neither a file nor a folder.
        OSError: It cannot be read.
    """
    files = {
        name: {"size": status.st_size, "sha256": file_sha256(folder / name)}
        for name, status in sorted(plain_files(folder).items())
    }
    return _canonical({"format": FORMAT, "key": key, "files": files, "about": dict(about)})


def find_problem(key: str, folder: Path, *, checksums: bool) -> str | None:
    """Say how a folder differs from the output of `key`, or None; nothing is raised."""
    try:
        _compare(folder, read_manifest(key, folder), checksums)
    except NotAnOutputError as problem:
        return str(problem)
    except OSError as error:
        return f"it cannot be read ({_reason(error, folder)})"
    return None


def read_manifest(key: str, folder: Path) -> dict[str, Any]:
    """Read the manifest of an output and check it in itself.

    Raises:
        NotAnOutputError: It is missing, altered, or of something else.
    """
    try:
        status = (folder / MANIFEST).lstat()
        if not stat.S_ISREG(status.st_mode):
            raise NotAnOutputError(f"{MANIFEST} is {_kind(status)}")
        text = read_plain(folder / MANIFEST, _LIMIT)
        manifest = parse_json(text)
        of = manifest["format"], manifest["key"]
        genuine = text == _canonical({name: part for name, part in manifest.items() if name != "sha256"})
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = _reason(error, folder) if isinstance(error, OSError) else error
        raise NotAnOutputError(f"its manifest cannot be read ({reason})") from error
    if of != (FORMAT, key):
        raise NotAnOutputError("its manifest is of another key or format")
    if not genuine:
        raise NotAnOutputError("its manifest was altered")
    _check_entries(manifest.get("files"))
    loaded: dict[str, Any] = manifest
    return loaded


def job_of(folder: Path) -> str:
    """Id of the job that made an output, even if its manifest is not what it was."""
    try:
        job = parse_json(read_plain(folder / MANIFEST, _LIMIT))["about"]["job"]
    except (OSError, ValueError, KeyError, TypeError):
        return UNKNOWN
    return job if isinstance(job, str) and job.isprintable() else UNKNOWN


def shown(name: str) -> str:
    """A file's name so that it can be printed, whatever bytes it is made of."""
    readable = name.encode("utf-8", "backslashreplace").decode()
    return readable if readable.isprintable() else repr(readable)


def _compare(folder: Path, manifest: Mapping[str, Any], checksums: bool) -> None:
    expected, present = manifest["files"], plain_files(folder)
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
    digest = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    return json.dumps({**manifest, "sha256": digest}, indent=1, sort_keys=True).encode() + b"\n"


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
