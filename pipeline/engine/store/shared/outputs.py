"""Outputs in a shared store: their files first, then the entry that names them, which is made only where none is.

    outputs/<key>.json            the entry: the manifest as it is on disk, and which upload its files are of
    files/<key>/<upload>/<n>      the n-th file of the manifest, in the order of names
    claims/<key>/<number>         who computes the key now (`claims.py`)
    aside/<key>.<n>.json          the entry of an output whose files were not what it says

An output is there with its entry and not before. Of two uploads one makes the entry; the other is removed. What
is read is foreign until it was checked: sizes before anything is read, names before anything is written, and every
file by its sum before it is committed to the local store, as a job's own output is.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from msgspec import Meta

from pipeline.engine.store.shared.objects import CHUNK, Objects, UnreachableError
from pipeline.engine.store.store import KEY, Store
from pipeline.errors import StoreError
from pipeline.files import in_folder, json_text, open_plain, remove_tree
from pipeline.foreign import ForeignDataError, read_json, read_plain
from pipeline.outputs.check import MAX_FILES, MAX_LEVELS
from pipeline.outputs.manifest import MANIFEST, TOMBSTONE, NotAnOutputError, read_manifest

_ENTRY_LIMIT = 8 << 20
"""Bytes: some 50,000 files. What JSON holds takes up to twenty times as many, and four are read at once."""
_LONGEST_NAME, _LONGEST_PATH = 255, 3000
_LARGEST = 1 << 50
_SPARE_BYTES = 64 << 20
_NUMBER = Annotated[float, Meta(ge=0, le=1e30)]


class BadOutputError(Exception):
    """What is stored there cannot be used; the text says why.

    Attributes:
        upload: Of which upload its entry is; "" where that cannot be read.
    """

    upload = ""


class NotWholeError(Exception):
    """A local output cannot be uploaded; the text says why."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What says that an output is there.

    Attributes:
        upload: Under which name its files are.
        manifest: The text of its manifest.
        cost: What it took to make, as far as that is known.
    """

    upload: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
    manifest: str
    cost: dict[str, _NUMBER] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class _Size:
    size: Annotated[int, Meta(ge=0, le=_LARGEST)]


@dataclass(frozen=True, kw_only=True)
class _Sizes:
    """Of a manifest, what is told before it is fetched."""

    files: dict[str, _Size]


class SharedOutputs:
    """The outputs of one shared store."""

    def __init__(self, objects: Objects) -> None:
        self.objects = objects

    def keys(self) -> set[str]:
        """The keys of all outputs, by one listing."""
        names = (name.removeprefix("outputs/").removesuffix(".json") for name in self.objects.names("outputs/"))
        return {name for name in names if KEY.fullmatch(name)}

    def entry(self, key: str) -> Entry | None:
        """What says that an output is there, or None.

        Raises:
            BadOutputError: It cannot be read as such.
        """
        data = self.objects.read(_entry(key), _ENTRY_LIMIT)
        if data is None:
            return None
        if len(data) > _ENTRY_LIMIT:
            raise BadOutputError(f"its entry is larger than {_ENTRY_LIMIT:,} bytes")
        try:
            return read_json(data, Entry)
        except ForeignDataError as error:
            raise BadOutputError(f"its entry cannot be read ({error})") from error

    def size(self, key: str) -> int:
        """Bytes of an output, as its manifest says; 0 where it is not there, or nothing that can be read.

        Raises:
            UnreachableError: It could not be asked.
        """
        try:
            entry = self.entry(key)
            return sum(file.size for file in read_json(entry.manifest, _Sizes).files.values()) if entry else 0
        except (BadOutputError, ForeignDataError):
            return 0

    def set_aside(self, key: str, upload: str) -> None:
        """Take the entry of an output away that was found bad, so that it is made anew; a copy of it is kept.

        Args:
            key: Its key.
            upload: Of which upload the entry was. One that has taken its place meanwhile stays.
        """
        try:
            entry = self.entry(key)
            now = entry.upload if entry else None
        except BadOutputError:
            now = ""
        if now == upload:
            data = self.objects.read(_entry(key), _ENTRY_LIMIT)
            self.objects.write(f"aside/{key}.{secrets.token_hex(16)}.json", data or b"")
            self.objects.delete(_entry(key))

    # -- from there --------------------------------------------------------------------------------------------

    def fetch(
        self, key: str, store: Store, scratch: Path, on_bytes: Callable[[], None] = lambda: None
    ) -> int | None:
        """Bring an output into the local store.

        Args:
            key: Its key.
            store: The local store.
            scratch: A folder on its file system.
            on_bytes: Called whenever something has come.

        Returns:
            Bytes of its files; None where it is not there.

        Raises:
            BadOutputError: It is not what its entry says, or that says what no output may be.
            StoreError: It cannot be written here.
            UnreachableError: It could not be asked.
        """
        entry = self.entry(key)
        if entry is None:
            return None
        folder = store.begin(scratch, f"{key}.{secrets.token_hex(4)}", 0)
        try:
            manifest = _checked_manifest(key, entry, folder)
            files: Mapping[str, Any] = manifest["files"]
            _check_room(key, files, folder)
            for number, name in enumerate(sorted(files)):
                source = _File(_file(key, entry.upload, number), name, files[name]["size"], files[name]["sha256"])
                self._bring(source, folder, on_bytes)
            store.commit(key, folder, manifest["about"], 0.0)  # what is lost with the power is fetched again
        except BadOutputError as error:
            error.upload = entry.upload
            raise
        except OSError as error:
            raise StoreError(f"could not fetch {key[:12]} into {store.root}: {error.strerror or error}") from error
        finally:
            remove_tree(folder)
        if entry.cost:
            store.costs.note(key, entry.cost)
        return sum(int(file["size"]) for file in files.values())

    def _bring(self, source: _File, folder: Path, on_bytes: Callable[[], None]) -> None:
        digest, path = hashlib.sha256(), folder / source.name
        with in_folder(path.parent, lambda: path.open("xb")) as file:
            for start in range(0, source.size, CHUNK):
                end = min(source.size, start + CHUNK)
                data = self.objects.part(source.object, start, end)
                if data is None or len(data) != end - start:
                    raise BadOutputError(f"{source.name!r} is {'missing' if data is None else 'cut off'} there")
                digest.update(data)
                file.write(data)
                on_bytes()
        if digest.hexdigest() != source.sha256:
            raise BadOutputError(f"{source.name!r} does not have its checksum there")


@dataclass(frozen=True)
class _File:
    object: str
    name: str
    size: int
    sha256: str


class Upload:
    """The way of one output into a shared store; `go` may be called until it returns.

    Attributes:
        key: Which.
        size: Bytes of its files, once they were sent.
        is_first: Whether nobody else had stored it first; else what was sent is gone again.
        lost_to: How the output differs that another machine had stored first under the key; "" where it does not.
    """

    def __init__(self, outputs: SharedOutputs, store: Store, key: str) -> None:
        self.key = key
        self.size = 0
        self.is_first = True
        self.lost_to = ""
        self._objects, self._outputs, self._store = outputs.objects, outputs, store
        self._name = secrets.token_hex(16)
        self._sent = 0

    def go(self, on_bytes: Callable[[], None] = lambda: None) -> None:
        """Send what is not sent yet, then make the entry.

        Raises:
            NotWholeError: The output is not here any more, or not whole.
            UnreachableError: Something could not be sent; it can be called again.
        """
        folder = self._store.path(self.key)
        try:
            if self._store.is_removed(self.key):
                raise NotWholeError("its weights were removed")
            text = read_plain(folder / MANIFEST, _ENTRY_LIMIT).decode()  # more is refused before anything is sent
            files: Mapping[str, Any] = read_manifest(self.key, folder)["files"]
            names, self.size = sorted(files), sum(entry["size"] for entry in files.values())
            while self._sent < len(names):
                self._send(folder / names[self._sent], files[names[self._sent]], on_bytes)
                self._sent += 1
        except (OSError, NotAnOutputError, ForeignDataError, UnicodeDecodeError) as error:
            raise NotWholeError(str(error)) from error
        cost = self._store.costs.of(self.key)
        told = {"upload": self._name, "manifest": text, "cost": cost}
        # A request that was carried out, and whose answer was lost, looks like a second one: so the entry is read.
        entry = json_text(told, sort_keys=True).encode()
        if len(entry) > _ENTRY_LIMIT:
            self.withdraw()
            raise NotWholeError(f"it names too many files: an entry has {_ENTRY_LIMIT:,} bytes at most")
        if not self._objects.create(_entry(self.key), entry):
            self._compare(text)

    def _compare(self, text: str) -> None:
        try:
            entry = self._outputs.entry(self.key)
        except BadOutputError:
            self._outputs.set_aside(self.key, "")
            entry = None
        if entry is None:
            raise UnreachableError("its entry was there, and could not be used")
        if entry.upload != self._name:
            self.withdraw()
            self.is_first = False
            self.lost_to = "" if _sums(entry.manifest) == _sums(text) else "other bytes"

    def withdraw(self) -> None:
        """Remove what was sent; the entry names something else."""
        for number in range(self._sent):
            self._objects.delete(_file(self.key, self._name, number))

    def _send(self, path: Path, expected: Mapping[str, Any], on_bytes: Callable[[], None]) -> None:
        digest = hashlib.sha256()
        with open_plain(path) as file:
            size = os.fstat(file.fileno()).st_size
            name = _file(self.key, self._name, self._sent)
            self._objects.upload(name, _chunks(file, digest.update, on_bytes, size), size)
        if size != expected["size"] or digest.hexdigest() != expected["sha256"]:
            raise NotWholeError(f"{path.name!r} does not have its checksum")


def _chunks(
    file: BufferedReader, take: Callable[[bytes], object], on_bytes: Callable[[], None], size: int
) -> Iterator[bytes]:
    while chunk := file.read(CHUNK):
        take(chunk)
        yield chunk
        if size > CHUNK:  # only then is one sent before the next is asked for
            on_bytes()


def _entry(key: str) -> str:
    assert KEY.fullmatch(key)
    return f"outputs/{key}.json"


def _file(key: str, upload: str, number: int) -> str:
    assert KEY.fullmatch(key)
    return f"files/{key}/{upload}/{number:07d}"


def _checked_manifest(key: str, entry: Entry, folder: Path) -> dict[str, Any]:
    try:
        (folder / MANIFEST).write_text(entry.manifest)
        manifest = read_manifest(key, folder)
        (folder / MANIFEST).unlink()
    except (NotAnOutputError, UnicodeEncodeError) as error:
        raise BadOutputError(str(error)) from error
    if not isinstance(manifest.get("about"), dict):
        raise BadOutputError("its manifest does not say what made it")
    if problem := _problem_of_names(manifest["files"]):
        raise BadOutputError(f"its manifest {problem}")
    return manifest


def _problem_of_names(files: Mapping[str, Mapping[str, Any]]) -> str:
    """What no folder could hold; that no name leads out of it was seen when the manifest was read."""
    if len(files) > MAX_FILES:
        return f"names more than {MAX_FILES:,} files"
    for name, entry in files.items():
        try:
            parts = [os.fsencode(part) for part in PurePosixPath(name).parts]
        except UnicodeEncodeError:
            return f"names {name!r}, which is no name of a file"
        if "\0" in name or len(parts) > MAX_LEVELS or any(len(part) > _LONGEST_NAME for part in parts):
            return f"names {name[:60]!r}, which is no name of a file"
        if name == TOMBSTONE or any(str(above) in files for above in PurePosixPath(name).parents):
            return f"names {name[:60]!r}, which no output can have"
        if sum(len(part) + 1 for part in parts) > _LONGEST_PATH:
            return f"names {name[:60]!r}..., which is longer than a path may be"
        if not 0 <= entry["size"] <= _LARGEST:
            return f"gives {name[:60]!r} a size that no file has"
    return ""


def _check_room(key: str, files: Mapping[str, Mapping[str, Any]], folder: Path) -> None:
    size = sum(entry["size"] for entry in files.values())
    if size > (free := shutil.disk_usage(folder).free) - _SPARE_BYTES:
        raise StoreError(
            f"could not fetch {key[:12]}: it takes {size:,} bytes, and {free:,} are free in {folder.parent}. Free "
            "space there (python -m pipeline store gc), then run the same command again."
        )


def _sums(manifest: str) -> object:
    try:
        return json.loads(manifest)["files"]
    except (ValueError, KeyError, TypeError):
        return None
