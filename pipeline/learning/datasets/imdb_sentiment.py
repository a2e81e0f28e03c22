"""IMDB: film reviews to be continued from their first words; rewards judge the mood of what is written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pipeline.config.bases import DatasetConfig
from pipeline.config.fields import BY_CONTENT, file_or_folder, number
from pipeline.errors import DataError
from pipeline.learning.datasets.columns import needed
from pipeline.learning.datasets.files import TABLES, TEXT
from pipeline.learning.datasets.from_files import FilesConfig, FilesDataset


@dataclass(kw_only=True)
class IMDBConfig(FilesConfig):
    """Film reviews (Maas et al., 2011), to be continued from their first words."""

    reward: str = "vader"
    path: str | None = file_or_folder("stanfordnlp/imdb", affects_result=False, keyed=BY_CONTENT)
    test_size: int = number(5000, at_least=1, at_most=1_000_000_000)
    prompt_words: int = number(60, at_least=1, at_most=1_000_000)
    """Words of the review that make the prompt."""


_LABELS = {"0": 0, "neg": 0, "negative": 0, "1": 1, "pos": 1, "positive": 1}
_BREAK = re.compile(r"<br\s*/?>")


class IMDBSentiment(FilesDataset):
    """Column ``label`` is 1 for a review that praises, 0 for one that does not. Reads ``aclImdb`` folders too."""

    config_class: ClassVar[type[DatasetConfig]] = IMDBConfig
    formats: ClassVar[tuple[str, ...]] = (*TABLES, *TEXT)
    note: ClassVar[str] = "imdb_sentiment: evaluated on prompts of the official test split."

    def __init__(self, config: IMDBConfig) -> None:
        super().__init__(config)
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
