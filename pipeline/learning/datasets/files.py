"""Where the rows of a dataset are: local files by split, or an id of the Hugging Face hub. Reads no row.

A path that exists is local and never touches the network. Planning uses this module, so it imports nothing heavy.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

from pipeline.errors import DataError

JSON = (".jsonl", ".ndjson", ".json")
CSV = (".csv", ".tsv")
PARQUET = (".parquet",)
ARROW = (".arrow",)
TEXT = (".txt",)
TABLES = (*JSON, *CSV, *PARQUET, *ARROW)

SPLIT_WORDS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
    "test": "test",
}
"""What splits are called in names of files and folders -> our name."""
_ABOUT = {"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"}
"""What `datasets` writes beside the rows."""
MOST_ENTRIES = 300_000
"""Files and folders that are looked at. The largest datasets of small files have a third of it."""


@dataclass(frozen=True)
class LocalFiles:
    """Files on this machine.

    Attributes:
        root: As it was given, for messages.
        splits: Split -> its files, sorted by name.
    """

    root: Path
    splits: Mapping[str, tuple[Path, ...]]


@dataclass(frozen=True)
class HubDataset:
    """A dataset on the hub, or what the local cache has of it."""

    repo: str
    subset: str | None
    revision: str | None


Location = LocalFiles | HubDataset


def locate(
    path: str, formats: Collection[str], *, hub: bool, subset: str | None = None, revision: str | None = None
) -> Location:
    """Find out what a path means.

    Args:
        path: File, folder or hub id.
        formats: Suffixes that may be read.
        hub: Whether an id of the hub is allowed.
        subset: Configuration of the hub's dataset, or a folder inside `path`.
        revision: Of the hub's dataset.

    Raises:
        DataError: There is nothing of that name, or nothing in it that can be read.
    """
    root = Path(path).expanduser()
    if root.is_file():
        if format_of(root) not in formats:
            raise DataError(
                f"{root}: cannot read this kind of file. Known here: {', '.join(formats)} (or with .gz)."
            )
        return LocalFiles(root, {"train": (root,)})
    if root.is_dir():
        if not os.access(root, os.R_OK | os.X_OK):
            raise DataError(f"{root}: may not be looked into. See that you may read the folder.")
        inside = root / subset if subset and (root / subset).is_dir() else root
        return LocalFiles(root, _by_split(inside, formats))
    if root.exists() or root.is_symlink():
        raise DataError(f"{root}: is no file of data but a pipe or a device, or a link to nothing.")
    # Something like data/train.jsonl or ./data can only have been meant as a file.
    if not hub or not is_hub_id(path) or format_of(root) in TABLES:
        raise DataError(
            f"{path}: there is no such file or folder (looked for {root.absolute()})."
            + ("" if hub else " This kind of dataset is read from local files; kind 'hf' takes a hub id as well.")
        )
    return HubDataset(path, subset, revision)


def format_of(path: Path) -> str:
    """Suffix without ``.gz``, in lower case."""
    name = path.name.lower().removesuffix(".gz")
    return Path(name).suffix


def _by_split(folder: Path, known: Collection[str]) -> dict[str, tuple[Path, ...]]:
    found = sorted(
        path
        for path in _visible(folder)
        # Not path.is_file(), which raises for what may not be looked at.
        if format_of(path) in known and path.name not in _ABOUT and os.path.isfile(path)  # noqa: PTH113
    )
    if not found:
        raise DataError(f"{folder}: holds no file that can be read here ({', '.join(known)}).")
    exact = {path: _split_word(path.relative_to(folder), loosely=False) for path in found}
    certain = set(exact.values())
    splits: dict[str, list[Path]] = {}
    for path in found:
        # train_extra.jsonl belongs to train unless there is a train.jsonl.
        loose = _split_word(path.relative_to(folder), loosely=True)
        name = exact[path] or (loose if loose not in certain else None)
        splits.setdefault(name or f"/{_stem(path)}", []).append(path)
    if all(name.startswith("/") for name in splits):
        splits = {"train": found}
    for name, paths in splits.items():
        if len(formats := sorted({format_of(path) for path in paths})) > 1:
            raise DataError(
                f"{folder}: split '{name.lstrip('/')}' has files of several kinds ({', '.join(formats)}), which "
                "may hold the same rows. Name one file or a folder with one kind."
            )
    return {name.lstrip("/"): tuple(paths) for name, paths in splits.items()}


def _visible(folder: Path) -> Iterator[Path]:
    """What is below a folder but for hidden entries; folders that are removed meanwhile are passed over."""
    seen = 0
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        seen += len(folders) + len(names)
        if seen > MOST_ENTRIES:
            raise DataError(
                f"{folder}: holds more than {MOST_ENTRIES:,} files and folders, too many to search for rows. Name "
                "the folder or file that holds them."
            )
        yield from (Path(parent, name) for name in names if not name.startswith("."))


def _split_word(relative: Path, *, loosely: bool) -> str | None:
    for part in relative.parts[:-1]:
        if part.lower() in SPLIT_WORDS:
            return SPLIT_WORDS[part.lower()]
    words = re.split(r"[^a-z]+", _stem(relative).lower())
    if not loosely:
        # train, train-00000-of-00002, train_1
        return SPLIT_WORDS.get(words[0]) if set(words[1:]) <= {"", "of"} else None
    return next((SPLIT_WORDS[word] for word in words if word in SPLIT_WORDS), None)


def _stem(path: Path) -> str:
    return path.name.split(".")[0]


# -- hub ---------------------------------------------------------------------------------------------------------
# The Hugging Face hub: asked once whether it can be reached, as its libraries try for minutes before they say
# so. While it cannot be reached all is as with `HF_HUB_OFFLINE=1`: what the cache has is used, what it lacks
# is refused.


PATIENCE_S = 5.0
"""Seconds that the hub may take to answer a question of one line."""

_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_NOT_SEEN = {"RepositoryNotFoundError", "GatedRepoError", "DatasetNotFoundError"}
_NOT_SEEN_STATUS = {401, 403, 404}


def is_hub_id(path: str) -> bool:
    """Whether a path may be an id of the hub: ``name`` or ``owner/name``."""
    return _ID.fullmatch(path) is not None


def in_cache(repo: str, file: str, revision: str | None = None) -> Path | None:
    """A file of a model on the hub that is on this machine already; the hub is not asked."""
    if not is_hub_id(repo):
        return None
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(repo, file, revision=revision)
    return Path(found) if isinstance(found, str) else None


def offline() -> bool:
    """Whether the hub may not be asked at all."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def folder_called_nearly(repo: str) -> Path | None:
    """The folder of a model that may have been meant by what is taken for an id of the hub; or None."""
    around = Path(repo).parent
    near = get_close_matches(Path(repo).name, [path.parent.name for path in around.glob("*/config.json")], n=1)
    return around / near[0] if near else None


@contextmanager
def reaching(kind: Literal["models", "datasets"], repo: str) -> Iterator[str]:
    """Have the libraries of the hub use nothing but the cache while it cannot be reached.

    Args:
        kind: What is wanted.
        repo: Its id.

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
    """Say why the hub did not give something.

    Args:
        error: What its library raised.
        trouble: Why it cannot be reached, or "".

    Returns:
        The reason, and what to raise it from: None where trying again would not help.
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
            # Errors of the HTTP client, whichever it is: they have no common base but this.
            said.append(f"{type(error).__name__}: {' '.join(str(error).split())[:200] or 'no answer'}")

    # Apart, since looking up a name has no timeout: the resolver may try its servers for half a minute.
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
