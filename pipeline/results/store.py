"""Finished outputs by key: a folder that is committed by one rename, with a manifest of checksums.

    <root>/ab/abcdef.../manifest.json, files      committed
    <root>/.tmp/<run>/<key>.<attempt>/            being written
    <root>/.aside/<key>.<n>/                      found damaged; kept for a look, never read
    <root>/.checkpoints/<key>/                    what lets an interrupted job go on; removed by its commit
    <root>/.hints/                                what makes later jobs faster, and changes no result

A folder counts only with its manifest, which is written last, and with files of the recorded sizes and
checksums. A name under <root> therefore never shows half a result, however the writer ended.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.errors import StoreError

MANIFEST = "manifest.json"
FORMAT = 1
_CHUNK = 1 << 20


class Store:
    """The content-addressed store under one root. Safe for several processes and several runs at once."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, key: str) -> Path:
        """Where the output of `key` is once it is committed."""
        return self.root / key[:2] / key

    def scratch(self, run: str) -> Path:
        """The folder for unfinished outputs of one run; on the same file system as the store."""
        return self.root / ".tmp" / run

    def checkpoints(self, key: str) -> Path:
        """Where an unfinished job of that key keeps what lets it go on; on the store's file system."""
        return self.root / ".checkpoints" / key

    @property
    def hints(self) -> Path:
        """What makes later jobs faster but changes no result, such as batch sizes that fitted."""
        return self.root / ".hints"

    def problem(self, key: str, *, checksums: bool = True) -> str | None:
        """Say what is wrong with the output of `key`, or None if it can be used.

        Args:
            key: The key.
            checksums: Read every file; otherwise presence and sizes only.
        """
        folder = self.path(key)
        if not folder.is_dir():
            return "not stored"
        try:
            manifest = json.loads((folder / MANIFEST).read_bytes())
            files: dict[str, dict[str, Any]] = manifest["files"]
            if manifest["format"] != FORMAT or manifest["key"] != key:
                return "its manifest is of another key or format"
        except (OSError, ValueError, KeyError, TypeError) as error:
            return f"its manifest cannot be read ({error})"
        present = _files(folder)
        if set(present) != set(files):
            odd = sorted(set(present) ^ set(files))
            return f"its files are not those of the manifest ({', '.join(odd[:3])})"
        for name, expected in files.items():
            path = present[name]
            if path.stat().st_size != expected["size"]:
                return f"{name} has {path.stat().st_size} bytes instead of {expected['size']}"
            if checksums and _sha256(path) != expected["sha256"]:
                return f"{name} does not have its checksum"
        return None

    def has(self, key: str, *, checksums: bool = True) -> bool:
        """Whether the output of `key` is stored whole."""
        return self.problem(key, checksums=checksums) is None

    def manifest(self, key: str) -> dict[str, Any]:
        """The manifest of a stored output."""
        loaded: dict[str, Any] = json.loads((self.path(key) / MANIFEST).read_bytes())
        return loaded

    def begin(self, scratch: Path, key: str, attempt: int) -> Path:
        """Make an empty folder to write the output of `key` to."""
        folder = scratch / f"{key}.{attempt}"
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        return folder

    def commit(self, key: str, folder: Path, about: Mapping[str, Any]) -> Path:
        """Turn a finished folder into the output of `key`.

        The first commit of a key wins: a later one of the same key has the same content and is dropped.

        Args:
            key: The key.
            folder: What `begin` gave, now filled.
            about: Recorded in the manifest (job, versions); no part of the result.

        Raises:
            StoreError: The output could not be written.
        """
        target = self.path(key)
        try:
            files = {}
            for name, path in sorted(_files(folder).items()):
                _fsync(path)
                files[name] = {"size": path.stat().st_size, "sha256": _sha256(path)}
            manifest = {"format": FORMAT, "key": key, "files": files, "about": dict(about)}
            with (folder / MANIFEST).open("w") as out:
                json.dump(manifest, out, indent=1, sort_keys=True)
                out.flush()
                os.fsync(out.fileno())
            target.parent.mkdir(parents=True, exist_ok=True)
            self._rename(key, folder, target)
            _fsync(target.parent)
        except OSError as error:
            raise StoreError(f"could not commit {key[:12]} to {self.root}: {error}") from error
        return target

    def _rename(self, key: str, folder: Path, target: Path) -> None:
        try:
            folder.rename(target)
        except OSError:
            if not target.is_dir():
                raise
            if self.has(key):
                shutil.rmtree(folder)
                return
            self.set_aside(key)
            folder.rename(target)

    def set_aside(self, key: str) -> Path:
        """Move a damaged output out of the way, so that it is made anew but can still be looked at."""
        aside = self.root / ".aside"
        aside.mkdir(parents=True, exist_ok=True)
        number = 0
        while (aside / f"{key}.{number}").exists():
            number += 1
        return self.path(key).rename(aside / f"{key}.{number}")


def _files(folder: Path) -> dict[str, Path]:
    """All files below `folder` but the manifest, by relative name."""
    found = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    found.pop(MANIFEST, None)
    return found


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
