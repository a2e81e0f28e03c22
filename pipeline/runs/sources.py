"""What datasets and models are besides their settings: the content of files, an id on the hub.

Reads files, so it comes before planning, which does not. Hashes of unchanged files are remembered.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from pipeline.config.schema import Config, DatasetConfig
from pipeline.config.tables import REWARD_MODEL
from pipeline.errors import ConfigError
from pipeline.files import file_sha256
from pipeline.foreign import ForeignDataError, recall, remember
from pipeline.learning.datasets.base import SPLITS, load_dataset
from pipeline.learning.datasets.from_files import FilesDataset, source_fingerprint
from pipeline.outputs.formats import DATASET, read_prepared_rows
from pipeline.plan.contents import REWARD_FILES
from pipeline.plan.models import identity_of, model_identities

FILE = "file_hashes.json"
_Sum = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


def read_sources(config: Config, hints: Path | None = None) -> dict[str, dict[str, Any]]:
    """Fingerprints of all datasets of a request, by name; empty for those that make their rows.

    Args:
        config: The request.
        hints: Folder of the store in which hashes are remembered; None, or one that is not there, remembers none.

    Raises:
        PipelineError: A dataset's settings are wrong, or a file is not there.
    """
    known = _Hashes(hints)
    found = {
        name: source_fingerprint(load_dataset(section), known.sha256) | _of_rewards(name, section, known.sha256)
        for name, section in config.datasets.items()
    }
    known.save()
    return found


def known_rows(config: Config, output: Callable[[str], Path]) -> Callable[[str, str], Mapping[str, int]]:
    """What tells how many rows each split of a dataset has: what it was prepared as, else a look at small files.

    Args:
        config: The request.
        output: From a key to the folder of its output, where there is one.
    """

    def rows(name: str, key: str) -> Mapping[str, int]:
        dataset = load_dataset(config.datasets[name])
        if not key:
            with suppress(Exception):  # of a class of the user's own; told by who looks for faults
                return {split: len(dataset.ids(split)) for split in SPLITS}
        with suppress(OSError, ForeignDataError):
            return read_prepared_rows(output(key) / DATASET).rows
        from pipeline.learning.datasets.rows import rows_of_small  # what a plan that is stored has no use for

        return rows_of_small(dataset) if isinstance(dataset, FilesDataset) else {}

    return rows


def _of_rewards(dataset: str, section: DatasetConfig, file_hash: Callable[[Path], str]) -> dict[str, Any]:
    """The content of models and files that options of rewards name, by reward and option."""
    found: dict[str, Any] = {}
    for name, options in section.grading.options.items():
        for option, value in (options or {}).items():
            is_model = option == "path" and options.get("use", name) == REWARD_MODEL
            try:
                if is_model and isinstance(value, str):
                    found[f"{name}.{option}"] = identity_of(value, None, file_hash)
                elif isinstance(value, str) and os.path.isfile(value):  # noqa: PTH113 - a text may be no path at all
                    found[f"{name}.{option}"] = {"sha256": file_hash(Path(value))}
            except OSError as error:
                given = f"datasets.{dataset}.grading.options.{name}.{option}={value}"
                raise ConfigError(f"{given}: cannot read {error.filename or value} ({error.strerror})") from error
    return {REWARD_FILES: found} if found else {}


def check_sources(config: Config) -> None:
    """See that the source of every dataset is there, without reading it.

    Raises:
        PipelineError: As `read_sources` does.
    """
    for section in config.datasets.values():
        source_fingerprint(load_dataset(section), lambda _: "")


def read_models(config: Config, hints: Path | None = None) -> dict[str, dict[str, Any]]:
    """What identifies the content of all models of a request, by name; see `plan.models`.

    Args:
        config: The request; its models are checked.
        hints: As in `read_sources`.
    """
    known = _Hashes(hints)
    found = {name: model_identities(section, known.sha256) for name, section in config.models.items()}
    known.save()
    return found


class _Hashes:
    """SHA-256 of files by path, size, inode and time of change."""

    def __init__(self, hints: Path | None) -> None:
        # Not Path.is_dir(), which raises for what may not be looked at.
        self._path = hints / FILE if hints is not None and os.path.isdir(hints) else None  # noqa: PTH112
        self._known: dict[str, str] = {}
        self._new = False
        if self._path is not None:
            self._known = recall(self._path, dict[str, _Sum]) or {}

    def sha256(self, path: Path) -> str:
        status = path.stat()
        name = f"{path.absolute()}:{status.st_size}:{status.st_ino}:{status.st_mtime_ns}:{status.st_ctime_ns}"
        if name not in self._known:
            self._known[name] = file_sha256(path, follow=True)
            self._new = True
        return self._known[name]

    def save(self) -> None:
        if self._path is not None and self._new:
            remember(self._path, self._known)
