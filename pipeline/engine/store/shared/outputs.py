"""Outputs in a shared store: their files first, then the entry that names them, which is made only where none is.

    outputs/<key>.json            the entry: the manifest as it is on disk, and which upload its files are of
    files/<key>/<upload>/<n>      the n-th file of the manifest, in the order of names
    aside/<key>.<n>.json          the entry of an output whose files were not what it says

An output is there with its entry and not before. Of two uploads one makes the entry; the other is removed. What
is read is foreign until it was checked: names and sizes before anything is fetched, and every file by its sum
before it is committed to the local store, as a job's own output is.
"""

from __future__ import annotations

import errno
import json
import secrets
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

from msgspec import Meta

from pipeline.engine.store.os_errors import explained
from pipeline.engine.store.shared.objects import KEY as SETTING
from pipeline.engine.store.shared.objects import Objects, RefusedError, UnreachableError
from pipeline.engine.store.store import KEY, Store
from pipeline.errors import ConfigError, StoreError
from pipeline.files import json_text, remove_tree
from pipeline.foreign import ForeignDataError, read_json
from pipeline.outputs.manifest import MANIFEST, TOMBSTONE, NotAnOutputError, find_problem, read_manifest

_ENTRY_LIMIT = 8 << 20
"""Bytes: some 50,000 files. What JSON holds takes up to twenty times as many, and four are read at once."""
_SPARE_BYTES = 64 << 20
_NO_NAME = (errno.ENAMETOOLONG, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.EINVAL, errno.EILSEQ)
_T = TypeVar("_T")


class BadOutputError(Exception):
    """What is stored there cannot be used; the text says why.

    Attributes:
        upload: Of which upload its entry is; "" where that cannot be read.
    """

    upload = ""


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
    cost: dict[str, Annotated[float, Meta(ge=0, le=1e30)]] = field(default_factory=dict)


class Uploaded(NamedTuple):
    """What came of an upload.

    Attributes:
        size: Bytes that were sent and count; 0 where another machine had stored the output first.
        is_first: Whether none had.
        differs: Whether that one has other bytes.
    """

    size: int
    is_first: bool
    differs: bool


def connect(url: str) -> tuple[Objects, set[str], str]:
    """Begin to use a store: its objects, the keys of what is there, and why it cannot be reached now, or "".

    Raises:
        ConfigError: It may not be written, or there is no such place.
    """
    objects = Objects(url)
    return objects, *_listed(url, objects, lambda: objects.create("used", b""))


def look(url: str) -> tuple[set[str], str]:
    """The keys of what is there, and why that cannot be told, or ""; nothing is written.

    Raises:
        ConfigError: It may not be read, or there is no such place.
    """
    return _listed(url, Objects(url), lambda: None)


def _listed(url: str, objects: Objects, before: Callable[[], object]) -> tuple[set[str], str]:
    try:
        before()
        return SharedOutputs(objects).keys(), ""
    except RefusedError as error:
        raise ConfigError(
            f"{SETTING}={url} cannot be used: {str(error).rstrip('.')}. See that the place exists, that you may "
            "write there, and that credentials are where the library looks for them, as AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY in the environment (AWS_ENDPOINT_URL for another server than Amazon's)"
        ) from error
    except UnreachableError as error:
        return set(), str(error)


class SharedOutputs:
    """The outputs of one shared store."""

    def __init__(self, objects: Objects) -> None:
        self.objects = objects

    def keys(self) -> set[str]:
        """The keys of all outputs, by one listing."""
        names = (name.removesuffix(".json") for name in self.objects.sizes("outputs"))
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

    def set_aside(self, key: str, upload: str) -> None:
        """Take the entry away of an output that was found bad, so that it is made anew.

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
            self.objects.move(_entry(key), f"aside/{key}.{secrets.token_hex(16)}.json")

    def fetch(self, key: str, store: Store, scratch: Path) -> int | None:
        """Bring an output into the local store.

        Args:
            key: Its key.
            store: The local store.
            scratch: A folder on its file system.

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
            about, size = self._bring(key, entry, folder)
            store.commit(key, folder, about, 0.0)  # what is lost with the power is fetched again
        except BadOutputError as error:
            error.upload = entry.upload
            raise
        except OSError as error:
            raise explained(f"could not fetch {key[:12]} into {store.root}", error) from error
        finally:
            remove_tree(folder)
        if entry.cost:
            store.costs.note(key, entry.cost)
        return size

    def _bring(self, key: str, entry: Entry, folder: Path) -> tuple[dict[str, Any], int]:
        """Fetch all files of an output into a folder and compare them; gives what made it, and bytes."""
        try:
            (folder / MANIFEST).write_text(entry.manifest)
            manifest = read_manifest(key, folder)
            about, files = manifest.get("about"), manifest["files"]
            if not isinstance(about, dict) or TOMBSTONE in files:
                raise BadOutputError("its manifest says what no output can have")
            for name in files:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).open("xb").close()
        except (NotAnOutputError, ValueError) as error:
            raise BadOutputError(str(error)) from error
        except OSError as error:
            if error.errno in _NO_NAME:
                raise BadOutputError(
                    f"its manifest names what no file can be called ({error.strerror})"
                ) from error
            raise
        place, objects = _files(key, entry.upload), _numbered(files)
        there = self.objects.sizes(place)
        if wrong := [name for number, name in objects.items() if there.get(number) != files[name]["size"]]:
            raise BadOutputError(f"{wrong[0]!r} is missing or cut off there")
        size = sum(file["size"] for file in files.values())
        if size > (free := shutil.disk_usage(folder).free) - _SPARE_BYTES:
            raise StoreError(
                f"could not fetch {key[:12]}: it takes {size:,} bytes, and {free:,} are free in {folder.parent}. "
                "Free space there (python -m pipeline store gc), then run the same command again."
            )
        for number, name in objects.items():
            self.objects.bring(f"{place}/{number}", folder / name, files[name]["size"])
        if problem := find_problem(key, folder, checksums=True):
            raise BadOutputError(problem)
        (folder / MANIFEST).unlink()
        return about, size

    def upload(self, key: str, store: Store, ask: Callable[[Callable[[], _T]], _T]) -> Uploaded:
        """Send an output that is whole, then make its entry, unless there is one.

        Args:
            key: Its key.
            store: The local store.
            ask: Carries out a request, again for as long as is worth it.

        Raises:
            StoreError: The output cannot be read here, or has too many files.
            UnreachableError: Something could not be sent.
        """
        asked: Callable[[Callable[[], Any]], Any] = ask
        folder, files = store.path(key), store.manifest(key)["files"]
        entry: Entry | None = asked(partial(self._sound_entry, key))
        own = Entry(
            upload=secrets.token_hex(16), manifest=(folder / MANIFEST).read_text(), cost=dict(store.costs.of(key))
        )
        if entry is None:
            if len(data := json_text(asdict(own), sort_keys=True).encode()) > _ENTRY_LIMIT:
                raise StoreError("it has too many files for a shared store")
            place = _files(key, own.upload)
            for number, name in _numbered(files).items():
                asked(partial(self.objects.send, folder / name, f"{place}/{number}"))
            # A request that was carried out, and whose answer was lost, looks like a second one: so it is read.
            entry = (
                own
                if asked(partial(self.objects.create, _entry(key), data))
                else asked(partial(self._sound_entry, key))
            )
            if entry is None:
                raise UnreachableError("its entry was there, and could not be used")
            if entry.upload == own.upload:
                return Uploaded(sum(file["size"] for file in files.values()), is_first=True, differs=False)
            asked(partial(self.objects.remove, place))
        return Uploaded(0, is_first=False, differs=_sums(entry.manifest) != files)

    def _sound_entry(self, key: str) -> Entry | None:
        try:
            return self.entry(key)
        except BadOutputError:
            self.set_aside(key, "")
            return None


def _entry(key: str) -> str:
    assert KEY.fullmatch(key)
    return f"outputs/{key}.json"


def _files(key: str, upload: str) -> str:
    assert KEY.fullmatch(key)
    return f"files/{key}/{upload}"


def _numbered(files: Mapping[str, Any]) -> dict[str, str]:
    """Names of objects, and of the files that they are."""
    return {f"{number:07d}": name for number, name in enumerate(sorted(files))}


def _sums(manifest: str) -> object:
    try:
        return json.loads(manifest)["files"]
    except (ValueError, KeyError, TypeError):
        return None
