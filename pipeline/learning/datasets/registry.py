"""Datasets by name; a module is imported when its dataset is used."""

from __future__ import annotations

from pathlib import Path

from pipeline.config.schema import DatasetConfig
from pipeline.config.user_code import import_object
from pipeline.errors import ConfigError, unknown_name
from pipeline.learning.datasets.base import Dataset
from pipeline.learning.datasets.validate import check_dataset, make_dataset

DATASETS = {
    "addition": "pipeline.learning.datasets.addition:Addition",
    "csv": "pipeline.learning.datasets.generic:CsvFiles",
    "gsm8k": "pipeline.learning.datasets.gsm8k:GSM8K",
    "hf": "pipeline.learning.datasets.generic:HuggingFace",
    "imdb_sentiment": "pipeline.learning.datasets.imdb_sentiment:IMDBSentiment",
    "jsonl": "pipeline.learning.datasets.generic:JsonLines",
    "math": "pipeline.learning.datasets.competition_math:CompetitionMath",
    "parquet": "pipeline.learning.datasets.generic:ParquetFiles",
    "star_graph": "pipeline.learning.datasets.star_graph:StarGraph",
    "tldr": "pipeline.learning.datasets.tldr:TLDR",
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
        from pipeline.learning.datasets.prepared import PreparedDataset

        return PreparedDataset(prepared)
    return kind(config) if config.class_path is None else make_dataset(path, kind, config)
