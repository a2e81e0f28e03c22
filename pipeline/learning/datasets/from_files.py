"""Base of datasets whose rows are in files or on the hub: where they are, and how a row is made of what is found.

`prepare` reads such a dataset once; chains open what it wrote.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pipeline.config.schema import DatasetConfig, FilesConfig
from pipeline.errors import ConfigError, DataError
from pipeline.learning.datasets.base import Dataset, Row
from pipeline.learning.datasets.columns import check_template, make_row, renamed
from pipeline.learning.datasets.files import TABLES, Location, locate
from pipeline.learning.datasets.readers import Record

PATHS = ("path", "validation_path", "test_path")


class FilesDataset(Dataset):
    """A subclass says in `adapt` what its columns mean.

    Attributes:
        formats: Suffixes of files that it reads.
        hub: Whether `path` may be an id of the Hugging Face hub.
    """

    prepared = True
    config_class: ClassVar[type[DatasetConfig]] = FilesConfig
    formats: ClassVar[tuple[str, ...]] = TABLES
    hub: ClassVar[bool] = True

    def __init__(self, config: DatasetConfig) -> None:
        super().__init__(config)
        if not isinstance(config, FilesConfig):
            raise ConfigError(f"dataset '{config.kind}' needs FilesConfig, not {type(config).__name__}")
        self.source = config
        if not config.path:
            what = "a file, folder or hub id" if self.hub else "a file or folder"
            raise ConfigError(f"dataset '{config.kind}': path is missing; give {what}")
        if config.limit is not None and config.limit < 1:
            raise ConfigError(f"dataset '{config.kind}': limit={config.limit} must be at least 1, or null for all")
        check_template(config.prompt_template)

    def locations(self) -> dict[str, Location]:
        """Where the rows are, by the name of the setting: ``path``, and the others where they are set.

        Raises:
            DataError: A local file is not there, or holds nothing that can be read.
        """
        given = {name: getattr(self.source, name) for name in PATHS}
        found: dict[str, Location] = {}
        for name, path in given.items():
            if path:
                # Subset and revision belong to the main source.
                subset, revision = (self.source.subset, self.source.revision) if name == "path" else (None, None)
                found[name] = locate(path, self.formats, hub=self.hub, subset=subset, revision=revision)
        return found

    def adapt(self, data: Mapping[str, Any], place: str) -> Mapping[str, Any] | None:  # noqa: ARG002 - for subclasses
        """Turn a row's columns into TRL's and further ones for rewards; None leaves the row out.

        Args:
            data: The file's columns, renamed as the configuration says.
            place: Of the row, for messages.
        """
        return data

    def make_row(self, row_id: int, record: Record) -> Row | None:
        """A row of ours of one that was read, or None where it is left out.

        Raises:
            DataError: The row lacks what it needs.
        """
        data = renamed(record.data, self.source.columns, record.place)
        adapted = self.adapt(data, record.place)
        return None if adapted is None else make_row(row_id, adapted, record.place, self.source, data)

    def ids(self, split: str) -> NDArray[np.int64]:  # noqa: ARG002 - known only once the rows have been read
        """Refused: see `PreparedDataset`."""
        raise self._unprepared()

    def row(self, row_id: int) -> Row:  # noqa: ARG002 - likewise
        """Refused: see `PreparedDataset`."""
        raise self._unprepared()

    def _unprepared(self) -> DataError:
        where = self.source.path
        return DataError(
            f"dataset '{self.config.kind}' ({where}) is read once by `prepare`, then by PreparedDataset"
        )
