"""Any files in TRL's columns: one dataset for each format, and `hf` for all of them and for the hub."""

from __future__ import annotations

from typing import ClassVar

from pipeline.learning.datasets.files import CSV, JSON, PARQUET
from pipeline.learning.datasets.from_files import FilesDataset


class JsonLines(FilesDataset):
    """One object per line; a ``.json`` file may be a list of objects as well."""

    formats: ClassVar[tuple[str, ...]] = JSON
    hub: ClassVar[bool] = False


class CsvFiles(FilesDataset):
    """Comma or tab separated, with a header; every value is text."""

    formats: ClassVar[tuple[str, ...]] = CSV
    hub: ClassVar[bool] = False


class ParquetFiles(FilesDataset):
    """Parquet."""

    formats: ClassVar[tuple[str, ...]] = PARQUET
    hub: ClassVar[bool] = False


class HuggingFace(FilesDataset):
    """A hub id, or local files of any format: also what `Dataset.save_to_disk` wrote."""
