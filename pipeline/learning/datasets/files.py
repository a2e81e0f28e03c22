"""Locate and read the rows of a dataset: local files by split, or an id of the Hugging Face hub.

A path that exists is local and never touches the network. Planning uses this module, so this module imports
nothing heavy.
"""

import csv
import gzip
import json
import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
from yaml import YAMLError

from pipeline.errors import ConfigError, DataError, without_advice
from pipeline.files import at_home
from pipeline.foreign import LARGEST_FILE, read_resolved

T = TypeVar("T")

JSON = (".jsonl", ".ndjson", ".json")
CSV = (".csv", ".tsv")
PARQUET = (".parquet",)
ARROW = (".arrow",)
TEXT = (".txt",)
TABLES = (*JSON, *CSV, *PARQUET, *ARROW)

SPLIT_WORDS = {
    **dict.fromkeys(("train", "training", "trainset"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev", "valset", "devset"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation", "testset", "evalset"), "test"),
}
"""Words for splits in names of files and folders -> our name, as in `datasets`."""
_SHARD = re.compile(r"(?:(.+?)-)?[0-9]{4,}(?:-of-[0-9]+(?:-[0-9a-f]+)?)?")
"""Names of parts of a split that programs write: ``train_sft-00000-of-00002``, and ``0000`` in the folder of the
split."""
_ABOUT = {"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json", "config.json"}
_PACKED = re.compile(r"(.+)\.(?:zst|bz2|xz|lzma|lz4|zip|7z)", re.IGNORECASE)
_HEAD = re.compile(rb"(?:\xef\xbb\xbf)?\s*---[ \t]*\r?\n(.*?\n)---", re.DOTALL)
"""Matches the YAML at the top of a dataset card."""
_ANY = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
"""Wildcards in patterns of a card -> regular expression; sets of characters such as ``[0-9]`` and ``[!ab]`` come
apart."""
_CACHE = re.compile(r"cache-[0-9a-f]+.*\.arrow")
"""Cache files that `datasets` writes beside the rows: the results of `map` and `filter`."""


@dataclass(frozen=True)
class LocalFiles:
    """Files on this machine.

    Attributes:
        root: Path as the user gave it, for messages.
        splits: Split -> its files, sorted by name.
    """

    root: Path
    splits: Mapping[str, tuple[Path, ...]]


@dataclass(frozen=True)
class HubDataset:
    """A dataset on the hub, or in the hub's local cache."""

    repo: str
    subset: str | None
    revision: str | None


Location = LocalFiles | HubDataset


def locate(
    path: str,
    formats: Collection[str],
    *,
    hub: bool,
    subset: str | None = None,
    revision: str | None = None,
    is_usual: bool = False,
) -> Location:
    """Resolve a path to local files or a hub dataset.

    Args:
        path: File, folder or hub id.
        formats: Suffixes that may be read.
        hub: Whether an id of the hub is allowed.
        subset: Configuration of the hub's dataset or of a local dataset card, or a folder inside `path`.
        revision: Revision of the hub's dataset.
        is_usual: Whether `subset` is the default of the dataset, which a local folder need not have.

    Raises:
        DataError: The path does not exist, holds no readable file, lacks the subset, or has several subsets and
            none is chosen.
    """
    root = at_home(path)
    if (snapshots := root / "snapshots").is_dir() and (root / "refs").is_dir():  # a folder in the hub's cache
        ref = root / "refs" / (revision or "main")
        root = snapshots / (ref.read_text().strip() if ref.is_file() else revision or "main")
        if not root.is_dir():
            known = ", ".join(sorted(each.name for each in snapshots.iterdir()))
            raise DataError(f"{path}: has no revision '{revision or 'main'}'; set revision to one of {known}.")
    if root.is_file():
        if format_of(root) not in formats:
            raise DataError(
                f"{root}: cannot read this kind of file. Known here: {', '.join(formats)} (or with .gz)."
            )
        return LocalFiles(root, {"train": (root,)})
    if root.is_dir():
        if not os.access(root, os.R_OK | os.X_OK):
            raise DataError(f"{root}: may not be looked into. See that you may read the folder.")
        splits = _by_card(root, subset, formats, is_usual=is_usual)
        if splits is None:
            inside = root / subset if subset and (root / subset).is_dir() else root
            if subset and inside == root and not is_usual:
                raise DataError(
                    f"{root}: has no subset '{subset}': no folder of that name is in it, nor does a README.md "
                    "name it. Leave subset out to read all of it."
                )
            if not (found := _readable(inside, formats)):
                raise DataError(f"{inside}: holds no file that can be read here ({', '.join(formats)}).")
            splits = _by_split(inside, found)
        _check_files(root, splits)
        return LocalFiles(root, splits)
    if root.exists() or root.is_symlink():
        raise DataError(f"{root}: is no file of data but a pipe or a device, or a link to nothing.")
    # Paths such as data/train.jsonl or ./data can only mean a file.
    if not hub or not is_hub_id(path) or format_of(root) in TABLES:
        raise DataError(
            f"{path}: there is no such file or folder (looked for {root.absolute()})."
            + ("" if hub else " This kind of dataset is read from local files; kind 'hf' takes a hub id as well.")
        )
    return HubDataset(path, subset, revision)


def format_of(path: Path) -> str:
    """Return the suffix without ``.gz``, in lower case."""
    name = path.name.lower().removesuffix(".gz")
    return Path(name).suffix


def _by_card(
    folder: Path, subset: str | None, known: Collection[str], *, is_usual: bool
) -> dict[str, tuple[Path, ...]] | None:
    """Return the splits that the dataset card in a folder names, as `datasets` does; None if the card names none.

    Raises:
        DataError: The card cannot be read, has several subsets and none is chosen, or files are missing.
    """
    card = folder / "README.md"
    try:
        with card.open("rb") as file:
            head = _HEAD.match(file.read(LARGEST_FILE))
        configs = ((read_resolved(head[1]) or {}).get("configs") or ()) if head else ()
        by_name = {str(config.get("config_name", "default")): config for config in configs}
        default = [name for name, config in by_name.items() if config.get("default")]
        named = {name: _named(folder, config, known) for name, config in by_name.items()}
    except OSError:
        return None
    except (ValueError, TypeError, LookupError, AttributeError, re.error, YAMLError, ConfigError) as error:
        said = f"the `configs` at its top cannot be read ({_line(error)})"
        raise DataError(f"{card}: {said}. Correct them, or leave them out.") from error
    here = {name: splits for name, splits in named.items() if any(splits.values())}
    if not named or (subset and subset not in here and (folder / subset).is_dir()):
        return None
    if not here:
        raise DataError(
            f"{folder}: the files that its README.md names are not here, or of another kind than "
            f"{', '.join(known)}. Fetch them, or name a file or folder inside."
        )
    likely = [subset] if subset else [*default, "default"]
    only = next(iter(here)) if len(here) == 1 and (is_usual or not subset) else None
    chosen = next((name for name in likely if name in here), only)
    if chosen is None:
        unknown = f"has no subset '{subset}'; its subsets are" if subset else "has several subsets:"
        raise DataError(
            f"{folder}: {unknown} {', '.join(here)} (README.md). Set subset to one of them, or name "
            "a folder inside."
        )
    if missing := [split for split, paths in here[chosen].items() if not paths]:
        raise DataError(
            f"{folder}: its README.md names files of the split '{missing[0]}' that are not here, or of another "
            f"kind than {', '.join(known)}. Fetch them, or take the split out there."
        )
    return usually_named(here[chosen])


def usually_named(splits: Mapping[str, T]) -> dict[str, T]:
    """Rename splits to our names: `dev` becomes `validation`, unless the source has a split of that name."""
    named = dict(splits)
    for word, split in SPLIT_WORDS.items():
        if word in named and split not in named:
            named[split] = named.pop(word)
    return named


def _named(folder: Path, config: Mapping[str, Any], known: Collection[str]) -> dict[str, tuple[Path, ...]]:
    """Return the files of each split in a card's configuration, by its patterns or else by the file names."""
    inside, given = config.get("data_dir") or "", config.get("data_files")
    # nothing outside the folder is read
    found = {path.relative_to(folder): path for path in _readable(folder, known)}
    if given is None:
        below = [path for at, path in found.items() if at.is_relative_to(os.path.normpath(inside))]
        return _by_split(folder / inside, below) if below else {}
    by_split: dict[str, tuple[Path, ...]] = {}
    for one in [given] if isinstance(given, str) else given:
        split, patterns = ("train", one) if isinstance(one, str) else (str(one["split"]), one["path"])
        for pattern in [patterns] if isinstance(patterns, str) else patterns:
            parts = re.split(r"(\*\*/|\*\*|\*|\?|\[[^]/]+\])", os.path.normpath(f"{inside or '.'}/{pattern}"))
            wanted = re.compile(
                "".join(
                    _ANY.get(part) or (part.replace("[!", "[^") if at % 2 else re.escape(part))
                    for at, part in enumerate(parts)
                )
            )
            match = {path for at, path in found.items() if wanted.fullmatch(at.as_posix())}
            by_split[split] = tuple(sorted({*by_split.get(split, ()), *match}))
    return by_split


def _readable(folder: Path, known: Collection[str]) -> list[Path]:
    """Return the files with rows below a folder, sorted; includes packed files and broken links."""
    return sorted(
        path
        for path in _visible(folder)
        # Not path.is_file(), which raises for paths without permission.
        if format_of(_unpacked(path)) in known
        and path.name not in _ABOUT
        and not _CACHE.fullmatch(path.name)
        and (os.path.isfile(path) or os.path.islink(path))  # noqa: PTH113, PTH114
    )


def _unpacked(path: Path) -> Path:
    packed = _PACKED.fullmatch(path.name)
    return path.with_name(packed[1]) if packed else path


def _by_split(folder: Path, found: Sequence[Path]) -> dict[str, tuple[Path, ...]]:
    exact = {path: _split_word(path.relative_to(folder)) for path in found}
    loosely = {path: _loosely(path.relative_to(folder)) for path in found if exact[path] is None}
    given = {path: _given(path) for path in found}
    certain = {*exact.values()}
    several = Counter(split for split, own in {*loosely.values()} if own)
    splits: dict[str, list[Path]] = {}
    for path in found:
        # train_extra.jsonl belongs to train unless there is a train.jsonl. Neither
        # train_sft-00000-of-00001.parquet nor train_gen-00000-of-00001.parquet belongs to train if both exist:
        # these are names of two splits on the hub.
        split, own = loosely.get(path, (exact[path], ""))
        if split is None or (path in loosely and split in certain):
            split = f"/{given[path] or own or _stem(path)}"
        elif own and several[split] > 1:
            split = own
        splits.setdefault(split, []).append(path)
    if all(name.startswith("/") for name in splits) and not all(given.values()):
        splits = {"train": [*found]}
    return {name.lstrip("/"): tuple(paths) for name, paths in splits.items()}


def _check_files(folder: Path, splits: Mapping[str, Sequence[Path]]) -> None:
    for name, paths in splits.items():
        for path in paths:
            if not os.path.isfile(path):  # noqa: PTH113
                raise DataError(f"{path}: is a link to nothing. Fetch what it leads to, or remove it.")
            if _unpacked(path) != path:
                raise DataError(f"{path}: is compressed in a way that is not read here. Unpack it, or use gzip.")
        if len(formats := sorted({format_of(path) for path in paths})) > 1:
            raise DataError(
                f"{folder}: split '{name}' has files of several kinds ({', '.join(formats)}), which may hold the "
                "same rows. Name one file or a folder with one kind."
            )


def _visible(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder except hidden ones; skip folders that disappear meanwhile."""
    for parent, folders, names in os.walk(folder, followlinks=True):
        above = os.path.realpath(parent)
        folders[:] = [
            name
            for name in folders
            if not name.startswith((".", "__"))
            # A link to a folder above it would loop forever.
            and not f"{above}/".startswith(f"{os.path.realpath(os.path.join(parent, name))}/")  # noqa: PTH118
        ]
        yield from (Path(parent, name) for name in names if not name.startswith("."))


def _split_word(relative: Path) -> str | None:
    """Return the split that a path names exactly: train, train-00000-of-00002, train_1, train/0, train-1/0."""
    for words in map(words_of, (*relative.parts[:-1], _stem(relative))):
        if words[0] in SPLIT_WORDS and set(words[1:]) <= {"", "of"}:
            return SPLIT_WORDS[words[0]]
    return None


def _loosely(relative: Path) -> tuple[str | None, str]:
    """Return the split whose word a folder or the file name contains, and the name in a program's file name."""
    stem = _stem(relative)
    shard = _SHARD.fullmatch(stem)
    for name, own in (*((part, part) for part in relative.parts[:-1]), (stem, shard[1] if shard else None)):
        for word in words_of(name):
            if word in SPLIT_WORDS:
                return SPLIT_WORDS[word], own if shard and own else ""
    return None, (shard[1] or "") if shard else ""


def _given(path: Path) -> str:
    """Return the split's name in a file that `datasets` wrote, whatever the name; "" for other files."""
    if (path.parent.parent / "dataset_dict.json").is_file():
        return path.parent.name
    shard = _SHARD.fullmatch(_stem(path)) if path.parent.name == "data" else None
    return (shard[1] or "") if shard else ""


def words_of(name: str) -> list[str]:
    """Return the words in the name of a file, a folder or a split, in lower case; ``MathTest`` has two."""
    return re.split(r"[^a-z]+", re.sub("([a-z])([A-Z])", r"\1_\2", name).lower())


def _stem(path: Path) -> str:
    """Return the file name without its format: ``snli_1.0_test`` for ``snli_1.0_test.jsonl.gz``."""
    return re.sub(r"(\.[^.]*?)(\.gz)?$", "", path.name, flags=re.IGNORECASE)


# -- hub ---------------------------------------------------------------------------------------------------------
# The Hugging Face hub: one question shows whether it can be reached, as its libraries retry for minutes before
# they fail. While the hub cannot be reached, everything works as with `HF_HUB_OFFLINE=1`: files in the cache are
# used, others are rejected.


PATIENCE_S = 5.0
"""Seconds to wait for the hub's reply to a HEAD request."""

_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_NOT_SEEN = {"RepositoryNotFoundError", "GatedRepoError", "DatasetNotFoundError"}
_NOT_SEEN_STATUS = {401, 403, 404}


def is_hub_id(path: str) -> bool:
    """Return whether a path may be an id of the hub: ``name`` or ``owner/name``."""
    return _ID.fullmatch(path) is not None


def in_cache(repo: str, file: str, revision: str | None = None) -> Path | None:
    """Return a model's file from the local cache of the hub, or None; does not contact the hub."""
    if not is_hub_id(repo):
        return None
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(repo, file, revision=revision)
    return Path(found) if isinstance(found, str) else None


def offline() -> bool:
    """Return whether the hub must not be contacted."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def folder_called_nearly(repo: str) -> Path | None:
    """Return the model folder with a name close to a path that was taken for a hub id, or None."""
    around = Path(repo).parent
    near = get_close_matches(Path(repo).name, [path.parent.name for path in around.glob("*/config.json")], n=1)
    return around / near[0] if near else None


@contextmanager
def reaching(kind: Literal["models", "datasets"], repo: str) -> Iterator[str]:
    """Make the libraries of the hub use only the cache while the hub cannot be reached.

    Args:
        kind: Kind of repository.
        repo: Id of the repository.

    Yields:
        Why the hub cannot be reached, or "".
    """
    trouble = _trouble(kind, repo)
    if not trouble:
        yield ""
        return
    from huggingface_hub import constants

    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
    try:
        if kind == "models":
            yield trouble
            return
        import datasets

        known, datasets.config.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE, True
        try:
            yield trouble
        finally:
            datasets.config.HF_HUB_OFFLINE = known
    finally:
        constants.HF_HUB_OFFLINE = before


def why_not(error: BaseException, trouble: str) -> tuple[str, BaseException | None]:
    """Describe why the hub did not return something.

    Args:
        error: Exception that the hub's library raised.
        trouble: Why the hub cannot be reached, or "".

    Returns:
        The reason, and the exception to use as the cause: None if trying again would not help.
    """
    if trouble:
        return f"{trouble}, and the cache of this machine does not have it", None
    for one in _chain(error):
        status = getattr(getattr(one, "response", None), "status_code", None)
        if type(one).__name__ == "RevisionNotFoundError":
            return "it has no such revision", None
        if type(one).__name__ == "RemoteEntryNotFoundError":
            return "it lacks a file that all of its kind have", None
        if type(one).__name__ in _NOT_SEEN or status in _NOT_SEEN_STATUS:
            return (
                f"there is none of this name, or it is private or gated{f' ({status})' if status else ''}. Check "
                "the spelling; to get at one that is not public, accept its terms on its page and log in with "
                "`hf auth login` or HF_TOKEN",
                None,
            )
    return " ".join(str(error).split())[:300].rstrip(".") or type(error).__name__, error


def _trouble(kind: str, repo: str) -> str:
    if offline():
        return "HF_HUB_OFFLINE is set"
    from huggingface_hub import constants, get_session

    said: list[str] = []

    def ask() -> None:
        try:
            get_session().head(f"{constants.ENDPOINT}/api/{kind}/{repo}", timeout=PATIENCE_S)
            said.append("")
        except Exception as error:
            # Errors of any HTTP client: they have no other common base.
            said.append(f"{type(error).__name__}: {' '.join(str(error).split())[:200] or 'no answer'}")

    # In a thread, since name resolution has no timeout: the resolver may try its servers for half a minute.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(2 * PATIENCE_S)
    why = said[0] if said else f"no answer within {2 * PATIENCE_S:g} s"
    return f"{constants.ENDPOINT} (HF_ENDPOINT) cannot be reached ({why})" if why else ""


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        yield found
        found = found.__cause__ or found.__context__


# -- readers -----------------------------------------------------------------------------------------------------
# Rows of files or the hub, one after the other, each with its place for messages. A file may have any size: one
# row is held at a time (but a .json file is read whole), and a row that is too large is rejected before the rest
# of it is read.


LONGEST_ROW = 16 << 20
"""Largest size of a row in its file, in bytes. Python objects take up to 30 times as much."""
_NO_ROWS = {
    rb"version https://git-lfs": "a pointer of Git LFS. Fetch the file itself, in its folder: git lfs pull",
    rb"/annex/objects/|\.\./.*annex/objects/": "a pointer of git-annex. Fetch the file itself: git annex get",
    rb"\s*<(?:!doctype html|html|\?xml)": "a web page. Fetch the file; on the hub by /resolve/ in place of /blob/",
    rb"PK\x03\x04|\xd0\xcf\x11\xe0": "an archive or a table of Excel. Unpack it, or save it as CSV in UTF-8",
    rb"\x28\xb5\x2f\xfd|BZh|\xfd7zXZ": "packed by zstd, bzip2 or xz. Unpack it (zstd -d, bunzip2, xz -d)",
}
"""First bytes of files that hold no rows -> description of the file for the message."""
_IN_TURNS = {"role", "from", "function", "parameters"}
"""Keys that show that a struct is a turn of a conversation or a tool: it has at least one of them."""
_GZIP, _BOM = b"\x1f\x8b", b"\xef\xbb\xbf"
_BATCH = 1000


@dataclass(frozen=True)
class Record:
    """A row as it is in the file.

    Attributes:
        place: ``data/train.jsonl:17``, for messages.
        data: Column -> value.
    """

    place: str
    data: Mapping[str, Any]


def read_records(path: Path) -> Iterator[Record]:
    """Yield the rows of a file, in the order of the file.

    Raises:
        DataError: The file is empty or damaged; the message names the file and, for text, the line.
    """
    readers = {JSON: _json, CSV: _csv, PARQUET: _parquet, ARROW: _arrow, TEXT: _text}
    empty = True
    try:
        with path.open("rb") as file:
            first = file.read(512)
        for begin, what in _NO_ROWS.items():
            if re.match(begin, first, re.IGNORECASE):
                raise DataError(f"{path}: is {what}.")
        kind = PARQUET[0] if first.startswith(b"PAR1") else format_of(path)
        for record in next(reader for formats, reader in readers.items() if kind in formats)(path):
            empty = False
            yield record
    except (OSError, EOFError) as error:
        raise DataError(f"{path}: cannot be read ({_line(error)}). It may be cut off; fetch it again.") from error
    if empty:
        raise DataError(f"{path}: is empty; it has no rows. Write or fetch it again, or name another path.")


def _open(path: Path) -> gzip.GzipFile | BufferedReader:
    with path.open("rb") as file:
        packed = file.read(2) == _GZIP or path.name.lower().endswith(".gz")
    return gzip.open(path, "rb") if packed else path.open("rb")


def _lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file, and reject a line that is longer than a row may be."""
    with _open(path) as file:
        number = 1
        while line := file.readline(LONGEST_ROW + 1):
            yield _bounded(line, f"{path}:{number}").removeprefix(_BOM)
            number += 1


def _bounded(row: bytes, place: str) -> bytes:
    if len(row) > LONGEST_ROW:
        raise DataError(
            f"{place}: this row takes more than {LONGEST_ROW >> 20} MiB, which no row may. Leave it out, or the "
            "column that makes it so large."
        )
    return row


# -- json --------------------------------------------------------------------------------------------------------


def _json(path: Path) -> Iterator[Record]:
    """Read JSON lines, or a file with a list of rows, one row, or an object around it: ``{"data": [...]}``."""
    with _open(path) as file:
        is_list = file.peek(64).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[")
        content = file.read() if is_list or format_of(path) == ".json" else None
    rows = None if content is None else _written(path, content)
    if rows is not None:
        for number, row in enumerate(rows, 1):
            place = f"{path}: row {number}"
            yield Record(place, _object(_bounded(bytes(row), place), place))
        return
    for number, line in enumerate(_lines(path), 1):
        if text := line.strip():
            yield Record(f"{path}:{number}", _object(text, f"{path}:{number}"))


def _written(path: Path, content: bytes) -> Sequence[msgspec.Raw | bytes] | None:
    """Split a JSON file into rows as bytes, so that they are parsed one at a time.

    None if the file is JSON lines.
    """
    content = content.removeprefix(_BOM)
    try:
        whole = msgspec.json.decode(content, type=list[msgspec.Raw] | dict[str, msgspec.Raw])
        return (_wrapped(whole) or [content]) if isinstance(whole, dict) else whole
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # many files of JSON lines are called .json too; or the file has values that msgspec rejects, such as NaN
        pass
    try:
        loaded = json.loads(content.decode())
    except (ValueError, RecursionError) as error:
        if isinstance(error, json.JSONDecodeError) and error.msg == "Extra data":
            return None
        raise _not_json(f"{path}:{getattr(error, 'lineno', 1)}", error) from error
    return [json.dumps(row).encode() for row in (loaded if isinstance(loaded, list) else [loaded])]


_WRAPS = ("data", "rows", "examples", "instances", "items", "records", "samples", "dataset", *SPLIT_WORDS)
"""Names of the list of rows in files that hold one object."""


def _wrapped(whole: Mapping[str, msgspec.Raw]) -> list[msgspec.Raw]:
    """Return the rows of a file that holds ``{"data": [...]}`` or the like; empty for any other file."""
    lists = [name for name, value in whole.items() if bytes(value).lstrip()[:1] == b"["]
    if len(lists) != 1 or lists[0].lower() not in _WRAPS:
        return []
    rows = msgspec.json.decode(whole[lists[0]], type=list[msgspec.Raw])
    return rows if rows and bytes(rows[0]).lstrip()[:1] == b"{" else []


def _object(text: bytes, place: str) -> Mapping[str, Any]:
    """Parse a row of JSON.

    Raises:
        DataError: The text is no JSON object, or has a column twice.
    """
    try:
        row = json.loads(text.decode(), object_pairs_hook=partial(_different, place))
    except (ValueError, RecursionError) as error:
        raise _not_json(place, error) from error
    if not isinstance(row, dict):
        found = json.dumps(row)[:40]
        raise DataError(f'{place}: expected an object of columns such as {{"prompt": ...}}, found {found}.')
    return row


def _not_json(place: str, error: Exception) -> DataError:
    at = f"{error.msg}, character {error.colno}" if isinstance(error, json.JSONDecodeError) else _line(error)
    said = "Each row must be one object, on a line of its own or in a list of all, in UTF-8."
    return DataError(f"{place}: not valid JSON ({at}). {said}")


def _different(place: str, pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) != len(pairs):
        _check_different([name for name, _ in pairs], place)
    return row


def _check_different(names: Sequence[str], place: str | Path) -> None:
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise DataError(
            f"{place}: has more than one column named '{twice[0]}', of which a row could keep only one. Give each "
            "a name of its own, or leave one out."
        )


# -- tables ------------------------------------------------------------------------------------------------------


def _csv(path: Path) -> Iterator[Record]:
    csv.field_size_limit(LONGEST_ROW)  # the default is 128 KiB, and texts may be longer
    kind, number = format_of(path), 1
    try:
        first = re.sub('"[^"]*"', "", next(_lines(path), b"").decode())
        marks = [mark for mark in ("\t" if kind == ".tsv" else ",", "\t", ";", "|", ",") if mark in first]
        lines = (line.decode() for line in _lines(path))
        reader = csv.reader(lines, delimiter=(marks or [","])[0], strict=True)
        header = [name.strip() for name in next(reader, [])]
        _check_different(header, path)
        number = reader.line_num + 1
        for row in reader:
            if row and len(row) != len(header):
                names = f"{len(header)}: {', '.join(header)}"
                raise DataError(f"{path}:{number}: has {len(row)} fields where the header names {names}.")
            if row:
                yield Record(f"{path}:{number}", dict(zip(header, row, strict=True)))
            number = reader.line_num + 1
    except (csv.Error, UnicodeDecodeError) as error:
        advice = " Write it by a program that puts quotes where they are due, as pandas does (to_csv)."
        if isinstance(error, UnicodeDecodeError):
            advice = " Write it in UTF-8 (iconv -t UTF-8)."
        raise DataError(f"{path}:{number}: not valid {kind[1:].upper()} ({_line(error)}).{advice}") from error


def _parquet(path: Path) -> Iterator[Record]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            _check_different(file.schema_arrow.names, path)
            yield from _table_rows(path, "Parquet", file.iter_batches(batch_size=_BATCH))
    except pa.ArrowException as error:
        raise _damaged(path, "Parquet", 0, error) from error


def _arrow(path: Path) -> Iterator[Record]:
    import pyarrow as pa

    try:
        with pa.memory_map(str(path)) as file:
            if file.read(6) == b"ARROW1":
                whole = pa.ipc.open_file(file)
                schema, batches = whole.schema, map(whole.get_batch, range(whole.num_record_batches))
            else:
                file.seek(0)
                batches = pa.ipc.open_stream(file)
                schema = batches.schema
            _check_different(schema.names, path)
            yield from _table_rows(path, "Arrow", batches)
    except pa.ArrowException as error:
        raise _damaged(path, "Arrow", 0, error) from error


def _table_rows(path: Path, what: str, batches: Iterable[Any]) -> Iterator[Record]:
    """Yield the rows of record batches as records."""
    import pyarrow as pa

    number = 0
    try:
        for batch in batches:
            for row in _rows_in(batch):
                number += 1
                yield Record(f"{path}: row {number}", row)
    except pa.ArrowException as error:
        raise _damaged(path, what, number, error) from error
    except ValueError as error:
        form = "UTF-8" if isinstance(error, UnicodeDecodeError) else "JSON"
        raise DataError(
            f"{path}: after row {number}: holds a text that is not {form} ({_line(error)})."
        ) from error


def _rows_in(batch: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of a record batch or a table as dicts."""
    readers = {field.name: read for field in batch.schema if (read := _reader(field.type)) is not None}
    for row in batch.to_pylist():
        yield row | {name: _made(read, row[name]) for name, read in readers.items()}


def _made(read: Callable[[Any], Any] | None, value: Any) -> Any:
    return value if read is None or value is None else read(value)


def _reader(kind: Any, *, in_turn: bool = False) -> Callable[[Any], Any] | None:
    """Return a function that restores values of an Arrow type as they were written; None if they need no change.

    A number of single precision becomes 0.1, not 0.10000000149011612. JSON, which `datasets` uses for values that
    differ from row to row, is parsed. Turns and tools have nulls for keys that only other ones have: these keys
    are dropped.
    """
    if getattr(kind, "extension_name", "") == "arrow.json":
        return json.loads
    if str(kind) in ("halffloat", "float"):
        return lambda value: float(str(kind.to_pandas_dtype()(value)))
    if (each := getattr(kind, "value_field", None)) is not None:
        inner = _reader(each.type, in_turn=in_turn)
        return inner and (lambda values: [_made(inner, value) for value in values])
    if not str(kind).startswith("struct<"):
        return None
    in_turn = in_turn or not _IN_TURNS.isdisjoint(field.name for field in kind)
    fields = {field.name: _reader(field.type, in_turn=in_turn) for field in kind}
    if not in_turn and not any(fields.values()):
        return None
    return lambda value: {
        name: _made(fields[name], each) for name, each in value.items() if each is not None or not in_turn
    }


def _text(path: Path) -> Iterator[Record]:
    try:
        yield Record(str(path), {"text": path.read_text(encoding="utf-8"), "folder": path.parent.name})
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text ({_line(error)}).") from error


def _damaged(path: Path, what: str, number: int, error: Exception) -> DataError:
    after = f" after row {number}" if number else ""
    return DataError(
        f"{path}: not a whole {what} file{after} ({_line(error)}). It may be cut off; fetch it again."
    )


def _line(error: BaseException) -> str:
    return " ".join(without_advice(str(error)).split())[:200] or type(error).__name__


# -- sources -----------------------------------------------------------------------------------------------------
# Rows of a whole source by split, whether local files or the hub. Only an id of the hub may use the network.

Rows = Callable[[], Iterator[Record]]


def open_source(location: Location) -> tuple[str, Mapping[str, Rows]]:
    """Return the name of a source for messages, and its splits.

    Local files are read only when their rows are requested.
    """
    if isinstance(location, HubDataset):
        return location.repo, _from_hub(location)
    return str(location.root), {name: partial(_all_of, files) for name, files in location.splits.items()}


def _all_of(files: Sequence[Path]) -> Iterator[Record]:
    return (record for path in files for record in read_records(path))


def _from_hub(location: HubDataset) -> Mapping[str, Rows]:
    import datasets
    from huggingface_hub.constants import HF_HUB_CACHE

    repo = location.repo
    with reaching("datasets", repo) as trouble:
        try:
            loaded = datasets.load_dataset(repo, name=location.subset, revision=location.revision)
        except Exception as error:
            # Errors of `datasets`, `huggingface_hub` and the HTTP client have no common base but this.
            if trouble and isinstance(error, ValueError):  # the cache has other subsets, or several
                raise DataError(f"{repo}: {trouble}. {_line(error)}. Set subset to one of these.") from None
            reason, cause = why_not(error, trouble)
            advice = (
                f"On a machine with network run `hf download --repo-type dataset {repo} --local-dir FOLDER`, copy "
                f"FOLDER here and name it in the place of {repo}"
            )
            if (kept := Path(HF_HUB_CACHE, f"datasets--{repo.replace('/', '--')}")).is_dir():
                advice = f"What the hub's cache has of its files is read by the name of {kept} in its place"
            raise DataError(
                f"{repo}: no file or folder of this name here (looked for {Path(repo).absolute()}), and the "
                f"Hugging Face hub does not give it: {reason}. {advice}; a local path needs no network."
            ) from cause
    commits = {Path(file["filename"]).parent.name for split in loaded.values() for file in split.cache_files}
    asked = location.revision or ""
    # Offline, `datasets` may return any cached revision.
    if trouble and commits and asked not in commits and re.fullmatch("[0-9a-f]{40}", asked):
        raise DataError(
            f"{repo}: {trouble}, and the cache of this machine gives the revision {', '.join(sorted(commits))}, "
            f"not {asked}. Set revision to that, or fetch the other one where there is a network."
        )
    splits = {str(name): partial(_numbered, f"{repo} [{name}]", split) for name, split in loaded.items()}
    return usually_named(splits)


def _numbered(whose: str, split: Any) -> Iterator[Record]:
    """Yield the rows of a hub split as if read from a file: images stay encoded, numbers are as written."""
    rows = (row for table in split.with_format("arrow").iter(_BATCH) for row in _rows_in(table))
    return (Record(f"{whose} row {number}", row) for number, row in enumerate(rows, 1))
