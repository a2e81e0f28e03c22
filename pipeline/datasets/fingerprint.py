"""What identifies the source of a dataset in a plan: the content of local files, or the id on the hub.

Used while planning, so it imports neither `datasets` nor pyarrow.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.config.schema import DatasetConfig
from pipeline.datasets.files import TEXT, HubDataset, LocalFiles, Location, format_of
from pipeline.datasets.from_files import FilesDataset
from pipeline.datasets.registry import load_dataset


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def source_fingerprint(config: DatasetConfig, file_hash: Callable[[Path], str] = file_sha256) -> dict[str, Any]:
    """What the rows of a dataset follow from, besides its configuration; the same wherever files are kept.

    Args:
        config: Of the dataset.
        file_hash: Hash of a file's content; a caller that remembers hashes gives one of its own.

    Returns:
        Plain data; empty for datasets that are made rather than read.

    Raises:
        ConfigError: The configuration is wrong.
        DataError: A local file is not there, or there is nothing to read in a folder.
    """
    dataset = load_dataset(config)
    if not isinstance(dataset, FilesDataset):
        return {}
    return {name: _identity(location, file_hash) for name, location in dataset.locations().items()}


def _identity(location: Location, file_hash: Callable[[Path], str]) -> dict[str, Any]:
    if isinstance(location, HubDataset):
        return {"hub": location.repo, "subset": location.subset, "revision": location.revision}
    return _content(location, file_hash)


def _content(files: LocalFiles, file_hash: Callable[[Path], str]) -> dict[str, Any]:
    whole = hashlib.sha256()
    count = size = 0
    for split, paths in sorted(files.splits.items()):
        for path in paths:
            length = path.stat().st_size
            # The folder of a text file may be its label.
            form = f"{format_of(path)}/{path.parent.name}" if format_of(path) in TEXT else format_of(path)
            whole.update(f"{split} {form} {length} {file_hash(path)}\n".encode())
            count, size = count + 1, size + length
    return {"files": count, "bytes": size, "sha256": whole.hexdigest()}
