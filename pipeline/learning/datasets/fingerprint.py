"""What identifies the source of a dataset in a plan: the content of local files, or the id on the hub.

Used while planning, so it imports neither `datasets` nor pyarrow.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.errors import DataError
from pipeline.files import file_sha256
from pipeline.learning.datasets.base import Dataset
from pipeline.learning.datasets.files import TEXT, HubDataset, LocalFiles, Location, format_of
from pipeline.learning.datasets.from_files import FilesDataset

_FOLLOWED = partial(file_sha256, follow=True)  # caches of a hub hold links


def source_fingerprint(dataset: Dataset, file_hash: Callable[[Path], str] = _FOLLOWED) -> dict[str, Any]:
    """What the rows of a dataset follow from, besides its configuration; the same wherever files are kept.

    Args:
        dataset: It.
        file_hash: Hash of a file's content; a caller that remembers hashes gives one of its own.

    Returns:
        Plain data; empty for datasets that are made rather than read.

    Raises:
        DataError: A local file is not there or may not be read, or there is nothing to read in a folder.
    """
    if not isinstance(dataset, FilesDataset):
        return {}
    try:
        return {name: _identity(location, file_hash) for name, location in dataset.locations().items()}
    except OSError as error:
        raise DataError(
            f"dataset '{dataset.config.kind}': cannot read {error.filename or dataset.source.path} "
            f"({error.strerror}). See that you may read it, and enter the folders that it is in."
        ) from error


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
