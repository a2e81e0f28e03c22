"""Share a store between machines: S3, GCS or a folder, by fsspec; fetch before a run, upload beside it.

    fetch_all(keys)   before jobs begin: what is there and not here comes into the local store, which jobs read
    finished(key)     uploaded in threads, tried again for as long as it takes
    conclude()        waits for uploads

If the shared store cannot be reached, the run goes on with the local outputs; new outputs are uploaded when it can
be reached again, or by the next run with the same jobs.
"""

import errno
import json
import logging
import math
import os
import re
import secrets
import shlex
import shutil
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Condition, Event, Thread
from typing import Annotated, Any, TypeVar

from msgspec import Meta

from pipeline.engine.store.store import KEY as STORE_KEY
from pipeline.engine.store.store import REMEDY, Verified
from pipeline.errors import ConfigError, StoreError, explaining, has_package, install_command
from pipeline.files import json_text, remove_tree
from pipeline.foreign import ForeignDataError, read_json
from pipeline.outputs.manifest import MANIFEST, TOMBSTONE, NotAnOutputError, find_problem, read_manifest

log = logging.getLogger("pipeline")

# -- objects -----------------------------------------------------------------------------------------------------
# Objects by name in a shared store: S3, GCS or a folder, by fsspec.


KEY = "execution.shared_store"
_ALLOWED = "s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, file:///FOLDER or the whole path of a folder"
_LIBRARIES = {"s3": ("s3fs", "s3"), "gs": ("gcsfs", "gcs"), "file": ("fsspec", "")}
_CONNECT_S, _READ_S = 5, 15
_SENT_S, _SLOWEST = 15.0, 100_000
"""Timeout in seconds of a request, and bytes per second: a transfer slower than this counts as unreachable."""
_LAYOUT = "v1"
"""Folder of all objects. Another layout would get another name."""
# The caller retries (`SharedStore`), and decides when to give up; that takes effect only once an attempt has
# ended.
_RETRIES = {"total_max_attempts": 1, "mode": "standard"}
_WAITS = {"connect_timeout": _CONNECT_S, "read_timeout": _READ_S, "retries": _RETRIES}
_OPTIONS: dict[str, dict[str, Any]] = {
    "s3": {"config_kwargs": _WAITS},
    "gs": {"timeout": _READ_S},
    "file": {"auto_mkdir": True},
}


class UnreachableError(Exception):
    """Raised when the shared store failed in a way that a retry may cure; the text says why."""


class RefusedError(UnreachableError):
    """Raised when the shared store answers, but does not let this user do the operation."""


def check_address(url: str) -> tuple[str, str]:
    """Split an address into kind and place, without any access.

    Raises:
        ConfigError: The address is invalid, or holds what may be a secret, which the message does not repeat.
    """
    kind, is_url, path = url.partition("://")
    if not is_url:
        kind, path = "file", url
    if "@" in path.partition("/")[0] or "?" in path or "#" in path:
        raise ConfigError(
            f"{KEY}: a user, a password, a token or parameters are refused in it, as settings are written down. "
            "Give the address alone, and credentials where the library looks for them, as AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY in the environment"
        )
    has_path = path.startswith("/") if kind == "file" else path.partition("/")[0]
    if kind not in _LIBRARIES or not has_path or not url.isprintable() or ".." in path.split("/"):
        raise ConfigError(f"{KEY}={url}: this is no place for a shared store. Use {_ALLOWED}")
    if kind == "file" and not Path(path).is_dir():
        raise ConfigError(
            f"{KEY}={url}: there is no folder {path}. Mount it, see that it is spelt right, or make it by "
            f"mkdir -p {shlex.quote(path)}"
        )
    module, extra = _LIBRARIES[kind]
    if not has_package(module):
        raise ConfigError(f"{KEY}={url} needs {module}, which is not installed: {install_command(extra)}")
    return kind, path


class Objects:
    """Objects below one address. Thread-safe; every method may raise `UnreachableError`."""

    def __init__(self, url: str) -> None:
        """Use an address, without any access yet.

        Raises:
            ConfigError: As for `check_address`, or the library is broken.
        """
        kind, path = check_address(url)
        self._root, self._is_folder, self._was_there = f"{path.rstrip('/')}/{_LAYOUT}", kind == "file", False
        try:
            import fsspec  # type: ignore[import-untyped]  # most runs have no use for it

            options = {"use_listings_cache": False, "skip_instance_cache": True, **_OPTIONS[kind]}
            self._system = fsspec.filesystem(kind, **options)
        except Exception as error:  # a library may raise anything if a part of it is missing or too old
            raise ConfigError(f"{KEY}={url} cannot be used: {said_of(error)}") from error
        if kind == "s3":
            self._system.retries = 1

    def read(self, name: str, limit: int) -> bytes | None:
        """Read the first ``limit + 1`` bytes of an object; return None if there is none."""
        data: bytes | None = self._ask("cat_file", name, start=0, end=limit + 1)
        return data

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the names and sizes, in bytes, of the objects in a folder that are whole."""
        listing = self._ask("find", folder, detail=True) or {}
        sizes = {path.rpartition("/")[2]: int(info["size"]) for path, info in listing.items()}
        return {name: size for name, size in sizes.items() if not name.startswith(".")}

    def create(self, name: str, data: bytes) -> bool:
        """Create an object that becomes visible whole; return False, without any change, if the name exists."""
        if not self._is_folder:
            return self._ask("pipe_file", name, data, mode="create") is not False
        folder, slash, _ = name.rpartition("/")
        temporary = f"{folder}{slash}.{secrets.token_hex(8)}"  # `sizes` leaves it out
        self._ask("pipe_file", temporary, data)
        try:
            os.link(f"{self._root}/{temporary}", f"{self._root}/{name}")
        except FileExistsError:
            return False
        except OSError as error:
            raise UnreachableError(said_of(error)) from None
        finally:
            self.remove(temporary)
        return True

    def send(self, path: Path, name: str) -> None:
        """Upload a file as an object."""
        self._ask("put_file", str(path), name, size=path.stat().st_size)

    def bring(self, name: str, path: Path, size: int) -> None:
        """Download an object of `size` bytes to a file."""
        self._ask("get_file", name, str(path), size=size)

    def remove(self, name: str) -> None:
        """Remove an object or a folder of objects, if it exists."""
        self._ask("rm", name, recursive=True)

    def _ask(self, method: str, *args: Any, size: int = 0, **options: Any) -> Any:
        """Call fsspec; return None for a missing object, and False for one that was to be created but exists."""
        source = method == "put_file"
        args = (args[0], f"{self._root}/{args[1]}") if source else (f"{self._root}/{args[0]}", *args[1:])
        if self._is_folder:
            # Nothing may be written to the empty folder where a disk should be mounted.
            if self._was_there and not Path(self._root).is_dir():
                raise UnreachableError(f"{self._root} is not there any more")
            self._was_there = Path(self._root).is_dir()
        elif method != "rm":
            options["timeout"] = _SENT_S + max(size, len(args[-1]) if method == "pipe_file" else 0) / _SLOWEST
        try:
            return getattr(self._system, method)(*args, **options)
        except Exception as error:  # libraries raise errors of their own, of HTTP, of the system and of time-outs
            if isinstance(error, FileExistsError) or _code(error) in ("PreconditionFailed", "412"):
                return False
            is_missing = isinstance(error, FileNotFoundError | NotADirectoryError)
            if is_missing and not method.startswith(("put", "pipe")):
                return None
            kind = RefusedError if _is_refusal(error) else UnreachableError
            raise kind(said_of(error)) from None  # the traceback of the original may hold a secret


def said_of(error: Exception) -> str:
    """Describe an error in one line, without credentials of the environment."""
    text = " ".join(str(error).split()) or type(error).__name__
    for name, value in os.environ.items():
        if re.search("^(AWS|FSSPEC|GOOGLE)_.*(KEY|SECRET|TOKEN)", name) and value:
            text = text.replace(value, "***")
    return "".join(char if char.isprintable() else "?" for char in text)[:200]


def _is_refusal(error: Exception) -> bool:
    is_refused = isinstance(error, PermissionError | FileNotFoundError | NotADirectoryError)
    return is_refused or type(error).__name__.endswith("CredentialsError") or "Forbidden" in str(error)


def _code(error: Exception) -> str:
    response = getattr(error.__cause__ or error, "response", None)
    fault = response.get("Error") if isinstance(response, dict) else None
    return str(fault.get("Code", "")) if isinstance(fault, dict) else ""


# -- outputs -----------------------------------------------------------------------------------------------------
# Outputs in the shared store: first their files, then the entry that names them, created only if there is none.
#
#     outputs/<key>.json          the entry: the manifest as on disk, and the name of the upload with its files
#     files/<key>/<upload>/<n>    the n-th file of the manifest, in order of names
#
# Of two uploads one creates the entry; the other is removed. Everything read is untrusted until checked: names and
# sizes before anything is fetched, and the checksum of every file before it is committed to the local store.


_THREADS = 4
_FETCH_S = 120.0
"""Seconds for which a fetch is retried. After one fetch has failed, others are not retried: thousands would take
days."""
_TELL_S = 10.0
"""Seconds without success after which uploads are reported as held up. If they are by the end of a run, it does
not wait longer."""
_SILENT_S = 60.0
"""Seconds without success after which a run at its end gives up uploads."""
_BACKOFF_S, _LONGEST_S = 0.25, 15.0
"""Seconds between the first two attempts, doubled each time, and the most between two attempts."""
_ENTRY_LIMIT = 8 << 20
"""Largest entry in bytes: about 50,000 files. Parsed JSON takes up to twenty times as much memory, and four are
read at once."""
_SPARE_BYTES = 64 << 20
_NO_NAME = (errno.ENAMETOOLONG, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.EINVAL, errno.EILSEQ)
_T = TypeVar("_T")


class BadOutputError(Exception):
    """Raised when a stored output cannot be used; the text says why."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """The record that an output is in the shared store.

    Attributes:
        upload: Name of the upload that has its files.
        manifest: Text of its manifest.
        cost: Cost of making it, as far as known.
    """

    upload: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
    manifest: str
    cost: dict[str, Annotated[float, Meta(ge=0, le=1e30)]] = field(default_factory=dict)


@dataclass(kw_only=True)
class Traffic:
    """Traffic between a run and the shared store.

    Attributes:
        fetched: Number of outputs fetched intact.
        fetched_bytes: Bytes of their files.
        uploaded: Number of outputs uploaded that no other machine had stored first.
        uploaded_bytes: Bytes of their files.
        left: Number of outputs still to be uploaded.
    """

    fetched: int = 0
    fetched_bytes: int = 0
    uploaded: int = 0
    uploaded_bytes: int = 0
    left: int = 0


def connect(url: str, *, writes: bool = True) -> tuple[Objects, set[str], str]:
    """Connect to a shared store; return its objects, its keys, and why it cannot be reached now, or "".

    Args:
        url: Address of the store.
        writes: Whether to write to it, which is tested.

    Raises:
        ConfigError: It may not be read or written, or it does not exist.
    """
    objects = Objects(url)
    try:
        if writes:
            objects.create("used", b"")
        names = (name.removesuffix(".json") for name in objects.sizes("outputs"))
        return objects, {name for name in names if STORE_KEY.fullmatch(name)}, ""
    except RefusedError as error:
        raise ConfigError(
            f"{KEY}={url} cannot be used: {str(error).rstrip('.')}. See that the place exists, that you may "
            "write there, and that credentials are where the library looks for them, as AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY in the environment (AWS_ENDPOINT_URL for another server than Amazon's)"
        ) from error
    except UnreachableError as error:
        return objects, set(), str(error)


class SharedStore:
    """Use of a shared store by one run, until `conclude`. Not thread-safe."""

    def __init__(
        self, objects: Objects, verified: Verified, keys: Collection[str] = (), *, away: str = ""
    ) -> None:
        """Begin.

        Args:
            objects: The objects of the store.
            verified: The local store, with notes on which outputs this run found intact.
            keys: Keys in the shared store, as far as known.
            away: Why the store cannot be reached yet, or "".
        """
        self.keys = set(keys)
        self._objects, self._verified, self._store = objects, verified, verified.store
        self._state, self._closing = Condition(), Event()
        self._uploads: dict[str, str] = {}
        self._traffic, self._away, self._failing_s = Traffic(), away, math.inf
        self._tasks: SimpleQueue[Callable[[], object]] = SimpleQueue()
        # a daemon thread, so that one that waits for the network does not block the exit
        for _ in range(_THREADS):
            Thread(target=self._work, name="shared-store", daemon=True).start()

    # -- what the run asks and tells ---------------------------------------------------------------------------

    def fetch_all(self, keys: Collection[str]) -> None:
        """Fetch outputs into the local store; keys that could not be fetched are removed from `keys`.

        Raises:
            StoreError: The local store cannot be written to.
        """
        futures: dict[str, Future[bool]] = {key: Future() for key in keys}
        for key, future in futures.items():
            self._tasks.put(partial(_settle, future, partial(self._brought_here, key)))
        for key, future in futures.items():
            try:
                if not future.result():
                    self.keys.discard(key)
            except UnreachableError:
                self.keys.discard(key)
            except OSError as error:
                raise StoreError(str(error)) from error

    def finished(self, key: str, name: str = "") -> None:
        """Upload an output that is now in the local store, unless it is in the shared store.

        Args:
            key: Its key.
            name: Name of its job, for people.
        """
        with self._state:
            if key not in self.keys and key not in self._uploads:
                self._uploads[key] = name or key[:12]
                self._tasks.put(partial(self._bring_there, key))

    @property
    def notice(self) -> str:
        """A line for a screen if the shared store cannot be reached, or ""."""
        text = f"the shared store cannot be reached ({self._away}): going on with what is here"
        return text if self._away else ""

    @property
    def traffic(self) -> Traffic:
        """Traffic so far."""
        with self._state:
            return replace(self._traffic, left=len(self._uploads))

    def is_uploading(self, key: str) -> bool:
        """Return whether an output is still to be uploaded, so that it must stay whole in the local store."""
        with self._state:
            return key in self._uploads

    def conclude(
        self,
        stops: Callable[[], bool] = lambda: False,
        grace_s: float = 0.0,
        hurries: Callable[[], bool] = lambda: False,
    ) -> str:
        """Wait for uploads, and end.

        Args:
            stops: Whether the run was asked to stop; then it waits for at most `grace_s`.
            grace_s: Seconds.
            hurries: Whether it was asked to stop again; then it does not wait.

        Returns:
            What is not uploaded, and why; "" if everything is.
        """
        if self._closing.is_set():
            return ""
        until_s, began_s = math.inf, time.monotonic()
        with self._state:
            silent_s = _TELL_S if self._away else _SILENT_S
            while self._uploads:
                now = time.monotonic()
                if stops():
                    until_s = min(until_s, now + grace_s)
                if hurries() or now >= until_s or now - max(began_s, self._failing_s) >= silent_s:
                    break
                self._state.wait(0.1)
            self._closing.set()
            uploads = list(self._uploads.values())
        for _ in range(_THREADS):
            self._tasks.put(lambda: None)
        if not uploads:
            return ""
        what = f"{uploads[0]} is" if len(uploads) == 1 else f"{len(uploads):,} outputs are"
        why = f" ({self._away})" if self._away else ""
        return f"{what} not in the shared store yet{why}. The next run of the same command goes on with it"

    # -- in threads --------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while not self._closing.is_set():
            try:
                self._tasks.get()()
            except Exception:
                log.exception("the shared store: this is a fault of the program; please report it")

    def _patiently(self, patience_s: float, ask: Callable[[], _T]) -> _T:
        """Retry a call as long as the store cannot be reached and the run goes on.

        Raises:
            UnreachableError: No call succeeded in that time.
        """
        began_s, wait_s = time.monotonic(), _BACKOFF_S
        while True:
            try:
                answer = ask()
            except UnreachableError as error:
                now = time.monotonic()
                left_s = began_s + patience_s - now
                with self._state:
                    self._failing_s = min(self._failing_s, now)
                    if left_s <= 0 or now - self._failing_s >= _TELL_S:
                        is_new, self._away = not self._away, str(error)
                        if is_new and not self._closing.is_set():
                            log.warning("%s", self.notice)
                if left_s <= 0 or self._closing.wait(min(wait_s, left_s)):
                    raise
                wait_s = min(2 * wait_s, _LONGEST_S)
            else:
                self._away, self._failing_s = "", math.inf
                return answer

    def _brought_here(self, key: str) -> bool:
        """Fetch an output; return False if it is missing, out of reach, or damaged and so removed."""
        size = None
        if self._away:
            return False
        for tries_left in (1, 0):
            try:
                size = self._patiently(_FETCH_S, partial(self.fetch, key))
                break
            except BadOutputError as error:
                if not tries_left:
                    text = "%s in the shared store cannot be used: %s. It is removed there, and made again"
                    log.warning(text, key, error)
                    self._patiently(_FETCH_S, partial(self._objects.remove, _entry(key)))
        if size is None:
            return False
        self._verified.problem(key)  # read by several threads
        with self._state:
            self._traffic.fetched += 1
            self._traffic.fetched_bytes += size
        return True

    def _bring_there(self, key: str) -> None:
        is_settled = True
        try:
            if problem := self._verified.problem(key):
                raise StoreError(problem)
            size, other = self.upload(key)
            if other is not None and other != self._store.manifest(key)["files"]:
                log.warning(
                    "%s: another machine had stored it first, of other bytes: machines whose arithmetic differs "
                    "share this store",
                    key,
                )
            with self._state:
                self.keys.add(key)
                if other is None:
                    self._traffic.uploaded += 1
                    self._traffic.uploaded_bytes += size
        except UnreachableError:  # the run has ended. The uploaded files stay, as the entry may have been created
            is_settled = False
        except (StoreError, OSError) as error:
            log.warning("%s was not uploaded to the shared store: %s", key, error)
        finally:
            with self._state:
                if is_settled:
                    del self._uploads[key]
                self._state.notify_all()

    # -- one output --------------------------------------------------------------------------------------------

    def entry(self, key: str) -> Entry | None:
        """Return the entry of an output, or None.

        Raises:
            BadOutputError: The entry cannot be parsed.
        """
        data = self._objects.read(_entry(key), _ENTRY_LIMIT)
        if data is None:
            return None
        if len(data) > _ENTRY_LIMIT:
            raise BadOutputError(f"its entry is larger than {_ENTRY_LIMIT:,} bytes")
        try:
            return read_json(data, Entry)
        except ForeignDataError as error:
            raise BadOutputError(f"its entry cannot be read ({error})") from error

    def fetch(self, key: str) -> int | None:
        """Fetch an output into the local store.

        Returns:
            Bytes of its files, or None if it is not in the shared store.

        Raises:
            BadOutputError: The output differs from its entry, or the entry is invalid.
            StoreError: The local store cannot be written.
            UnreachableError: The shared store could not be read.
        """
        entry, store = self.entry(key), self._store
        if entry is None:
            return None
        folder = store.begin(self._verified.folder / "fetched", f"{key}.{secrets.token_hex(4)}", 0)
        try:
            with explaining(StoreError, f"could not fetch {key[:12]} into {store.root}", REMEDY):
                about, size = self._bring(key, entry, folder)
                # not forced to disk: if it is lost with the power it is fetched again
                store.commit(key, folder, about, 0.0)
        finally:
            remove_tree(folder)
        if entry.cost:
            store.costs.note(key, entry.cost)
        return size

    def _bring(self, key: str, entry: Entry, folder: Path) -> tuple[dict[str, Any], int]:
        """Download all files of an output to a folder and check them.

        Return the record of its job, and the bytes.
        """
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
        source, objects = _files(key, entry.upload), _numbered(files)
        there = self._objects.sizes(source)
        if wrong := [name for number, name in objects.items() if there.get(number) != files[name]["size"]]:
            raise BadOutputError(f"{wrong[0]!r} is missing or cut off there")
        size = sum(file["size"] for file in files.values())
        if size > (free := shutil.disk_usage(folder).free) - _SPARE_BYTES:
            raise StoreError(
                f"could not fetch {key[:12]}: it takes {size:,} bytes, and {free:,} are free in {folder.parent}. "
                "Free space there (python -m pipeline store gc), then run the same command again."
            )
        for number, name in objects.items():
            self._objects.bring(f"{source}/{number}", folder / name, files[name]["size"])
        if problem := find_problem(key, folder, checksums=True):
            raise BadOutputError(problem)
        (folder / MANIFEST).unlink()
        return about, size

    def upload(self, key: str, patience_s: float = math.inf) -> tuple[int, object]:
        """Upload an output that is whole, then create its entry, unless there is one.

        Returns:
            Bytes of its files; and the files of an earlier upload, or None if there was none.

        Raises:
            StoreError: The output cannot be read here, or has too many files.
            UnreachableError: A file could not be uploaded in time.
        """
        ask: Callable[[Callable[[], Any]], Any] = partial(self._patiently, patience_s)
        folder, files = self._store.path(key), self._store.manifest(key)["files"]
        size = sum(file["size"] for file in files.values())
        entry: Entry | None = ask(partial(self._sound_entry, key))
        if entry is None:
            text, cost = (folder / MANIFEST).read_text(), dict(self._store.costs.of(key))
            own = Entry(upload=secrets.token_hex(16), manifest=text, cost=cost)
            if len(data := json_text(asdict(own), sort_keys=True).encode()) > _ENTRY_LIMIT:
                raise StoreError("it has too many files for a shared store")
            target = _files(key, own.upload)
            for number, name in _numbered(files).items():
                ask(partial(self._objects.send, folder / name, f"{target}/{number}"))
            if ask(partial(self._objects.create, _entry(key), data)):
                return size, None
            # A request that succeeded, but whose answer was lost, looks like a conflict on retry: so the entry is
            # read.
            entry = ask(partial(self._sound_entry, key))
            if entry is None:
                raise UnreachableError("its entry was there, and could not be used")
            if entry.upload == own.upload:
                return size, None
            ask(partial(self._objects.remove, target))
        try:
            return size, json.loads(entry.manifest)["files"]
        except (ValueError, KeyError, TypeError):
            return size, "unreadable"

    def _sound_entry(self, key: str) -> Entry | None:
        """Return the entry of an output; an unreadable entry is removed."""
        try:
            return self.entry(key)
        except BadOutputError:
            self._objects.remove(_entry(key))
            return None


def _settle(future: Future[_T], do: Callable[[], _T]) -> None:
    try:
        future.set_result(do())
    except Exception as error:
        future.set_exception(error)


def _entry(key: str) -> str:
    assert STORE_KEY.fullmatch(key)
    return f"outputs/{key}.json"


def _files(key: str, upload: str) -> str:
    assert STORE_KEY.fullmatch(key)
    return f"files/{key}/{upload}"


def _numbered(files: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of objects, each with the file that it holds."""
    return {f"{number:07d}": name for number, name in enumerate(sorted(files))}
