"""The dataset of a configuration, one that ships or one of the user's own."""

from __future__ import annotations

from pathlib import Path

from pipeline.config.bases import DatasetConfig
from pipeline.config.shipped import DATASETS
from pipeline.config.user_code import import_object
from pipeline.errors import ConfigError, unknown_name
from pipeline.learning.datasets.base import Dataset
from pipeline.learning.datasets.validate import check_dataset, make_dataset


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
