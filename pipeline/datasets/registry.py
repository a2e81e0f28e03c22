"""Datasets by name; a module is imported when its dataset is used."""

from __future__ import annotations

from pathlib import Path

from pipeline.config.own_code import import_object, place_of
from pipeline.config.schema import DatasetConfig
from pipeline.datasets.base import Dataset
from pipeline.errors import ConfigError, PipelineError, unknown_name

DATASETS = {
    "addition": "pipeline.datasets.addition:Addition",
    "csv": "pipeline.datasets.generic:CsvFiles",
    "gsm8k": "pipeline.datasets.gsm8k:GSM8K",
    "hf": "pipeline.datasets.generic:HuggingFace",
    "imdb_sentiment": "pipeline.datasets.imdb_sentiment:IMDBSentiment",
    "jsonl": "pipeline.datasets.generic:JsonLines",
    "math": "pipeline.datasets.competition_math:CompetitionMath",
    "parquet": "pipeline.datasets.generic:ParquetFiles",
    "star_graph": "pipeline.datasets.star_graph:StarGraph",
    "tldr": "pipeline.datasets.tldr:TLDR",
}
"""Kind -> dotted path of the class."""


def load_dataset(config: DatasetConfig, prepared: Path | None = None) -> Dataset:
    """Make the dataset of a configuration.

    Args:
        config: Of the dataset.
        prepared: What `prepare` wrote, from which the rows of a dataset that is read are taken. Without it such
            a dataset has settings, but no rows.

    Raises:
        ConfigError: The kind is unknown, `class_path` does not name a `Dataset`, or a setting is wrong.
        DataError: `prepared` holds no prepared dataset.
    """
    if config.class_path is None and config.kind not in DATASETS:
        raise ConfigError(unknown_name("dataset", config.kind, DATASETS))
    path = config.class_path or DATASETS[config.kind]
    kind = check_dataset(path, import_object(path))
    if kind.prepared and prepared is not None:
        from pipeline.datasets.prepared import PreparedDataset

        return PreparedDataset(prepared)
    return kind(config) if config.class_path is None else _made(path, kind, config)


def check_dataset(path: str, kind: object) -> type[Dataset]:
    """Check what a dotted path has led to.

    Raises:
        ConfigError: It is no dataset, or lacks a method.
    """
    if not (isinstance(kind, type) and issubclass(kind, Dataset)):
        raise ConfigError(
            f"'{path}' is no dataset: it must be a subclass of pipeline.datasets.base.Dataset, or of "
            "pipeline.datasets.from_files.FilesDataset for rows that are read"
        )
    lacks = [name for name in dir(kind) if getattr(getattr(kind, name, None), "__isabstractmethod__", False)]
    if lacks:
        raise ConfigError(f"{path}: it must define {', '.join(f'{name}()' for name in lacks)}")
    return kind


def _made(path: str, kind: type[Dataset], config: DatasetConfig) -> Dataset:
    """A dataset of the user's own, whose constructor may fail in any way.

    Raises:
        ConfigError: It failed, or dealt no rows.
    """
    try:
        dataset = kind(config)
    except PipelineError:
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        raise ConfigError(f"{path} cannot be made of its settings: {place_of(error)}{said}") from error
    if not (kind.prepared or _has_rows(dataset)):
        raise ConfigError(
            f"{path}: its __init__ must call super().__init__(config), then self.split_ids(name, number_of_rows)"
        )
    return dataset


def _has_rows(dataset: Dataset) -> bool:
    try:
        return len(dataset.ids("train")) > 0
    except (AttributeError, ConfigError):  # the base's __init__ was not called, or no rows were dealt
        return False
