"""IMDB: film reviews to be continued from their first words; rewards judge the mood of what is written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from pipeline.config.schema import DatasetConfig, IMDBConfig
from pipeline.errors import ConfigError, DataError
from pipeline.learning.datasets.columns import needed
from pipeline.learning.datasets.files import TABLES, TEXT
from pipeline.learning.datasets.from_files import FilesDataset

_LABELS = {"0": 0, "neg": 0, "negative": 0, "1": 1, "pos": 1, "positive": 1}
_BREAK = re.compile(r"<br\s*/?>")


class IMDBSentiment(FilesDataset):
    """Column ``label`` is 1 for a review that praises, 0 for one that does not. Reads ``aclImdb`` folders too."""

    formats: ClassVar[tuple[str, ...]] = (*TABLES, *TEXT)
    note: ClassVar[str] = "imdb_sentiment: evaluated on prompts of the official test split."

    def __init__(self, config: DatasetConfig) -> None:
        super().__init__(config)
        if not isinstance(config, IMDBConfig):
            raise ConfigError(f"dataset 'imdb_sentiment' needs IMDBConfig, not {type(config).__name__}")
        if config.prompt_words < 1:
            raise ConfigError(f"imdb_sentiment: prompt_words={config.prompt_words} must be at least 1")
        self.prompt_words = config.prompt_words

    def adapt(self, data: Mapping[str, Any], place: str) -> Mapping[str, Any] | None:
        """The first words of a review and its label; texts without one (``unsup``) are left out."""
        if "folder" in data:  # of a text file: aclImdb/train/pos/0_9.txt
            if data["folder"] not in _LABELS:
                return None
            data = {"text": data["text"], "label": data["folder"]}
        text, label = needed(data, place, "text", "label")
        if str(label).lower() not in _LABELS:
            raise DataError(f"{place}: label {label!r} is none of {', '.join(_LABELS)}.")
        words = _BREAK.sub(" ", str(text)).split()
        return {"prompt": " ".join(words[: self.prompt_words]), "label": _LABELS[str(label).lower()]}
