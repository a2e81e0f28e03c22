"""Datasets by name; a module is imported when its dataset is used."""

from __future__ import annotations

from pipeline.config.load import import_object
from pipeline.config.schema import DatasetConfig
from pipeline.datasets.base import Dataset
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


def load_dataset(config: DatasetConfig) -> Dataset:
    """Make the dataset of a configuration.

    Raises:
        ConfigError: The kind is unknown, or `class_path` does not name a `Dataset`.
    """
    if config.class_path is None and config.kind not in DATASETS:
        raise ConfigError(unknown_name("dataset", config.kind, DATASETS))
    path = config.class_path or DATASETS[config.kind]
    kind = import_object(path)
    if not (isinstance(kind, type) and issubclass(kind, Dataset)):
        raise ConfigError(f"'{path}' is no dataset: it must be a subclass of pipeline.datasets.base.Dataset")
    return kind(config)
