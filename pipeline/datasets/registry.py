"""Datasets by name; a module is imported when its dataset is used."""

from __future__ import annotations

from pathlib import Path

from pipeline.config.own_code import import_object
from pipeline.config.schema import DatasetConfig
from pipeline.datasets.base import Dataset
from pipeline.datasets.contract import check_dataset, make_dataset
from pipeline.errors import ConfigError, unknown_name

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
    return kind(config) if config.class_path is None else make_dataset(path, kind, config)
